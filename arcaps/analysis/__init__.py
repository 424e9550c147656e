"""The equivariance laboratory: what a capsule knows of the pose. One function per experiment.

Each takes a model and a data set and returns arrays in a frozen object, with `as_dict()` for JSON; none knows of files
or figures. `arcaps.analysis.laboratory` does all of them on a run folder.
"""

from arcaps.analysis.align import Alignment, Cosine, align, align_vectors, cosine, fix_signs, random_reference
from arcaps.analysis.attention import Attention, attention, normalised_entropy
from arcaps.analysis.base import DoesNotApplyError, class_capsules
from arcaps.analysis.perturb import Perturbation, perturb
from arcaps.analysis.pose import Pose, pose, ridge_predictions
from arcaps.analysis.robustness import Robustness, robustness

__all__ = [
    "Alignment",
    "Attention",
    "Cosine",
    "DoesNotApplyError",
    "Perturbation",
    "Pose",
    "Robustness",
    "align",
    "align_vectors",
    "attention",
    "class_capsules",
    "cosine",
    "fix_signs",
    "normalised_entropy",
    "perturb",
    "pose",
    "random_reference",
    "ridge_predictions",
    "robustness",
]
