"""Figures from records, with matplotlib's object interface; the only place that imports matplotlib.

Every module of this package is imported, so that the figures of a new experiment are found by being here.
"""

import importlib
import pkgutil

from arcaps.figures.base import FIGURES, font_file, register_figures, save, save_both
from arcaps.figures.benchmark import bench_chart
from arcaps.figures.compare import comparison_chart
from arcaps.figures.training import confusion_matrix, image_grid, learning_curves

for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{module.name}")

__all__ = [
    "FIGURES",
    "bench_chart",
    "comparison_chart",
    "confusion_matrix",
    "font_file",
    "image_grid",
    "learning_curves",
    "register_figures",
    "save",
    "save_both",
]
