"""Figures of the pose read-out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from arcaps.figures.base import MARKERS, PALETTE, add_caption, clean, register_figures

HATCHES = ("", "", "", "//", "\\\\", "xx", "..", "++")


@register_figures("pose")
def pose_figures(record: Mapping[str, Any], _: Mapping[str, Any], about: str) -> dict[str, Figure]:
    """The read-outs of each run, and the read-out by layer where it was measured."""
    made = {"pose": bars_figure(record, about)}
    if any(one.get("layers") for one in record["runs"].values()):
        made["pose-layers"] = layers_figure(record, about)
    return made


def bars_figure(record: Mapping[str, Any], about: str) -> Figure:
    """R2 of each parameter of the pose, for the features of each model and for the pixels."""
    bars: dict[str, Any] = {}
    for run, one in record["runs"].items():
        for name, read_out in one["read_outs"].items():
            if not name.startswith("pixels"):
                bars[f"{run}: {name} ({read_out['dim']})"] = read_out
    first = next(iter(record["runs"].values()))
    for name, read_out in first["read_outs"].items():
        if name.startswith("pixels"):
            bars[f"{name} ({read_out['dim']})"] = read_out
    parameters = list(next(iter(bars.values()))["r2"])
    figure = Figure(figsize=(9, 3.8))
    axes = figure.subplots()
    width = 0.84 / len(bars)
    places = np.arange(len(parameters))
    for number, (name, read_out) in enumerate(bars.items()):
        values = [read_out["r2"][parameter] for parameter in parameters]
        spots = places - 0.42 + (number + 0.5) * width
        colour, hatch = PALETTE[number % len(PALETTE)], HATCHES[number % len(HATCHES)]
        axes.bar(spots, np.maximum(values, 0), width * 0.92, color=colour, label=name, hatch=hatch, edgecolor="white")
        for spot, value in zip(spots, values, strict=True):
            axes.text(spot, max(value, 0) + 0.012, f"{value:.2f}", ha="center", fontsize=6.5, rotation=90, va="bottom")
    axes.set_xticks(places, [name.replace("_", " ") for name in parameters])
    axes.set(xlabel="parameter of the transformation", ylabel="R\u00b2 on held-out images", ylim=(0, 1.14))
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    clean(axes)
    figure.tight_layout()
    add_caption(
        figure,
        "The share of the variance of each parameter of the true transformation that a linear read-out within each "
        "class explains: 1 is perfect, 0 (and below) is no information. In brackets the number of features. " + about,
    )
    return figure


def layers_figure(record: Mapping[str, Any], about: str) -> Figure:
    """R2 of each parameter by layer, one panel per parameter, one line per run and kind of features."""
    runs = {name: one["layers"] for name, one in record["runs"].items() if one.get("layers")}
    parameters = list(next(iter(runs.values()))[0]["r2"])
    longest = max(len(rows) for rows in runs.values())
    figure = Figure(figsize=(11, 4.6 + 0.1 * longest))
    grid = figure.subplots(2, 3, sharey=True, squeeze=False)
    for axes, parameter in zip(grid.flat, parameters, strict=False):
        for number, (run, rows) in enumerate(runs.items()):
            for kind, line in (("pooled", ":"), ("whole", "-")):
                chosen = [row for row in rows if row["kind"] == kind]
                if chosen:
                    axes.plot(
                        [layer_place(rows, row["layer"]) for row in chosen],
                        [max(row["r2"][parameter], -0.05) for row in chosen],
                        ls=line,
                        marker=MARKERS[number % len(MARKERS)],
                        ms=4,
                        color=PALETTE[number % len(PALETTE)],
                        label=f"{run}, {kind}",
                    )
        axes.set_title(parameter.replace("_", " "), fontsize=10)
        axes.set_ylim(-0.08, 1.05)
        clean(axes)
    names = list(dict.fromkeys(row["layer"] for row in max(runs.values(), key=len)))
    for axes in grid.flat:
        axes.set_xlabel("layer" if len(runs) == 1 else "relative depth", fontsize=8)
        if len(runs) == 1:
            axes.set_xticks(np.linspace(0, 1, len(names)), names, rotation=45, ha="right", fontsize=7)
    for row in grid:
        row[0].set_ylabel("R\u00b2 on held-out images")
    figure.tight_layout()
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 0.99), ncols=4, fontsize=8)
    add_caption(
        figure,
        "How well each layer gives the pose to a linear read-out. Pooled: the mean over the positions. Whole: all "
        "positions, reduced by a random projection where there are too many features; for the class layer all class "
        "capsules. The first layer is at the left. " + about,
    )
    return figure


def layer_place(rows: list[dict[str, Any]], layer: str) -> float:
    """The depth of a layer from 0, the first, to 1, the last."""
    names = list(dict.fromkeys(row["layer"] for row in rows))
    return names.index(layer) / max(1, len(names) - 1)
