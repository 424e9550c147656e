"""The figure of the alignment ratio."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from arcaps.figures.base import BLUE, GREEN, ORANGE, add_caption, clean, register_figures


@register_figures("align")
def align_figures(record: Mapping[str, Any], _: Mapping[str, Any], about: str) -> dict[str, Figure]:
    """The alignment ratio of each transformation, by class and over all images, beside the random reference."""
    figure = Figure(figsize=(9, 4.4))
    axes = figure.subplots()
    kinds = list(record["transformations"])
    places = np.arange(len(kinds))
    random, printed = record["random_reference"], record["paper"]["random_reference"]
    mean, deviation = random["mean"], random["deviation"]
    axes.axhspan(mean - deviation, mean + deviation, color="0.92", zorder=0, lw=0)
    axes.axhline(mean, color="black", lw=1, label=f"random vectors, same protocol: {mean:.3f} (grey: s.d.)")
    axes.axhline(printed[0], color="black", lw=1, ls=":", label=f"random vectors, printed in the paper: {printed[0]}")
    for word, offset, colour, marker in (("after", -0.14, BLUE, "o"), ("before", 0.14, ORANGE, "s")):
        stage = record[f"{word}_the_bound"]
        for name, row in stage["mean"].items():
            if name != "all":
                axes.plot(places + offset * 1.9, floats(row), ls="", marker="_", ms=7, color=colour, alpha=0.6)
        axes.errorbar(
            places + offset,
            floats(stage["mean"]["all"]),
            floats(stage["deviation"]["all"]),
            ls="",
            marker=marker,
            color=colour,
            capsize=3,
            label=f"{word} the {record['bound']}: all images, bar: s.d.; dashes: classes",
        )
    paper = record["paper"]["mean"]["all"]
    axes.plot(places, paper, ls="", marker="D", mfc="white", color=GREEN, label="the paper's average (MNIST)")
    axes.set_xticks(places, [name.replace("-", "\u2212") for name in kinds])
    axes.set(xlabel="transformation", ylabel="alignment ratio", ylim=(0, 1.12), xlim=(-0.5, len(places) - 0.5))
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    clean(axes)
    figure.tight_layout()
    add_caption(
        figure,
        "How close the five difference vectors of an image, as it is transformed more and more, are to one line: 1 is "
        f"a line. Rotation + is counter-clockwise, x + to the right, y + down. {about}",
    )
    return {"align": figure}


def floats(values: Any) -> Any:
    """Numbers of a record; None becomes NaN."""
    return np.array(values, dtype=np.float64)
