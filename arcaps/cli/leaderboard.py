"""`arcaps leaderboard`."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from arcaps.cli.options import Flag, Precision


def leaderboard(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...]")] = (),
    *,
    equal_time: Flag = False,
    page: Flag = False,
    folder: Path = Path("runs/leaderboard"),
    records: Path = Path("docs/records/leaderboard"),
    pages: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")] = (Path("docs/routings.md"),),
    max_minutes: float | None = None,
    precision: Precision = "auto",
    data_dir: str = "",
) -> None:
    """Train the leaderboards of routings; the same command resumes after a stop.

    Every row has the same trials on validation images, then three seeds. What is finished is passed over. Several
    processes may work on one folder: each takes what no other holds.

    Args:
        names: mnist-2000, affnist-10000, cifar10-small; by default all, in this order.
        equal_time: Train the rows again, each with as many epochs as take the time that attention takes for its own: a
            second table, from the times and settings in the records of the first.
        page: Build the tables in the pages from the records; train nothing.
        folder: The folder of the runs.
        records: Where the records go, small JSON files.
        pages: The pages that show the tables.
        max_minutes: Stop after this number of minutes, with everything saved; the same command resumes.
        precision: auto is bfloat16 on GPUs that compute in it, else float32; of runs that begin now.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.reports.compare import fill_leaderboard, write_comparison
    from arcaps.training import Stopped
    from arcaps.training.compare import EQUAL_TIME
    from arcaps.training.leaderboard import choose_leaderboards, make_leaderboard

    boards = choose_leaderboards(names)
    if page:
        for path in pages:
            fill_leaderboard(path, records)
            print(f"written: {path}")
        return
    failures: list[str] = []
    try:
        for board in boards:
            failures += make_leaderboard(
                board,
                folder=folder,
                records=records,
                equal_time=equal_time,
                max_minutes=max_minutes,
                precision=precision,
                data_dir=data_dir or None,
            )
            place = folder / board.name
            print(write_comparison(place / EQUAL_TIME if equal_time else place).read_text())
    except Stopped as stop:
        print(f"{stop}; everything is saved: run the same command again to resume")
        sys.exit(stop.code)
    if failures:
        sys.exit(1)
