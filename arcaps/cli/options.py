"""Options that several commands share. Flags of settings are made from the fields of their dataclasses."""

import sys
import types
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Union, get_args, get_origin

import tyro

from arcaps.settings import Augmentation, Recipe, Settings, field_docs, field_types

Flag = tyro.conf.FlagCreatePairsOff[bool]


def make_flags(name: str, *settings: type[Settings], without: tuple[str, ...] = ()) -> Any:
    """A TypedDict with a flag for each field of these settings, to be left out or given, with its docstring as help."""
    flags = {}
    for cls in settings:
        docs = field_docs(cls)
        for field, kind in field_types(cls).items():
            if field not in without:
                flags[field] = Annotated[flag_type(kind), flag_help(kind, docs[field])]
    return TypedDict(name, flags, total=False)  # type: ignore[operator]


def flag_type(kind: Any) -> Any:
    """The type of a flag: a setting that may be None is left out instead; one number may stand for a pair of it."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    return tuple[int, ...] if kind == tuple[int, int] else kind


def flag_help(kind: Any, text: str) -> Any:
    """The help of a flag."""
    pair = flag_type(kind) == tuple[int, ...] and kind != tuple[int, ...]
    return tyro.conf.arg(help=text, metavar="HEIGHT [WIDTH]" if pair else None)


if TYPE_CHECKING:
    RecipeFlags = dict[str, Any]
    AugmentationFlags = dict[str, Any]
else:
    RecipeFlags = make_flags("RecipeFlags", Recipe, without=("name", "about", "options", "augmentation"))
    AugmentationFlags = make_flags("AugmentationFlags", Augmentation)


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


def report(line: str) -> None:
    """Say how it goes, apart from the results."""
    print(line, file=sys.stderr)
