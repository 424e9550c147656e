"""The figure of `arcaps compare`."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from arcaps.figures.base import BLUE, ORANGE, add_caption, clean, styled


@styled
def comparison_chart(rows: Sequence[Mapping[str, Any]], caption: str) -> Figure:
    """Points: the test accuracy of each row against the time of its training step; bars are one standard deviation.

    A row is a dictionary with `title`, `step_ms`, `accuracy`, `deviation` and `control`.
    """
    figure = Figure(figsize=(8, 5))
    axes = figure.subplots()
    for row in rows:
        colour = ORANGE if row["control"] else BLUE
        percent = 100 * row["accuracy"]
        axes.errorbar(row["step_ms"], percent, 100 * row["deviation"], fmt="o", color=colour, capsize=2, markersize=5)
        axes.annotate(f" {row['title']}", (row["step_ms"], percent), fontsize=7, va="bottom")
    axes.set_xscale("log")
    axes.set(xlabel="milliseconds per training step", ylabel="test accuracy, %")
    axes.margins(x=0.15, y=0.1)
    clean(axes)
    figure.tight_layout()
    add_caption(figure, caption)
    return figure
