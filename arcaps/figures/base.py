"""What all figures share: style, captions, files.

Figures are made with matplotlib's object interface (`matplotlib.figure.Figure`): no pyplot, no backend, no global
state. Only this package imports matplotlib. Figures are made from records (plain values) and numpy arrays.
"""

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import Any, ParamSpec, TypeAlias, TypeVar

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")
Images: TypeAlias = np.ndarray
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
PALETTE = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C00")
"""Colours that colour-blind readers can distinguish (Okabe and Ito)."""
MARKERS = "osD^vPX*"
FALLBACK_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei"),
    *("Droid Sans Fallback", "Microsoft YaHei", "SimHei", "PingFang SC", "Hiragino Sans", "Malgun Gothic"),
    *("Noto Sans Arabic", "Noto Sans Devanagari", "Noto Sans Hebrew", "Noto Sans Thai", "Arial Unicode MS"),
)
"""Fonts for class names in other scripts; those that are installed are used where the main font has no glyph."""


@functools.cache
def installed_fonts() -> tuple[str, ...]:
    """The main font and the fallback fonts that this machine has."""
    known = set(font_manager.get_font_names())
    return ("DejaVu Sans", *(name for name in FALLBACK_FONTS if name in known))


@contextmanager
def style() -> Iterator[None]:
    """The settings under which figures are made and saved; afterwards matplotlib's settings are as before.

    Text is never parsed as mathematics, so that a class may be called `$10_$20`. A glyph that no font has is drawn as
    a box, without a warning.
    """
    settings: Any = {
        "text.parse_math": False,
        "text.usetex": False,
        "font.family": list(installed_fonts()),
        "axes.unicode_minus": True,
        "legend.frameon": False,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        warnings.filterwarnings("ignore", "Matplotlib currently does not support")
        yield


def styled(make: Callable[P, R]) -> Callable[P, R]:
    """Make a figure under the shared style."""

    @functools.wraps(make)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with style():
            return make(*args, **kwargs)

    return wrapped


FigureMaker: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any], str], dict[str, Figure]]
FIGURES: dict[str, FigureMaker] = {}
"""The function that makes the figures of each experiment."""


def register_figures(experiment: str) -> Callable[[FigureMaker], FigureMaker]:
    """Register the function that makes an experiment's figures: `make(record, arrays, about)` -> figures by name.

    `record` is the experiment's record, `arrays` are its arrays, `about` names data set and run for the caption.
    """

    def register(make: FigureMaker) -> FigureMaker:
        FIGURES[experiment] = styled(make)
        return FIGURES[experiment]

    return register


def font_file() -> str:
    """The file of the font that comes with matplotlib: Latin, Greek, Cyrillic and Arabic letters among others."""
    return str(font_manager.findfont("DejaVu Sans"))


def save(figure: Figure, path: Path) -> Path:
    """Write a figure; the suffix of the path is the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with style():
        figure.savefig(path, dpi=110, bbox_inches="tight")
    return path


def save_both(figure: Figure, path: Path) -> list[str]:
    """Write a figure as PNG and SVG, the same bytes each time; returns the names of the two files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    with style(), matplotlib.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(files[0], dpi=130, bbox_inches="tight")
        figure.savefig(files[1], bbox_inches="tight", metadata={"Date": None})
    return [file.name for file in files]


def add_caption(figure: Figure, text: str) -> None:
    """Write a caption below a finished figure."""
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    lines = "\n".join(wrap(text, int(box.width * 17), break_on_hyphens=False))
    figure.text(box.x0 / width, (box.y0 - 0.12) / height, lines, ha="left", va="top", fontsize=8)


def clean(*many: Axes) -> None:
    """Hide the lines above and to the right of the axes."""
    for axes in many:
        axes.spines[["top", "right"]].set_visible(False)


def short(name: str, length: int = 24) -> str:
    """A name cut to fit beside an axis."""
    return name if len(name) <= length else f"{name[: length - 1]}\u2026"


def picture(image: Float[Images, "channels height width"]) -> Images:
    """An image as matplotlib takes it: (height, width, 3) in 0..1."""
    values = np.clip(np.asarray(image, dtype=np.float64), 0, 1)
    return np.broadcast_to(values[:3] if len(values) >= 3 else values[:1], (3, *values.shape[1:])).transpose(1, 2, 0)


def show_mosaic(
    axes: Axes,
    pictures: Float[Images, "rows columns channels height width"],
    row_names: Sequence[str],
    column_names: Sequence[str],
) -> None:
    """Show rows of pictures with white lines between, a name beside each row and above each column."""
    rows, columns, channels, height, width = pictures.shape
    framed = np.ones((rows, columns, channels, height + 1, width + 1))
    framed[..., 1:, 1:] = pictures
    joined = framed.transpose(2, 0, 3, 1, 4).reshape(channels, rows * (height + 1), columns * (width + 1))
    axes.imshow(picture(joined), interpolation="nearest")
    axes.set_yticks([(row + 0.5) * (height + 1) for row in range(rows)], row_names, fontsize=8)
    axes.set_xticks([(column + 0.5) * (width + 1) for column in range(columns)], column_names, fontsize=8)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
