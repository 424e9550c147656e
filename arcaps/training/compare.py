"""One recipe, many routings: a comparison in which nothing else differs.

Each cell, a row at one seed, is an ordinary run folder. What the table and the figure quote is written as records: one
for each run, and `costs.json` with what each row costs. Seeds are the same for all rows, so differences are paired.
"""

import json
import logging
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from arcaps.costs import info
from arcaps.data import Batch
from arcaps.errors import ArcapsError
from arcaps.models import Model, create_model
from arcaps.registry import option_names, parse_spec, unknown
from arcaps.routing import Routing
from arcaps.storage import read_json
from arcaps.training.jobs import Job, run_jobs
from arcaps.training.recipes import find_recipe
from arcaps.training.reproduce import Row, queue, record, write_record
from arcaps.training.run import Run, surroundings

logger = logging.getLogger("arcaps")

BASELINE = "attention"
CONTROLS = ("uniform", "random", "dense_head", "strong_conv_net")
"""Without them no comparison of routings means anything."""


def overrides_of(spec: str, recipe: str, common: dict[str, Any]) -> dict[str, Any]:
    """The settings that a row of this name changes in the recipe, with what is common to all rows.

    A row is a routing with options, such as `dynamic(iterations=1)`, or a model with options, such as `dense_head` or
    `ar_capsnet(routing='em', votes='window')`. Another model than the recipe's keeps those of the recipe's options, and
    of the common settings, that it has too.
    """
    name, options = parse_spec(spec)
    chosen = find_recipe(recipe, **common)
    if name in Routing.known:
        Routing.build(spec, 2, 2, 4, in_dim=4)  # refuses options that there are not
        return {**common, "routing": spec}
    if name not in Model.known:
        raise unknown("routing or model", name, sorted({*Routing.known, *Model.known}))
    if name == chosen.model:
        return {**common, **options}
    known = option_names(Model.find(name))
    kept = {key: value for key, value in chosen.options.items() if key in known}
    not_its = set(chosen.options) - set(known)
    fields = {key: value for key, value in common.items() if key not in not_its}
    return {**fields, **kept, **options, "model": name}


def rows_of(specs: Sequence[str], recipe: str, seeds: int, common: dict[str, Any]) -> list[Row]:
    """The rows of a comparison: the baseline first, each once."""
    if seeds < 1:
        raise ArcapsError(f"seeds is {seeds}: give at least 1")
    rows = {}
    for spec in (BASELINE, *specs):
        name = re.sub(r"[^A-Za-z0-9_.]+", "-", spec).strip("-")
        rows[name] = Row(name, spec, recipe, overrides_of(spec, recipe, common), tuple(range(seeds)))
    return list(rows.values())


def compare(
    recipe: str,
    specs: Sequence[str],
    *,
    folder: Path,
    seeds: int = 3,
    max_minutes: float | None = None,
    session: dict[str, Any] | None = None,
    **common: Any,
) -> None:
    """Train every row at every seed as far as it is not done, then write the records and measure what each row costs.

    `common` are settings of the recipe or of its model, for all rows; `session` goes to `train`. The same call resumes
    after a stop; more rows and more seeds can be added, other settings need another folder.
    """
    rows = rows_of(specs, recipe, seeds, common)
    remember(folder, {"recipe": recipe, "common": common})
    cells = list(queue(rows))
    try:
        run_jobs([job for _, job in cells], folder, max_minutes=max_minutes, failed=log_failure, **(session or {}))
    finally:
        for row, job in cells:
            run = job.run(folder)
            if run.metrics:
                write_record(folder / "records" / f"{job.name}.json", {**record(row, run), "title": row.title})
    measure(rows, folder)


def log_failure(job: Job, error: ArcapsError) -> None:
    """Say which training failed, so that the others go on."""
    logger.error("%s failed: %s", job.name, error)


def remember(folder: Path, settings: dict[str, Any]) -> None:
    """Write down what is common to all rows; refuse a folder with other settings."""
    path = folder / "comparison.json"
    if not path.exists():
        write_record(path, settings)
    elif read_json(path) != json.loads(json.dumps(settings)):
        raise ArcapsError(f"{folder} holds a comparison with other settings, {read_json(path)}: give another --folder")


def measure(rows: Sequence[Row], folder: Path, *, rounds: int = 7) -> None:
    """Measure the cost of each row that has a model and no figures yet: `costs.json`.

    Steps of all rows are interleaved and medians taken, so that other work of the machine falls on all of them alike.
    """
    path = folder / "costs.json"
    known: dict[str, Any] = read_json(path) if path.exists() else {}
    runs = {row.name: row.job(row.seeds[0]).run(folder) for row in rows}
    runs = {name: run for name, run in runs.items() if run.result is not None}
    if runs.keys() <= known.keys():
        return
    subjects = {name: Subject(run) for name, run in runs.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in subjects}
    for _ in range(rounds + 1):  # the first round is not counted
        for name, subject in subjects.items():
            times[name].append((subject.time_step(), subject.time_answer()))
    costs = {name: subject.costs(times[name][1:]) for name, subject in subjects.items()}
    write_record(path, {**costs, "machine": surroundings()["machine"]})


class Subject:
    """A row's model, with a batch of noise to measure it by."""

    def __init__(self, run: Run) -> None:
        kept = run.model()
        self.model = create_model(kept.name, **kept.config)
        size = run.recipe.batch_size
        images = torch.rand(size, kept.channels, *kept.image_size)
        self.batch = Batch(images, torch.arange(size) % kept.classes, size)
        self.optimiser = torch.optim.AdamW(self.model.parameters())

    def time_step(self) -> float:
        """Seconds of one training step."""
        self.model.train()
        began = time.perf_counter()
        self.optimiser.zero_grad()
        sum(self.model.loss(self.batch).values(), torch.zeros(())).backward()
        self.optimiser.step()
        return time.perf_counter() - began

    @torch.no_grad()
    def time_answer(self) -> float:
        """Seconds of one forward pass."""
        self.model.eval()
        began = time.perf_counter()
        self.model(self.batch.images)
        return time.perf_counter() - began

    def costs(self, times: Sequence[tuple[float, float]]) -> dict[str, Any]:
        """The figures of the table."""
        size = self.batch.total
        found = info(self.model, batch_size=size)
        routings = [module for module in self.model.modules() if isinstance(module, Routing)]
        return {
            "batch_size": size,
            "parameters": found.trainable_parameters,
            "routing_parameters": sum(p.numel() for routing in routings for p in routing.parameters()),
            "multiply_adds": found.multiply_adds,
            "step_ms": 1000 * statistics.median(step for step, _ in times),
            "image_ms": 1000 * statistics.median(answer for _, answer in times) / size,
            "peak_mb": found.peak_training_bytes / 1e6,
        }
