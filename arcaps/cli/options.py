"""Options that several commands share. Flags of settings are made from the fields of their dataclasses."""

import sys
import types
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Union, get_args, get_origin

import tyro

from arcaps.settings import (
    ARCapsNetConfig,
    Augmentation,
    CapsuleNetConfig,
    ConvNetConfig,
    EfficientCapsNetConfig,
    MatrixCapsulesConfig,
    Recipe,
    Settings,
    StrongConvNetConfig,
    field_docs,
    field_types,
)

Flag = tyro.conf.FlagCreatePairsOff[bool]
MoreSettings = Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="NAME=VALUE ...")]


def make_flags(name: str, *settings: type[Settings], without: tuple[str, ...] = ()) -> Any:
    """A TypedDict with a flag for each field of these settings, to be left out or given, with its docstring as help.

    A field that several have gets the help of the first.
    """
    flags: dict[str, Any] = {}
    for cls in settings:
        docs = field_docs(cls)
        for field, kind in field_types(cls).items():
            if field not in without and field not in flags:
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


FROM_THE_DATA = ("image_size", "channels", "classes")
MODELS = (
    ARCapsNetConfig,
    CapsuleNetConfig,
    ConvNetConfig,
    StrongConvNetConfig,
    MatrixCapsulesConfig,
    EfficientCapsNetConfig,
)

if TYPE_CHECKING:
    RecipeFlags = dict[str, Any]
    AugmentationFlags = dict[str, Any]
    ArchitectureFlags = dict[str, Any]
    ModelFlags = dict[str, Any]
else:
    RecipeFlags = make_flags("RecipeFlags", Recipe, without=("name", "about", "options", "augmentation"))
    AugmentationFlags = make_flags("AugmentationFlags", Augmentation)
    ArchitectureFlags = make_flags("ArchitectureFlags", *MODELS, without=FROM_THE_DATA)
    ModelFlags = make_flags("ModelFlags", *MODELS)


def report(line: str) -> None:
    """Print progress to stderr; stdout is for results."""
    print(line, file=sys.stderr)
