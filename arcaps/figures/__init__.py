"""Figures: the only place that imports matplotlib. Those of the laboratory are in `figures.analysis`."""

from arcaps.figures.base import save, save_both
from arcaps.figures.benchmark import bench_chart
from arcaps.figures.training import confusion_matrix, image_grid, learning_curves

__all__ = ["bench_chart", "confusion_matrix", "image_grid", "learning_curves", "save", "save_both"]
