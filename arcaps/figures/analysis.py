"""Figures of the equivariance laboratory. Each says below what is seen; the caller adds data set, n and run."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from arcaps.analysis import Alignment, Attention, Cosine, Perturbation, Pose, Robustness
from arcaps.analysis.attention import LayerAttention
from arcaps.figures.base import BLUE, GREEN, MARKERS, ORANGE, PALETTE, add_caption, clean, picture


def mosaic(pictures: Float[Tensor, "rows columns channels height width"], gap: int = 1) -> Any:
    """Rows of pictures in one, with white lines between."""
    rows, columns, channels, height, width = pictures.shape
    framed = torch.ones(rows, columns, channels, height + gap, width + gap)
    framed[..., gap:, gap:] = pictures
    return picture(rearrange(framed, "rows columns c h w -> c (rows h) (columns w)"))


def draw_mosaic(
    axes: Any,
    pictures: Float[Tensor, "rows columns channels height width"],
    row_names: list[str],
    column_names: list[str],
) -> None:
    """A mosaic with a name beside each row and above each column."""
    rows, columns, _, height, width = pictures.shape
    axes.imshow(mosaic(pictures), interpolation="nearest")
    axes.set_yticks([(row + 0.5) * (height + 1) for row in range(rows)], row_names, fontsize=8)
    axes.set_xticks([(column + 0.5) * (width + 1) for column in range(columns)], column_names, fontsize=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def offset_names(offsets: Float[Tensor, " steps"]) -> list[str]:
    """What is added, as it is written above a column."""
    return [f"{offset:+.2f}" if abs(offset) > 1e-9 else "0" for offset in offsets.tolist()]


def perturb_class(found: Perturbation, row: int, about: str) -> Figure:
    """All chosen dimensions of one class, the one that changes the picture most first."""
    order = found.ranking()[row].tolist()
    columns = len(found.offsets)
    aspect = found.pictures.shape[-2] / found.pictures.shape[-1]
    figure, axes = plt.subplots(figsize=(0.62 * columns + 1.2, 0.62 * aspect * len(order) + 0.5))
    names = [f"dim {found.dims[place]} ({found.change[row, place]:.3f})" for place in order]
    draw_mosaic(axes, found.pictures[row, order], names, offset_names(found.offsets))
    add_caption(
        figure,
        f"Class {found.class_names[row]}, image {found.examples[row]}: what the decoder draws as one dimension of the "
        "class capsule moves by the number above. In brackets how much the dimension changes the picture (root mean "
        f"square of the pixels' change, mean over {found.counts[row]} images); the most first. {about}",
    )
    return figure


def perturb_overview(found: Perturbation, about: str) -> Figure:
    """For every class the image, and the dimension that changes its picture most."""
    best = found.ranking()[:, 0].tolist()
    drawn = torch.stack([found.pictures[row, place] for row, place in enumerate(best)])
    pictures = torch.cat([found.images.unsqueeze(1), drawn], dim=1)
    columns = pictures.shape[1]
    aspect = pictures.shape[-2] / pictures.shape[-1]
    figure, axes = plt.subplots(figsize=(0.62 * columns + 1.4, 0.62 * aspect * len(best) + 0.5))
    names = [f"{name}, dim {found.dims[place]}" for name, place in zip(found.class_names, best, strict=True)]
    draw_mosaic(axes, pictures, names, ["image", *offset_names(found.offsets)])
    add_caption(
        figure,
        "An image of each class, and what the decoder draws as the one dimension of its class capsule that changes the "
        f"picture most moves by the number above. {about}",
    )
    return figure


def perturb_ranking(found: Perturbation, about: str) -> Figure:
    """How much every dimension changes the picture of every class."""
    height = 0.3 * len(found.class_names) + 1.2
    figure, axes = plt.subplots(figsize=(max(5.0, 0.27 * len(found.dims) + 2.2), height))
    drawn = axes.imshow(found.change.numpy(), cmap="viridis", vmin=0, aspect="auto")
    axes.set_yticks(range(len(found.class_names)), found.class_names, fontsize=8)
    axes.set_xticks(range(len(found.dims)), [str(dim) for dim in found.dims], fontsize=7)
    axes.set(xlabel="dimension of the class capsule", ylabel="class")
    figure.colorbar(drawn, ax=axes, label="change of the picture")
    add_caption(
        figure,
        "How much each dimension changes what the decoder draws: the root mean square of the pixels' change as the "
        f"dimension moves by up to {found.offsets[-1]:.2f} either way, mean over up to {found.counts.max()} images of "
        f"each class. {about}",
    )
    return figure


def align(found: Alignment, about: str, paper: Mapping[str, tuple[float, ...]], printed: tuple[float, float]) -> Figure:
    """The alignment ratio of each transformation, by class and of all, beside the random reference."""
    figure, axes = plt.subplots(figsize=(9, 4.4))
    places = np.arange(len(found.transformations))
    reference = found.reference
    axes.axhspan(
        reference.mean - reference.deviation, reference.mean + reference.deviation, color="0.92", zorder=0, lw=0
    )
    axes.axhline(
        reference.mean, color="black", lw=1, label=f"random vectors, same protocol: {reference.mean:.3f} (grey: s.d.)"
    )
    axes.axhline(printed[0], color="black", lw=1, ls=":", label=f"random vectors, printed in the paper: {printed[0]}")
    stages = ((found.after, -0.14, BLUE, "o", "after"), (found.before, 0.14, ORANGE, "s", "before"))
    for stage, offset, colour, marker, word in stages:
        mean, deviation = (numbers.numpy() for numbers in found.table(stage))
        for row in mean[:-1]:
            axes.plot(places + offset * 1.9, row, ls="", marker="_", ms=7, color=colour, alpha=0.6)
        axes.errorbar(
            places + offset,
            mean[-1],
            deviation[-1],
            ls="",
            marker=marker,
            color=colour,
            capsize=3,
            label=f"{word} the {found.bound}: all images, bar: s.d.; dashes: classes",
        )
    axes.plot(places, paper["all"], ls="", marker="D", mfc="white", color=GREEN, label="the paper's average (MNIST)")
    axes.set_xticks(places, [name.replace("-", "\u2212") for name in found.transformations])
    axes.set(ylabel="alignment ratio", ylim=(0, 1.12), xlim=(-0.5, len(places) - 0.5))
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=2)
    clean(axes)
    figure.tight_layout()
    add_caption(
        figure,
        "How well the five difference vectors of an image, as it is moved more and more, lie on one line: 1 is a line. "
        f"Rotation + is counter-clockwise, x + to the right, y + down. {about}",
    )
    return figure


def cosine(found: Cosine, about: str) -> Figure:
    """Histograms of the cosine between align vectors of opposite transformations."""
    figure, many = plt.subplots(1, len(found.pairs), figsize=(10, 3.2), sharey=True)
    bins = np.linspace(-1, 1, 41)
    kinds = zip(many, found.pairs, found.fixed.numpy(), found.free.numpy(), found.arbitrary.numpy(), strict=True)
    for axes, name, fixed, free, arbitrary in kinds:
        weights = np.full(len(fixed), 100 / len(fixed))
        axes.hist(fixed, bins, weights=weights, color=BLUE, alpha=0.5, label="signs fixed (the paper's footnote)")
        line: dict[str, Any] = {"weights": weights, "histtype": "step"}
        axes.hist(free, bins, color=ORANGE, lw=1.2, label="signs as the SVD gives them", **line)
        axes.hist(arbitrary, bins, color="black", lw=1.4, ls=":", label="signs at random", **line)
        axes.set(title=name, xlabel="cosine", xlim=(-1.02, 1.02))
        clean(axes)
    many[0].set_ylabel("images, % per bin of 0.05")
    figure.tight_layout()
    handles, names = many[0].get_legend_handles_labels()
    figure.legend(handles, names, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 0.97), ncols=3)
    add_caption(
        figure,
        "The cosine between the align vectors of a positive transformation and of its negative one. At -1 the capsule "
        "moves to opposite sides, at +1 to the same side. The sign of a singular vector is arbitrary until it is "
        f"fixed. {about}",
    )
    return figure


def pose(found: Mapping[str, Pose], about: str) -> Figure:
    """R2 of each parameter of the pose, for the features of each model, and the pixels."""
    bars: dict[str, Any] = {}
    for run, one in found.items():
        for name, read_out in one.read_outs.items():
            if not name.startswith("pixels"):
                bars[f"{run}: {name} ({read_out.dim})"] = read_out
    for name, read_out in next(iter(found.values())).read_outs.items():
        if name.startswith("pixels"):
            bars[f"{name} ({read_out.dim})"] = read_out
    parameters = next(iter(found.values())).parameters
    figure, axes = plt.subplots(figsize=(9, 3.8))
    width = 0.84 / len(bars)
    places = np.arange(len(parameters))
    hatches = ("", "", "", "//", "\\\\", "xx", "..", "++")
    for number, (name, read_out) in enumerate(bars.items()):
        heights = np.maximum(read_out.r2.numpy(), 0)
        spots = places - 0.42 + (number + 0.5) * width
        colour = PALETTE[number % len(PALETTE)]
        axes.bar(spots, heights, width * 0.92, color=colour, label=name, hatch=hatches[number % 8], edgecolor="white")
        for spot, value in zip(spots, read_out.r2.tolist(), strict=True):
            axes.text(spot, max(value, 0) + 0.012, f"{value:.2f}", ha="center", fontsize=6.5, rotation=90, va="bottom")
    axes.set_xticks(places, [name.replace("_", " ") for name in parameters])
    axes.set(ylabel="R\u00b2 on images not fitted to", ylim=(0, 1.14))
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=2)
    clean(axes)
    figure.tight_layout()
    add_caption(
        figure,
        "How much of the variance of each parameter of the true transformation a linear read-out within each class "
        "explains: 1 is perfect, 0 (and below) knows nothing. In brackets the numbers that the read-out gets. " + about,
    )
    return figure


def robustness(found: Robustness, about: str) -> Figure:
    """Accuracy as each change grows, a line per model."""
    columns = 4
    rows = -(-(len(found.curves) + 1) // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(3.1 * columns, 2.9 * rows), squeeze=False, sharey=True)
    many = list(grid.flat)
    for axes, (name, curve) in zip(many, found.curves.items(), strict=False):
        shares, limits = 100 * found.accuracy(name).numpy(), 100 * found.interval(name).numpy()
        for row, model in enumerate(found.models):
            colour, marker = PALETTE[row % len(PALETTE)], MARKERS[row % len(MARKERS)]
            axes.plot(curve.values, shares[row], color=colour, marker=marker, ms=4, lw=1.4, label=model)
            axes.fill_between(curve.values, limits[row, :, 0], limits[row, :, 1], color=colour, alpha=0.2, lw=0)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel(curve.unit, fontsize=8)
        axes.set_ylim(0, 102)
        clean(axes)
    for axes in many[len(found.curves) :]:
        axes.axis("off")
    for row in grid:
        row[0].set_ylabel("right, %")
    handles, names = many[0].get_legend_handles_labels()
    many[len(found.curves)].legend(handles, names, frameon=False, loc="center", fontsize=8, title="run")
    figure.tight_layout()
    add_caption(
        figure,
        "The part of the images that is named right as one change grows; bands are 95 % intervals. All runs meet the "
        f"same changed images. {about}",
    )
    return figure


def attention_maps(found: Attention, layer: LayerAttention, about: str, most: int = 8) -> Figure:
    """Which input channel is listened to, where, for each class of images, and how surely."""
    listened = layer.listened()
    classes, height, width, channels = listened.shape
    shown = listened.mean((0, 1, 2)).argsort(descending=True)[:most].sort().values
    which = "" if channels <= most else f" (the {most} of {channels} that are listened to most)"
    names = list(found.class_names)
    part = f"1 over the {layer.choices} {layer.over}"
    if height * width == 1:
        return attention_matrix(listened[:, 0, 0], layer.entropy[:, 0, 0], names, layer.name, part, about)
    aspect = height / width
    figure, (left, right) = plt.subplots(
        1,
        2,
        figsize=(0.72 * (len(shown) + 1) + 1.4, 0.72 * aspect * classes + 1.5),
        width_ratios=[len(shown), 1],
        layout="constrained",
    )
    maps = rearrange(framed(listened[..., shown]), "n h w m -> (n h) (m w)")
    drawn = left.imshow(maps.numpy(), cmap="viridis", vmin=0, interpolation="nearest")
    left.set_xticks([(n + 0.5) * (width + 1) - 1 for n in range(len(shown))], [str(int(m)) for m in shown])
    left.set_yticks([(n + 0.5) * (height + 1) - 1 for n in range(classes)], names, fontsize=8)
    left.set_ylabel("class of the images")
    left.set_title(f"input channel{which}", fontsize=9)
    sure = rearrange(framed(layer.entropy.unsqueeze(-1)), "n h w 1 -> (n h) w")
    other = right.imshow(sure.numpy(), cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
    right.set_title("entropy", fontsize=9)
    right.set(xticks=[], yticks=[])
    for axes in (left, right):
        axes.tick_params(length=0, labeltop=axes is left, labelbottom=False)
        axes.spines[:].set_visible(False)
    figure.colorbar(drawn, ax=left, location="bottom", label="coefficient", shrink=0.8, aspect=30, pad=0.02)
    figure.colorbar(other, ax=right, location="bottom", label="1: unsure", ticks=[0, 1], aspect=5, pad=0.02)
    who = "of the true class's capsule" if layer.name == "class_caps" else "the mean over the output channels"
    add_caption(
        figure,
        f"{layer.name}: the mean routing coefficients over the images of each class at each of the {height}x{width} "
        f"positions, {who}; each is a part of {part}. Right: how unsure the routing is there. {about}",
    )
    return figure


def framed(maps: Float[Tensor, "n h w m"]) -> Float[Tensor, "n more_h more_w m"]:
    """Maps with an empty line below and beside each."""
    return torch.nn.functional.pad(maps, (0, 0, 0, 1, 0, 1), value=torch.nan)


def attention_matrix(
    listened: Float[Tensor, "classes channels"],
    entropy: Float[Tensor, " classes"],
    names: list[str],
    layer: str,
    part: str,
    about: str,
) -> Figure:
    """A layer without positions: input channels by classes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 0.32 * len(names) + 1.4), width_ratios=[3, 1.4], sharey=True)
    drawn = left.imshow(listened.numpy(), cmap="viridis", vmin=0, aspect="auto")
    if listened.numel() <= 200:
        for row, column in np.ndindex(*listened.shape):
            value = float(listened[row, column])
            colour = "black" if value > 0.6 * float(listened.max()) else "white"
            left.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
    left.set_yticks(range(len(names)), names, fontsize=8)
    left.set_xticks(range(listened.shape[1]))
    left.set(xlabel="input channel", ylabel="class of the images, and of the capsule")
    figure.colorbar(drawn, ax=left, label="coefficient")
    right.barh(range(len(names)), entropy.numpy(), color=BLUE)
    right.set(xlabel="entropy, 1: all the same", xlim=(0, 1))
    clean(right)
    figure.tight_layout()
    add_caption(
        figure,
        f"{layer}: how much the capsule of the true class listens to each input channel (each coefficient is a part of "
        f"{part}; the layer sees the whole image at once), and how unsure it is. {about}",
    )
    return figure


def attention_removal(found: Attention, about: str) -> Figure:
    """What is lost when an input channel of a layer is removed."""
    figure, grid = plt.subplots(
        2,
        len(found.layers),
        figsize=(max(4.6, 4.4 * len(found.layers)), 0.3 * len(found.class_names) + 3.4),
        squeeze=False,
        height_ratios=[2.0, 0.3 * len(found.class_names) + 0.4],
        layout="constrained",
    )
    greatest = max(float((found.length - layer.removed_length).abs().nan_to_num().max()) for layer in found.layers)
    for column, layer in enumerate(found.layers):
        top, bottom = grid[:, column]
        channels = len(layer.removed_accuracy)
        top.bar(range(channels), 100 * layer.removed_accuracy.numpy(), color=BLUE)
        top.axhline(100 * found.accuracy, color="black", lw=1, ls="--")
        top.set(ylim=(0, 104), xlim=(-0.6, channels - 0.4), ylabel="right without it, %")
        top.set_title(f"{layer.name} (dashed: with all, {found.accuracy:.1%})", fontsize=10)
        clean(top)
        lost = (found.length - layer.removed_length).T
        drawn = bottom.imshow(lost.numpy(), cmap="PuOr", vmin=-greatest, vmax=greatest, aspect="auto")
        bottom.set_yticks(range(len(found.class_names)), found.class_names, fontsize=8)
        bottom.set(xlabel="input channel removed", ylabel="class")
        for axes in (top, bottom):
            axes.set_xticks(range(0, channels, -(-channels // 16)))
    figure.colorbar(drawn, ax=grid[1, :].tolist(), label="length lost")
    add_caption(
        figure,
        "Each input channel of each layer set to zero by itself. Above: the part of the images still named right. "
        f"Below: how much shorter the capsule of the true class becomes. {about}",
    )
    return figure
