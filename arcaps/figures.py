"""Figures: the only place that imports matplotlib."""

from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor

matplotlib.use("Agg")
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # told apart by every eye (Okabe and Ito)


def save(figure: Figure, path: Path) -> Path:
    """Write a figure and forget it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return path


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


def picture(image: Float[Tensor, "channels height width"]) -> Any:
    """An image as matplotlib wants it: (height, width, 3) in 0..1."""
    return image.clamp(0, 1).expand(3, -1, -1).permute(1, 2, 0).numpy()


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


def bench_chart(rows: list[dict[str, Any]], caption: str) -> Figure:
    """Bars: each model's training step and forward pass as a multiple of its floor, one panel per number format."""
    precisions = list(dict.fromkeys(row["precision"] for row in rows))
    subjects = list(dict.fromkeys((row["model"], row["data"]) for row in rows))
    acts = {"training step": BLUE, "forward": ORANGE}
    figure, panels = plt.subplots(
        1, len(precisions), figsize=(1.5 + 5 * len(precisions), 1.4 + 0.55 * len(subjects)), squeeze=False, sharey=True
    )
    for axes, precision in zip(panels[0], precisions, strict=True):
        found = {(row["model"], row["data"], row["act"]): row for row in rows if row["precision"] == precision}
        for place, (act, colour) in enumerate(acts.items()):
            heights = [number + 0.36 * (place - 0.5) for number in range(len(subjects))]
            values = [found[*subject, act]["times_floor"] for subject in subjects]
            axes.barh(heights, values, height=0.34, color=colour, label=act)
            for height, value, subject in zip(heights, values, subjects, strict=True):
                text = f" {value:.2f}x, {found[*subject, act]['median_ms']:,.0f} ms"
                axes.text(value, height, text, va="center", fontsize=7)
        axes.axvline(1, color="grey", linestyle=":")
        axes.set_yticks(range(len(subjects)), [f"{model}, {data}" for model, data in subjects])
        axes.set(xlabel=f"{precision}: times the float32 floor (dotted)", xlim=(0, None))
        axes.margins(x=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].invert_yaxis()
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, ncols=2, loc="upper right", fontsize=8)
    figure.text(0.01, 0.0, caption, fontsize=7, va="top")
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    return figure
