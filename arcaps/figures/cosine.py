"""The figure of the cosines between align vectors of opposite transformations."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from arcaps.figures.base import BLUE, ORANGE, add_caption, clean, register_figures

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "signs_fixed": ("signs fixed (the paper's footnote)", {"color": BLUE, "alpha": 0.5, "histtype": "stepfilled"}),
    "signs_of_the_svd": ("signs as the SVD gives them", {"color": ORANGE, "lw": 1.2, "histtype": "step"}),
    "signs_at_random": ("random signs", {"color": "black", "lw": 1.4, "ls": ":", "histtype": "step"}),
}


@register_figures("cosine")
def cosine_figures(record: Mapping[str, Any], _: Mapping[str, Any], about: str) -> dict[str, Figure]:
    """A histogram for each pair of opposite transformations."""
    pairs = list(record["signs_fixed"])
    figure = Figure(figsize=(10, 3.2))
    many = figure.subplots(1, len(pairs), sharey=True, squeeze=False)[0]
    bins = np.array(record["bins"])
    middles = (bins[1:] + bins[:-1]) / 2
    for axes, pair in zip(many, pairs, strict=True):
        for kind, (label, look) in KINDS.items():
            percent = 100 * np.array(record[kind][pair]["histogram"]) / record["count"]
            axes.hist(middles, bins, weights=percent, label=label, **look)
        axes.set(title=pair, xlabel="cosine", xlim=(-1.02, 1.02))
        clean(axes)
    many[0].set_ylabel(f"images, % per bin of {bins[1] - bins[0]:.2g}")
    figure.tight_layout()
    handles, names = many[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", bbox_to_anchor=(0.5, 0.97), ncols=3)
    add_caption(
        figure,
        "The cosine between the align vectors of a positive transformation and of the negative one. At -1 the capsule "
        "moves in opposite directions, at +1 in the same direction. The sign of a singular vector is arbitrary until "
        f"it is fixed. {about}",
    )
    return {"cosine": figure}
