"""Training in one call."""

import logging
import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from arcaps.data import Data
from arcaps.data.dataset import as_dataset
from arcaps.errors import ArcapsError
from arcaps.fields import Options
from arcaps.models import Model
from arcaps.models.base import OWN_NETWORK, copy_weights
from arcaps.preprocessing import is_number, is_whole
from arcaps.settings import FROM_THE_DATA, Recipe
from arcaps.training.display import Display, TensorBoard
from arcaps.training.distributed import Processes, join_processes
from arcaps.training.evaluate import choose_precision
from arcaps.training.inference import open_model
from arcaps.training.loop import Session, Trainer, evaluate_best
from arcaps.training.recipes import CHANGES, FIELDS, find_recipe, override
from arcaps.training.run import Run
from arcaps.training.splits import build_model, load_splits, with_absolute_paths

logger = logging.getLogger("arcaps")
FEW_STEPS = 100
"""A training with fewer steps gets a warning."""


def train(
    recipe: str | Recipe | None = None,
    *,
    run: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    start_from: str | os.PathLike[str] | None = None,
    device: str = "auto",
    precision: str = "auto",
    micro_batch: int | None = None,
    max_minutes: float | None = None,
    save_minutes: float = 5.0,
    data_dir: str | os.PathLike[str] | None = None,
    tensorboard: bool = False,
    silent: bool = False,
    report: bool = True,
    test: bool = True,
    on_step: Callable[[Trainer], None] | None = None,
    on_epoch: Callable[[Trainer, Mapping[str, Any]], None] | None = None,
    **overrides: Any,
) -> Run:
    """Train a recipe from its first step, or `resume` a run that was stopped: `train("digits", epochs=3, dim=16)`.

    `run` is the new run's folder, by default one below `runs/`; `overrides` are fields of the recipe or options of its
    model. `data` may also be a `Dataset`, a `Data`, or a torch data set or DataLoader; `model` may also be a
    `torch.nn.Module` of your own that answers images with logits, see `arcaps.models.OwnNetwork`. `start_from` is a run
    or model file whose weights are the start (fine-tuning); layers of another shape, such as those of other classes,
    are not copied. With `resume` a finished run is left as it is, unless a larger `epochs` extends it. `micro_batch`
    cuts each batch into smaller ones, for less memory; `max_minutes` stops and saves. Without `test` the run ends
    before its test, and has no result until it is resumed: for trials of settings. `on_step` and `on_epoch` are called
    after each step and epoch; `silent` shows no progress bar. Under `torchrun` all processes train together. A run that
    was stopped raises `Stopped`.
    """
    check_session(micro_batch, max_minutes, save_minutes, on_step=on_step, on_epoch=on_epoch)
    given, network = memory_data(overrides), own_network(overrides)
    processes = join_processes(device)
    with ExitStack() as stack:
        if resume is not None:
            refuse_with_resume(run=run, start_from=start_from, data=overrides.get("data") if given is None else None)
            opened = Run.open(resume)
            if processes.first:
                stack.enter_context(hold(opened))
            chosen = resumed_recipe(opened, recipe, overrides)
            require_same(opened, network)
            if opened.result is not None and chosen == opened.recipe:
                logger.info("%s is finished: %s; nothing was changed", opened.path, opened.result.summary)
                return opened
            splits = load_splits(chosen, data_dir, opened.data, given=given, strict=True)
        else:
            chosen = with_absolute_paths(choose_recipe(recipe, overrides, network))
            splits = load_splits(chosen, data_dir, given=given)
        on_cpu = processes.device.type == "cpu"
        at_once = min(micro_batch or chosen.batch_size, -(-chosen.batch_size // processes.world))
        model = build_model(chosen, splits, network, images_per_step=at_once if on_cpu else None)
        if start_from is not None:
            copy_weights(open_model(start_from), model)
        if resume is None:
            opened = reserve(run, chosen, processes, stack)
        if resume is None and processes.first:
            numbers = str(choose_precision(precision, processes.device)).removeprefix("torch.")
            settings = {"precision": numbers, "device": str(processes.device), "processes": processes.world}
            opened.start(chosen, settings, splits.description)
        processes.broadcast("")  # the folder is ready
        stored = opened.config["settings"].get("precision", "auto")
        session = Session(choose_precision(stored, processes.device), micro_batch, max_minutes, save_minutes)
        trainer = Trainer(opened, chosen, splits, model.to(processes.device), processes, session)
        display = stack.enter_context(Display(live=not silent and processes.first))
        if processes.first:
            trainer.on_step.append(display.on_step)
            trainer.on_epoch.append(display.on_epoch)
            if tensorboard:
                trainer.on_epoch.append(stack.enter_context(TensorBoard()).on_epoch)
        trainer.on_step += [on_step] if on_step is not None else []
        trainer.on_epoch += [on_epoch] if on_epoch is not None else []
        try:
            trainer.restore()
            extend(opened, chosen, processes)
            if processes.first:
                logger.info("%s", splits.summary)
                display.on_start(trainer)
                if resume is None and start_from is None and trainer.total_steps < FEW_STEPS:
                    logger.warning(
                        "steps in all: %s, few for a network that starts from random weights; "
                        "give a smaller --batch-size, or more --epochs",
                        f"{trainer.total_steps:,}",
                    )
            trainer.train()
            if test:
                finish(trainer, report)
        except OSError as error:
            what = f"{error.filename or opened.path}: {error.strerror or error}"
            way = f"resume with  arcaps train --resume {shlex.quote(str(opened.path))}"
            raise ArcapsError(f"{what}: fix this, then {way}") from None
        return opened


def check_session(
    micro_batch: int | None, max_minutes: float | None, save_minutes: float, **hooks: Callable[..., None] | None
) -> None:
    """Refuse values that no session can have."""
    for name, hook in hooks.items():
        if hook is not None and not callable(hook):
            raise ArcapsError(f"{name} is {hook!r}: give a function")
    if micro_batch is not None and not (is_whole(micro_batch) and micro_batch >= 1):
        raise ArcapsError(f"micro_batch is {micro_batch!r}: give a whole number, at least 1")
    for name, value in (("max_minutes", max_minutes), ("save_minutes", save_minutes)):
        if value is not None and not (is_number(value) and 0 <= value < float("inf")):
            raise ArcapsError(f"{name} is {value!r}: give a number of minutes, at least 0")


def memory_data(overrides: dict[str, Any]) -> Data | None:
    """Data from memory that were given in place of a name; their name takes their place in `overrides`."""
    data = overrides.get("data")
    if data is None or isinstance(data, str | os.PathLike):
        return None
    if not isinstance(data, Data):
        rest, test = as_dataset(data).split(0.1)
        data = Data(rest, None, test)
    overrides["data"] = (data.train or data.test).name
    return data


def own_network(overrides: dict[str, Any]) -> nn.Module | None:
    """A module that was given in place of a model's name; it is taken out of `overrides`."""
    network = overrides.get("model")
    if not isinstance(network, nn.Module):
        return None
    inner = getattr(network, "module", getattr(network, "_orig_mod", None))
    if isinstance(inner, Model) and not isinstance(network, Model):
        raise ArcapsError(f"model is a {type(network).__name__} around a {inner.name}: give the {inner.name} itself")
    return overrides.pop("model")


def recipe_of(network: nn.Module) -> tuple[str, Options]:
    """The name and the options by which a run folder knows a network."""
    if not isinstance(network, Model):
        return OWN_NETWORK, Options()
    return network.name, Options({key: value for key, value in network.config.items() if key not in FROM_THE_DATA})


def choose_recipe(recipe: Any, overrides: dict[str, Any], network: nn.Module | None = None) -> Recipe:
    """The recipe asked for, with what was asked for on top, for a user's own network if there is one."""
    if recipe is None:
        raise ArcapsError("give a recipe, or --resume with a run: 'arcaps recipes' lists the recipes")
    if not isinstance(recipe, str | Recipe):
        raise ArcapsError(f"the recipe is {recipe!r}: give a name, 'arcaps recipes' lists them, or a Recipe")
    found = recipe if isinstance(recipe, Recipe) else find_recipe(recipe)
    if network is None:
        chosen = override(found, **overrides)
        if dropped := sorted(set(found.options) - set(chosen.options)):
            what = f"{'options' if len(dropped) > 1 else 'option'} {', '.join(dropped)}"
            logger.info("recipe %s: %s for %s, dropped with model %s", found.name, what, found.model, chosen.model)
        return chosen
    for name in overrides:
        if name not in (*FIELDS, *CHANGES, "augmentation"):
            raise ArcapsError(f"{name} is no setting of a recipe, and the model is given already: leave it out")
    name, options = recipe_of(network)
    return replace(override(found, **overrides), model=name, options=options)


def require_same(run: Run, network: nn.Module | None) -> None:
    """Refuse to resume a run with a network of another kind."""
    if network is not None and recipe_of(network)[0] != run.recipe.model:
        raise ArcapsError(
            f"{run.path} trains the model {run.recipe.model}: resume it without model={network.__class__.__name__}"
        )


def refuse_with_resume(**given: object) -> None:
    """Refuse what a run that is resumed has already."""
    for name, value in given.items():
        if value is not None:
            option = {"start_from": "from"}.get(name, name)
            raise ArcapsError(f"--{option} is {value}, and a run that is resumed has its own: leave --{option} out")


def resumed_recipe(run: Run, recipe: str | Recipe | None, overrides: dict[str, Any]) -> Recipe:
    """The recipe of a run, with more epochs if that was asked for and it has a checkpoint to go on from."""
    stored = run.recipe
    if recipe is not None or set(overrides) - {"epochs", "data"}:
        raise ArcapsError("a run that is resumed keeps its recipe: give --resume alone, or with more --epochs")
    chosen = replace(stored, epochs=overrides.get("epochs", stored.epochs))
    if chosen.epochs < stored.epochs:
        raise ArcapsError(f"epochs is {chosen.epochs}, and {run.path} has {stored.epochs}: give at least as many")
    if chosen.epochs > stored.epochs and not run.states():
        raise ArcapsError(f"{run.path} has no checkpoints any more: it cannot be extended; start a new run")
    return chosen


def extend(run: Run, recipe: Recipe, processes: Processes) -> None:
    """Write down a larger number of epochs. The result of the shorter run is kept beside."""
    before = run.recipe.epochs
    if processes.first and recipe.epochs != before:
        if recipe.schedule in ("one_cycle", "cosine"):
            logger.warning("the %s schedule is stretched: the learning rate becomes larger again", recipe.schedule)
        if run.result is not None:
            (run.path / "result.json").rename(run.path / f"result-{before}-epochs.json")
        run.write_config({**run.config, "recipe": recipe.as_dict()})
    processes.broadcast("")  # by all: one that reads the settings late finds them written already


def hold(run: Run) -> Any:
    """The lock of a run. A folder that cannot be written is named."""
    if not os.access(run.path, os.W_OK):
        raise ArcapsError(f"{run.path} cannot be written: resume a copy of it, or change its permissions")
    return run.lock()


def reserve(folder: str | os.PathLike[str] | None, recipe: Recipe, processes: Processes, stack: ExitStack) -> Run:
    """A folder for the new run, made and held by rank 0 and known to all."""
    path = ""
    if processes.first:
        run = Run.reserve(folder, recipe.name)
        if not (run.path / "config.json").exists():
            refuse_other_files(run.path)
        stack.enter_context(hold(run))  # first: another process may have begun while this one read the data
        run.require_new()
        path = str(run.path)
    return Run(Path(processes.broadcast(path)))


def refuse_other_files(folder: Path) -> None:
    """Refuse a folder with files that no run wrote: a run that was killed as it began leaves data.json at most."""
    others = sorted(
        path.name for path in folder.iterdir() if not path.name.startswith(".") and path.name != "data.json"
    )
    if others:
        raise ArcapsError(f"{folder} has other files, such as {others[0]}: give a new folder as --run")


def finish(trainer: Trainer, report: bool) -> None:
    """Evaluate the best model on the test images; write the result, then the report."""
    run = trainer.run
    if run.result is None:
        result = evaluate_best(trainer)
        if trainer.processes.first:
            run.write_json("result.json", result.as_dict())
            if report:
                write_report(trainer)


def write_report(trainer: Trainer) -> None:
    """Write the report of a finished run; a report that fails does not cost the result."""
    from arcaps.reports.run import try_report

    run, splits = trainer.run, trainer.splits
    assert run.result is not None
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    what = (run.config, run.metrics, run.result.as_dict(), trainer.best_model(), splits.test)
    try_report(run.path, *what, parts=parts, batch_size=trainer.forward_images)
