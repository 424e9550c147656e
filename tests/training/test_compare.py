"""Comparisons: what differs between rows, what is written, and the table and figure made from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from arcaps.errors import ArcapsError
from arcaps.reports.compare import comparison_table, difference, read_comparison, write_comparison
from arcaps.statistics import mean_interval
from arcaps.training import Run, Stopped, api, jobs, loop
from arcaps.training import compare as compare_module
from arcaps.training.compare import (
    EQUAL_TIME,
    choose,
    compare,
    compare_at_equal_time,
    overrides_of,
    rows_at_equal_time,
    rows_of,
    trials_of,
)
from arcaps.training.run import Result

TINY: dict[str, Any] = {"limit": 200, "epochs": 1, "dim": 4, "caps": 2, "primary_dim": 4, "stem_channels": 4}


def test_a_row_is_a_routing_or_a_model() -> None:
    assert overrides_of("em(iterations=3)", "digits", {"epochs": 2}) == {"epochs": 2, "routing": "em(iterations=3)"}
    own = overrides_of("ar_capsnet(routing='em', votes='window')", "digits", {})
    assert own == {"routing": "em", "votes": "window"}
    with pytest.raises(ArcapsError, match="unknown routing or model 'dinamic': did you mean 'dynamic'"):
        overrides_of("dinamic", "digits", {})
    with pytest.raises(ArcapsError, match="has no option 'steps'"):
        overrides_of("dynamic(steps=3)", "digits", {})


def test_another_model_keeps_what_it_knows_of_the_recipe() -> None:
    found = overrides_of("dense_head", "digits", {"epochs": 2, "caps": 4, "residual": False})
    assert found == {
        "epochs": 2,
        "caps": 4,
        "model": "dense_head",
        "dim": 16,
        "stem_channels": 32,
        "batch_norm_momentum": 0.1,
    }
    assert "stem_channels" not in overrides_of("strong_conv_net", "digits", {"caps": 4})


def test_the_baseline_is_always_there_and_each_row_once() -> None:
    rows = rows_of(["uniform", "attention", "dynamic(iterations=1)"], "digits", 2, {})
    assert [row.name for row in rows] == ["attention", "uniform", "dynamic-iterations-1"]
    assert rows[2].job(1).name == "dynamic-iterations-1-seed1"
    both = ["dynamic( iterations = 1 )", "dynamic(iterations=1)"]
    assert len(rows_of(both, "digits", 1, {})) == 2
    with pytest.raises(ArcapsError, match=r"would both be in folders spectral-bias-0\.1: leave one out"):
        rows_of(["spectral(bias=0.1)", "spectral(bias=-0.1)"], "digits", 1, {})
    with pytest.raises(ArcapsError, match="seeds is 0"):
        rows_of([], "digits", 0, {})


def test_the_interval_of_a_mean() -> None:
    low, high = mean_interval([1.0, 2.0, 3.0])  # type: ignore[misc]
    assert (low, high) == (pytest.approx(2 - 4.302653 / 3**0.5), pytest.approx(2 + 4.302653 / 3**0.5))
    assert mean_interval([1.0]) is None
    wide = mean_interval([0.0, 1.0] * 20)
    assert wide is not None
    assert wide[1] - 0.5 == pytest.approx(2.022691 * 0.506370 / 40**0.5, rel=1e-3)


def test_differences_are_paired_by_seed() -> None:
    baseline, one = {0: 0.90, 1: 0.80, 2: 0.70}, {0: 0.92, 1: 0.82, 5: 0.10}
    assert difference(one, baseline) == "+2.00 (+2.00 to +2.00)"
    assert difference({0: 0.91}, baseline) == "+1.00"
    assert difference({5: 0.91}, baseline) == ""


@pytest.mark.slow
def test_a_comparison_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    options: dict[str, Any] = {"folder": tmp_path, "seeds": 2, "session": {"silent": True}, **TINY}
    with pytest.raises(Stopped):
        compare("digits", ["uniform", "dense_head"], max_minutes=1e-6, **options)
    assert write_comparison(tmp_path).exists()  # of what there is
    compare("digits", ["uniform", "dense_head"], **options)
    page = write_comparison(tmp_path).read_text()
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in lines] == ["attention", "dense_head", "uniform"]
    assert all(line.count("|") == 14 and "| 2 |" in line for line in lines)
    assert (tmp_path / "comparison.png").stat().st_size > 1000
    assert (tmp_path / "uniform-seed1" / "result.json").exists()
    records, costs, _ = read_comparison(tmp_path)
    assert costs == json.loads((tmp_path / "costs.json").read_text())
    assert comparison_table(records, costs) in page
    assert costs["uniform"]["routing_parameters"] == 0
    assert costs["attention"]["routing_parameters"] == 2 * 2 * 2 * 4 + 10 * 2 * 2 * 4
    assert all(costs[name][key] > 0 for name in records for key in ("step_ms", "image_ms", "peak_mb", "multiply_adds"))
    with pytest.raises(ArcapsError, match="holds a comparison with other settings"):
        compare("digits", [], **{**options, "epochs": 2})


@pytest.mark.slow
def test_rows_of_an_earlier_call_are_timed_again_with_those_that_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"folder": tmp_path, "seeds": 1, "session": {"silent": True, "report": False}, **TINY}
    compare("digits", ["uniform"], **options)
    measured = json.loads((tmp_path / "costs.json").read_text())
    elsewhere = {**measured, "uniform": {**measured["uniform"], "step_ms": 1e9}, "machine": {"processor": "another"}}
    (tmp_path / "costs.json").write_text(json.dumps(elsewhere))
    compare("digits", ["random"], **options)
    records, costs, _ = read_comparison(tmp_path)
    assert costs.keys() == {*records, "machine"} == {"attention", "uniform", "random", "machine"}
    assert costs["uniform"]["step_ms"] < 1e6
    assert costs["machine"] == measured["machine"]
    monkeypatch.setattr(compare_module, "Subject", None)
    compare("digits", ["uniform", "random"], **options)  # finished: nothing is timed
    assert read_comparison(tmp_path)[1] == costs


def test_the_figures_of_a_row_are_those_of_its_finished_runs() -> None:
    run: dict[str, Any] = {"row": "uniform", "title": "uniform", "epochs": 4, "parameters": 12345}
    finished = {**run, "recipe": {"seed": 0}, "curves": {"validation_error": [0.25, 0.125]}}
    finished["result"] = {"test": {"accuracy": 0.75}}
    begun = {**run, "recipe": {"seed": 1}, "curves": {"validation_error": [0.9]}, "result": None}
    assert "| `uniform` | 1 | 4 | 87.50% | 75.00% |" in comparison_table({"uniform": [finished, begun]}, {})
    assert "| `uniform` | 0 | 4 |  | not finished |" in comparison_table({"uniform": [begun]}, {})


@pytest.mark.slow
def test_each_row_has_its_own_trials_and_one_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[str] = []

    def note(trainer: loop.Trainer) -> Result:
        tested.append(trainer.run.path.name)
        return loop.evaluate_best(trainer)

    monkeypatch.setattr(api, "evaluate_best", note)
    tune = {"learning_rate": [1e-6, 3e-3]}
    learning = {**TINY, "limit": 600, "epochs": 2}
    options: dict[str, Any] = {"folder": tmp_path, "seeds": 2, "tune": tune, "session": {"silent": True}, **learning}
    held = rows_of(["uniform"], "digits", 2, learning)[1]
    with Run.reserve(trials_of(held, tune)[0].job(0).run(tmp_path).path, "digits").lock():
        compare("digits", ["uniform"], **options)  # another process holds a trial of uniform
    assert sorted(tested) == [f"attention-learning_rate=0.003-seed{seed}" for seed in range(2)]
    compare("digits", ["uniform"], **options)
    names = [f"{row}-learning_rate=0.003-seed{seed}" for row in ("attention", "uniform") for seed in range(2)]
    assert sorted(tested) == names  # each once, after the choice; the other trials never
    assert sorted(path.stem for path in (tmp_path / "records").iterdir()) == names
    record = read_comparison(tmp_path)[0]["uniform"][0]
    errors = record["trials"]
    assert errors["uniform-learning_rate=0.003"] < errors["uniform-learning_rate=1e-06"]
    assert record["recipe"]["learning_rate"] == 3e-3
    page = write_comparison(tmp_path).read_text()
    assert page.count("| learning_rate=0.003 |") == 2
    assert "learning_rate from 1e-06, 0.003, chosen by one training each on validation images" in page


def test_a_failed_trial_is_not_chosen(tmp_path: Path) -> None:
    row = rows_of([], "digits", 1, TINY)[0]
    trials = trials_of(row, {"learning_rate": [1e-3, 3e-3]})
    assert choose(trials, tmp_path) is None  # none is trained
    assert choose([row], tmp_path) is row  # nothing to choose
    run = Run.create(tmp_path / trials[1].job(0).name, trials[1].job(0).settings(), {})
    (run.path / "metrics.jsonl").write_text('{"epoch": 1, "validation_error": 0.5}\n')
    assert choose(trials, tmp_path) is trials[1]


@pytest.mark.slow
def test_failed_trainings_are_named_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = api.train

    def train(*args: Any, **options: Any) -> Run:
        if options.get("routing") == "uniform":
            raise ArcapsError("the loss is not a number")
        return real(*args, **options)

    monkeypatch.setattr(jobs, "train", train)
    failures = compare(
        "digits", ["uniform", "random"], folder=tmp_path, seeds=1, session={"silent": True, "report": False}, **TINY
    )
    assert failures == ["uniform-seed0"]
    assert list(read_comparison(tmp_path)[0]) == ["attention", "random"]


def test_at_equal_time_a_slower_row_has_fewer_epochs() -> None:
    settings = {"recipe": "digits", "common": {"epochs": 4, "dim": 4}, "tune": {"learning_rate": [1e-3, 3e-3]}}
    records = [
        {"title": row.title, "recipe": row.job(seed).settings().as_dict()}
        for row in rows_of(["em", "dense_head", "kl"], "digits", 2, {"epochs": 4, "dim": 4, "learning_rate": 1e-3})
        for seed in row.seeds
    ]
    costs = {"attention": {"step_ms": 30.0}, "em": {"step_ms": 90.0}, "dense_head": {"step_ms": 15.0}}
    rows = rows_at_equal_time(settings, records, costs)
    assert {name: row.overrides["epochs"] for name, row in rows.items()} == {"attention": 4, "em": 1, "dense_head": 8}
    em = rows["em"].job(1).settings()
    assert (em.epochs, em.learning_rate, em.seed, em.options["routing"], em.options["dim"]) == (1, 1e-3, 1, "em", 4)
    assert rows["em"].seeds == (0, 1)


@pytest.mark.slow
def test_the_table_at_equal_time_is_made_from_the_first(tmp_path: Path) -> None:
    options: dict[str, Any] = {"folder": tmp_path, "seeds": 1, "session": {"silent": True}}
    with pytest.raises(ArcapsError, match="holds no finished comparison"):
        compare_at_equal_time(tmp_path, folder=tmp_path / EQUAL_TIME)
    compare("digits", ["em"], **options, **{**TINY, "epochs": 2})
    costs = json.loads((tmp_path / "costs.json").read_text())
    costs["em"]["step_ms"] = 2 * costs["attention"]["step_ms"]
    (tmp_path / "costs.json").write_text(json.dumps(costs))
    assert compare_at_equal_time(tmp_path, folder=tmp_path / EQUAL_TIME, session={"silent": True}) == []
    page = write_comparison(tmp_path).read_text()
    first, second = page.split("## At equal time")
    assert "| `em` | 1 | 2 |" in first
    assert "| `em` | 1 | 1 |" in second
    assert "| `attention` | 1 | 2 |" in second
    assert "as many epochs as take the time that attention takes" in second


def test_a_folder_without_a_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArcapsError, match="holds no comparison"):
        write_comparison(tmp_path)
