"""Figures: labels, titles, scales, names of any kind, and nothing of matplotlib's global state changed."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from arcaps.analysis import Experiment
from arcaps.figures import FIGURES, bench_chart, confusion_matrix, image_grid, learning_curves, save, save_both

ROOT = Path(__file__).parent.parent.parent
RECORDS = ROOT / "docs" / "records"
ODD = ("$10_$20", "\u6c49\u5b57", "a|b", "\\frac{1}{2}$", "<b>", "x" * 80)
"""Class names that are no mathematics, in other scripts, and long."""


def axis_labels(figure: Figure) -> list[tuple[str, str]]:
    """The labels of every axes that shows an axis."""
    return [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes if axes.axison]


def legend_texts(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def record(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDS / "equivariance" / f"{name}.json").read_text())
    return found


def metrics(errors: list[float], losses: list[float]) -> list[dict[str, Any]]:
    return [
        {"epoch": epoch, "losses": {"margin": loss, "reconstruction": loss / 3}, "validation_error": error}
        for epoch, (error, loss) in enumerate(zip(errors, losses, strict=True), 1)
    ]


def test_matplotlib_is_left_alone(tmp_path: Path) -> None:
    code = f"""
import sys, matplotlib
matplotlib.use("pdf")
before = dict(matplotlib.rcParams)
from arcaps import Run
assert not any(name.startswith("matplotlib.backends.backend_agg") for name in sys.modules)
import arcaps.reports.analysis, arcaps.reports.run
from arcaps import figures
from pathlib import Path
figures.save(figures.confusion_matrix([[1, 0], [0, 1]], ["a", "$b_$"]), Path({str(tmp_path / "a.png")!r}))
assert matplotlib.get_backend() == "pdf", matplotlib.get_backend()
assert dict(matplotlib.rcParams) == before
assert "matplotlib.pyplot" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_training_does_not_import_matplotlib() -> None:
    code = "import sys; from arcaps import Run, train; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pyplot_is_not_used() -> None:
    for file in [*(ROOT / "arcaps").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]:
        assert "pyplot" not in file.read_text() or file.parts[-2:] == ("figures", "base.py"), file


def test_learning_curves_can_be_read() -> None:
    figure = learning_curves(metrics([0.85, 0.2, 0.04, 0.012, 0.009], [0.9, 0.4, 0.2, 0.1, 0.05]), 5)
    left, right = figure.axes
    assert axis_labels(figure) == [("epoch", "loss (weighted parts)"), ("epoch", "validation error, %")]
    assert (left.get_title(), right.get_title()) == ("Training loss", "Validation error")
    assert right.get_yscale() == "log"  # from 85 % to 0.9 %
    figure.draw_without_rendering()
    shown = [tick.get_text() for tick in right.get_yticklabels()]
    assert {"1", "10", "50"} <= set(shown)
    assert not any("$" in text or "mathdefault" in text for text in shown)
    low, high = right.get_xlim()
    ticks = [place for place in right.get_xticks() if low <= place <= high]
    assert ticks == [1, 2, 3, 4, 5]
    assert "kept model: epoch 5" in legend_texts(right)


@pytest.mark.parametrize("errors", [[0.02], [0.0], [0.05, 0.04], [0.0, 0.5], [float("nan"), 0.1]])
def test_short_and_odd_curves(errors: list[float], tmp_path: Path) -> None:
    figure = learning_curves(metrics(errors, [float("nan")] * len(errors)), 1)
    assert figure.axes[1].get_yscale() == "linear"
    assert figure.axes[1].get_ylim()[0] == 0
    save(figure, tmp_path / "curves.png")


def test_losses_that_begin_later(tmp_path: Path) -> None:
    lines = metrics([0.2, 0.1], [1.0, 0.5])
    lines[1]["losses"]["extra"] = 0.1
    figure = learning_curves(lines, 2)
    assert legend_texts(figure.axes[0])[-1] == "extra"


def test_names_of_any_kind(tmp_path: Path) -> None:
    """No name is parsed as mathematics, no glyph raises or warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = confusion_matrix(np.eye(len(ODD), dtype=int) * 7, ODD)
        save_both(figure, tmp_path / "confusion")
        grid = image_grid([np.zeros((len(ODD), 1, 4, 4))], [f"{name} \u2192 {name}" for name in ODD])
        save(grid, tmp_path / "grid.png")
    labels = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert labels[0] == "$10_$20"
    assert len(labels[-1]) == 24
    assert axis_labels(figure) == [("predicted class", "true class")]
    assert "$10_$20" in (tmp_path / "confusion.svg").read_text()  # a comment beside each text


def test_every_experiment_has_figures() -> None:
    assert set(FIGURES) == set(Experiment.known)


@pytest.mark.parametrize("name", ["align", "attention", "cosine", "pose", "robustness"])
def test_figures_come_from_stored_records(name: str) -> None:
    """Every axes has labels on both axes, or a title; the caption names the run."""
    figures = FIGURES[name](record(name), {}, "Run: mnist.")
    assert name in figures
    for file, figure in figures.items():
        for x, y in axis_labels(figure):
            assert x or y, file
        assert any(x for x, _ in axis_labels(figure))
        assert any(y for _, y in axis_labels(figure))
        assert any("Run: mnist." in text.get_text().replace("\n", " ") for text in figure.texts)


def test_the_figures_of_perturb() -> None:
    found = record("perturb")
    shape = (10, len(found["dims"]), 11, 1, 6, 5)
    pictures = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    figures = FIGURES["perturb"](found, {"images": pictures[:, 0, 0], "pictures": pictures}, "Run: mnist.")
    assert set(figures) == {"perturb", "perturb-ranking", *(f"perturb-{label}" for label in range(10))}
    overview, ranking = figures["perturb"].axes[0], figures["perturb-ranking"].axes[0]
    assert (overview.get_xlabel(), overview.get_ylabel()) == ("value added to the dimension", "class, dimension")
    assert (ranking.get_xlabel(), ranking.get_ylabel()) == ("dimension of the class capsule", "class")
    assert [text.get_text() for text in overview.get_yticklabels()][
        9
    ] == f"9, dim {found['classes']['9']['ranking'][0]}"


def test_pose_by_layer() -> None:
    found = record("pose")
    r2 = dict.fromkeys(("angle", "shear", "scale_x", "scale_y", "shift_x", "shift_y"), 0.5)
    rows = [
        {"layer": layer, "kind": kind, "features": 9, "dim": 9, "r2": r2, "shuffled": r2}
        for layer in ("stem", "primary", "class_caps")
        for kind in ("pooled", "whole")
    ]
    found["runs"] = {"mnist": {**next(iter(found["runs"].values())), "layers": rows}}
    figure = FIGURES["pose"](found, {}, "")["pose-layers"]
    assert [axes.get_title() for axes in figure.axes][:2] == ["angle", "shear"]
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["stem", "primary", "class_caps"]


def test_the_benchmark_chart_reads_old_records() -> None:
    rows = json.loads((RECORDS / "bench.json").read_text())["timings"]
    figure = bench_chart(rows, "caption")
    assert all("times the float32 floor" in axes.get_xlabel() for axes in figure.axes)
    renamed = [{("operation" if key == "act" else key): value for key, value in row.items()} for row in rows]
    assert len(bench_chart(renamed, "caption").axes) == len(figure.axes)


def test_files_are_the_same_each_time(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        names = save_both(FIGURES["cosine"](record("cosine"), {}, "")["cosine"], tmp_path / folder / "cosine")
    assert names == ["cosine.png", "cosine.svg"]
    assert (tmp_path / "one" / "cosine.svg").read_bytes() == (tmp_path / "two" / "cosine.svg").read_bytes()
    with Image.open(tmp_path / "one" / "cosine.png") as image:
        assert image.size[0] > 900
    assert not matplotlib.rcParams["svg.hashsalt"]
