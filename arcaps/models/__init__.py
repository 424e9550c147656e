"""Models: four networks, one call, one output object."""

import os
from typing import Any

from arcaps.models.base import Classifier, Model, Output, create_model, list_models
from arcaps.models.capsules import ARCapsNet, CapsuleClassifier, CapsuleNet
from arcaps.models.cnns import ConvNet, StrongConvNet
from arcaps.models.evaluation import Classification, Evaluation


def load(path: str | os.PathLike[str]) -> Any:
    """The model in a file, in evaluation mode."""
    return Model.load(path)


__all__ = [
    "ARCapsNet",
    "CapsuleClassifier",
    "CapsuleNet",
    "Classification",
    "Classifier",
    "ConvNet",
    "Evaluation",
    "Model",
    "Output",
    "StrongConvNet",
    "create_model",
    "list_models",
    "load",
]
