"""Classes that can be asked for by name, with options: `attention`, `dynamic(iterations=5)`.

One string says the same thing in Python, on the command line, in a saved file and in a layer's `repr`.
"""

import ast
import inspect
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar

from arcaps.errors import ArcapsError

N = TypeVar("N", bound="Named")


def unknown(kind: str, name: str, known: list[str]) -> ArcapsError:
    """The error for a `name` that is not among the `known` ones, with a suggestion where one is near."""
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ArcapsError(f"unknown {kind} {name!r}: {hint}there are {', '.join(known)}")


def parse_spec(spec: str) -> tuple[str, dict[str, Any]]:
    """Split `name(option=value, ...)` into the name and its options. Values are plain Python literals."""
    try:
        node = ast.parse(spec.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            return node.func.id, {str(k.arg): ast.literal_eval(k.value) for k in node.keywords if k.arg}
    except (SyntaxError, ValueError):
        pass
    raise ArcapsError(f"cannot read {spec!r}: write a name, or a name with options such as 'dynamic(iterations=5)'")


def option_names(cls: type) -> list[str]:
    """The options of a class: the keyword-only arguments of its constructor."""
    parameters = inspect.signature(cls).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]


def check_options(kind: str, name: str, cls: type, options: dict[str, Any]) -> None:
    """Refuse options that the constructor of `cls` does not take, and name those it does."""
    known = option_names(cls)
    for option in options:
        if option not in known:
            near = get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ArcapsError(f"{kind} {name!r} has no option {option!r}: {hint}it takes {', '.join(known) or 'none'}")


class Named:
    """A family of classes known by name.

    The direct subclass is the family; a class of the family takes its name where it is defined, and is known from
    then on:

        class MeanRouting(Routing, name="mean"): ...
        Routing.build("mean", in_caps, out_caps, out_dim)

    Options are the keyword-only arguments of the constructor.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    known: ClassVar[dict[str, type[Any]]]

    def __init_subclass__(cls, *, kind: str | None = None, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if kind is not None:
            cls.kind, cls.known = kind, {}
        if name is not None:
            cls.name = name
            cls.known[name] = cls

    @classmethod
    def find(cls: type[N], name: str) -> type[N]:
        """The class of this family with that name."""
        if name not in cls.known:
            raise unknown(cls.kind, name, sorted(cls.known))
        return cls.known[name]

    @classmethod
    def build(cls: type[N], spec: str, *args: Any) -> N:
        """Make the object that `spec` asks for, from the positional `args` that the whole family takes."""
        name, options = parse_spec(spec)
        chosen = cls.find(name)
        check_options(cls.kind, name, chosen, options)
        return chosen(*args, **options)
