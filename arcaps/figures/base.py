"""What all figures share: colours, captions, files. Figures are the only place that imports matplotlib."""

from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

matplotlib.use("Agg")
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # told apart by every eye (Okabe and Ito)
PALETTE = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C00")
MARKERS = "osD^vPX*"


def save(figure: Figure, path: Path) -> Path:
    """Write a figure and forget it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return path


def save_both(figure: Figure, path: Path) -> list[str]:
    """Write a figure as PNG and SVG, the same bytes each time, and forget it; the names of the two files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    with matplotlib.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(files[0], dpi=130, bbox_inches="tight")
        figure.savefig(files[1], bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return [file.name for file in files]


def add_caption(figure: Figure, text: str) -> None:
    """Say below a figure, when all else is drawn, what is seen."""
    figure.canvas.draw()
    box = figure.get_tightbbox()
    wide, high = figure.get_size_inches()
    lines = "\n".join(wrap(text, int(box.width * 17), break_on_hyphens=False))
    figure.text(box.x0 / wide, (box.y0 - 0.12) / high, lines, ha="left", va="top", fontsize=8)


def clean(*many: Axes) -> None:
    """Take away the lines above and to the right."""
    for axes in many:
        axes.spines[["top", "right"]].set_visible(False)


def picture(image: Float[Tensor, "channels height width"]) -> Any:
    """An image as matplotlib wants it: (height, width, 3) in 0..1."""
    return image.clamp(0, 1).expand(3, -1, -1).permute(1, 2, 0).numpy()
