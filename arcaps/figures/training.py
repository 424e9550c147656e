"""Figures of a training: how it went, what was mistaken, what the decoder draws."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from arcaps.figures.base import BLUE, GREEN, ORANGE, picture


def learning_curves(metrics: list[dict[str, Any]], chosen: int) -> Figure:
    """Loss parts and validation error, epoch by epoch, with the epoch that was kept."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    epochs = [line["epoch"] for line in metrics]
    for name, colour in zip(metrics[0]["losses"], (BLUE, ORANGE, GREEN), strict=False):
        left.plot(
            epochs, [line["losses"][name] for line in metrics], color=colour, label=name.replace("_", " "), marker="."
        )
    left.set(xlabel="epoch", ylabel="training loss, weighted", yscale="log")
    left.legend(frameon=False)
    right.plot(epochs, [100 * line["validation_error"] for line in metrics], color=BLUE, marker=".")
    right.axvline(chosen, color="grey", linestyle=":", label=f"kept: epoch {chosen}")
    right.set(xlabel="epoch", ylabel="validation error, %", ylim=(0, None))
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.tight_layout()
    return figure


def confusion_matrix(confusion: Int[Tensor, "classes classes"], names: tuple[str, ...]) -> Figure:
    """What was taken for what: rows are the true classes, shaded by their share."""
    counts = confusion.numpy()
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    side = max(3.6, 0.42 * len(names) + 1.6)
    figure, axes = plt.subplots(figsize=(side, side))
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    if len(names) <= 25:
        for row, column in np.ndindex(counts.shape):
            if counts[row, column]:
                colour = "white" if share[row, column] > 0.5 else "black"
                axes.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize=7, color=colour)
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="taken for", ylabel="is")
    return figure


def image_grid(
    rows: list[Float[Tensor, "count channels height width"]], titles: list[str], names: list[str] | None = None
) -> Figure:
    """Rows of images; `titles` stand above the columns of each block, `names` to the left of each row of a block.

    The images of one column in all rows belong together; columns go on in further blocks below.
    """
    count, columns = len(rows[0]), 10
    blocks = -(-count // columns)
    figure, axes = plt.subplots(
        blocks * len(rows), columns, figsize=(columns * 0.9, blocks * (0.95 * len(rows) + 0.25)), squeeze=False
    )
    for axis in axes.flat:
        axis.axis("off")
    for number in range(count):
        block, column = divmod(number, columns)
        for place, images in enumerate(rows):
            axis = axes[block * len(rows) + place, column]
            axis.imshow(picture(images[number]), interpolation="nearest")
            if place == 0:
                axis.set_title(titles[number], fontsize=7, pad=2)
            if names is not None and column == 0:
                axis.text(-0.15, 0.5, names[place], transform=axis.transAxes, ha="right", va="center", fontsize=7)
    figure.tight_layout(pad=0.3)
    return figure
