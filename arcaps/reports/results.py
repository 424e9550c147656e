"""The results tables, made from the records that `arcaps reproduce` leaves: no number in them is typed by hand."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from arcaps.errors import ArcapsError
from arcaps.storage import read_json, write_whole
from arcaps.training.reproduce import ROWS, Row

START, END = "<!-- results: made by arcaps reproduce --page -->", "<!-- end of results -->"
"""What is before and after the table in a page."""
MAIN_START = "<!-- main results: made by arcaps reproduce --page -->"
"""What is before the table in a page that shows the main rows alone."""
TARGETS_START = "<!-- targets: made by arcaps reproduce --page -->"
"""What is before the table of what was to be reached."""
DATA = ("MNIST", "MNIST+", "affNIST (regenerated)", "CIFAR-10", "CIFAR-10+")
"""The data sets with which the titles of the rows begin, in the order of the table."""

Record = dict[str, Any]


def read_records(folder: Path) -> dict[str, list[Record]]:
    """Read the records of a folder, by the name of their row, in the order of their seeds."""
    records = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        record = read_json(path)
        records[record["row"]].append(record)
    return records


def results_table(records: dict[str, list[Record]], *, main: bool = False) -> str:
    """Build the Markdown table: what the paper reports, what we measured, at what cost, by which command.

    With `main`, only the main rows, without ensembles and test-time shifts.
    """
    columns = ("experiment", "paper", "test accuracy", "parameters", "epochs", "precision", "s per epoch")
    lines = [f"| {' | '.join(columns)} | `arcaps reproduce --only` |", "|---|---:|---:|---:|---:|---|---:|---|"]
    for row in in_order(ROWS):
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
        ", ".join(sorted({record["settings"]["precision"] for record in records})),
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
        f"| {row.title}, {what} |  | {over_seeds(found)} |  |  |  |  | `{row.name}` |"
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


def targets_table(records: dict[str, list[Record]]) -> str:
    """Build the Markdown table of the rows that were to reach an accuracy, and whether they do."""
    lines = ["| experiment | target | test accuracy | |", "|---|---:|---:|---|"]
    for row in in_order(ROWS):
        if row.target is None:
            continue
        results = [record["result"] for record in records.get(row.name, []) if record.get("result")]
        tests = [result["test"] for result in results]
        if tests:
            verdict = "reached" if mean(test["accuracy"] for test in tests) >= row.target else "not reached"
            lines.append(f"| {row.title} | {row.target:.2%} | {over_seeds(tests)} | {verdict} |")
        else:
            lines.append(f"| {row.title} | {row.target:.2%} |  | not trained |")
    return "\n".join(lines)


def in_order(rows: Iterable[Row]) -> list[Row]:
    """The rows by data set, in the order of the table."""
    return sorted(rows, key=lambda row: DATA.index(row.title.split(",")[0]))


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


def fill_results(page: Path, folder: Path) -> None:
    """Put the tables of the records in a folder between the marks of a page; which tables, its marks say."""
    text, records = page.read_text(), read_records(folder)
    tables = {
        START: results_table(records),
        MAIN_START: results_table(records, main=True),
        TARGETS_START: targets_table(records),
    }
    for start in [mark for mark in tables if mark in text] or [START]:
        fill_page(page, tables[start], start=start)


def fill_page(page: Path, table: str, *, start: str = START, end: str = END) -> None:
    """Put the table between the marks of a page."""
    text = page.read_text()
    if start not in text or end not in text:
        raise ArcapsError(f"{page} has no place for the results: put '{start}' and '{end}' where the table belongs")
    before, rest = text.split(start, 1)
    after = rest.split(end, 1)[1]
    write_whole(page, f"{before}{start}\n{table}\n{end}{after}".encode())
