"""The training loop.

An epoch is: every training image once, then the validation images, then a line in `metrics.jsonl`; the model with the
lowest validation error is kept. After the last epoch the kept model is evaluated on the test images, once. A checkpoint
is written every few minutes and after each epoch, so that a run that was stopped resumes as if nothing had happened.

The loop knows no task: the model has its loss and makes its evaluation, whose `error` chooses the best epoch.
"""

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from arcaps.data import Batch, Dataset, Loader
from arcaps.errors import ArcapsError
from arcaps.memory import keep_freed_memory
from arcaps.models import Model, OwnNetwork
from arcaps.schedule import set_progress
from arcaps.settings import Recipe
from arcaps.training.distributed import Processes
from arcaps.training.evaluate import evaluate, move_batch
from arcaps.training.run import Result, Run
from arcaps.training.schedules import learning_rate
from arcaps.training.splits import Splits

OPTIMISERS = {
    "rmsprop": lambda parameters, decay: torch.optim.RMSprop(parameters, alpha=0.9, eps=1e-8, weight_decay=decay),
    "adamw": lambda parameters, decay: torch.optim.AdamW(parameters, weight_decay=decay),
    "sgd": lambda parameters, decay: torch.optim.SGD(parameters, momentum=0.9, nesterov=True, weight_decay=decay),
}


FORWARD_IMAGES = 4
"""Images in a forward pass for each in a training step: with four, no model of arcaps needs more memory for it."""


class Stopped(Exception):  # noqa: N818 (it is no error)
    """The run was asked to stop, has written a checkpoint, and can be resumed."""

    def __init__(self, reason: str, run: Run, code: int) -> None:
        super().__init__(reason)
        self.run = run
        self.code = code
        """What the command line ends with: 0 when the time was over, else 128 and the signal's number."""


@dataclass(frozen=True)
class Session:
    """What may differ from one session of a run to the next."""

    precision: torch.dtype = torch.float32
    micro_batch: int | None = None
    max_minutes: float | None = None
    save_minutes: float = 5.0


def move_average(decay: float, averaged: list[Tensor], current: list[Tensor], steps: Tensor) -> None:
    """Move the averages towards the current values. The first steps count more, so that no start is remembered.

    average <- k average + (1 - k) value,   k = min(decay, (1 + steps) / (10 + steps))
    """
    count = int(steps)
    kept = min(decay, (1 + count) / (10 + count))
    for average, value in zip(averaged, current, strict=True):
        if average.is_floating_point():
            average.lerp_(value, 1 - kept)
        else:
            average.copy_(value)


def has_unused_parameters(model: Model, dataset: Dataset) -> bool:
    """Whether the loss leaves a parameter without a gradient. Neither the model nor the random numbers change."""
    device = next(model.parameters()).device
    masks = None if dataset.masks is None else dataset.masks[:2]
    batch = Batch(model.preprocessing(dataset.images[:2]), dataset.labels[:2], len(dataset.images[:2]), masks)
    probe = deepcopy(model).train()
    with torch.random.fork_rng():
        sum(probe.loss(move_batch(batch, device)).values(), torch.zeros((), device=device)).backward()
    return any(parameter.requires_grad and parameter.grad is None for parameter in probe.parameters())


class Trainer:
    """One run, from its first step or from where it was stopped."""

    def __init__(
        self,
        run: Run,
        recipe: Recipe,
        splits: Splits,
        model: Model,
        processes: Processes,
        session: Session,
    ) -> None:
        self.run, self.recipe, self.splits, self.model = run, recipe, splits, model
        self.processes, self.session = processes, session
        self.on_step: list[Callable[[Trainer], None]] = []
        """Called after each step."""
        self.on_epoch: list[Callable[[Trainer, Mapping[str, Any]], None]] = []
        """Called after each epoch, with its line of `metrics.jsonl`."""
        self.optimiser = OPTIMISERS[recipe.optimiser](model.parameters(), recipe.weight_decay)
        self.loader = Loader(
            splits.train,
            recipe.batch_size,
            augmentation=recipe.augmentation or None,
            preprocessing=model.preprocessing,
            seed=recipe.seed,
            rank=processes.rank,
            world=processes.world,
        )
        last = len(splits.train) % recipe.batch_size
        if 0 < last < processes.world:
            few = f"the last batch of each epoch has {last} images for {processes.world} processes"
            raise ArcapsError(f"{few}: give another --batch-size")
        self.parallel = self.model if processes.world == 1 else self.wrap()
        averaging = partial(move_average, recipe.average)
        self.averaged = AveragedModel(model, multi_avg_fn=averaging, use_buffers=True) if recipe.average else None
        torch.manual_seed(recipe.seed + processes.rank)  # the dropout of each process is its own
        self.step = 0
        self.epoch = 0
        self.best: dict[str, dict[str, float]] = {}
        self.seconds = self.step_seconds = 0.0
        self.sums: dict[str, float] = {}
        self.stop_requested = ""
        self.stop_code = 0

    def wrap(self) -> DistributedDataParallel:
        """The model, with its gradients averaged over all processes.

        A routing with one iteration may have parameters that only later iterations use. The processes must know of
        them, since they wait for every gradient; to look for them costs time in each step.
        """
        return DistributedDataParallel(
            self.model, find_unused_parameters=has_unused_parameters(self.model, self.splits.train)
        )

    def train(self) -> None:
        """Train to the end, or until asked to stop."""
        keep_freed_memory()
        self.began = self.started = self.saved = time.monotonic()
        with self.handle_signals():
            while not self.finished:
                self.train_epoch()
                self.finish_epoch()
                if not self.finished and self.must_stop_or_save()[0]:
                    raise Stopped(self.stop_requested, self.run, self.stop_code)

    @property
    def total_steps(self) -> int:
        """Steps of the whole training."""
        return self.recipe.epochs * len(self.loader)

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or the validation error has not become lower for too long."""
        if self.epoch >= self.recipe.epochs:
            return True
        waited = self.epoch - self.best["validation"]["epoch"] if self.best else 0
        return self.recipe.patience is not None and waited >= self.recipe.patience

    def train_epoch(self) -> None:
        """Train on the rest of the current pass over the training images."""
        self.model.train()
        for batch in self.loader:
            began = time.monotonic()
            self.take_step(batch)
            self.step_seconds += time.monotonic() - began
            for hook in self.on_step:
                hook(self)
            stop, due = self.must_stop_or_save()
            if stop or due:
                self.save()
            if stop:
                raise Stopped(self.stop_requested, self.run, self.stop_code)

    def take_step(self, batch: Batch) -> None:
        """One change of the weights, by the gradient of the mean loss over the global batch."""
        rate = learning_rate(self.recipe, self.step, len(self.loader))
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        progress = self.step / self.total_steps
        set_progress(self.model, progress)
        self.optimiser.zero_grad()
        parts = self.micro_batches(batch)
        for number, part in enumerate(parts, start=1):
            part = move_batch(part, self.processes.device)
            wait = number < len(parts) and isinstance(self.parallel, DistributedDataParallel)
            with self.parallel.no_sync() if wait else nullcontext():  # type: ignore[operator]
                with torch.autocast(
                    self.processes.device.type, self.session.precision, self.session.precision != torch.float32
                ):
                    output = self.parallel(part.images, part.labels)
                    losses = self.model.losses(output, part, progress)
                # gradients are averaged over the processes; this makes it the average over all images
                share = len(part.images) * self.processes.world / batch.total
                loss = share * sum(losses.values(), torch.zeros((), device=self.processes.device))
                loss.backward()
            self.note(losses, len(part.images))
        self.check_finite(rate)
        self.optimiser.step()
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)
        self.step += 1

    def micro_batches(self, batch: Batch) -> list[Batch]:
        """The batch in parts of at most `micro_batch` images.

        All processes make the same number of parts, since BatchNorm waits for all of them in each part. They may
        differ by one image, so the parts of one may be smaller, or with `micro_batch` 1 one part larger.
        """
        least, most = batch.total // self.processes.world, -(-batch.total // self.processes.world)
        size = self.session.micro_batch or most
        count = min(-(-most // size), least)
        usual = -(-len(batch.images) // size) == count
        tensors = {name: value for name, value in batch._asdict().items() if isinstance(value, Tensor)}
        cut: dict[str, Any] = {
            name: value.split(size) if usual else value.tensor_split(count) for name, value in tensors.items()
        }
        return [batch._replace(**{name: values[number] for name, values in cut.items()}) for number in range(count)]

    def note(self, losses: dict[str, Tensor], count: int) -> None:
        """Add to the sums of this epoch: one synchronisation with the device."""
        values = torch.stack([value.detach().float() for value in losses.values()]).tolist()
        for name, value in {**dict(zip(losses, values, strict=True)), "images": 1.0}.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * count

    def total_sums(self) -> dict[str, float]:
        """The sums of this epoch over all processes."""
        if self.processes.world == 1:
            return dict(self.sums)
        sums = torch.tensor(list(self.sums.values()), dtype=torch.float64, device=self.processes.device)
        return dict(zip(self.sums, self.processes.sum(sums).tolist(), strict=True))

    def check_finite(self, rate: float) -> None:
        """Stop before a loss that is not finite changes the weights."""
        if not all(map(math.isfinite, self.sums.values())):
            states = self.run.states()
            last = f"the last checkpoint is {states[0]}" if states else "no checkpoint was written yet"
            raise ArcapsError(
                f"the loss is not finite at step {self.step + 1} (epoch {self.epoch + 1}, learning rate {rate:.3g} of "
                f"recipe {self.recipe.name}); {last}: start again with a lower --learning-rate"
            )

    def finish_epoch(self) -> None:
        """Validate, write the metrics, keep the best model, save."""
        totals = self.total_sums()
        images = totals.pop("images")
        self.epoch += 1
        self.processes.copy_from_first(self.kept.buffers())  # norms of a part of the batch have statistics of their own
        errors = {name: self.error(dataset) for name, dataset in self.validations().items()}
        if not all(map(math.isfinite, errors.values())):
            way = "let the evaluation's error be a finite number"
            raise ArcapsError(f"epoch {self.epoch} has the errors {errors}: {way}")
        self.seconds += time.monotonic() - self.started
        self.started = time.monotonic()
        line = {
            "epoch": self.epoch,
            "step": self.step,
            "rate": learning_rate(self.recipe, self.step - 1, len(self.loader)),
            "loss": sum(totals.values()) / images,
            "losses": {name: value / images for name, value in totals.items()},
            **{f"{name}_error": error for name, error in errors.items()},
            "seconds": self.seconds,
            "step_seconds": self.step_seconds,
        }
        self.sums = {}
        better = [name for name, error in errors.items() if error < self.best.get(name, {"error": math.inf})["error"]]
        for name in better:
            self.best[name] = {"error": errors[name], "epoch": self.epoch}
        if self.processes.first:
            for name in better:
                self.kept.save(self.run.model_file(name))
            with (self.run.path / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        for hook in self.on_epoch:
            hook(self, line)
        self.save()

    def validations(self) -> dict[str, Dataset]:
        """The image sets that a best epoch is chosen by, the run's own first."""
        other = self.splits.test_validation
        return {"validation": self.splits.validation, **({} if other is None else {"test_validation": other})}

    @property
    def kept(self) -> Model:
        """The model that is validated and kept: the average of the weights where the recipe asks for one."""
        if self.averaged is None:
            return self.model
        assert isinstance(self.averaged.module, Model)
        return self.averaged.module

    def best_model(self, chosen_by: str = "validation") -> Any:
        """The model of the best epoch so far, from its file."""
        module = self.model.module if isinstance(self.model, OwnNetwork) else None
        return self.run.model(chosen_by, module=module).to(self.processes.device)

    def error(self, dataset: Dataset) -> float:
        """The error of the model's evaluation."""
        return float(self.evaluate(self.kept, dataset).error)

    def evaluate(self, model: Model, dataset: Dataset) -> Any:
        """Evaluate a model, with no more memory than the training takes."""
        return evaluate(
            model,
            dataset,
            processes=self.processes,
            precision=self.session.precision,
            batch_size=min(250, self.forward_images * self.processes.world),
        )

    @property
    def forward_images(self) -> int:
        """How many images one process takes in a forward pass, with no more memory than the training takes."""
        share = -(-self.recipe.batch_size // self.processes.world)
        return min(250, FORWARD_IMAGES * min(self.session.micro_batch or share, share))

    def save(self) -> None:
        """Write a checkpoint: everything that is needed to resume exactly from here."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        if self.averaged is not None:
            tensors |= {f"averaged.{name}": value for name, value in self.averaged.state_dict().items()}
        tensors |= {f"loader.{name}": value for name, value in self.loader.state_dict().items()}
        for number, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{name}": torch.as_tensor(value) for name, value in state.items()}
        for name, state in self.random_states().items():
            tensors |= {f"{name}.{rank}": value for rank, value in enumerate(self.processes.gather(state))}
        sums = self.total_sums()
        if self.processes.first:
            metrics = self.run.path / "metrics.jsonl"
            progress = {
                "step": self.step,
                "epoch": self.epoch,
                "best": self.best,
                "seconds": self.seconds + time.monotonic() - self.started,
                "step_seconds": self.step_seconds,
                "sums": sums,
                "metrics_bytes": metrics.stat().st_size if metrics.exists() else 0,
            }
            self.run.write_state(self.step, tensors, progress)
        self.saved = time.monotonic()

    def restore(self) -> None:
        """Load the newest checkpoint that is whole, if there is one."""
        if self.processes.first:
            for half_written in self.run.path.glob(".*.tmp"):  # by a process that was killed
                half_written.unlink()
        found = self.run.read_state()
        metrics = self.run.path / "metrics.jsonl"
        if self.processes.first and metrics.exists():  # what was written after the checkpoint comes again
            _ = self.run.metrics  # damaged ones are refused
            kept = metrics.read_bytes()[: 0 if found is None else found[1]["metrics_bytes"]]
            os.truncate(metrics, kept.rfind(b"\n") + 1)  # the file of a user may have lost its end
        if found is None:
            return
        tensors, progress = found
        for name in progress["best"]:
            self.best_model(name)  # a model that is lost or damaged is named now, not after the last epoch

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

        try:
            self.model.load_state_dict(part("model."))
        except RuntimeError as error:
            other = f"the checkpoints of {self.run.path} are of another network: {str(error).splitlines()[-1].strip()}"
            raise ArcapsError(f"{other}: resume with the model that the run began with") from None
        if self.averaged is not None:
            self.averaged.load_state_dict(part("averaged."))
        self.loader.load_state_dict(part("loader."))
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in part("optimiser.").items():
            number, field = name.split(".", 1)
            state.setdefault(int(number), {})[field] = value
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})
        own = str(self.processes.rank)
        if own in (random := part("random.")):
            torch.set_rng_state(random[own])
        if own in (random := part("cuda_random.")) and self.processes.device.type == "cuda":
            torch.cuda.set_rng_state(random[own], self.processes.device)
        self.step, self.epoch, self.best = progress["step"], progress["epoch"], progress["best"]
        self.seconds, self.step_seconds = progress["seconds"], progress["step_seconds"]
        self.sums = {name: value if self.processes.first else 0.0 for name, value in progress["sums"].items()}

    def random_states(self) -> dict[str, Tensor]:
        """The generators that dropout draws from."""
        states = {"random": torch.get_rng_state()}
        if self.processes.device.type == "cuda":
            states["cuda_random"] = torch.cuda.get_rng_state(self.processes.device)
        return states

    def must_stop_or_save(self) -> tuple[bool, bool]:
        """Whether to stop, by a signal or because the time is over, and whether to save; all processes answer alike."""
        minutes = (time.monotonic() - self.began) / 60
        if self.session.max_minutes is not None and minutes > self.session.max_minutes and not self.stop_requested:
            self.stop_requested = f"{self.session.max_minutes:g} minutes are over"
        due = time.monotonic() - self.saved > 60 * self.session.save_minutes
        if self.processes.world == 1:
            return bool(self.stop_requested), due
        asked = torch.tensor([bool(self.stop_requested), due], dtype=torch.float32, device=self.processes.device)
        stop, save = (self.processes.sum(asked) > 0).tolist()
        return stop, save

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM ask for a stop after the step under way. Python lets the main thread alone do this."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, _: FrameType | None) -> None:
            self.stop_requested = f"stopped by {signal.Signals(number).name}"
            self.stop_code = 128 + number

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def evaluate_best(trainer: Trainer) -> Result:
    """Evaluate the kept model on the test images: the only time that they are used."""
    results: dict[str, Result] = {}
    for name, best in trainer.best.items():
        same = [result for result in results.values() if result.epoch == best["epoch"]]
        if same:  # the same model: its test is known
            results[name] = replace(same[0], validation_error=best["error"])
            continue
        test = trainer.evaluate(trainer.best_model(name), trainer.splits.test)
        results[name] = Result(int(best["epoch"]), best["error"], test.as_dict(), test.summary)
    chosen, other = results["validation"], results.get("test_validation")
    if other is None:
        return chosen
    as_dict = {"epoch": other.epoch, "test_validation_error": other.validation_error, "test": other.test}
    return replace(chosen, chosen_as_in_the_paper=as_dict)
