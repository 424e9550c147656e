"""Figures of the perturbation experiment."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from arcaps.figures.base import add_caption, register_figures, short, show_mosaic

MOVED = "value added to the dimension"


def offset_names(offsets: Sequence[float]) -> list[str]:
    """The offsets as they are written above the columns."""
    return [f"{offset:+.2f}" if abs(offset) > 1e-9 else "0" for offset in offsets]


def class_figure(record: Mapping[str, Any], pictures: Any, name: str, about: str) -> Figure:
    """All chosen dimensions of one class, the dimension with the largest change first."""
    one, dims = record["classes"][name], list(record["dims"])
    order = [dims.index(dim) for dim in one["ranking"]]
    aspect = pictures.shape[-2] / pictures.shape[-1]
    figure = Figure(figsize=(0.62 * len(record["offsets"]) + 1.2, 0.62 * aspect * len(order) + 0.7))
    axes = figure.subplots()
    names = [f"dim {dim} ({one['change'][str(dim)]:.3f})" for dim in one["ranking"]]
    show_mosaic(axes, pictures[order], names, offset_names(record["offsets"]))
    axes.set(xlabel=MOVED, ylabel="dimension (change)")
    add_caption(
        figure,
        f"Class {name}, image {one['example']}: the reconstruction as one dimension of the class capsule changes by "
        "the value above. In brackets the change of the reconstruction (root mean square of the change of the pixels, "
        f"mean over {one['count']} images); the largest first. {about}",
    )
    return figure


def overview_figure(record: Mapping[str, Any], images: Any, pictures: Any, about: str) -> Figure:
    """For every class the image, and the dimension with the largest change."""
    dims = list(record["dims"])
    best = [one["ranking"][0] for one in record["classes"].values()]
    moved = np.stack([pictures[row, dims.index(dim)] for row, dim in enumerate(best)])
    shown = np.concatenate([images[:, None], moved], axis=1)
    aspect = shown.shape[-2] / shown.shape[-1]
    figure = Figure(figsize=(0.62 * shown.shape[1] + 1.4, 0.62 * aspect * len(best) + 0.7))
    axes = figure.subplots()
    names = [f"{short(name)}, dim {dim}" for name, dim in zip(record["classes"], best, strict=True)]
    show_mosaic(axes, shown, names, ["image", *offset_names(record["offsets"])])
    axes.set(xlabel=MOVED, ylabel="class, dimension")
    add_caption(
        figure,
        "One image of each class, and its reconstruction as one dimension of the class capsule changes by the value "
        f"above. For each class the dimension that changes the reconstruction most is shown. {about}",
    )
    return figure


def ranking_figure(record: Mapping[str, Any], about: str) -> Figure:
    """How much each dimension changes the reconstruction of each class."""
    classes, dims = record["classes"], record["dims"]
    change = np.array([[one["change"][str(dim)] for dim in dims] for one in classes.values()])
    figure = Figure(figsize=(max(5.0, 0.27 * len(dims) + 2.2), 0.3 * len(classes) + 1.2))
    axes = figure.subplots()
    shown = axes.imshow(change, cmap="viridis", vmin=0, aspect="auto")
    axes.set_yticks(range(len(classes)), [short(name) for name in classes], fontsize=8)
    axes.set_xticks(range(len(dims)), [str(dim) for dim in dims], fontsize=7)
    axes.set(xlabel="dimension of the class capsule", ylabel="class")
    figure.colorbar(shown, ax=axes, label="change of the reconstruction")
    most = max(one["count"] for one in classes.values())
    add_caption(
        figure,
        "How much each dimension changes the reconstruction: the root mean square of the change of the pixels as the "
        f"dimension changes by up to \u00b1{record['offsets'][-1]:.2f}, mean over up to {most} images of each class. "
        f"{about}",
    )
    return figure


@register_figures("perturb")
def perturb_figures(record: Mapping[str, Any], arrays: Mapping[str, Any], about: str) -> dict[str, Figure]:
    """The overview, the ranking, and one figure per class; without arrays the ranking only."""
    made = {"perturb-ranking": ranking_figure(record, about)}
    if arrays:
        images, pictures = (np.asarray(arrays[name]) / 255 for name in ("images", "pictures"))
        made["perturb"] = overview_figure(record, images, pictures, about)
        for row, (name, one) in enumerate(record["classes"].items()):
            made[f"perturb-{one['label']}"] = class_figure(record, pictures[row], name, about)
    return made
