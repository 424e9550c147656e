"""Figures of a training: learning curves, confusion matrix, images."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from arcaps.figures.base import BLUE, PALETTE, Images, clean, picture, short, styled


@styled
def learning_curves(metrics: Sequence[Mapping[str, Any]], chosen: int) -> Figure:
    """Training loss and validation error by epoch; a dotted line marks the epoch of the kept model."""
    figure = Figure(figsize=(9, 3.4))
    left, right = figure.subplots(1, 2)
    epochs = [line["epoch"] for line in metrics]
    parts: dict[str, list[float]] = {}
    for line in metrics:
        for name in line["losses"]:
            parts.setdefault(name, [one["losses"].get(name, np.nan) for one in metrics])
    for number, (name, values) in enumerate(parts.items()):
        left.plot(epochs, values, color=PALETTE[number % len(PALETTE)], label=name.replace("_", " "), marker=".")
    left.set(title="Training loss", xlabel="epoch", ylabel="loss (weighted parts)")
    left.legend(fontsize=8)
    errors = [100 * line["validation_error"] for line in metrics]
    right.plot(epochs, errors, color=BLUE, marker=".")
    right.axvline(chosen, color="grey", linestyle=":", label=f"kept model: epoch {chosen}")
    right.set(title="Validation error", xlabel="epoch", ylabel="validation error, %")
    right.legend(fontsize=8)
    choose_scale(left, [value for values in parts.values() for value in values])
    choose_scale(right, errors)
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlim(min(epochs) - 0.5, max(epochs) + 0.5)
        axes.grid(axis="y", color="0.9")
        axes.set_axisbelow(True)
    clean(left, right)
    figure.tight_layout()
    return figure


def choose_scale(axes: Axes, values: Sequence[float]) -> None:
    """Use a logarithmic axis where the values are positive and their range is more than tenfold, else a linear one."""
    finite = np.array([value for value in values if np.isfinite(value)])
    if len(finite) and finite.min() > 0 and finite.max() > 10 * finite.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(finite.min() / 1.3, finite.max() * 1.3)
    else:
        axes.set_ylim(0, 1.08 * finite.max() if len(finite) and finite.max() > 0 else 1)


@styled
def confusion_matrix(
    confusion: Int[Images, "classes classes"] | Sequence[Sequence[int]], names: Sequence[str]
) -> Figure:
    """The confusion matrix: a row for each true class, shaded by its share of the row."""
    counts = np.asarray(confusion)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    side = max(3.6, min(0.42 * len(names), 16) + 1.6)
    figure = Figure(figsize=(side, side))
    axes = figure.subplots()
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    if len(names) <= 25:
        for row, column in np.ndindex(counts.shape):
            if counts[row, column]:
                colour = "white" if share[row, column] > 0.5 else "black"
                axes.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize=7, color=colour)
    if len(names) <= 60:
        axes.set_xticks(range(len(names)), [short(name) for name in names], rotation=90, fontsize=8)
        axes.set_yticks(range(len(names)), [short(name) for name in names], fontsize=8)
    axes.set(title="Confusion matrix", xlabel="predicted class", ylabel="true class")
    return figure


@styled
def image_grid(
    rows: Sequence[Float[Images, "count channels height width"]],
    titles: Sequence[str],
    names: Sequence[str] | None = None,
) -> Figure:
    """Rows of images; `titles` are above the columns of each block, `names` to the left of each row of a block.

    The images of one column in all rows belong together; further columns are in blocks below.
    """
    count, columns = len(rows[0]), 10
    blocks = -(-count // columns)
    figure = Figure(figsize=(columns * 0.9, blocks * (0.95 * len(rows) + 0.25)))
    grid = figure.subplots(blocks * len(rows), columns, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for number in range(count):
        block, column = divmod(number, columns)
        for place, images in enumerate(rows):
            axes = grid[block * len(rows) + place, column]
            axes.imshow(picture(images[number]), interpolation="nearest")
            if place == 0:
                axes.set_title(short(titles[number], 18), fontsize=7, pad=2)
            if names is not None and column == 0:
                axes.text(-0.15, 0.5, names[place], transform=axes.transAxes, ha="right", va="center", fontsize=7)
    figure.tight_layout(pad=0.3)
    return figure
