"""`arcaps page`."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from arcaps.cli.options import Flag, check_output, named_after


def page(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    *,
    to: Path | None = None,
    folder: Path | None = None,
    precision: Literal["float16", "float32"] = "float16",
    data: str = "",
    open: Flag = False,
    data_dir: str = "",
) -> None:
    """Write a page with a run's own model: draw, turn, drag, and see its capsules move.

    It is one HTML file that opens by double click, without a server and without a network connection.

    Args:
        run: A run folder, a .safetensors file, or the name of a pretrained model: digits or mnist.
        to: The file to write; by default named after the model, such as digits.html.
        folder: Write a folder for a static web host instead of one file.
        precision: float16 weights make the page smaller; float32 answers exactly as the model.
        data: Examples come from this data set's test images; by default from what the run was tested on.
        open: Open the page in the browser.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.page import build_folder, build_page, page_options
    from arcaps.progress import wait
    from arcaps.training.inference import open_model

    to = to or named_after(run, ".html")
    check_output("--to", to if folder is None else None)
    check_output("--folder", folder, folder=True)
    model = open_model(run)
    options = page_options(run, model, data=data or None, data_dir=data_dir or None)
    if folder is not None:
        with wait("writing the page"):
            build_folder(model, folder, precision=precision, **options)
        print(f"{folder}: a folder for any static web host; try it with: python -m http.server -d {folder}")
        return
    with wait("writing the page"):
        build_page(model, to, precision=precision, **options)
    print(f"{to}: {to.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if open:
        import webbrowser

        webbrowser.open(to.resolve().as_uri())
