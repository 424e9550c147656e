"""A queue of trainings: what grids, comparisons and the reproduction of the paper's results have in common."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from arcaps.errors import ArcapsError
from arcaps.settings import Recipe
from arcaps.training.api import train
from arcaps.training.recipes import find_recipe
from arcaps.training.run import Run, RunHeldError
from arcaps.training.splits import with_absolute_paths

logger = logging.getLogger("arcaps")


@dataclass(frozen=True)
class Job:
    """One training of the queue. Its name is that of its run folder."""

    name: str
    recipe: str
    overrides: dict[str, Any] = field(default_factory=dict)

    def run(self, folder: Path) -> Run:
        """The job's run folder, which may not exist yet."""
        return Run(folder / self.name)

    def settings(self) -> Recipe:
        """The recipe with the overrides, all checked."""
        return with_absolute_paths(find_recipe(self.recipe, **self.overrides))

    def state(self, folder: Path) -> str:
        """`finished`, `trained` (all epochs, not tested yet), `begun` or `waiting`."""
        run = self.run(folder)
        if run.result is not None:
            return "finished"
        if not (run.path / "config.json").exists():
            return "waiting"
        return "trained" if run.trained else "begun"

    def require_same(self, folder: Path) -> None:
        """Refuse a run folder of this name that holds another experiment."""
        run = self.run(folder)
        if not (run.path / "config.json").exists():
            return
        stored, asked = replace(run.recipe, about=""), replace(self.settings(), about="")
        if stored != asked:
            different = [
                f"{name} is {value!r} there and {asked.flat.get(name)!r} here"
                for name, value in {**dict.fromkeys(asked.flat), **stored.flat}.items()
                if value != asked.flat.get(name)
            ]
            raise ArcapsError(f"{run.path} holds another experiment: {'; '.join(different)}: give another --folder")


def run_jobs(
    jobs: Iterable[Job],
    folder: Path,
    *,
    max_minutes: float | None = None,
    finished: Callable[[Job, Run], None] = lambda job, run: None,
    failed: Callable[[Job, ArcapsError], None] | None = None,
    test: bool = True,
    **session: Any,
) -> None:
    """Run every job that is not finished, in order, resuming those that were begun.

    All settings are checked before the first job runs. Several processes may work on one folder: a job that another
    process holds is passed over. `finished` is called for each job with a result, also for those that had one before;
    `failed` for each that ended with an error, so that the others still run. Without `test` every job ends before its
    test. `session` goes to `train`.
    """
    jobs = list(jobs)
    twice = sorted(name for name, count in Counter(job.name for job in jobs).items() if count > 1)
    if twice:
        raise ArcapsError(f"several trainings would be in the folder {folder / twice[0]}: give their settings apart")
    for job in jobs:
        job.require_same(folder)
        job.settings()
    began = time.monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArcapsError(f"{folder} cannot be written: {error.strerror}: give another --folder") from None
    for number, job in enumerate(jobs, start=1):
        run = job.run(folder)
        left = None if max_minutes is None else max(0.0, max_minutes - (time.monotonic() - began) / 60)
        try:
            state = job.state(folder)
            if state in ("begun", "waiting"):
                logger.info("training %d of %d: %s", number, len(jobs), job.name)
            if state == "begun" or (state == "trained" and test):
                train(resume=run.path, max_minutes=left, test=test, **session)
            elif state == "waiting":
                train(job.recipe, run=run.path, max_minutes=left, test=test, **session, **job.overrides)
            finished(job, run)
        except RunHeldError:
            logger.info("%s is held by another process", job.name)
        except ArcapsError as error:
            if failed is None:
                raise
            failed(job, error)
