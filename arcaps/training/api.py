"""Training in one call."""

import os
import time
from pathlib import Path
from typing import Any

from arcaps.errors import ArcapsError
from arcaps.settings import Recipe
from arcaps.training.display import Display
from arcaps.training.distributed import Processes, join_processes
from arcaps.training.evaluate import choose_precision
from arcaps.training.images import Images, build_model, prepare_images
from arcaps.training.loop import Options, Trainer, test_kept
from arcaps.training.recipes import find_recipe, override
from arcaps.training.run import Run


def train(
    recipe: str | Recipe | None = None,
    *,
    run: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    device: str = "auto",
    precision: str = "auto",
    micro_batch: int | None = None,
    max_minutes: float | None = None,
    save_minutes: float = 5.0,
    data_dir: str | os.PathLike[str] | None = None,
    tensorboard: bool = False,
    silent: bool = False,
    **overrides: Any,
) -> Run:
    """Train a recipe from its first step, or `resume` a run that was stopped: `train("digits", epochs=3, dim=16)`.

    `run` is the new run's folder, by default one below `runs/`; `overrides` are fields of the recipe or options of its
    model. `micro_batch` cuts each batch into smaller ones, for less memory; `max_minutes` stops in good order. Under
    `torchrun` all processes train together. A run that was stopped raises `Stopped`.
    """
    processes = join_processes(device)
    with Display(silent=silent or not processes.first, tensorboard=tensorboard) as display:
        if resume is not None and (recipe is not None or overrides):
            raise ArcapsError("a run that is resumed keeps its recipe: give --resume alone")
        chosen = Run.open(resume).recipe if resume is not None else choose_recipe(recipe, overrides)
        images = prepare_images(chosen, data_dir)
        model = build_model(chosen, images).to(processes.device)
        opened = Run.open(resume) if resume is not None else start_run(chosen, run, processes, precision)
        numbers = choose_precision(opened.config["settings"]["precision"], processes.device)
        options = Options(numbers, micro_batch, max_minutes, save_minutes)
        trainer = Trainer(opened, chosen, images, model, processes, options, display)
        try:
            trainer.restore()
            display.start(trainer)
            trainer.train()
            if opened.result is None:
                display.say("testing the best model")
                result = test_kept(trainer)
                if processes.first:
                    opened.write_json("result.json", result)
                    write_report(opened, images, result)
        except OSError as error:
            what = f"{error.filename or opened.path}: {error.strerror}"
            raise ArcapsError(f"{what}: mend that, then go on with arcaps train --resume {opened.path}") from None
        return opened


def write_report(run: Run, images: Images, result: dict[str, Any]) -> None:
    """Write the report of a finished run; a report that fails does not cost the result."""
    from arcaps.reports.run import try_report

    parts = {"train": images.train, "validation": images.validation, "test": images.test}
    try_report(run.path, run.config, run.metrics, result, run.model(), images.test, parts=parts)


def choose_recipe(recipe: str | Recipe | None, overrides: dict[str, Any]) -> Recipe:
    """The recipe asked for, with what was asked for on top."""
    if recipe is None:
        raise ArcapsError("give a recipe, or --resume with a run: 'arcaps recipes' lists the recipes")
    if isinstance(recipe, Recipe):
        return override(recipe, **overrides)
    return find_recipe(recipe, **overrides)


def start_run(recipe: Recipe, folder: str | os.PathLike[str] | None, processes: Processes, precision: str) -> Run:
    """A new run folder, made by the first process and known to all."""
    path = str(folder or f"runs/{recipe.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    if processes.first:
        settings = {"precision": precision, "device": str(processes.device), "processes": processes.world}
        try:
            Run.create(path, recipe, settings)
        except OSError as error:
            raise ArcapsError(f"{path} cannot be written: {error.strerror}: give another --run") from None
    return Run(Path(processes.from_first(path)))
