"""`arcaps analyze`."""

import json as jsonlib
from pathlib import Path
from typing import Annotated

import tyro

from arcaps.cli.options import Flag, report


def analyze(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    experiments: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT ...")] = ("all",),
    *,
    data: str = "",
    others: Annotated[tuple[Path, ...], tyro.conf.arg(name="with", metavar="RUN ...")] = (),
    count: int = 0,
    classes: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = (),
    dims: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT ...")] = (),
    json: Flag = False,
    data_dir: str = "",
) -> None:
    """See what a run's capsules know: numbers, figures, and a section in the run's report.

    perturb: what the decoder draws as one dimension moves. align: whether a capsule moves along one line. cosine:
    whether + is told from -. pose: whether the transformation can be read off. robustness: accuracy under growing
    changes. attention: which input is listened to.

    Args:
        run: A run folder.
        experiments: perturb, align, cosine, pose, robustness, attention, or all.
        data: A data set's name, or a folder of images; by default what the run was tested on.
        others: Further runs, or .safetensors files, to compare with in pose and robustness.
        count: Use so many test images; by default all, in robustness 2,000 and in attention 1,000.
        classes: Classes for perturb, by name; by default the first ten.
        dims: Dimensions for perturb; by default all.
        json: Print the numbers as JSON.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.analysis.laboratory import analyze_run
    from arcaps.errors import ArcapsError

    if count < 0:
        raise ArcapsError(f"count is {count}: give at least 1")
    results = analyze_run(
        run,
        experiments,
        data=data or None,
        others=others,
        count=count or None,
        classes=classes or None,
        dims=dims or None,
        data_dir=data_dir or None,
        report=report,
    )
    if json:
        print(jsonlib.dumps(results, indent=1))
        return
    for name in results:
        print(f"{name}: {run / 'analysis' / name}.json, .png, .svg")
    if results:
        print(f"report: {run / ('report.md' if (run / 'report.md').exists() else 'analysis.md')}")
