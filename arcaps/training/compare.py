"""One recipe, many routings: a comparison in which nothing else differs.

Each cell, a row at one seed, is an ordinary run folder. What the table and the figure quote is written as records: one
for each run, and `costs.json` with what each row costs. Seeds are the same for all rows, so differences are paired.

With a grid to tune, each row is first trained at every point of it with its first seed, without a test. The point with
the lowest validation error is the row's; the training of that point is the row's first seed, and is tested then.
"""

import json
import logging
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from arcaps.training.recipes import find_recipe, read_recipe
from arcaps.training.reproduce import Row, queue, record, write_record
from arcaps.training.run import Run, surroundings
from arcaps.training.sweep import point_name, points_of

logger = logging.getLogger("arcaps")

BASELINE = "attention"
EQUAL_TIME = "equal-time"
"""The folder, in that of a comparison, of the same rows trained for equal time in place of equal epochs."""
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
    rows: dict[str, Row] = {}
    for spec in (BASELINE, *specs):
        name = re.sub(r"[^A-Za-z0-9_.]+", "-", spec).strip("-")
        if name in rows and parse_spec(rows[name].title) != parse_spec(spec):
            raise ArcapsError(f"the rows {rows[name].title} and {spec} would both be in folders {name}: leave one out")
        rows[name] = Row(name, spec, recipe, overrides_of(spec, recipe, common), tuple(range(seeds)))
    return list(rows.values())


def compare(
    recipe: str,
    specs: Sequence[str],
    *,
    folder: Path,
    seeds: int = 3,
    tune: dict[str, list[Any]] | None = None,
    max_minutes: float | None = None,
    session: dict[str, Any] | None = None,
    **common: Any,
) -> list[str]:
    """Train every row at every seed as far as it is not done, then write the records and measure what each row costs.

    `common` are settings of the recipe or of its model, for all rows; `tune` is a grid of settings from which each row
    gets its own by its validation error; `session` goes to `train`. The same call resumes after a stop; more rows and
    more seeds can be added, other settings need another folder. Several processes may work on one folder. A training
    that fails does not stop the others; the names of those are returned.
    """
    rows = rows_of(specs, recipe, seeds, common)
    remember(folder, {"recipe": recipe, "common": common, **({"tune": tune} if tune else {})})
    until = Deadline(max_minutes)
    failures = Failures()
    options: dict[str, Any] = {"failed": failures.note, **(session or {})}
    trials = {row.name: trials_of(row, tune or {}) for row in rows}
    if tune:
        first = [trial.job(trial.seeds[0]) for points in trials.values() for trial in points]
        run_jobs(first, folder, max_minutes=until.minutes_left, test=False, **options)
    chosen = {name: choose(points, folder) for name, points in trials.items()}
    tuned = {name: row for name, row in chosen.items() if row is not None}
    tried = {name: {"trials": validation_errors(trials[name], folder)} if tune else {} for name in tuned}
    train_rows(tuned, tried, folder, max_minutes=until.minutes_left, **options)
    measure(folder)
    return failures


def compare_at_equal_time(
    source: Path, *, folder: Path, max_minutes: float | None = None, session: dict[str, Any] | None = None
) -> list[str]:
    """Train the rows of a comparison again, in `folder`, each for the time that the baseline takes for its epochs.

    `source` holds the records of the comparison, of which nothing else is needed. The names of trainings that failed
    are returned.
    """
    costs = read_json(source / "costs.json") if (source / "costs.json").exists() else {}
    if BASELINE not in costs:
        raise ArcapsError(f"{source} holds no finished comparison: make it first, without equal time")
    settings = read_json(source / "comparison.json")
    records = [read_json(path) for path in sorted((source / "records").glob("*.json"))]
    rows = rows_at_equal_time(settings, records, costs)
    remember(folder, {**settings, "equal_time": {name: row.overrides["epochs"] for name, row in rows.items()}})
    write_record(folder / "costs.json", costs)
    tried = {one["row"]: {"trials": one["trials"]} for one in records if "trials" in one}
    failures = Failures()
    train_rows(rows, tried, folder, max_minutes=max_minutes, failed=failures.note, **(session or {}))
    return failures


def rows_at_equal_time(
    settings: dict[str, Any], records: Sequence[dict[str, Any]], costs: Mapping[str, Any]
) -> dict[str, Row]:
    """The rows of a comparison with other numbers of epochs: as many as take the time of the baseline's.

    That is by the measured time of a step. The settings that a row's trials chose, and its seeds, stay. A row that was
    not measured is left out.
    """
    found: dict[str, Row] = {}
    for one in records:
        row = rows_of([one["title"]], settings["recipe"], 1, settings["common"])[-1]
        if row.name not in costs:
            continue
        recipe = read_recipe(one["recipe"])
        chosen = {name: recipe.flat[name] for name in settings.get("tune", {})}
        times = costs[BASELINE]["step_ms"] / costs[row.name]["step_ms"]
        epochs = max(1, round(find_recipe(settings["recipe"], **settings["common"]).epochs * times))
        seeds = found[row.name].seeds if row.name in found else ()
        overrides = {**row.overrides, **chosen, "epochs": epochs}
        found[row.name] = replace(row, overrides=overrides, seeds=(*seeds, recipe.seed))
    return found


def train_rows(rows: Mapping[str, Row], notes: Mapping[str, dict[str, Any]], folder: Path, **options: Any) -> None:
    """Train rows at all their seeds, as far as it is not done, and write a record of each run with the row's notes."""
    cells = {job.name: name for name, row in rows.items() for _, job in queue([row])}

    def note(job: Job, run: Run) -> None:
        name = cells[job.name]
        about = {"row": name, "title": rows[name].title, **notes.get(name, {})}
        write_record(folder / "records" / f"{job.name}.json", {**record(rows[name], run), **about})

    jobs = [job for _, job in queue(list(rows.values()))]
    try:
        run_jobs(jobs, folder, finished=note, **options)
    finally:
        for job in jobs:
            if job.run(folder).metrics:
                note(job, job.run(folder))


class Failures(list[str]):
    """The names of the trainings that failed."""

    def note(self, job: Job, error: ArcapsError) -> None:
        """Log why a training failed, and keep its name."""
        logger.error("%s failed: %s", job.name, error)
        self.append(job.name)


class Deadline:
    """When a session that may last some minutes is over."""

    def __init__(self, minutes: float | None) -> None:
        self.minutes, self.began = minutes, time.monotonic()

    @property
    def minutes_left(self) -> float | None:
        """The minutes that are left; None without a limit."""
        return None if self.minutes is None else max(0.0, self.minutes - (time.monotonic() - self.began) / 60)


def trials_of(row: Row, grid: dict[str, list[Any]]) -> list[Row]:
    """The row at every point of a grid; the row itself, where there is nothing to tune."""
    if not grid:
        return [row]
    return [
        replace(row, name=f"{row.name}-{point_name(point)}", overrides={**row.overrides, **point})
        for point in points_of(grid)
    ]


def validation_errors(trials: Sequence[Row], folder: Path) -> dict[str, float]:
    """The lowest validation error of each trial that has had all its epochs, by the trial's name."""
    jobs = {trial.name: trial.job(trial.seeds[0]) for trial in trials}
    done = {name: job for name, job in jobs.items() if job.state(folder) in ("trained", "finished")}
    return {name: min(line["validation_error"] for line in job.run(folder).metrics) for name, job in done.items()}


def choose(trials: Sequence[Row], folder: Path) -> Row | None:
    """The trial with the lowest validation error, the first of equals; None while another process trains one of them.

    A trial that failed does not count.
    """
    if len(trials) == 1:
        return trials[0]
    errors = validation_errors(trials, folder)
    missing = [trial for trial in trials if trial.name not in errors]
    if not errors or any(trial.job(trial.seeds[0]).run(folder).held for trial in missing):
        logger.info("%s: its trials are not done; another process goes on with it", trials[0].title)
        return None
    return min((trial for trial in trials if trial.name in errors), key=lambda trial: errors[trial.name])


def remember(folder: Path, settings: dict[str, Any]) -> None:
    """Write down what is common to all rows; refuse a folder with other settings."""
    path = folder / "comparison.json"
    if not path.exists():
        write_record(path, settings)
    elif read_json(path) != json.loads(json.dumps(settings)):
        raise ArcapsError(f"{folder} holds a comparison with other settings, {read_json(path)}: give another --folder")


def measure(folder: Path, *, rounds: int = 7) -> None:
    """Measure what the rows with a finished run cost, all together, if one of them has no figures yet: `costs.json`.

    Steps of all rows are interleaved and medians taken, so that other work of the machine falls on all of them alike.
    So rows of an earlier call are measured again with those that are new; figures of two sessions, perhaps of two
    machines, could not be compared.
    """
    path = folder / "costs.json"
    runs: dict[str, Run] = {}
    for record_path in sorted((folder / "records").glob("*.json")):
        run = Run(folder / record_path.stem)
        if run.result is not None:
            runs.setdefault(read_json(record_path)["row"], run)
    if runs.keys() <= (read_json(path) if path.exists() else {}).keys():
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
