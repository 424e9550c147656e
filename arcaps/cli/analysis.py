"""`arcaps analyze`."""

import json as jsonlib
import re
from pathlib import Path
from typing import Annotated

import tyro

from arcaps.cli.options import Flag

PACKAGE = Path(__file__).parent.parent / "analysis"


def experiment_help() -> dict[str, str]:
    """The name of each experiment and the first line of its docstring, read from the source, without torch."""
    found: dict[str, str] = {}
    for file in sorted(PACKAGE.glob("*.py")):
        pattern = r'^class \w+\(Experiment, name="(\w+)"\):\n    """(.+?)(?:"""|\n)'
        found.update(re.findall(pattern, file.read_text(encoding="utf-8"), re.MULTILINE))
    return dict(sorted(found.items()))


EXPERIMENTS = "all, or any of:\n\n" + "\n\n".join(f"{name}: {about}" for name, about in experiment_help().items())


def analyze(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    experiments: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT ...", help=EXPERIMENTS)
    ] = ("all",),
    *,
    data: str = "",
    others: Annotated[tuple[Path, ...], tyro.conf.arg(name="with", metavar="RUN ...")] = (),
    count: int | None = None,
    classes: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = (),
    dims: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT ...")] = (),
    layers: bool = True,
    skip_broken: Flag = False,
    invert: Flag = False,
    json: Flag = False,
    data_dir: str = "",
) -> None:
    """Run experiments on a trained model: records (JSON), figures, and a section each in the report of the run.

    Args:
        run: A run folder.
        experiments: All experiments, or some by name.
        data: The name of a data set, or a folder of images; by default the test images of the run.
        others: Further runs, or .safetensors files, to compare with in align, pose and robustness.
        count: The number of test images; by default all, in robustness 2,000 and in attention 1,000.
        classes: Classes for perturb, by name; by default the first ten that have images.
        dims: Dimensions for perturb; by default all.
        layers: Whether pose also reads from every layer.
        skip_broken: Leave out files of your own that cannot be read.
        invert: Turn black into white and white into black in --data, for images that are not as those of the training.
        json: Print the records as JSON.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.analysis import Settings
    from arcaps.errors import ArcapsError
    from arcaps.reports.analysis import analyze_run, report_file

    if count is not None and count < 1:
        raise ArcapsError(f"count is {count}: give at least 1")
    records = analyze_run(
        run,
        experiments,
        data=data or None,
        others=others,
        skip_broken=skip_broken,
        invert=invert,
        data_dir=data_dir or None,
        settings=Settings(count, classes or None, dims or None, layers),
    )
    if json:
        print(jsonlib.dumps(records, indent=1))
        return
    for name in records:
        print(f"{name}: {run / 'analysis' / name}.json, .png, .svg")
    if records:
        print(f"report: {report_file(run)}")
