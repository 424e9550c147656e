"""`arcaps bench`."""

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from arcaps.cli.options import Flag

if TYPE_CHECKING:
    from arcaps.benchmark import Benchmark


def bench(
    *,
    models: tuple[str, ...] = ("ar_capsnet", "capsule_net", "conv_net", "strong_conv_net"),
    data: tuple[str, ...] = ("mnist", "cifar10"),
    rounds: int = 7,
    batch_size: int = 100,
    precisions: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="PRECISION ...")] = None,
    growth: Flag = False,
    save: Path | None = None,
    json: Flag = False,
) -> None:
    """Time the models on this machine, as multiples of the matrix products that they are made of.

    Run nothing else at the same time. All models and data take about eight minutes on two cores, --growth as long
    again.

    Args:
        models: Which models to time.
        data: The sizes of images: mnist, cifar10. The pixels are random.
        rounds: How often everything is timed, for about a second each; medians and minima are over all of it.
        batch_size: Images in a training step and in a forward pass.
        precisions: float32, bfloat16, or both; by default bfloat16 only where the processor computes in it.
        growth: Also measure how AR CapsNet's time and memory grow with images, classes, layers and batch.
        save: A folder for bench.json and the bar chart bench.png.
        json: Print JSON instead of tables.
    """
    from arcaps.benchmark import bench as measure

    result = measure(
        models,
        data,
        rounds=rounds,
        batch_size=batch_size,
        precisions=precisions,
        growth=growth,
    )
    text = jsonlib.dumps(result.as_dict(), indent=2)
    if json:
        print(text)
    else:
        print_tables(result)
    if save is not None:
        from arcaps.reports.benchmark import save_benchmark

        save_benchmark(result, save)
        print(f"written: {save}/bench.json, {save}/bench.png", file=sys.stderr)


def print_tables(result: "Benchmark") -> None:
    """Print the results as tables."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    def show(title: str, headings: list[str], rows: list[list[str]], words: int) -> None:
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for number, heading in enumerate(headings):
            table.add_column(heading, justify="left" if number < words else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table)

    def gigabytes(megabytes: float | None) -> str:
        return "?" if megabytes is None else f"{megabytes / 1000:.2f}"

    def milliseconds(value: float) -> str:
        return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"

    from arcaps.reports.benchmark import caption

    console = Console()
    for where, precision in dict.fromkeys((row.data, row.precision) for row in result.timings):
        rows = [
            [
                row.model,
                row.operation,
                str(row.batch_size),
                milliseconds(row.median_ms),
                milliseconds(row.minimum_ms),
                f"{row.images_per_second:,.0f}",
                f"{row.times_floor:.2f}",
                f"{row.times_recent_floor:.2f}",
                gigabytes(row.peak_mb),
            ]
            for row in result.timings
            if (row.data, row.precision) == (where, precision)
        ]
        headings = [
            "model",
            "operation",
            "batch",
            "median\nms",
            "least\nms",
            "images/s",
            "times\nfloor",
            "times recent\nfloor",
            "peak\nGB",
        ]
        show(f"{where}, {precision}", headings, rows, 2)
    if result.ratios:
        operations = ["training step", "forward", "latency", "parameters", "multiply_adds"]
        rows = [[row["data"], row["precision"], *(f"{row[name]:.2f}" for name in operations)] for row in result.ratios]
        show(
            "CapsuleNet over AR CapsNet", ["data", "format", *(name.replace("_", "-") for name in operations)], rows, 2
        )
    if result.growth:
        rows = [
            [
                row.setting,
                row.value,
                str(row.batch_size),
                f"{row.million_multiply_adds:,.1f}",
                f"{row.step_ms:,.0f}",
                f"{row.ms_per_image:,.1f}",
                f"{row.times_floor:.2f}",
                gigabytes(row.peak_mb),
            ]
            for row in result.growth
        ]
        headings = ["setting", "value", "batch", "million\nmult.-adds", "step\nms", "ms per\nimage", "times\nfloor"]
        title = f"how a training step of AR CapsNet grows: medians of {result.growth_steps} steps"
        show(title, [*headings, "peak\nGB"], rows, 2)
    floors = "times floor: by the best matrix products of the run; recent: by those just before each round"
    for line in [caption(result), floors, *result.notes]:
        console.print(line, highlight=False, soft_wrap=True)
