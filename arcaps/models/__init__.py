"""Models: every network, one call, one output object."""

import os
from typing import Any

from arcaps.models.base import Classifier, Model, Output, create_model, list_models
from arcaps.models.capsules import ARCapsNet, CapsuleClassifier, CapsuleNet
from arcaps.models.cnns import ConvNet, DenseHead, StrongConvNet
from arcaps.models.efficient_capsnet import EfficientCapsNet
from arcaps.models.evaluation import Classification, Evaluation
from arcaps.models.matrix_capsules import MatrixCapsules


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
    "DenseHead",
    "EfficientCapsNet",
    "Evaluation",
    "MatrixCapsules",
    "Model",
    "Output",
    "StrongConvNet",
    "create_model",
    "list_models",
    "load",
]
