"""Models: four networks, one call, one output object."""

from arcaps.models.base import Classifier, Output, create_model
from arcaps.models.capsules import ARCapsNet, CapsuleNet
from arcaps.models.cnns import ConvNet, StrongConvNet

load = Classifier.load

__all__ = [
    "ARCapsNet",
    "CapsuleNet",
    "Classifier",
    "ConvNet",
    "Output",
    "StrongConvNet",
    "create_model",
    "load",
]
