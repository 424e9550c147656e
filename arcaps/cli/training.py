"""`arcaps train`, and what comes after training."""

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from arcaps.cli.options import ArchitectureOptions, AugmentationFlags, Flag, RecipeFlags
from arcaps.errors import ArcapsError


def train(
    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")] = "",
    *,
    settings: tyro.conf.OmitArgPrefixes[RecipeFlags],
    augmentation: tyro.conf.OmitArgPrefixes[AugmentationFlags],
    architecture: tyro.conf.OmitArgPrefixes[ArchitectureOptions],
    run: str = "",
    resume: str = "",
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    micro_batch: int = 0,
    max_minutes: float = 0.0,
    save_minutes: float = 5.0,
    tensorboard: Flag = False,
    data_dir: str = "",
) -> None:
    """Train a model by a recipe, or go on with a run that was stopped.

    Args:
        recipe: A recipe: 'arcaps recipes' lists them. Leave it out with --resume.
        settings: What is not given is the recipe's own.
        augmentation: Random changes of the training images.
        architecture: What is not given is the recipe's or the model's own.
        run: The folder of the new run; by default one below runs/.
        resume: The folder of a run that was stopped.
        device: auto, cpu, cuda, or cuda:1.
        precision: auto is bfloat16 where the hardware has it.
        micro_batch: Cut each batch into smaller ones, for less memory.
        max_minutes: Stop in good order after so many minutes.
        save_minutes: Save the state every so many minutes, and after each epoch.
        tensorboard: Also write for TensorBoard.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.training import Stopped
    from arcaps.training import train as start

    overrides: dict[str, Any] = {**settings, **augmentation, **architecture}
    try:
        finished = start(
            recipe or None,
            run=run or None,
            resume=resume or None,
            device=device,
            precision=precision,
            micro_batch=micro_batch or None,
            max_minutes=max_minutes or None,
            save_minutes=save_minutes,
            tensorboard=tensorboard,
            data_dir=data_dir or None,
            **overrides,
        )
    except Stopped as stop:
        print(f"{stop}; everything is saved: go on with  arcaps train --resume {stop.run.path}")
        sys.exit(stop.code)
    print_result(finished.path, finished.result)


def print_result(path: Path, result: dict[str, Any] | None) -> None:
    """What came of a run, and what to do next."""
    if result is None:  # not the first of several processes
        return
    test = result["test"]
    low, high = test["interval_95"]
    interval = f"95 % interval {low:.2%} to {high:.2%}, n = {test['count']:,}"
    print(f"test accuracy {test['accuracy']:.2%} ({interval}): {test['data']}")
    print(f"report: {path / 'report.md'}")
    print(f"next:   arcaps predict {path} image.png;  arcaps evaluate {path};  arcaps train mnist-fast")


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


def evaluate(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    *,
    data: str = "",
    part: Literal["train", "validation", "test"] = "test",
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    json: Flag = False,
    data_dir: str = "",
) -> None:
    """Test a run's model: accuracy with its 95 % interval, class by class, and what was taken for what.

    Args:
        run: A run folder, or a .safetensors file.
        data: A data set's name, or a folder of images; by default what the run was tested on.
        part: Which part of the data set.
        precision: auto is bfloat16 where the hardware has it.
        json: Print JSON instead of tables.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.training.after import evaluate_run

    evaluation = evaluate_run(run, data=data or None, part=part, precision=precision, data_dir=data_dir or None)
    if json:
        print(jsonlib.dumps(evaluation.as_dict(), indent=2))
        return
    low, high = evaluation.interval
    right = f"{evaluation.accuracy:.2%} of {evaluation.count:,} right"
    print(f"{evaluation.data}: {right} (95 % interval {low:.2%} to {high:.2%})")
    width = max(map(len, evaluation.class_names))
    for row, (name, share) in enumerate(evaluation.per_class.items()):
        wrong = evaluation.confusion[row].clone()
        wrong[row] = 0
        most = int(wrong.argmax())
        taken = f"most often taken for {evaluation.class_names[most]} ({int(wrong[most])})" if wrong[most] else ""
        print(f"  {name:{width}}  {share:7.2%} of {int(evaluation.confusion[row].sum()):,}  {taken}".rstrip())


def predict(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE ...")],
    *,
    json: Flag = False,
) -> None:
    """Name the class of image files, with the length of each class's capsule.

    Args:
        run: A run folder, or a .safetensors file.
        images: Image files, or folders of them.
        json: Print JSON instead of lines.
    """
    from arcaps.training.after import predict_files

    predictions = predict_files(run, list(images))
    if json:
        print(jsonlib.dumps(predictions, indent=2))
        return
    for prediction in predictions:
        best = sorted(prediction["scores"].items(), key=lambda item: -item[1])[:3]
        print(
            f"{prediction['file']}: {prediction['class']}    "
            + "  ".join(f"{name} {score:.3f}" for name, score in best)
        )


def ensemble(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN RUN ...")],
    *,
    data: str = "",
    json: Flag = False,
    data_dir: str = "",
) -> None:
    """Test several runs together: the mean of their class capsules' lengths decides.

    Args:
        runs: Run folders, or .safetensors files.
        data: A data set's name, or a folder of images; by default what the first run was tested on.
        json: Print JSON instead of lines.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.training.after import evaluate_ensemble

    if len(runs) < 2:
        raise ArcapsError("an ensemble is of two runs or more: give their folders")
    members, together = evaluate_ensemble(list(runs), data=data or None, data_dir=data_dir or None)
    if json:
        everything = {
            "members": {str(run): member.as_dict() for run, member in members.items()},
            "ensemble": together.as_dict(),
        }
        print(jsonlib.dumps(everything, indent=2))
        return
    for run, member in members.items():
        print(f"{member.accuracy:7.2%}  {run}")
    low, high = together.interval
    interval = f"95 % interval {low:.2%} to {high:.2%}, n = {together.count:,}"
    print(f"{together.accuracy:7.2%}  ensemble of {len(members)} ({interval})")


def sweep(
    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")] = "cifar10",
    *,
    grid: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE,VALUE ...")] = (
        "layers=0,1,2,3,4",
        "dim=16,32",
    ),
    folder: str = "",
    epochs: int = 0,
    max_minutes: float = 0.0,
    data_dir: str = "",
) -> None:
    """Train a recipe at every point of a grid; points that are finished are not run again.

    The default grid is that of the paper's hyper-parameter table. Each point is an ordinary run folder.

    Args:
        recipe: A recipe: 'arcaps recipes' lists them.
        grid: Settings of the recipe or its model and their values, such as dim=16,32 layers=1,2.
        folder: The folder of the runs; by default runs/sweep-RECIPE.
        epochs: Passes over the training images; by default the recipe's.
        max_minutes: Stop in good order after so many minutes; the same command goes on.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.training import Stopped
    from arcaps.training.sweep import read_grid, run_sweep

    overrides = {"epochs": epochs} if epochs else {}
    place = Path(folder or f"runs/sweep-{recipe}")
    try:
        results = run_sweep(
            recipe, read_grid(grid), place, max_minutes=max_minutes or None, data_dir=data_dir or None, **overrides
        )
    except Stopped as stop:
        print(f"{stop}; everything is saved: the same command goes on")
        sys.exit(stop.code)
    for name, result in results.items():
        test = result["test"]
        print(
            f"{name:30} {test['accuracy']:7.2%} of {test['count']:,}  validation error {result['validation_error']:.2%}"
        )
