"""Options that several commands share. Flags of settings are made from the fields of their dataclasses."""

import inspect
import os
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Union, get_args, get_origin

import tyro

from arcaps.errors import ArcapsError
from arcaps.fields import Settings, field_docs, field_types
from arcaps.settings import (
    FROM_THE_DATA,
    ARCapsNetConfig,
    Augmentation,
    CapsuleNetConfig,
    ConvNetConfig,
    EfficientCapsNetConfig,
    MatrixCapsulesConfig,
    Recipe,
    StrongConvNetConfig,
)

Flag = tyro.conf.FlagCreatePairsOff[bool]
Precision = Literal["auto", "float32", "bfloat16"]
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
    pair = tuple[int, int] in (kind, *get_args(kind))
    return tyro.conf.arg(help=text, metavar="HEIGHT [WIDTH]" if pair else None, help_behavior_hint="")


def hide_empty_defaults(command: Callable[..., None]) -> None:
    """Let the help of a command leave out defaults that are None, False or empty, and None as a choice."""
    for name, parameter in inspect.signature(command).parameters.items():
        default = parameter.default
        if default is parameter.empty or (not default and type(default) not in (int, float)):
            kinds = [one for one in get_args(parameter.annotation) if one in (str, int, float, Path)]
            metavar = kinds[0].__name__.upper() if default is None and kinds else None
            hint = tyro.conf.arg(help_behavior_hint="", metavar=metavar)
            command.__annotations__[name] = Annotated[parameter.annotation, hint]


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


def named_after(run: Path, ending: str) -> Path:
    """A file in the working directory with the name of a run folder, a model file or a pretrained model."""
    return Path((run.name or run.resolve().name).removesuffix(".safetensors") + ending)


def check_output(option: str, path: Path | None, *, folder: bool = False) -> None:
    """Refuse a file, or a folder, that cannot be written, before any work is done for it."""
    if path is None:
        return
    if path.is_dir() and not folder:
        raise ArcapsError(f"{option} is {path}, which is a folder: give the name of a file in it")
    if path.exists() and not path.is_dir() and folder:
        raise ArcapsError(f"{option} is {path}, which is a file: give a folder")
    above = path if folder else path.parent
    while folder and not above.exists():
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ArcapsError(f"{option} is {path}, which cannot be written: give another place")


def join_settings(more: tuple[str, ...], *flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the flags and of --set together; one that is given by both is refused."""
    from arcaps.training.sweep import read_settings

    named = {name: value for group in flags for name, value in group.items()}
    further = read_settings(more)
    for name in further.keys() & named.keys():
        raise ArcapsError(f"{name} is given by --set and by --{name.replace('_', '-')}: give it once")
    return {**named, **further}
