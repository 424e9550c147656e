"""Models: every network, one call, one output object."""

import os
from typing import Any

from torch import nn

from arcaps.models.base import Classifier, Model, Output, create_model, list_models
from arcaps.models.capsules import ARCapsNet, CapsuleClassifier, CapsuleNet
from arcaps.models.cnns import ConvNet, DenseHead, StrongConvNet
from arcaps.models.efficient_capsnet import EfficientCapsNet
from arcaps.models.evaluation import Classification, Evaluation
from arcaps.models.matrix_capsules import MatrixCapsules
from arcaps.models.own import OwnNetwork
from arcaps.models.prediction import Prediction


def load(path: str | os.PathLike[str], *, module: nn.Module | None = None) -> Any:
    """The model in a file, in evaluation mode. For a network of your own, give a `module` of its class."""
    return Model.load(path) if module is None else OwnNetwork.load_into(path, module)


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
    "OwnNetwork",
    "Prediction",
    "StrongConvNet",
    "create_model",
    "list_models",
    "load",
]
