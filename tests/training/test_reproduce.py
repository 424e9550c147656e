"""The queue of the results: which runs, what is left of them, and the records they leave."""

import json
from pathlib import Path
from typing import Any

import pytest

from arcaps import ArcapsError, train
from arcaps.cli.reproduce import print_status
from arcaps.training import reproduce as module
from arcaps.training.reproduce import ROWS, Row, choose_rows, queue, remaining_seconds, reproduce

SMALL = {"limit": 100, "dim": 4, "primary_dim": 4, "stem_channels": 4, "decoder": False}
ROW = Row("small", "digits, small", "digits", {**SMALL, "epochs": 2}, seeds=(0, 1))


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Folders for runs and records, and a list of results with one small row."""
    monkeypatch.setattr(module, "ROWS", (ROW,))
    return {"folder": tmp_path / "runs", "records": tmp_path / "records"}


def read(path: Path) -> dict[str, Any]:
    """A record."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_queue_takes_the_first_seed_of_every_row_first() -> None:
    names = [job.name for _, job in queue(list(ROWS))]
    assert names[: len(ROWS)] == [f"{row.name}-seed0" for row in ROWS]
    assert len(names) == len(set(names)) == sum(len(row.seeds) for row in ROWS)
    with pytest.raises(ArcapsError, match="unknown row of the results 'minst': did you mean 'mnist'"):
        choose_rows(("minst",))


def test_seeds_can_be_chosen_also_those_that_are_not_in_the_list() -> None:
    rows = choose_rows(("mnist-fast", "cifar10-fast"))
    jobs = [(job.name, job.settings().seed) for _, job in queue(rows, (2, 7))]
    assert jobs == [
        ("mnist-fast-seed2", 2),
        ("cifar10-fast-seed2", 2),
        ("mnist-fast-seed7", 7),
        ("cifar10-fast-seed7", 7),
    ]


def test_each_run_leaves_its_record_when_it_is_finished(
    places: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def watch(*arguments: Any, **options: Any) -> Any:
        begun.append(sorted(path.name for path in places["records"].glob("*")))
        return train(*arguments, **options)

    monkeypatch.setattr("arcaps.training.jobs.train", watch)
    reproduce(**places, silent=True, report=False)
    assert begun == [[], ["small-seed0.json"]]
    assert read(places["records"] / "small-seed1.json")["result"] is not None
    reproduce(**places, silent=True, report=False)
    assert len(begun) == 2  # what is finished is not trained again


def test_an_unfinished_run_leaves_the_record_of_a_finished_one(places: dict[str, Any]) -> None:
    reproduce(seeds=(0,), **places, silent=True, report=False)
    path = places["records"] / "small-seed0.json"
    finished = read(path)
    elsewhere = {"folder": places["folder"] / "again", "records": places["records"]}

    class StoppedByUserError(Exception):
        pass

    def stop(*_: Any) -> None:
        raise StoppedByUserError

    with pytest.raises(StoppedByUserError):
        reproduce(seeds=(0,), **elsewhere, silent=True, report=False, on_epoch=stop)
    assert len(ROW.job(0).run(elsewhere["folder"]).metrics) == 1
    assert read(path) == finished
    path.unlink()
    with pytest.raises(StoppedByUserError):
        reproduce(seeds=(0,), **elsewhere, silent=True, report=False, on_epoch=stop)
    assert read(path)["result"] is None


def test_the_time_left_is_that_of_the_run_or_else_of_the_records_of_its_row(places: dict[str, Any]) -> None:
    job = ROW.job(1)
    assert remaining_seconds(ROW, job, **places) is None
    places["records"].mkdir()
    (places["records"] / "small-seed0.json").write_text(json.dumps({"seconds": 30.0, "epochs": 3}))
    (places["records"] / "small-seed5.json").write_text(json.dumps({"seconds": 50.0, "epochs": 4}))
    (places["records"] / "small-combined.json").write_text(json.dumps({"runs": []}))
    assert remaining_seconds(ROW, job, **places) == 2 * 10.0
    train("digits", run=job.run(places["folder"]).path, silent=True, report=False, test=False, **job.overrides)
    assert remaining_seconds(ROW, job, **places) == 0.0  # all epochs, only the test is left


def test_without_records_the_status_gives_no_hours(places: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is known of the time: "about 0.0 hours left" would be wrong."""
    print_status((), (), **places)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"2 runs without an estimate: there are no records of these rows in {places['records']}"
