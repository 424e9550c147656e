"""A queue of trainings: what grids, comparisons and the reproduction of the paper's results have in common."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from arcaps.training.api import train
from arcaps.training.run import Run


@dataclass(frozen=True)
class Job:
    """One training of the queue. Its name is that of its run folder."""

    name: str
    recipe: str
    overrides: dict[str, Any] = field(default_factory=dict)

    def run(self, folder: Path) -> Run:
        """The job's run folder, which may not exist yet."""
        return Run(folder / self.name)

    def state(self, folder: Path) -> str:
        """`finished`, `begun` or `waiting`."""
        run = self.run(folder)
        if run.result is not None:
            return "finished"
        return "begun" if (run.path / "config.json").exists() else "waiting"


def run_jobs(
    jobs: Iterable[Job],
    folder: Path,
    *,
    max_minutes: float | None = None,
    finished: Callable[[Job, Run], None] = lambda job, run: None,
    **session: Any,
) -> None:
    """Run every job that is not finished, in order, resuming those that were begun.

    Several processes may work on one folder: a job that another process holds is passed over. `finished` is called for
    each job with a result, also for those that had one before. `session` goes to `train`.
    """
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        run = job.run(folder)
        try:
            with FileLock(folder / f"{job.name}.lock", timeout=0):
                if run.result is None:
                    left = None if max_minutes is None else max(0.0, max_minutes - (time.monotonic() - began) / 60)
                    if job.state(folder) == "begun":
                        train(resume=run.path, max_minutes=left, **session)
                    else:
                        train(job.recipe, run=run.path, max_minutes=left, **session, **job.overrides)
                finished(job, run)
        except Timeout:
            continue
