"""The results table, made from the records that `arcaps reproduce` leaves: no number in it is typed by hand."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from arcaps.errors import ArcapsError
from arcaps.storage import write_whole
from arcaps.training.reproduce import ROWS, Row

START, END = "<!-- results: made by arcaps reproduce --page -->", "<!-- end of results -->"
"""What stands before and after the table in a page."""
MAIN_START = "<!-- main results: made by arcaps reproduce --page -->"
"""What stands before the table in a page that shows the main rows alone."""
DATA = ("MNIST", "MNIST+", "affNIST (regenerated)", "CIFAR-10", "CIFAR-10+")
"""The data sets with which the titles of the rows begin, in the order of the table."""

Record = dict[str, Any]


def read_records(folder: Path) -> dict[str, list[Record]]:
    """Read the records of a folder, by the name of their row, in the order of their seeds."""
    records = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        records[record["row"]].append(record)
    return records


def results_table(records: dict[str, list[Record]], *, main: bool = False) -> str:
    """Build the Markdown table: what the paper reports, what we measured, at what cost, by which command.

    With `main`, only the main rows, without ensembles and test-time shifts.
    """
    lines = [
        "| experiment | paper | test accuracy | parameters | epochs | s per epoch | `arcaps reproduce --only` |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in sorted(ROWS, key=lambda row: DATA.index(row.title.split(",")[0])):
        found = records.get(row.name, [])
        runs = [record for record in found if "runs" not in record]
        if runs and not (main and row.variation):
            lines.append(table_line(row, runs))
        if runs and not main:
            lines += [line for record in found if "runs" in record for line in combined_lines(row, record)]
    return "\n".join(lines)


def table_line(row: Row, records: list[Record]) -> str:
    """One line of the table, over all seeds of its row."""
    paper = "" if row.paper is None else f"{row.paper:.2%}"
    first = records[0]
    epochs = max(record["epochs"] for record in records)
    seconds = min(record["seconds"] / record["epochs"] for record in records)
    cells = [
        row.title,
        paper,
        accuracy(records),
        f"{first['parameters']:,}",
        epochs,
        f"{seconds:,.0f}",
        f"`{row.name}`",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def combined_lines(row: Row, record: Record) -> list[str]:
    """Lines for the same models with test-time shifts, and together as an ensemble."""
    count = len(record["runs"])
    tests = {
        "with test-time shifts": record["shifts"],
        f"ensemble of {count}": [record["ensemble"]] if count > 1 else [],
        f"ensemble of {count} with test-time shifts": [record["ensemble_with_shifts"]] if count > 1 else [],
    }
    return [
        f"| {row.title}, {what} |  | {over_seeds(found)} |  |  |  | `{row.name}` |"
        for what, found in tests.items()
        if found
    ]


def over_seeds(tests: list[Record]) -> str:
    """The accuracy of one test with its interval, or of several with their standard deviation."""
    values = [test["accuracy"] for test in tests]
    if len(values) == 1:
        low, high = tests[0]["interval_95"]
        return f"**{values[0]:.2%}** (n = 1; 95 % interval {low:.2%} to {high:.2%})"
    return f"**{mean(values):.2%}** ± {stdev(values):.2%} (n = {len(values)})"


def accuracy(records: list[Record]) -> str:
    """The test accuracy over the finished seeds, or how far the training has come."""
    finished = [record for record in records if record["result"] is not None]
    if not finished:
        record = records[0]
        best = 1 - min(record["curves"]["validation_error"])
        return f"not finished: validation {best:.2%} after {record['epochs']} of {record['recipe']['epochs']} epochs"
    text = over_seeds([record["result"]["test"] for record in finished])
    others = [record["result"].get("chosen_as_in_the_paper") for record in finished]
    chosen = [other["test"]["accuracy"] for other in others if other]
    return f"{text}; epoch chosen as in the paper: {mean(chosen):.2%}" if chosen else text


def fill_results(page: Path, records: Path) -> None:
    """Put the table of these records between the marks of a page; which of the two tables, its mark says."""
    main = MAIN_START in page.read_text()
    fill_page(page, results_table(read_records(records), main=main), start=MAIN_START if main else START)


def fill_page(page: Path, table: str, *, start: str = START, end: str = END) -> None:
    """Put the table between the marks of a page."""
    text = page.read_text()
    if start not in text or end not in text:
        raise ArcapsError(f"{page} has no place for the results: put '{start}' and '{end}' where the table belongs")
    before, rest = text.split(start, 1)
    after = rest.split(end, 1)[1]
    write_whole(page, f"{before}{start}\n{table}\n{end}{after}".encode())
