"""The samples of docs/export.md and docs/page.md run, and print what they say."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.test_docs import python_blocks


@pytest.mark.slow
@pytest.mark.parametrize("name", ["docs/export.md", "docs/page.md"])
def test_the_samples_print_what_they_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (sample,) = python_blocks(name)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(sample, {"__name__": "sample"})
    assert printed.getvalue().splitlines() == re.findall(r"print.*# (.+)", sample)
