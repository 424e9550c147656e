"""`arcaps reproduce`."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from arcaps.cli.options import Flag, Precision


def reproduce(
    *,
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = (),
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="SEED ...")] = (),
    status: Flag = False,
    page: Flag = False,
    folder: Path = Path("runs/reproduce"),
    records: Path = Path("docs/records/results"),
    pages: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")] = (
        Path("docs/results.md"),
        Path("README.md"),
    ),
    max_minutes: float | None = None,
    precision: Precision = "auto",
    data_dir: str = "",
) -> None:
    """Train the rows of the results table, in order of priority; the same command resumes after a stop.

    What is finished is passed over. Several processes may work on one folder: each takes what no other holds.

    Args:
        only: Rows by name; by default all.
        seeds: Seeds of these rows; by default those of the list.
        status: List what is done, and the estimated time of the rest; train nothing.
        page: Build the results table in the pages from the records; train nothing.
        folder: The folder of the runs.
        records: Where each run leaves its record, a small JSON file.
        pages: The pages that show the table.
        max_minutes: Stop after this number of minutes, with everything saved; the same command resumes.
        precision: auto is bfloat16 on GPUs that compute in it, else float32; of runs that begin now.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.training import Stopped
    from arcaps.training.reproduce import reproduce as start

    if status:
        print_status(only, seeds, folder, records)
    elif page:
        from arcaps.reports.results import fill_results

        for path in pages:
            fill_results(path, records)
            print(f"written: {path}")
    else:
        try:
            start(
                only,
                seeds=seeds,
                folder=folder,
                records=records,
                max_minutes=max_minutes,
                precision=precision,
                data_dir=data_dir or None,
            )
        except Stopped as stop:
            print(f"{stop}; everything is saved: run the same command again to resume")
            sys.exit(stop.code)


def print_status(only: tuple[str, ...], seeds: tuple[int, ...], folder: Path, records: Path) -> None:
    """Print a line for each run: its status, its epochs, its result, and the time that is left where it is known."""
    from arcaps.training.reproduce import choose_rows, queue, remaining_seconds

    rest = []
    for row, job in queue(choose_rows(only), seeds):
        run = job.run(folder)
        rest.append(remaining_seconds(row, job, folder, records))
        accuracy = "" if run.result is None else f"{run.result.test['accuracy']:.2%}"
        known = f"{rest[-1] / 60:.0f} min left" if rest[-1] else ""
        print(f"{job.name:26} {job.state(folder):9} {len(run.metrics):3} epochs  {accuracy:7} {known:14} {row.title}")
    unknown = rest.count(None)
    runs = f"{unknown} run{'' if unknown == 1 else 's'} without an estimate"
    if rest and unknown == len(rest):
        print(f"{runs}: there are no records of these rows in {records}")
        return
    more = f", and {runs}" if unknown else ""
    print(
        f"about {sum(filter(None, rest)) / 3600:.1f} hours left{more}; runs that have not begun: by the rows' records"
    )
