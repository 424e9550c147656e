"""Markdown from plain data."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from arcaps.analysis.section import Block, Markup, Picture, Section, Table, Text


def escape(text: str) -> str:
    """A name as Markdown shows it literally, on one line: `$10_$20`, `a|b` and `<b>` keep their characters."""
    if isinstance(text, Markup):
        return text
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"[\\`*\[\]<>|$~&]", r"\\\g<0>", text)
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A Markdown table; the first `words` columns are aligned to the left, the others to the right."""
    rule = ["---" if column < words else "---:" for column in range(len(heading))]
    lines = [list(map(escape, heading)), rule, *(list(map(escape, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fill(template: str, values: Mapping[str, Any]) -> str:
    """A template with its values, strings escaped."""
    return template.format_map({name: escape(v) if isinstance(v, str) else v for name, v in values.items()})


def render(block: Block, folder: str) -> str:
    """A block of a section as Markdown; `folder` is where the figures are."""
    match block:
        case Text():
            return fill(block.template, block.values)
        case Table():
            return table(block.heading, block.rows, block.words)
        case Picture():
            return f"![{escape(block.about)}]({folder}/{block.name}.png)"


def render_section(section: Section, folder: str = "analysis", *, title: bool = True) -> str:
    """A section as Markdown, with or without its title."""
    parts = [f"## {section.title}"] if title else []
    return "\n\n".join([*parts, *(render(block, folder) for block in section.blocks)])


def put_section(text: str, name: str, section: str) -> str:
    """Put a section into a document; a section of the same name is replaced."""
    first, last = f"<!-- analysis: {name} -->", f"<!-- end of analysis: {name} -->"
    block = f"{first}\n{section.strip()}\n{last}"
    start, end = text.find(first), text.find(last)
    if start >= 0 and end > start:
        return text[:start] + block + text[end + len(last) :]
    return f"{text.rstrip()}\n\n{block}\n"
