"""`arcaps compare`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from arcaps.cli.options import ArchitectureFlags, AugmentationFlags, Flag, Precision, RecipeFlags


def compare(
    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")],
    *,
    rows: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ROW ...")] = (),
    seeds: int | None = None,
    tune: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE,VALUE ...")] = (),
    settings: tyro.conf.OmitArgPrefixes[RecipeFlags],
    augmentation: tyro.conf.OmitArgPrefixes[AugmentationFlags],
    architecture: tyro.conf.OmitArgPrefixes[ArchitectureFlags],
    folder: str = "",
    equal_time: Flag = False,
    page: Flag = False,
    max_minutes: float | None = None,
    precision: Precision = "auto",
    data_dir: str = "",
) -> None:
    """Train one recipe with many routings, at the same seeds; write a table and a figure of accuracy and cost.

    What is finished is passed over, so the same command resumes after a stop, and rows and seeds can be added.

    Args:
        recipe: A recipe: 'arcaps recipes' lists them.
        rows: Routings, or models, with options: uniform "dynamic(iterations=1)" dense_head. By default all routings
            and the controls. The row attention is always there.
        seeds: Trainings of each row; by default 3.
        tune: Settings that each row gets by its own trials, one for each value, on validation images with the first
            seed: learning_rate=1e-3,3e-3. The test images are used once, after the choice.
        settings: The same for all rows.
        augmentation: The same for all rows.
        architecture: The same for all rows that have it.
        folder: The folder of the runs and records; by default runs/compare-RECIPE.
        equal_time: Train the rows of the comparison in the folder again, each with as many epochs as take the time
            that attention takes for its own: a second table. Rows, seeds and settings are those of the
            comparison: leave them out.
        page: Make the table and the figure from the records; train nothing.
        max_minutes: Stop after this number of minutes, with everything saved; the same command resumes.
        precision: auto is bfloat16 on GPUs that compute in it, else float32; of runs that begin now.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.errors import ArcapsError
    from arcaps.reports.compare import write_comparison
    from arcaps.routing import list_routings
    from arcaps.training import Stopped
    from arcaps.training.compare import CONTROLS, EQUAL_TIME, compare_at_equal_time
    from arcaps.training.compare import compare as start
    from arcaps.training.sweep import read_grid

    place = Path(folder or f"runs/compare-{recipe}")
    common: dict[str, Any] = {**settings, **augmentation, **architecture}
    if seeds is not None:
        common["seeds"] = seeds
    if equal_time and (rows or tune or common):
        raise ArcapsError(f"--equal-time takes rows, seeds and settings from the comparison in {place}: leave them out")
    code = 0
    if not page:
        chosen = rows or (*[name for name in list_routings() if name not in CONTROLS], *CONTROLS)
        options: dict[str, Any] = {
            "max_minutes": max_minutes,
            "session": {"precision": precision, "data_dir": data_dir or None},
        }
        try:
            if equal_time:
                failures = compare_at_equal_time(place, folder=place / EQUAL_TIME, **options)
            else:
                failures = start(recipe, chosen, folder=place, tune=read_grid(tune), **options, **common)
            code = 1 if failures else 0
        except Stopped as stop:
            print(f"{stop}; everything is saved: run the same command again to resume")
            code = stop.code
    path = write_comparison(place)
    print(path.read_text())
    print(f"written: {path}")
    sys.exit(code)
