"""The queue of trainings, and the moving average of the weights."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import arcaps
from arcaps import ArcapsError, Data, Dataset, Run
from arcaps.training import Stopped
from arcaps.training.jobs import Job, run_jobs
from arcaps.training.loop import move_average
from arcaps.training.recipes import find_recipe
from arcaps.training.splits import limit_images, load_splits

TINY: dict[str, Any] = {"limit": 200, "epochs": 1, "dim": 4, "caps": 2, "primary_dim": 4, "stem_channels": 4}


def test_a_queue_goes_on_where_it_was_stopped_and_leaves_what_another_holds(tmp_path: Path) -> None:
    jobs = [Job(f"seed{seed}", "digits", {**TINY, "seed": seed}) for seed in range(3)]
    with pytest.raises(Stopped):
        run_jobs(jobs, tmp_path, max_minutes=1e-6, silent=True, report=False)
    assert [job.state(tmp_path) for job in jobs] == ["begun", "waiting", "waiting"]
    done: list[str] = []
    with Run.reserve(tmp_path / "seed1", "digits").lock():
        run_jobs(jobs, tmp_path, finished=lambda job, run: done.append(job.name), silent=True, report=False)
    assert [job.state(tmp_path) for job in jobs] == ["finished", "waiting", "finished"]
    assert done == ["seed0", "seed2"]


def test_limit_uses_no_more_training_images(tmp_path: Path) -> None:
    job = Job("few", "digits", TINY)
    run_jobs([job], tmp_path, silent=True, report=False)
    assert job.run(tmp_path).metrics[0]["step"] == 4  # 200 images in batches of 50


def test_a_limit_takes_of_every_class_where_images_lie_class_by_class() -> None:
    labels = torch.tensor([2, 2, 2, 2, 0, 0, 0, 0, 1, 1])
    dataset = Dataset("blocks", torch.zeros(10, 1, 2, 2, dtype=torch.uint8), labels, tuple("abc"))
    assert limit_images(dataset, 5).labels.tolist() == [2, 2, 0, 0, 1]
    assert limit_images(dataset, 99).labels.tolist() == labels.tolist()
    mixed = dataset.take(torch.tensor([4, 0, 8, 1, 5, 9]))
    assert limit_images(mixed, 3).labels.tolist() == [0, 2, 1]  # the first ones


def test_parts_without_images_are_refused_before_the_training() -> None:
    data = arcaps.load_data("digits").test
    for name, parts in {"validation": (data, data[:0], data), "test": (data, data, data[:0])}.items():
        with pytest.raises(ArcapsError, match=f"the {name} part of .* has no images"):
            load_splits(find_recipe("digits"), given=Data(*parts))


def test_a_job_that_another_process_begins_meanwhile_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job("taken", "digits", TINY)

    def begin_too(*args: Any, **options: Any) -> Any:
        other.enter_context(Run.create(job.run(tmp_path).path, job.settings(), {}).lock())
        return load_splits(*args, **options)

    monkeypatch.setattr("arcaps.training.api.load_splits", begin_too)
    with ExitStack() as other:
        run_jobs([job], tmp_path, silent=True, report=False)
        assert job.state(tmp_path) == "begun"


def test_two_trainings_in_one_folder_are_refused(tmp_path: Path) -> None:
    jobs = [Job("same", "digits", {**TINY, "seed": seed}) for seed in range(2)]
    with pytest.raises(ArcapsError, match="several trainings would be in the folder"):
        run_jobs(jobs, tmp_path)


def test_a_job_that_stopped_early_is_trained(tmp_path: Path) -> None:
    still = {**TINY, "epochs": 20, "patience": 1, "learning_rate": 0.0, "average": 0.0}
    job = Job("still", "digits", still)
    run_jobs([job], tmp_path, test=False, silent=True, report=False)
    assert len(job.run(tmp_path).metrics) < 20
    assert job.state(tmp_path) == "trained"


def test_the_average_moves_by_its_decay_and_forgets_the_start() -> None:
    average, count = torch.zeros(1), torch.zeros(1, dtype=torch.int64)
    expected = 0.0
    for step in range(1, 30):
        kept = min(0.9, (1 + step) / (10 + step))
        expected = kept * expected + (1 - kept) * step
        move_average(0.9, [average, count], [torch.tensor([float(step)]), torch.tensor([step])], torch.tensor(step))
    assert float(average) == pytest.approx(expected, rel=1e-6)
    assert int(count) == 29
