"""Experiments on trained models: how the class capsules encode the pose, and how robust the model is.

Each experiment is a function that takes a model and a data set and returns arrays in a frozen object, with `as_dict()`
for JSON. It is registered by name as an `Experiment`, which makes a record and, from the record alone, the section of a
report. Nothing here knows files or figures; `arcaps.reports.analyze_run` runs experiments on a run folder. Every module
of this package is imported, so that a new experiment is found by being here.
"""

import importlib
import pkgutil

from arcaps.analysis.align import Alignment, align, align_vectors, fix_signs, random_reference
from arcaps.analysis.attention import Attention, attention
from arcaps.analysis.base import DoesNotApplyError, class_capsules
from arcaps.analysis.cosine import Cosine, cosine
from arcaps.analysis.experiment import Experiment, Measurement, Record, Settings, Subject
from arcaps.analysis.perturb import Perturbation, perturb
from arcaps.analysis.pose import Pose, pose
from arcaps.analysis.ridge import ridge_predictions
from arcaps.analysis.robustness import Robustness, robustness

for module in pkgutil.iter_modules(__path__):
    if module.name not in globals():
        importlib.import_module(f"{__name__}.{module.name}")

__all__ = [
    "Alignment",
    "Attention",
    "Cosine",
    "DoesNotApplyError",
    "Experiment",
    "Measurement",
    "Perturbation",
    "Pose",
    "Record",
    "Robustness",
    "Settings",
    "Subject",
    "align",
    "align_vectors",
    "attention",
    "class_capsules",
    "cosine",
    "fix_signs",
    "perturb",
    "pose",
    "random_reference",
    "ridge_predictions",
    "robustness",
]
