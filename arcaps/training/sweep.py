"""Training at every point of a grid of settings."""

import ast
from itertools import product
from pathlib import Path
from typing import Any

from arcaps.errors import ArcapsError
from arcaps.training.jobs import Job, run_jobs
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
    data_dir: str | None = None,
    **overrides: Any,
) -> dict[str, dict[str, Any]]:
    """Run every point that is not finished, going on with those that were begun; the result of each, by its name."""
    points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    jobs = [
        Job(",".join(f"{key}={value}" for key, value in point.items()), recipe, {**point, **overrides})
        for point in points
    ]
    results: dict[str, dict[str, Any]] = {}

    def note(job: Job, run: Run) -> None:
        assert run.result is not None
        results[job.name] = run.result

    run_jobs(jobs, folder, max_minutes=max_minutes, finished=note, data_dir=data_dir)
    return results
