"""The figure of `arcaps bench`."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from arcaps.figures.base import BLUE, ORANGE, clean, styled


@styled
def bench_chart(rows: Sequence[Mapping[str, Any]], caption: str) -> Figure:
    """Bars: each model's training step and forward pass as a multiple of its floor, one panel per number format."""
    precisions = list(dict.fromkeys(row["precision"] for row in rows))
    subjects = list(dict.fromkeys((row["model"], row["data"]) for row in rows))
    operations = {"training step": BLUE, "forward": ORANGE}
    figure = Figure(figsize=(1.5 + 5 * len(precisions), 1.4 + 0.55 * len(subjects)))
    panels = figure.subplots(1, len(precisions), squeeze=False, sharey=True)
    for axes, precision in zip(panels[0], precisions, strict=True):
        found = {(row["model"], row["data"], row["operation"]): row for row in rows if row["precision"] == precision}
        for place, (operation, colour) in enumerate(operations.items()):
            heights = [number + 0.36 * (place - 0.5) for number in range(len(subjects))]
            values = [found[*subject, operation]["times_floor"] for subject in subjects]
            axes.barh(heights, values, height=0.34, color=colour, label=operation)
            for height, value, subject in zip(heights, values, subjects, strict=True):
                text = f" {value:.2f}x, {found[*subject, operation]['median_ms']:,.0f} ms"
                axes.text(value, height, text, va="center", fontsize=7)
        axes.axvline(1, color="grey", linestyle=":")
        axes.set_yticks(range(len(subjects)), [f"{model}, {data}" for model, data in subjects])
        axes.set(xlabel=f"{precision}: times the float32 floor (dotted)", xlim=(0, None))
        axes.margins(x=0.3)
        clean(axes)
    panels[0, 0].invert_yaxis()
    panels[0, 0].set_ylabel("model, data")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=2, loc="upper right", fontsize=8)
    figure.text(0.01, 0.0, caption, fontsize=7, va="top")
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    return figure
