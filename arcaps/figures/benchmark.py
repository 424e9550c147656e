"""The figure of `arcaps bench`."""

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from arcaps.figures.base import BLUE, ORANGE


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
