"""Figures of the routing coefficients."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from arcaps.figures.base import BLUE, Images, add_caption, clean, register_figures, short


@register_figures("attention")
def attention_figures(record: Mapping[str, Any], _: Mapping[str, Any], about: str) -> dict[str, Figure]:
    """The coefficients of each layer, and the effect of removing an input channel."""
    names = [short(name) for name in record["class_names"]]
    made = {"attention": removal_figure(record, names, about)}
    for layer, found in record["layers"].items():
        made[f"attention-{layer}"] = layer_figure(layer, found, names, about)
    return made


def layer_figure(layer: str, found: Mapping[str, Any], names: Sequence[str], about: str) -> Figure:
    """The mean coefficient of each input channel, for each class of images, at each position, and the entropy."""
    weights = np.array(found["listened_maps"], dtype=np.float64)
    entropy = np.array(found["entropy_maps"], dtype=np.float64)
    if weights.shape[1] * weights.shape[2] == 1:
        return matrix_figure(layer, found, weights[:, 0, 0], entropy[:, 0, 0], names, about)
    return maps_figure(layer, found, weights, entropy, names, about)


def maps_figure(
    layer: str,
    found: Mapping[str, Any],
    weights: Float[Images, "classes height width channels"],
    entropy: Float[Images, "classes height width"],
    names: Sequence[str],
    about: str,
    most: int = 8,
) -> Figure:
    """A layer with positions: one map for each class of images and input channel."""
    classes, height, width, channels = weights.shape
    means = np.nan_to_num(np.nanmean(weights, axis=(0, 1, 2)))
    shown = np.sort(np.argsort(-means, kind="stable")[:most])
    which = "" if channels <= most else f" (the {most} of {channels} with the largest coefficients)"
    figure = Figure(
        figsize=(0.72 * (len(shown) + 1) + 1.4, 0.72 * height / width * classes + 1.5), layout="constrained"
    )
    left, right = figure.subplots(1, 2, width_ratios=[len(shown), 1])
    maps = framed(weights[..., shown]).transpose(0, 1, 3, 2).reshape(classes * (height + 1), -1)
    image = left.imshow(maps, cmap="viridis", vmin=0, interpolation="nearest")
    left.set_xticks([(n + 0.5) * (width + 1) - 1 for n in range(len(shown))], [str(int(m)) for m in shown])
    left.set_yticks([(n + 0.5) * (height + 1) - 1 for n in range(classes)], names, fontsize=8)
    left.set(ylabel="class of the images")
    left.set_xlabel(f"input channel{which}", fontsize=9)
    left.xaxis.set_label_position("top")
    unsure = framed(entropy[..., None])[..., 0].reshape(classes * (height + 1), -1)
    other = right.imshow(unsure, cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
    right.set_xlabel("entropy", fontsize=9)
    right.xaxis.set_label_position("top")
    right.set(xticks=[], yticks=[])
    for axes in (left, right):
        axes.tick_params(length=0, labeltop=axes is left, labelbottom=False)
        axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=left, location="bottom", label="coefficient", shrink=0.8, aspect=30, pad=0.02)
    figure.colorbar(other, ax=right, location="bottom", label="1: uniform", ticks=[0, 1], aspect=5, pad=0.02)
    who = "of the capsule of the true class" if layer == "class_caps" else "the mean over the output channels"
    add_caption(
        figure,
        f"{layer}: the mean routing coefficients over the images of each class at each of the {height}x{width} "
        f"positions, {who}; each is a part of {found['coefficients_are_parts_of']}. Right: the normalised entropy. "
        f"{about}",
    )
    return figure


def framed(maps: Float[Images, "n h w m"]) -> Float[Images, "n more_h more_w m"]:
    """Maps with an empty line below and to the right of each."""
    return np.pad(maps, ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=np.nan)


def matrix_figure(
    layer: str,
    found: Mapping[str, Any],
    weights: Float[Images, "classes channels"],
    entropy: Float[Images, " classes"],
    names: Sequence[str],
    about: str,
) -> Figure:
    """A layer without positions: classes by input channels."""
    figure = Figure(figsize=(8, 0.32 * len(names) + 1.4))
    left, right = figure.subplots(1, 2, width_ratios=[3, 1.4], sharey=True)
    image = left.imshow(weights, cmap="viridis", vmin=0, aspect="auto")
    if weights.size <= 200:
        for row, column in np.ndindex(*weights.shape):
            value = float(weights[row, column])
            colour = "black" if value > 0.6 * np.nanmax(weights) else "white"
            left.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
    left.set_yticks(range(len(names)), names, fontsize=8)
    left.set_xticks(range(weights.shape[1]))
    left.set(xlabel="input channel", ylabel="class of the images and of the capsule")
    figure.colorbar(image, ax=left, label="coefficient")
    right.barh(range(len(names)), np.nan_to_num(entropy), color=BLUE)
    right.set(xlabel="normalised entropy", xlim=(0, 1))
    clean(right)
    figure.tight_layout()
    add_caption(
        figure,
        f"{layer}: the mean routing coefficients of the capsule of the true class (each is a part of "
        f"{found['coefficients_are_parts_of']}; the layer sees the whole image at once), and their normalised entropy "
        f"(0: one input gets all, 1: all get the same). {about}",
    )
    return figure


def removal_figure(record: Mapping[str, Any], names: Sequence[str], about: str) -> Figure:
    """Accuracy and length of the class capsule without each input channel of each layer."""
    layers = record["layers"]
    length = np.array(record["length"], dtype=np.float64)
    lost = {
        layer: (length - np.array(found["length_without_channel"], dtype=np.float64)).T
        for layer, found in layers.items()
    }
    largest = max(float(np.abs(np.nan_to_num(values)).max()) for values in lost.values())
    figure = Figure(figsize=(max(4.6, 4.4 * len(layers)), 0.3 * len(names) + 3.4), layout="constrained")
    grid = figure.subplots(2, len(layers), squeeze=False, height_ratios=[2.0, 0.3 * len(names) + 0.4])
    for column, (layer, found) in enumerate(layers.items()):
        top, bottom = grid[:, column]
        without = 100 * np.array(found["accuracy_without_channel"])
        top.bar(range(len(without)), without, color=BLUE)
        top.axhline(100 * record["accuracy"], color="black", lw=1, ls="--")
        top.set(ylim=(0, 104), xlim=(-0.6, len(without) - 0.4), ylabel="accuracy without it, %")
        top.set_title(f"{layer} (dashed: all channels, {record['accuracy']:.1%})", fontsize=10)
        clean(top)
        image = bottom.imshow(lost[layer], cmap="PuOr", vmin=-largest, vmax=largest, aspect="auto")
        bottom.set_yticks(range(len(names)), names, fontsize=8)
        bottom.set(xlabel="input channel removed", ylabel="class")
        for axes in (top, bottom):
            axes.set_xticks(range(0, len(without), -(-len(without) // 16)))
    figure.colorbar(image, ax=grid[1, :].tolist(), label="decrease of the length")
    add_caption(
        figure,
        "Each input channel of each layer set to zero, one at a time. Above: the accuracy. Below: how much shorter the "
        f"capsule of the true class becomes. {about}",
    )
    return figure
