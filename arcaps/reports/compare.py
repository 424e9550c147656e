"""The table and the figure of a comparison, from its records alone."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from arcaps import figures
from arcaps.errors import ArcapsError
from arcaps.reports.results import fill_page, read_records
from arcaps.statistics import mean_interval
from arcaps.storage import read_json, write_whole
from arcaps.training.compare import BASELINE, CONTROLS, EQUAL_TIME
from arcaps.training.leaderboard import LEADERBOARDS

Record = dict[str, Any]
LEADERBOARD_START = "<!-- leaderboard: made by arcaps leaderboard --page -->"
LEADERBOARD_END = "<!-- end of leaderboard -->"
"""What is before and after the tables in a page."""


def write_comparison(folder: Path) -> Path:
    """Write `comparison.md` and `comparison.png` from the records in a folder; return the path of the first."""
    records, costs, about = read_comparison(folder)
    points = [point(name, rows, costs[name]) for name, rows in records.items() if name in costs and tests(rows)]
    title = f"# Comparison of routings: {read_json(folder / 'comparison.json')['recipe']}"
    lines = [title, "", comparison_table(records, costs), "", about, ""]
    if points:
        figures.save(figures.comparison_chart(points, about), folder / "comparison.png")
        lines += ["![Test accuracy against the time of a training step](comparison.png)", ""]
    if (folder / EQUAL_TIME / "comparison.json").exists():
        records, costs, about = read_comparison(folder / EQUAL_TIME)
        lines += ["## At equal time", "", comparison_table(records, costs), "", about, ""]
    path = folder / "comparison.md"
    write_whole(path, "\n".join(lines).encode())
    return path


def leaderboard_tables(records: Path) -> str:
    """Build the tables of all leaderboards that have records, each under its title."""
    parts = []
    for board in LEADERBOARDS:
        command = f"arcaps leaderboard {board.name}"
        for folder, title in (
            (records / board.name, f"{board.title}: `{command}`"),
            (records / board.name / EQUAL_TIME, f"{board.title}, at equal time: `{command} --equal-time`"),
        ):
            if (folder / "comparison.json").exists():
                found, costs, about = read_comparison(folder)
                parts += [f"### {title}", comparison_table(found, costs), about] if found else []
    return "\n\n".join(parts)


def fill_leaderboard(page: Path, records: Path) -> None:
    """Put the tables of the leaderboards between the marks of a page."""
    fill_page(page, leaderboard_tables(records), start=LEADERBOARD_START, end=LEADERBOARD_END)


def read_comparison(folder: Path) -> tuple[dict[str, list[Record]], dict[str, Any], str]:
    """Read a comparison: its records by row, what the rows cost, and what was held equal.

    The baseline is first; the records of a row are in the order of the seeds.
    """
    if not (folder / "comparison.json").exists():
        raise ArcapsError(f"{folder} holds no comparison: make one with arcaps compare RECIPE --folder {folder}")
    found = read_records(folder / "records")
    for rows in found.values():
        rows.sort(key=seed_of)
    records = dict(sorted(found.items(), key=lambda item: item[0] != BASELINE))
    costs = read_json(folder / "costs.json") if (folder / "costs.json").exists() else {}
    return records, costs, describe(read_json(folder / "comparison.json"), records, costs.get("machine"))


def seed_of(record: Record) -> int:
    """The seed of a run."""
    return int(record["recipe"]["seed"])


def tests(rows: Sequence[Record]) -> dict[int, float]:
    """The test accuracy of each finished run, by its seed."""
    return {seed_of(one): one["result"]["test"]["accuracy"] for one in rows if one["result"] is not None}


def validations(rows: Sequence[Record]) -> list[float]:
    """The best validation accuracy of each finished run."""
    return [1 - min(one["curves"]["validation_error"]) for one in rows if one["result"] is not None]


def deviation(values: Sequence[float]) -> float:
    """The standard deviation; 0 for one value."""
    return stdev(values) if len(values) > 1 else 0.0


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation, in per cent."""
    if not values:
        return ""
    return f"{mean(values):.2%}" + (f" ± {stdev(values):.2%}" if len(values) > 1 else "")


def difference(one: dict[int, float], baseline: dict[int, float]) -> str:
    """The mean difference over the seeds that both have, in percentage points, with its 95 % interval."""
    pairs = [100 * (one[seed] - baseline[seed]) for seed in sorted(one.keys() & baseline.keys())]
    if not pairs:
        return ""
    interval = mean_interval(pairs)
    return f"{mean(pairs):+.2f}" + ("" if interval is None else f" ({interval[0]:+.2f} to {interval[1]:+.2f})")


def comparison_table(records: dict[str, list[Record]], costs: dict[str, Any]) -> str:
    """Build the Markdown table: accuracy, the paired difference to the baseline, and what it costs."""
    baseline = tests(records.get(BASELINE, []))
    lines = [
        f"| row | seeds | epochs | validation | test | points above {BASELINE} (95 % interval) | parameters "
        "| of the routing | million multiply-adds | ms per step | ms per image | peak MB | chosen |",
        "|---|" + "---:|" * 11 + "---|",
    ]
    for name, rows in records.items():
        test, cost = tests(rows), costs.get(name)
        cells = [
            f"`{rows[0]['title']}`",
            str(len(test)),
            str(rows[0]["epochs"]),
            spread(validations(rows)),
            spread(list(test.values())) or "not finished",
            "" if name == BASELINE else difference(test, baseline),
            f"{rows[0]['parameters']:,}",
        ]
        if cost is not None:
            cells += [
                f"{cost['routing_parameters']:,}",
                f"{cost['multiply_adds'] / 1e6:,.1f}",
                f"{cost['step_ms']:,.0f}",
                f"{cost['image_ms']:,.2f}",
                f"{cost['peak_mb']:,.0f}",
            ]
        cells += [""] * (12 - len(cells))
        lines.append(f"| {' | '.join([*cells, chosen(rows[0])])} |")
    return "\n".join(lines)


def chosen(record: Record) -> str:
    """The point of the grid that the row's trials chose; nothing where there was nothing to choose."""
    tried = record.get("trials", {})
    return min(tried, key=tried.__getitem__).removeprefix(f"{record['row']}-") if tried else ""


def point(name: str, rows: Sequence[Record], cost: dict[str, Any]) -> dict[str, Any]:
    """A row as the figure shows it."""
    values = list(tests(rows).values())
    return {
        "title": rows[0]["title"],
        "step_ms": cost["step_ms"],
        "accuracy": mean(values),
        "deviation": deviation(values),
        "control": name in CONTROLS,
    }


def describe(settings: dict[str, Any], records: dict[str, list[Record]], machine: dict[str, Any] | None) -> str:
    """What was held equal, and where it was measured."""
    common = ", ".join(f"{key} {value}" for key, value in settings["common"].items())
    seeds = sorted({seed for rows in records.values() for seed in tests(rows)})
    text = f"Recipe {settings['recipe']}{f' with {common}' if common else ''}; seeds {', '.join(map(str, seeds))}."
    text += " ± is one standard deviation over the seeds; differences are paired by seed, with Student's interval."
    text += (
        " Multiply-adds are those of matrix products in one forward pass; elementwise work shows in the times alone."
    )
    if tune := settings.get("tune"):
        values = "; ".join(f"{key} from {', '.join(map(str, found))}" for key, found in tune.items())
        text += f" Each row has its own {values}, chosen by one training each on validation images with the first seed."
    if "equal_time" in settings:
        text += (
            f" Each row has as many epochs as take the time that {BASELINE} takes for those of the recipe, by the"
            " measured time of a step; the settings are those that the trials at equal epochs chose."
        )
    text += " Peak MB are the tensors alive in a training step."
    if machine is not None:
        threads = "one thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
        text += f" Times: {machine['processor']}, {threads}, medians of interleaved steps."
    return text
