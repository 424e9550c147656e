"""A section of a report as plain data: text, tables and pictures, without Markdown.

An experiment makes a section from its record; `arcaps.reports.markdown` renders it, and escapes every name in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias


class Markup(str):
    """A string that is Markdown already: it is not escaped."""

    __slots__ = ()


def code(name: str) -> Markup:
    """A name in code font."""
    return Markup(f"`{name}`")


def bold(text: str) -> Markup:
    """Text in bold type."""
    return Markup(f"**{text}**")


@dataclass(frozen=True)
class Text:
    """A paragraph: a template with its values, `Text("{data}, n = {count:,}.", {"data": "digits", "count": 10})`."""

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table; the first `words` columns hold words, the others numbers."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1


@dataclass(frozen=True)
class Picture:
    """A figure of the experiment, by the name of its file without the suffix."""

    name: str
    about: str


Block: TypeAlias = Text | Table | Picture


@dataclass(frozen=True)
class Section:
    """A title and what is below it."""

    title: str
    blocks: tuple[Block, ...]


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table; nothing where there is none."""
    return "" if value is None or value != value else f"{value:.{digits}f}"
