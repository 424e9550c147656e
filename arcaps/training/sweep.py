"""Training at every point of a grid of settings."""

import ast
import time
from itertools import product
from pathlib import Path
from typing import Any

from arcaps.errors import ArcapsError
from arcaps.training.api import train
from arcaps.training.run import Run


def read_grid(settings: tuple[str, ...]) -> dict[str, list[Any]]:
    """From `dim=16,32` to names and lists of values."""
    grid = {}
    for setting in settings:
        name, _, values = setting.partition("=")
        if not name or not values:
            raise ArcapsError(f"cannot read {setting!r} as a part of a grid: write it as dim=16,32")
        grid[name.strip().replace("-", "_")] = [read_value(value.strip()) for value in values.split(",")]
    return grid


def read_value(text: str) -> Any:
    """A number or another literal, else the text itself."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def run_sweep(
    recipe: str,
    grid: dict[str, list[Any]],
    folder: Path,
    *,
    max_minutes: float | None = None,
    **overrides: Any,
) -> dict[str, dict[str, Any]]:
    """Run every point that is not finished, going on with those that were begun; the result of each, by its name."""
    began = time.monotonic()
    results = {}
    for values in product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        name = ",".join(f"{key}={value}" for key, value in point.items())
        run = Run(folder / name)
        if run.result is None:
            left = None if max_minutes is None else max_minutes - (time.monotonic() - began) / 60
            options = {key: value for key, value in overrides.items() if key == "data_dir"}
            if (run.path / "config.json").exists():
                train(resume=run.path, max_minutes=left, **options)
            else:
                train(recipe, run=run.path, max_minutes=left, **point, **overrides)
        result = run.result
        assert result is not None
        results[name] = result
    return results
