"""`arcaps export`."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from arcaps.cli.options import check_output, named_after
from arcaps.errors import ArcapsError


def export(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    *,
    to: Path | None = None,
    precision: Literal["float32", "float16", "int8"] = "float32",
    decoder: Path | None = None,
    data: str = "",
    data_dir: str = "",
) -> None:
    """Write a run's model to one ONNX file, checked against the model.

    Use it with 'arcaps predict FILE.onnx image.png', or with any ONNX runtime: the input 'images' is (batch, channels,
    height, width), the outputs are scores, capsules, reconstruction and coefficients, as far as the model has them.

    Args:
        run: A run folder, a .safetensors file, or the name of a pretrained model: digits or mnist.
        to: The file to write; by default named after the model, such as digits.onnx.
        precision: float16 halves the file, int8 makes it a quarter and faster; int8 is calibrated on training images.
        decoder: Also write the decoder alone to this file.
        data: The data set for int8; by default what the run was trained on.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.export import export_decoder, export_onnx
    from arcaps.progress import wait
    from arcaps.training.inference import calibration_images, open_model

    to = to or named_after(run, ".onnx")
    if to.suffix.lower() != ".onnx":
        raise ArcapsError(f"--to is {to}: give a name that ends in .onnx, by which other commands know the file")
    check_output("--to", to)
    check_output("--decoder", decoder)
    model = open_model(run)
    calibration = None
    if precision == "int8":
        calibration = calibration_images(run, model, data or None, data_dir or None)
    with wait("exporting, and checking the file against the model"):
        exported = export_onnx(model, to, precision=precision, calibration=calibration)
    print(f"{to}: {to.stat().st_size / 1e6:.1f} MB, {precision}; outputs {', '.join(exported.outputs)}")
    if decoder is not None:
        with wait("exporting the decoder"):
            export_decoder(model, decoder, precision="float32" if precision == "float32" else "float16")
        print(f"{decoder}: {decoder.stat().st_size / 1e6:.1f} MB")
    print(f"next: arcaps predict {to} image.png")
