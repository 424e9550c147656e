"""Markdown keeps what it is given."""

import pytest

from arcaps.analysis.section import Picture, Section, Table, Text, bold, code, number
from arcaps.reports.markdown import escape, fill, put_section, render_section, table


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ar_capsnet", "ar_capsnet"),
        ("$10_$20", r"\$10\_\$20"),
        ("a|b", r"a\|b"),
        ("<script>", r"\<script\>"),
        ("_it_ *b* `c` [d](e)", r"\_it\_ \*b\* \`c\` \[d\](e)"),
        ("two\nlines", "two lines"),
        ("\u6c49\u5b57 \\ &amp;", "\u6c49\u5b57 \\\\ \\&amp;"),
        ("rotation+, 0.5 %", "rotation+, 0.5 %"),
    ],
)
def test_escape(name: str, expected: str) -> None:
    assert escape(name) == expected


def test_markup_is_kept() -> None:
    assert escape(code("a_b")) == "`a_b`"
    assert escape(bold("all")) == "**all**"


def test_table() -> None:
    made = table(["class", "n"], [["a|b", "3"], [bold("all"), "4"]])
    assert made.splitlines() == ["| class | n |", "| --- | ---: |", r"| a\|b | 3 |", "| **all** | 4 |"]
    assert table(["a", "b"], [], words=2).splitlines()[1] == "| --- | --- |"


def test_fill_escapes_names_only() -> None:
    assert fill("*{name}*: {share:.1%}", {"name": "$x", "share": 0.5}) == r"*\$x*: 50.0%"


def test_section() -> None:
    section = Section("Title", (Text("{n} images.", {"n": 3}), Picture("align", "ratios"), Table(["a"], [["b"]])))
    assert render_section(section, "here") == (
        "## Title\n\n3 images.\n\n![ratios](here/align.png)\n\n| a |\n| --- |\n| b |"
    )
    assert render_section(section, title=False).startswith("3 images.")


def test_numbers() -> None:
    assert [number(0.12345), number(None), number(float("nan")), number(2.0, 1)] == ["0.123", "", "", "2.0"]


def test_sections_are_replaced() -> None:
    text = put_section("# Title\n", "b", "## B\n\nold")
    text = put_section(text, "c", "## C")
    text = put_section(text, "b", "## B\n\nnew")
    assert "old" not in text
    assert text.index("new") < text.index("## C")
    assert text.startswith("# Title\n\n<!-- analysis: b -->\n## B\n\nnew\n<!-- end of analysis: b -->\n\n")
    assert put_section(text, "c", "## C") == text
