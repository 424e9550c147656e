"""`arcaps serve`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from arcaps.cli.options import Flag
from arcaps.errors import ArcapsError
from arcaps.serve.limits import Limits

if TYPE_CHECKING:
    from arcaps.export import Exported

Precision = Literal["float32", "float16", "int8"]


def serve(
    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    threads: int = 1,
    precision: Precision = "float32",
    limits: tyro.conf.OmitArgPrefixes[Limits] = Limits(),  # noqa: B008 (it is frozen)
    form: Flag = False,
    data: str = "",
    data_dir: str = "",
) -> None:
    """Answer HTTP requests with a run's model: its page at /, predictions at /predict.

    To try it: curl -F image=@digit.png http://127.0.0.1:8000/predict

    Args:
        run: A run folder, a .safetensors file, an .onnx file of 'arcaps export', or the name of a pretrained model.
        host: The address to listen on; 0.0.0.0 is reached from other machines too.
        port: The port to listen on; 0 takes a free one.
        threads: Threads of the model.
        precision: float32 is exact, int8 is faster; int8 is calibrated on training images. An .onnx file has its own.
        limits: What is accepted.
        form: Show a plain form at / instead of the page, as for an .onnx file: it starts faster.
        data: The data set for int8 and for the page's examples; by default what the run was trained on.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    import signal

    from arcaps.serve.app import create_app
    from arcaps.serve.server import listen, url
    from arcaps.serve.server import run as run_server

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    try:
        with listen(host, port) as listening:
            exported = open_exported(run, precision, threads, data or None, data_dir or None)
            page = None if form else make_page(run, data or None, data_dir or None)
            app = create_app(exported, page=page, limits=limits)
            print(f"{exported}\n{url(listening)}  (Ctrl-C stops it)", flush=True)
            run_server(app, listening, limits=limits)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def make_page(run: str, data: str | None, data_dir: str | None) -> "dict[str, bytes] | None":
    """The files of the model's page; None for an exported file. Without its data, the page has no examples."""
    from arcaps.page import page_files, page_options
    from arcaps.progress import wait
    from arcaps.training.inference import open_model

    path = Path(run)
    if path.suffix == ".onnx":
        return None
    model = open_model(path)
    try:
        options = page_options(path, model, data=data, data_dir=data_dir)
    except (ArcapsError, OSError):
        options = {}
    with wait("making the page"):
        return page_files(model, **options)


def open_exported(run: str, precision: Precision, threads: int, data: str | None, data_dir: str | None) -> "Exported":
    """The model that was asked for, ready to answer; a model that is not exported yet is exported in memory."""
    import tempfile

    from arcaps.export import Exported, export_onnx
    from arcaps.progress import wait
    from arcaps.training.inference import calibration_images, open_model

    if threads < 1:
        raise ArcapsError(f"threads is {threads}: give 1 or more")
    path = Path(run)
    if path.suffix == ".onnx":
        return Exported.open(path, threads=threads)
    model = open_model(path)
    calibration = calibration_images(path, model, data, data_dir) if precision == "int8" else None
    with tempfile.TemporaryDirectory() as folder, wait("exporting, and checking the file against the model"):
        file = Path(folder, "model.onnx")
        export_onnx(model, file, precision=precision, calibration=calibration)
        return Exported.from_bytes(file.read_bytes(), run, threads=threads)
