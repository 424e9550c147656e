"""Training at every point of a grid of settings."""

import ast
import inspect
from collections.abc import Sequence
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

from arcaps.errors import ArcapsError
from arcaps.training.api import train
from arcaps.training.jobs import Job, run_jobs
from arcaps.training.recipes import NOT_FOR_OVERRIDES
from arcaps.training.run import Result, Run

LONGEST_NAME = 200
"""Characters of the name of a point: a file system takes 255 bytes."""


def read_grid(settings: Sequence[str]) -> dict[str, list[Any]]:
    """Names and lists of values: from `dim=16,32`, `strides=(2,2),(2,1)`, `routing=attention,dynamic(iterations=5)`."""
    grid: dict[str, list[Any]] = {}
    for setting in settings:
        name, values = split_setting(setting)
        if name in grid:
            raise ArcapsError(f"{name} is in the grid twice: give all its values at once, as {name}=1,2")
        if len(set(map(repr, values))) < len(values):
            raise ArcapsError(f"{setting!r} gives a value twice: give each once")
        grid[name] = values
    return grid


def read_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Names and values: from `dim=16`, `routing=dynamic(iterations=5)`, `strides=(2,1)`."""
    found: dict[str, Any] = {}
    for setting in settings:
        name, values = split_setting(setting)
        if len(values) != 1:
            raise ArcapsError(f"{setting!r} gives several values: give one, and a tuple in brackets, as strides=(2,1)")
        if name in found:
            raise ArcapsError(f"{name} is set twice, to {found[name]!r} and to {values[0]!r}: give it once")
        found[name] = values[0]
    return found


def split_setting(setting: str) -> tuple[str, list[Any]]:
    """The name and the values of `name=value,value`."""
    name, _, text = setting.partition("=")
    name = name.strip().replace("-", "_")
    if not name.isidentifier() or not text.strip():
        raise ArcapsError(f"cannot read {setting!r} as a setting with its values: write it as dim=16,32")
    if name in (*NOT_FOR_OVERRIDES, *inspect.signature(train).parameters):
        raise ArcapsError(f"{name} is not a setting of a recipe or a model, in {setting!r}: leave it out")
    try:
        node = ast.parse(f"({text},)", mode="eval").body
        assert isinstance(node, ast.Tuple)
        return name, [read_value(one, text) for one in node.elts]
    except (SyntaxError, ValueError, AssertionError, MemoryError, RecursionError):
        return name, [part.strip() for part in text.split(",")]  # such as a path


def read_value(node: ast.expr, text: str) -> Any:
    """A literal, else its own text: a name, or a name with options."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def run_sweep(
    recipe: str,
    grid: dict[str, list[Any]],
    folder: Path,
    *,
    max_minutes: float | None = None,
    data_dir: str | None = None,
    silent: bool = False,
    report: bool = True,
    **overrides: Any,
) -> dict[str, Result | ArcapsError]:
    """Run every point that is not finished, resuming those that were begun; the result of each by its name.

    A point that fails has its error in place of a result.
    """
    jobs = [Job(point_name(point), recipe, {**overrides, **point}) for point in points_of(grid)]
    results: dict[str, Result | ArcapsError] = {}

    def note(job: Job, run: Run) -> None:
        assert run.result is not None
        results[job.name] = run.result

    def note_failure(job: Job, error: ArcapsError) -> None:
        results[job.name] = error

    session: dict[str, Any] = {"data_dir": data_dir, "silent": silent, "report": report}
    run_jobs(jobs, folder, max_minutes=max_minutes, finished=note, failed=note_failure, **session)
    return results


def points_of(grid: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Every point of a grid: a value for each name."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def point_name(point: dict[str, Any]) -> str:
    """The name of a point, which is that of its folder; a long one ends with a part of its SHA-256."""
    name = ",".join(f"{key}={value}".replace(" ", "") for key, value in point.items())
    if len(name) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME - 9]}-{sha256(name.encode()).hexdigest()[:8]}"
    return name.replace("/", "_") or "point"
