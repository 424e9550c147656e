"""Options that several commands share."""

import sys
from typing import Literal, TypedDict

import tyro

Flag = tyro.conf.FlagCreatePairsOff[bool]


class ArchitectureOptions(TypedDict, total=False):
    """Settings of a model; what is not given is the model's own default."""

    layers: int
    """Conv caps layers of ar_capsnet."""
    dim: int
    """Dimension of the capsules."""
    caps: int
    """Capsule channels."""
    primary_dim: int
    """Dimension of the primary capsules."""
    strides: tuple[int, ...]
    """Stride of each conv caps layer of ar_capsnet, such as 2 2 1."""
    routing: str
    """Routing of ar_capsnet: attention, dynamic, query_key; with options: "dynamic(iterations=5)"."""
    activation: str
    """Activation of ar_capsnet: capsule, squash, squash_variant; with options: "capsule(compression=4)"."""
    class_routing: str
    """Routing of ar_capsnet's class layer, where it is another: "attention(heads=8)"."""
    class_activation: str
    """Activation of ar_capsnet's class layer, where it is another: "capsule(across=True)"."""
    layout: Literal["text", "code"]
    """Class layer of ar_capsnet: as in the paper's text, or as in the authors' published code."""
    iterations: int
    """Routing iterations of capsule_net."""
    residual: bool
    """Whether ar_capsnet adds a layer's input to its output."""
    dropout: float
    """The part of the input capsules that is dropped in training."""
    channel_dropout: float
    """The part of the channels that the class layer of ar_capsnet does not see in training."""
    batch_norm_momentum: float
    """How fast BatchNorm's running statistics follow in ar_capsnet; the paper's framework has 0.01."""
    stem_channels: int
    """Channels of the convolutions before the capsules."""
    widths: tuple[int, int, int, int]
    """Channels of the stages of strong_conv_net."""
    decoder: bool
    """Whether a capsule network reconstructs its input."""
    images_at_once: int
    """Keep the votes of no more images in memory at a time, and make them again for the backward pass (ar_capsnet)."""


class ModelOptions(ArchitectureOptions, total=False):
    """The same, with what training takes from the data."""

    image_size: tuple[int, int]
    """Height and width of the images, such as 32 32."""
    channels: int
    """Channels of the images: 1 grey, 3 colour."""
    classes: int
    """Number of classes."""


class AugmentationOptions(TypedDict, total=False):
    """Ranges of random changes."""

    rotation: float
    """Degrees, either way."""
    shift: float
    """A part of the image's side, either way."""
    scale: float
    """A factor from 1 - scale to 1 + scale."""
    shear: float
    """The shear, either way."""
    flip: bool
    """Mirror every second image, left to right."""


def report(line: str) -> None:
    """Say how it goes, apart from the results."""
    print(line, file=sys.stderr)
