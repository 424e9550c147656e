"""What a settings dataclass is made of: fields that are checked, documented, and plain values for JSON; no torch."""

import ast
import inspect
import math
import os
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, field, fields
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from arcaps.errors import ArcapsError
from arcaps.registry import KINDS, unknown

S = TypeVar("S", bound="Settings")


def within(least: int | float, most: int | float, default: Any = MISSING) -> Any:
    """A field whose numbers lie from `least` to `most`."""
    return field(default=default, metadata={"least": least, "most": most})


class Options(Mapping[str, Any]):
    """The options of a model: a mapping that cannot be changed, and can be hashed."""

    def __init__(self, values: Mapping[str, Any] | None = None, **more: Any) -> None:
        self.values_by_name = {key: freeze(value) for key, value in {**(values or {}), **more}.items()}

    def __getitem__(self, name: str) -> Any:
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def __hash__(self) -> int:
        return hash(frozenset(self.values_by_name.items()))

    def __repr__(self) -> str:
        return repr(self.values_by_name)


def freeze(value: Any) -> Any:
    """Lists, as JSON has them, become tuples."""
    return tuple(map(freeze, value)) if isinstance(value, list | tuple) else value


class Settings:
    """What all settings have in common: checked values, plain values for JSON, a docstring for each field."""

    __no_type_check__ = True  # the tests' type checker would come before the checks here, with another error

    def __post_init__(self) -> None:
        kinds = field_types(type(self))
        for known in fields(self):  # type: ignore[arg-type]
            value = check_value(known.name, getattr(self, known.name), kinds[known.name])
            check_range(known.name, value, known.metadata)
            object.__setattr__(self, known.name, value)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {known.name: plain(getattr(self, known.name)) for known in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls: type[S], stored: object) -> S:
        """The settings that `as_dict` wrote. Fields that are not there have their default; unknown ones are refused."""
        kind = cls.__name__.lower()
        if not isinstance(stored, Mapping):
            raise ArcapsError(f"the {kind} is {stored!r}: it should be an object with {', '.join(field_types(cls))}")
        for name in stored:
            if name not in field_types(cls):
                raise unknown(f"field of the {kind}", str(name), list(field_types(cls)))
        needed = [known.name for known in fields(cls) if known.default is MISSING and known.default_factory is MISSING]  # type: ignore[arg-type]
        for name in needed:
            if name not in stored:
                raise ArcapsError(f"the {kind} has no {name}")
        return cls(**stored)


def field_types(cls: type[Any]) -> dict[str, Any]:
    """The type of each field, by name."""
    return {known.name: known.type for known in fields(cls)}


def field_docs(cls: type[Any]) -> dict[str, str]:
    """The docstring of each field, by name: the string below it in the source. Those of base classes come first."""
    found = {}
    for one in reversed(cls.__mro__):
        if "__dataclass_fields__" not in vars(one):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]
        assert isinstance(body, ast.ClassDef)
        for before, after in zip(body.body, body.body[1:], strict=False):
            named = isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)
            if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                found[before.target.id] = " ".join(str(after.value.value).split())  # type: ignore[attr-defined]
    return found


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Settings):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, tuple) else value


def check_value(name: str, value: Any, kind: Any) -> Any:
    """The value as the type `kind` has it: whole numbers for floats, lists for tuples are converted; others refused."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        choices = [one for one in get_args(kind) if one is not type(None)]
        return None if value is None and type(None) in get_args(kind) else check_value(name, value, choices[0])
    if origin is Literal:
        if value not in get_args(kind):
            raise unknown(name.replace("_", " "), str(value), list(get_args(kind)))
        return value
    if origin is tuple:
        return check_sequence(name, value, get_args(kind))
    if kind is bool:
        good = isinstance(value, bool)
    elif kind is int:
        good = isinstance(value, Integral) and not isinstance(value, bool)
        value = int(value) if good else value
    elif kind is float:
        good = isinstance(value, int | float | Real) and not isinstance(value, bool) and math.isfinite(value)
        value = float(value) if good else value
    elif kind is str:
        good = isinstance(value, str | os.PathLike)
        value = os.fspath(value) if good else value
    elif kind is Options:
        good = isinstance(value, Mapping) and all(isinstance(key, str) and is_finite(value[key]) for key in value)
        value = Options(value) if good else value
    elif isinstance(kind, type) and issubclass(kind, Settings):
        value = kind.from_dict(value) if isinstance(value, Mapping) else value
        good = isinstance(value, kind)
    else:
        good = True
    if not good:
        raise ArcapsError(f"{name} is {value!r}: give {WORDS.get(kind, getattr(kind, '__name__', str(kind)))}")
    return value


def is_finite(value: Any) -> bool:
    """Whether no number in a value, also inside lists and mappings, is infinite or NaN."""
    if isinstance(value, list | tuple | Mapping):
        return all(map(is_finite, value.values() if isinstance(value, Mapping) else value))
    return not isinstance(value, float) or math.isfinite(value)


WORDS = {**KINDS, Options: "options by name, numbers that are finite"}


def check_sequence(name: str, value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    """A tuple of these types; one number stands for a pair of it."""
    pair = kinds == (int, int)
    if pair and isinstance(value, Integral):
        value = (value, value)
    if not isinstance(value, list | tuple):
        raise ArcapsError(f"{name} is {value!r}: give {'two whole numbers, such as (28, 28)' if pair else 'a tuple'}")
    value = tuple(value) * 2 if pair and len(value) == 1 else tuple(value)
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(value) != len(kinds):
        raise ArcapsError(f"{name} has {len(value)} values, {value!r}: give {len(kinds)}")
    return tuple(check_value(name, one, kind) for one, kind in zip(value, kinds, strict=True))


def check_range(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    """Refuse numbers outside the limits of a field."""
    if not limits or value is None:
        return
    for one in value if isinstance(value, tuple) else (value,):
        if one < limits["least"]:
            raise ArcapsError(f"{name} is {one}: give at least {limits['least']:g}")
        if one > limits["most"]:
            raise ArcapsError(f"{name} is {one}: give at most {limits['most']:g}")
