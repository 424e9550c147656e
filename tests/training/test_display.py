"""What a training shows: a live line on a terminal, log lines elsewhere."""

import io
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import arcaps
from arcaps.training import display

TINY: dict[str, Any] = {
    "limit": 200,
    "epochs": 1,
    "dim": 4,
    "caps": 2,
    "primary_dim": 4,
    "stem_channels": 4,
    "report": False,
}


def test_a_terminal_gets_a_live_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200, color_system=None)
    monkeypatch.setattr(display, "Console", lambda **_: console)
    logger = logging.getLogger("arcaps")
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    arcaps.train("digits", run=tmp_path / "run", **TINY)
    shown = screen.getvalue()
    assert "epoch 1/1" in shown
    assert "images/s" in shown
    assert "margin" in shown
    assert "\x1b[?25l" in shown  # the cursor is hidden while the line moves ...
    assert "\x1b[?25h" in shown  # ... and comes back


def test_the_speed_counts_no_more_images_than_there_are() -> None:
    shown = display.Display(live=False)
    recipe = arcaps.Recipe("large batch", "", "digits", batch_size=1000)
    shown.on_step(SimpleNamespace(recipe=recipe, splits=SimpleNamespace(train=range(30))))  # type: ignore[arg-type]
    assert shown.images == 30


def test_a_file_gets_a_line_per_epoch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="arcaps"):
        arcaps.train("digits", run=tmp_path / "run", **TINY)
    lines = [line for line in caplog.messages if line.startswith("epoch ")]
    assert len(lines) == 1
    assert "validation error" in lines[0]
