"""The figure of the accuracy under growing changes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from arcaps.figures.base import MARKERS, PALETTE, add_caption, clean, register_figures


@register_figures("robustness")
def robustness_figures(record: Mapping[str, Any], _: Mapping[str, Any], about: str) -> dict[str, Figure]:
    """Accuracy as each change grows, a line per run."""
    changes, columns = record["changes"], 4
    rows = -(-(len(changes) + 1) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.9 * rows))
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    many = list(grid.flat)
    for axes, (name, one) in zip(many, changes.items(), strict=False):
        for number, run in enumerate(record["models"]):
            colour, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
            accuracy, limits = (100 * np.array(one[key][run]) for key in ("accuracy", "interval_95"))
            axes.plot(one["values"], accuracy, color=colour, marker=marker, ms=4, lw=1.4, label=run)
            axes.fill_between(one["values"], limits[:, 0], limits[:, 1], color=colour, alpha=0.2, lw=0)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel(one["unit"], fontsize=8)
        axes.set_ylim(0, 102)
        clean(axes)
    for axes in many[len(changes) :]:
        axes.axis("off")
    for row in grid:
        row[0].set_ylabel("accuracy, %")
    handles, names = many[0].get_legend_handles_labels()
    many[len(changes)].legend(handles, names, loc="center", fontsize=8, title="run")
    figure.tight_layout()
    add_caption(
        figure,
        "Accuracy as one change grows; bands are 95 % confidence intervals. All runs get the same changed images. "
        f"{about}",
    )
    return {"robustness": figure}
