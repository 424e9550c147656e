"""`arcaps train`, `recipes`, `runs` and `sweep`."""

import json as jsonlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from arcaps.cli.options import (
    ArchitectureFlags,
    AugmentationFlags,
    Flag,
    MoreSettings,
    Precision,
    RecipeFlags,
    join_settings,
)
from arcaps.errors import ArcapsError

if TYPE_CHECKING:
    from arcaps.training import Run


def train(
    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")] = "",
    *,
    settings: tyro.conf.OmitArgPrefixes[RecipeFlags],
    augmentation: tyro.conf.OmitArgPrefixes[AugmentationFlags],
    architecture: tyro.conf.OmitArgPrefixes[ArchitectureFlags],
    more: MoreSettings = (),
    run: str | None = None,
    resume: str | None = None,
    start_from: Annotated[str | None, tyro.conf.arg(name="from", metavar="MODEL")] = None,
    device: str = "auto",
    precision: Precision = "auto",
    micro_batch: int | None = None,
    max_minutes: float | None = None,
    save_minutes: float = 5.0,
    tensorboard: Flag = False,
    report: bool = True,
    data_dir: str | None = None,
) -> None:
    """Train a model by a recipe, or resume a run that was stopped.

    Args:
        recipe: A recipe: 'arcaps recipes' lists them. Leave it out with --resume.
        settings: What is not given is the recipe's own.
        augmentation: Data augmentation: random changes of the training images.
        architecture: What is not given is the recipe's or the model's own.
        more: Further settings, such as options of a model of your own.
        run: The folder of the new run; by default one below runs/.
        resume: The folder of a run that was stopped; with a larger --epochs a finished run is extended.
        start_from: Fine-tuning: start from a run folder, a model file or a pretrained name, also with other classes.
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto is bfloat16 on GPUs that compute in it, else float32. A resumed run keeps its own.
        micro_batch: Cut each batch into parts of this size, for less memory.
        max_minutes: Stop after this number of minutes, with everything saved.
        save_minutes: Write a checkpoint after this number of minutes, and after each epoch.
        tensorboard: Also write for TensorBoard.
        report: Write a report when the run is finished.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.training import Stopped
    from arcaps.training import train as start

    overrides = join_settings(more, settings, augmentation, architecture)
    try:
        finished = start(
            recipe or None,
            run=run,
            resume=resume,
            start_from=start_from,
            device=device,
            precision=precision,
            micro_batch=micro_batch,
            max_minutes=max_minutes,
            save_minutes=save_minutes,
            tensorboard=tensorboard,
            report=report,
            data_dir=data_dir,
            **overrides,
        )
    except Stopped as stop:
        print(f"{stop}; everything is saved: resume with  arcaps train --resume {quoted(stop.run)}")
        sys.exit(stop.code)
    print_result(finished)


def print_result(run: "Run") -> None:
    """Print the result of a run, and what to do next."""
    result = run.result
    if result is None:  # not the first of several processes
        return
    test = result.test
    if "accuracy" in test:
        low, high = test["interval_95"]
        interval = f"95 % interval {low:.2%} to {high:.2%}, n = {test['count']:,}"
        print(f"test accuracy {test['accuracy']:.2%} ({interval}): {test['data']}")
    else:
        print(result.summary)
    if (run.path / "report.md").exists():
        print(f"report: {run.path / 'report.md'}")
    print(f"next:   arcaps predict {quoted(run)} image.png;  arcaps evaluate {quoted(run)}")


def quoted(run: "Run") -> str:
    """The folder of a run as a shell takes it."""
    return shlex.quote(str(run.path))


def recipes(*, json: Flag = False) -> None:
    """List the recipes with their settings.

    Args:
        json: Print JSON instead of a table.
    """
    from arcaps.settings import Recipe
    from arcaps.training.recipes import RECIPES

    if json:
        print(jsonlib.dumps({name: recipe.as_dict() for name, recipe in RECIPES.items()}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=True)
    for heading in ("recipe", "what it is, and where it differs from the paper's MNIST"):
        table.add_column(heading, no_wrap=heading == "recipe", overflow="fold")
    usual = Recipe("", "", "").flat
    for recipe in RECIPES.values():
        own = {key: value for key, value in recipe.flat.items() if key not in ("name", "about")}
        changed = ", ".join(f"{key}={value}" for key, value in own.items() if value != usual.get(key))
        table.add_row(recipe.name, f"{recipe.about}\n{changed}")
    Console().print(table)


def runs(
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER ...")] = (Path("runs"),),
    *,
    json: Flag = False,
) -> None:
    """List run folders by recipe, with their status, epochs and results, the best of each recipe first.

    The status is finished, running or stopped; unknown where the run is not finished and its folder is another user's.

    Args:
        folders: Run folders, or folders with runs below them.
        json: Print JSON instead of lines.
    """
    from arcaps.training import Run

    found = sorted({file.parent for folder in folders for file in folder.rglob("config.json")})
    if not found:
        raise ArcapsError(f"there are no run folders in {', '.join(map(str, folders))}: give another folder")
    rows, damaged = [], 0
    for path in found:
        try:
            rows.append(describe_run(Run(path)))
        except ArcapsError as error:
            print(f"arcaps: {error}", file=sys.stderr)
            damaged += 1
    rows.sort(key=lambda row: (row["recipe"], row["test_error"] is None, row["test_error"], row["run"]))
    if json:
        print(jsonlib.dumps(rows, indent=2))
    width = max((len(row["run"]) for row in rows), default=0)
    for row in [] if json else rows:
        validated = "" if row["validation_error"] is None else f"validation error {row['validation_error']:7.2%}"
        tested = row["status"] if row["test_error"] is None else f"test error {row['test_error']:7.2%}"
        epochs = f"{row['epochs_done']} of {row['epochs']}"
        print(f"{row['run']:{width}}  {row['recipe']:12} {epochs:>9}  {validated:25}  {tested}")
    if damaged:
        raise ArcapsError(f"{damaged} of {len(found)} run folders cannot be read: they are named above")


def describe_run(run: "Run") -> dict[str, Any]:
    """A run in a line: recipe, epochs, errors."""
    recipe, metrics, result = run.recipe, run.metrics, run.result
    errors = [line["validation_error"] for line in metrics]
    test = None if result is None else 1 - result.test["accuracy"] if "accuracy" in result.test else None
    status = "finished" if result is not None else {True: "running", False: "stopped", None: "unknown"}[run.held]
    return {
        "run": str(run.path),
        "recipe": recipe.name,
        "model": recipe.model,
        "status": status,
        "epochs_done": len(metrics),
        "epochs": recipe.epochs,
        "validation_error": None if not errors else round(min(errors), 9),
        "test_error": None if test is None else round(test, 9),
    }


def sweep(
    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")] = "cifar10",
    *,
    settings: tyro.conf.OmitArgPrefixes[RecipeFlags],
    augmentation: tyro.conf.OmitArgPrefixes[AugmentationFlags],
    architecture: tyro.conf.OmitArgPrefixes[ArchitectureFlags],
    more: MoreSettings = (),
    grid: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE,VALUE ...")] = (
        "layers=0,1,2,3,4",
        "dim=16,32",
    ),
    folder: Path | None = None,
    max_minutes: float | None = None,
    report: bool = True,
    data_dir: str | None = None,
) -> None:
    """Train a recipe at every point of a grid; points that are finished are not run again.

    The default grid is that of the paper's hyper-parameter table. Each point is an ordinary run folder. A point that
    fails does not keep the others from running.

    Args:
        recipe: A recipe: 'arcaps recipes' lists them.
        settings: The same for all points; what is not given is the recipe's own.
        augmentation: Data augmentation: random changes of the training images.
        architecture: What is not given is the recipe's or the model's own.
        more: Further settings, such as options of a model of your own.
        grid: Settings of the recipe or its model and their values, such as dim=16,32 strides=(2,2),(2,1)
            "routing=attention,dynamic(iterations=5)".
        folder: The folder of the runs; by default runs/sweep-RECIPE.
        max_minutes: Stop after this number of minutes, with everything saved; the same command resumes.
        report: Write a report of each run.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.training import Stopped
    from arcaps.training.sweep import read_grid, run_sweep

    overrides = join_settings(more, settings, augmentation, architecture)
    try:
        results = run_sweep(
            recipe,
            read_grid(grid),
            folder or Path(f"runs/sweep-{recipe}"),
            max_minutes=max_minutes,
            data_dir=data_dir,
            report=report,
            **overrides,
        )
    except Stopped as stop:
        print(f"{stop}; everything is saved: run the same command again to resume")
        sys.exit(stop.code)
    width = max(map(len, results), default=0)
    for name, result in results.items():
        print(f"{name:{width}}  {result if isinstance(result, ArcapsError) else result.summary}")
    failed = [name for name, result in results.items() if isinstance(result, ArcapsError)]
    if failed:
        raise ArcapsError(f"{len(failed)} of {len(results)} points failed: {', '.join(failed)}")
