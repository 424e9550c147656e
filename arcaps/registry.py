"""Classes that can be asked for by name, with options: `attention`, `dynamic(iterations=5)`.

One string says the same thing in Python, on the command line, in a saved file and in a layer's `repr`.
"""

import ast
import dataclasses
import inspect
import math
from collections.abc import Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar

from arcaps.errors import ArcapsError

N = TypeVar("N", bound="Named")


def unknown(kind: str, name: str, known: list[str]) -> ArcapsError:
    """The error for a `name` that is not among the `known` ones, with a suggestion where one is near."""
    near = get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ArcapsError(f"unknown {kind} {name!r}: {hint}there are {', '.join(known)}")


def parse_spec(spec: str, kind: str = "") -> tuple[str, dict[str, Any]]:
    """Split `name(option=value, ...)` into the name and its options. Values are plain Python literals."""
    try:
        node = ast.parse(spec.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            return node.func.id, {str(k.arg): ast.literal_eval(k.value) for k in node.keywords if k.arg}
    except (SyntaxError, ValueError):
        pass
    what = f"{kind} {spec!r}" if kind else repr(spec)
    raise ArcapsError(f"cannot read {what}: write a name, or a name with options such as 'dynamic(iterations=5)'")


def constructor(cls: type) -> Mapping[str, inspect.Parameter]:
    """The parameters of a class's constructor."""
    return inspect.signature(cls.__init__).parameters  # type: ignore[misc]


def option_defaults(cls: type) -> dict[str, Any]:
    """The options of a class with their defaults: the fields of its config, or its keyword-only arguments.

    What a layer gives to the constructor by keyword (`from_the_layer`) is not an option.
    """
    config = getattr(cls, "config_class", None)
    if config is not None:
        return {field.name: field.default for field in dataclasses.fields(config)}
    given: frozenset[str] = getattr(cls, "from_the_layer", frozenset())
    parameters = constructor(cls).values()
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.name not in given
    }


def option_names(cls: type) -> list[str]:
    """The names of the options of a class."""
    return list(option_defaults(cls))


def check_options(kind: str, name: str, cls: type, options: dict[str, Any]) -> None:
    """Refuse options that the constructor of `cls` does not take, and name those it does."""
    known = option_names(cls)
    for option in options:
        if option not in known:
            near = get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ArcapsError(f"{kind} {name!r} has no option {option!r}: {hint}it takes {', '.join(known) or 'none'}")


def check_kinds(kind: str, name: str, cls: type, options: dict[str, Any]) -> None:
    """Refuse options of a part whose values are of another kind than their defaults."""
    defaults = option_defaults(cls)
    for option, value in options.items():
        wanted = type(defaults.get(option))
        if wanted in KINDS and not is_kind(value, wanted):
            raise ArcapsError(f"{kind} {name!r}: {option} is {value!r}: give {KINDS[wanted]}")


KINDS: dict[type, str] = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
"""What messages call the plain kinds of values."""


def is_kind(value: Any, wanted: type) -> bool:
    """Whether a value is of a plain kind; whole numbers are numbers too, and numbers are finite."""
    if wanted is bool or isinstance(value, bool):
        return wanted is bool and isinstance(value, bool)
    if wanted is str:
        return isinstance(value, str)
    return isinstance(value, Integral if wanted is int else Real) and math.isfinite(value)


class Named:
    """A family of classes known by name.

    The direct subclass is the family; a class of the family takes its name where it is defined, and is known from
    then on:

        class MeanRouting(Routing, name="mean"): ...
        Routing.build("mean", in_caps, out_caps, out_dim)

    Options are the keyword-only arguments of the constructor. The options that an object was made with are kept, and
    make its `spec` and its `repr`.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    known: ClassVar[dict[str, type[Any]]]
    from_the_layer: ClassVar[frozenset[str]] = frozenset()
    """Keyword arguments that the family's user gives to a constructor that takes them; nobody writes them in a spec."""
    options: dict[str, Any]
    """The options that this object was made with."""

    def __init_subclass__(cls, *, kind: str | None = None, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if kind is not None:
            cls.kind, cls.known = kind, {}
            if "__repr__" not in cls.__dict__:  # before that of nn.Module
                cls.__repr__ = Named.__repr__  # type: ignore[method-assign]
        if name is not None:
            taken = cls.known.get(name)
            if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ArcapsError(
                    f"the {cls.kind} name {name!r} is taken by {taken.__module__}.{taken.__qualname__}: "
                    f"give {cls.__qualname__} another name"
                )
            cls.name = name
            cls.known[name] = cls

    def __new__(cls, *_: Any, **keywords: Any) -> Any:
        self = super().__new__(cls)
        self.__dict__["options"] = {name: value for name, value in keywords.items() if name in option_defaults(cls)}
        return self

    @property
    def spec(self) -> str:
        """The string that asks for this object again: its name, and the options that are not the default."""
        defaults = option_defaults(type(self))
        changed = [f"{name}={value!r}" for name, value in self.options.items() if value != defaults[name]]
        name = getattr(self, "name", type(self).__name__)
        return f"{name}({', '.join(changed)})" if changed else name

    def __repr__(self) -> str:
        return self.spec

    @classmethod
    def find(cls: type[N], name: str) -> type[N]:
        """The class of this family with that name."""
        if not isinstance(name, str) or name not in cls.known:
            raise unknown(cls.kind, name, sorted(cls.known))
        return cls.known[name]

    @classmethod
    def build(cls: type[N], spec: Any, *args: Any, **given: Any) -> N:
        """Make the object that `spec` asks for, from the positional `args` that the whole family takes.

        `spec` is a name with options, a finished object, or a factory: a callable that takes `args`, such as a class
        or a `functools.partial`. Of the keyword arguments `given`, a class gets those that its constructor takes.
        """
        if isinstance(spec, cls):
            return spec
        if isinstance(spec, str):
            name, options = parse_spec(spec, cls.kind)
            chosen = cls.find(name)
            check_options(cls.kind, name, chosen, options)
            check_kinds(cls.kind, name, chosen, options)
            keywords = {**options, **cls.accepted(chosen, given)}
            for option, one in constructor(chosen).items():
                if one.kind is one.KEYWORD_ONLY and one.default is one.empty and option not in keywords:
                    raise ArcapsError(f"{cls.kind} {name!r} needs {option}: give it, as a layer does")
            return chosen(*args, **keywords)
        if not callable(spec):
            raise ArcapsError(f"{spec!r} is no {cls.kind}: give a name, a {cls.__name__} or a callable that makes one")
        made = spec(*args, **(cls.accepted(spec, given) if isinstance(spec, type) else {}))
        if not isinstance(made, cls):
            raise ArcapsError(f"{spec!r} made {type(made).__name__}: a {cls.kind} must be a {cls.__name__}")
        return made

    @staticmethod
    def accepted(made: type, given: dict[str, Any]) -> dict[str, Any]:
        """Those of the keyword arguments that the constructor of a class takes."""
        takes = {name for name, one in constructor(made).items() if one.kind is inspect.Parameter.KEYWORD_ONLY}
        return {name: value for name, value in given.items() if name in takes}
