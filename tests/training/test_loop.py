"""A run: what it writes, and that it resumes exactly where it was stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import arcaps
from arcaps import ArcapsError, Run
from arcaps.data import Batch, Data, Dataset
from arcaps.losses import spread_loss
from arcaps.training import Stopped
from arcaps.training import splits as splits_module
from arcaps.training.api import extend
from arcaps.training.distributed import Processes
from arcaps.training.loop import Session, Trainer, evaluate_best
from arcaps.training.recipes import find_recipe

CPU = torch.device("cpu")
TINY: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 50,
    "layers": 1,
    "dim": 4,
    "caps": 2,
    "primary_dim": 4,
    "stem_channels": 4,
    "silent": True,
    "device": "cpu",
    "precision": "float32",
    "report": False,
}

RESUME: dict[str, Any] = {"silent": True, "report": False}


@pytest.fixture(autouse=True)
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the embedded digits, and no report."""

    def load_few(*args: Any, **kwargs: Any) -> Data:
        train, validation, test = arcaps.load_data(*args, **kwargs)
        assert train is not None
        return Data(few(train), validation, few(test))

    def few(dataset: Dataset) -> Dataset:
        return dataset.take(torch.arange(0, len(dataset), 5))

    monkeypatch.setattr(splits_module, "load_data", load_few)


def weights(run: Run) -> dict[str, torch.Tensor]:
    """The weights of the last checkpoint."""
    return {name: value for name, value in load_file(run.states()[0]).items() if name.startswith("model.")}


def assert_same_run(one: Run, other: Run) -> None:
    """Both ended with the same weights, to the bit, and told the same story."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    best, same = load_file(one.model_file()), load_file(other.model_file())
    assert all(torch.equal(best[name], same[name]) for name in best)
    for left, right in zip(one.metrics, other.metrics, strict=True):
        assert {**left, "seconds": 0, "step_seconds": 0} == {**right, "seconds": 0, "step_seconds": 0}
    assert one.result == other.result


def test_a_run_folder_holds_everything(tmp_path: Path) -> None:
    run = arcaps.train("digits", run=tmp_path / "run", **{**TINY, "report": True})
    assert {path.name for path in run.path.iterdir()} == {
        ".lock",
        "config.json",
        "data.json",
        "metrics.jsonl",
        "model.safetensors",
        "result.json",
        "report.md",
        "mistakes.csv",
        "figures",
        *(path.name for path in run.states()),
    }
    assert {path.name for path in (run.path / "figures").iterdir()} == {
        "learning_curves.png",
        "confusion.png",
        "mistakes.png",
        "reconstructions.png",
    }
    config = run.config
    assert config["recipe"]["epochs"] == 2
    assert config["recipe"]["options"]["dim"] == 4
    assert config["versions"]["arcaps"] == arcaps.__version__
    assert config["machine"]["cores"] == os.cpu_count()
    assert [line["epoch"] for line in run.metrics] == [1, 2]
    assert run.metrics[-1]["step"] == 36
    assert run.metrics[-1]["loss"] == pytest.approx(sum(run.metrics[-1]["losses"].values()))
    best = min(run.metrics, key=lambda line: line["validation_error"])
    assert run.result is not None
    assert run.result.epoch == best["epoch"]
    assert run.result.test["count"] == 200
    report = (run.path / "report.md").read_text()
    assert f"Test accuracy: **{run.result.test['accuracy']:.2%}**" in report
    assert run.model().class_names == list("0123456789")
    assert len(run.states()) == 2


@pytest.mark.slow
def test_a_run_is_deterministic_by_its_seed(tmp_path: Path) -> None:
    one = arcaps.train("digits", run=tmp_path / "one", **TINY)
    same = arcaps.train("digits", run=tmp_path / "same", **TINY)
    other = arcaps.train("digits", run=tmp_path / "other", seed=1, **TINY)
    assert_same_run(one, same)
    assert not torch.equal(weights(one)["model.primary.conv.weight"], weights(other)["model.primary.conv.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_in_good_order_and_the_run_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    whole = arcaps.train("digits", run=tmp_path / "whole", **TINY)
    steps = []

    def interrupt(trainer: Trainer) -> None:
        steps.append(trainer.step)
        if len(steps) in (5, 18, 30):
            signal.raise_signal(number)

    with pytest.raises(Stopped, match=f"stopped by {number.name}") as stopped:
        arcaps.train("digits", run=tmp_path / "run", **TINY, on_step=interrupt)
    assert stopped.value.code == 128 + number
    for _ in range(2):
        with pytest.raises(Stopped):
            arcaps.train(resume=tmp_path / "run", on_step=interrupt, **RESUME)
    resumed = arcaps.train(resume=tmp_path / "run", on_step=interrupt, **RESUME)
    assert steps == list(range(1, 37))
    assert_same_run(resumed, whole)


@pytest.mark.slow
@pytest.mark.parametrize("routing", arcaps.list_routings())
def test_a_run_with_any_routing_goes_on_to_the_bit(tmp_path: Path, routing: str) -> None:
    options = {**TINY, "epochs": 1, "routing": routing}
    whole = arcaps.train("digits", run=tmp_path / "whole", **options)
    with pytest.raises(Stopped):
        arcaps.train("digits", run=tmp_path / "run", max_minutes=1e-6, **options)
    assert_same_run(arcaps.train(resume=tmp_path / "run", **RESUME), whole)


def test_the_time_limit_stops_in_good_order(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="minutes are over") as stopped:
        arcaps.train("digits", run=tmp_path / "run", max_minutes=1e-6, **TINY)
    assert stopped.value.code == 0
    assert arcaps.train(resume=tmp_path / "run", **RESUME).result is not None


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "flipped", "half written"])
def test_a_damaged_state_is_passed_over_for_the_one_before(tmp_path: Path, damage: str) -> None:
    whole = arcaps.train("digits", run=tmp_path / "whole", **TINY)
    with pytest.raises(Stopped):
        arcaps.train("digits", run=tmp_path / "run", max_minutes=1e-6, **TINY)
    run = Run.open(tmp_path / "run")
    first = run.states()[0].read_bytes()
    with pytest.raises(Stopped):
        arcaps.train(resume=run.path, max_minutes=1e-6, **RESUME)
    newest = run.states()[0]
    content = bytearray(newest.read_bytes())
    content[-5000] ^= 1
    if damage == "half written":
        (run.path / f".{newest.name}.123.tmp").write_bytes(content[:3000])
    else:
        newest.write_bytes(content if damage == "flipped" else content[:-5000])
        found = run.read_state()
        assert found is not None
        assert run.states()[1].read_bytes() == first
        assert found[1]["step"] == 1
    assert_same_run(arcaps.train(resume=run.path, **RESUME), whole)
    assert [path.name for path in run.path.glob(".*")] == [".lock"]


KILLED = """
import sys, torch
torch.set_num_threads(1)
import arcaps
from arcaps.data import Data
from arcaps.training import splits
load = splits.load_data
splits.load_data = lambda *a, **k: Data(*(p and p.take(torch.arange(0, len(p), 5)) for p in load(*a, **k)))
options = dict(silent=True, report=False, device="cpu", save_minutes=0.003)
if sys.argv[2] == "new":
    tiny = dict(epochs=2, batch_size=50, layers=1, dim=4, caps=2, primary_dim=4, stem_channels=4, precision="float32")
    arcaps.train("digits", run=sys.argv[1], **tiny, **options)
else:
    arcaps.train(resume=sys.argv[1], **options)
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = arcaps.train("digits", run=tmp_path / "whole", **TINY)
    run = Run(tmp_path / "run")
    generator = torch.Generator().manual_seed(0)
    for kill in range(3):
        mode = "resume" if (run.path / "config.json").exists() else "new"
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(run.path), mode])
        states = set(run.states())
        while process.poll() is None and not set(run.states()) - states:
            time.sleep(0.005)
        time.sleep(0.4 * float(torch.rand((), generator=generator)))
        process.kill()
        process.wait()
        assert run.states(), f"kill {kill} came before the first checkpoint"
    subprocess.run([sys.executable, "-c", KILLED, str(run.path), "resume"], check=True)
    assert_same_run(run, whole)


def test_micro_batches_give_the_same_gradients(tmp_path: Path) -> None:
    """Without BatchNorm and dropout, which see the micro-batch only: CapsuleNet has neither."""
    options = {**TINY, "model": "capsule_net", "epochs": 1, "optimiser": "sgd"}
    del options["layers"]
    one = arcaps.train("digits", run=tmp_path / "one", **options)
    cut = arcaps.train("digits", run=tmp_path / "cut", micro_batch=20, **options)
    for name, value in weights(one).items():
        torch.testing.assert_close(weights(cut)[name], value, rtol=1e-4, atol=1e-5)


def test_an_error_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "error", lambda *_: float("nan"))
    with pytest.raises(ArcapsError, match=r"epoch 1 has the errors .*nan.*: let the evaluation's error be a finite"):
        arcaps.train("digits", run=tmp_path / "run", **TINY)


def test_all_processes_make_the_same_number_of_parts() -> None:
    """BatchNorm adds up the sums of all processes in each part: one part more in one of them, and all wait for ever."""
    cases = [
        (total, world, micro)
        for total in (2, 3, 5, 7, 8, 101)
        for world in (1, 2, 3)
        for micro in (None, 1, 2, 3, 50)
        if world <= total
    ]
    for total, world, micro in cases:
        counts = set()
        for rank in range(world):
            own = torch.arange(total)[rank::world]
            batch = Batch(own.view(-1, 1, 1, 1).float(), own, total)
            process = SimpleNamespace(session=Session(micro_batch=micro), processes=Processes(rank, world, CPU))
            parts = Trainer.micro_batches(process, batch)  # type: ignore[arg-type]
            counts.add(len(parts))
            assert torch.equal(torch.cat([part.labels for part in parts]), own)
            sizes = [len(part.images) for part in parts]
            assert min(sizes) > 0
            assert max(sizes) <= (total if micro is None else max(micro, 2))
            if world == 1 and micro is not None:
                assert sizes[:-1] == [micro] * (len(sizes) - 1)
        assert len(counts) == 1, (total, world, micro)


def test_a_process_that_comes_late_to_an_extension_still_waits_with_the_others(tmp_path: Path) -> None:
    class Late(Processes):
        def broadcast(self, text: str) -> str:
            calls.append(self.rank)
            return text

    recipe = find_recipe("digits", epochs=2)
    run = Run.create(tmp_path / "run", recipe, {})
    calls: list[int] = []
    for rank in (0, 1):  # the second one reads the settings after the first one wrote them
        extend(run, replace(recipe, epochs=3), Late(rank, 2, CPU))
    assert calls == [0, 1]
    assert run.recipe.epochs == 3


def test_eta_and_the_spread_margin_grow_with_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    margins: list[float] = []
    seen: list[tuple[float, float]] = []

    def noted(scores: torch.Tensor, targets: torch.Tensor, *, margin: float) -> torch.Tensor:
        margins.append(margin)
        return spread_loss(scores, targets, margin=margin)

    def note(trainer: Trainer) -> None:
        seen.append((margins[-1], float(trainer.model.class_caps.routing.eta)))  # type: ignore[union-attr,arg-type]

    monkeypatch.setattr("arcaps.losses.spread_loss", noted)
    options = {**TINY, "epochs": 1, "routing": "spectral(eta=(1, 19))", "loss": "spread"}
    run = arcaps.train("digits", run=tmp_path / "run", on_step=note, **options)
    steps = torch.arange(18)
    expected = torch.stack([0.2 + 0.7 * steps / 18, 1 + 18 * steps / 18], 1)
    torch.testing.assert_close(torch.tensor(seen), expected)
    assert run.result is not None


def test_bfloat16_trains(tmp_path: Path) -> None:
    run = arcaps.train("digits", run=tmp_path / "run", **{**TINY, "epochs": 1, "precision": "bfloat16"})
    assert run.metrics[0]["loss"] < 1


@pytest.mark.parametrize("optimiser", ["rmsprop", "adamw", "sgd"])
@pytest.mark.parametrize("model", ["ar_capsnet", "capsule_net", "strong_conv_net"])
def test_every_model_and_optimiser_goes_on_exactly(tmp_path: Path, model: str, optimiser: str) -> None:
    small: dict[str, dict[str, Any]] = {
        "ar_capsnet": {"caps": 2, "dim": 4, "primary_dim": 4, "stem_channels": 4},
        "capsule_net": {"caps": 2, "dim": 4, "primary_dim": 4, "stem_channels": 4},
        "strong_conv_net": {"widths": (4, 4, 4, 4)},
    }
    options: dict[str, Any] = {
        "epochs": 1,
        "batch_size": 300,
        **RESUME,
        "model": model,
        "optimiser": optimiser,
        **small[model],
    }
    whole = arcaps.train("digits", run=tmp_path / "whole", learning_rate=1e-4, **options)
    with pytest.raises(Stopped):
        arcaps.train("digits", run=tmp_path / "run", learning_rate=1e-4, max_minutes=1e-6, **options)
    assert_same_run(arcaps.train(resume=tmp_path / "run", **RESUME), whole)


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(ArcapsError) as caught:
        arcaps.train(
            "digits",
            run=tmp_path / "run",
            **{**TINY, "learning_rate": 1000, "schedule": "constant", "optimiser": "sgd"},
        )
    message = str(caught.value)
    assert "the loss is not finite at step" in message
    assert "of recipe digits" in message
    assert "start again with a lower --learning-rate" in message


def test_mistakes_are_named(tmp_path: Path) -> None:
    run = arcaps.train("digits", run=tmp_path / "run", **{**TINY, "epochs": 1})
    with pytest.raises(ArcapsError, match=r"holds a run of digits already: resume it with --resume"):
        arcaps.train("digits", run=run.path, **TINY)
    with pytest.raises(ArcapsError, match="give --resume alone"):
        arcaps.train("digits", resume=run.path)
    with pytest.raises(ArcapsError, match="is not a run folder"):
        arcaps.train(resume=tmp_path)
    with pytest.raises(ArcapsError, match="give a recipe"):
        arcaps.train()
    with pytest.raises(ArcapsError, match="unknown data set 'nowhere'"):
        arcaps.train("digits", data="nowhere", run=tmp_path / "other", **RESUME)
    assert not (tmp_path / "other").exists()


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = arcaps.train("digits", run=tmp_path / "whole", **TINY)
    calls = []

    def full(number: int) -> None:
        calls.append(number)
        if len(calls) > 4:
            raise OSError(28, "No space left on device", str(tmp_path / "run" / "state"))

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(
            ArcapsError, match=r"No space left on device: fix this, then resume with  arcaps train --resume"
        ):
            arcaps.train("digits", run=tmp_path / "run", **TINY)
    assert_same_run(arcaps.train(resume=tmp_path / "run", **RESUME), whole)


def test_a_run_without_any_state_starts_again_from_nothing(tmp_path: Path) -> None:
    """Killed after its first metrics, before its first checkpoint."""
    options = {**TINY, "epochs": 1}
    whole = arcaps.train("digits", run=tmp_path / "whole", **options)
    run = arcaps.train("digits", run=tmp_path / "run", **options)
    for path in [*run.states(), run.path / "result.json"]:
        path.unlink()
    assert_same_run(arcaps.train(resume=run.path, **RESUME), whole)


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    run = arcaps.train("digits", run=tmp_path / "run", **{**TINY, "epochs": 1})
    before = (run.path / "result.json").stat().st_mtime_ns
    stored = json.loads((run.path / "result.json").read_text())
    again = arcaps.train(resume=run.path, **RESUME).result
    assert again is not None
    assert again.as_dict() == stored
    assert (run.path / "result.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(("other_epoch", "tests"), [(2, ["validation"]), (1, ["validation", "test_validation"])])
def test_the_epoch_that_the_papers_choice_gives_is_reported_beside_ours(other_epoch: int, tests: list[str]) -> None:
    models = {"validation": arcaps.load("digits"), "test_validation": arcaps.create_model("ar_capsnet", dim=16)}
    models["test_validation"].class_names = models["validation"].class_names
    opened = []

    def best_model(name: str) -> Any:
        opened.append(name)
        return models[name]

    trainer = object.__new__(Trainer)
    vars(trainer).update(
        recipe=find_recipe("digits"),
        best={"validation": {"error": 0.02, "epoch": 2}, "test_validation": {"error": 0.1, "epoch": other_epoch}},
        best_model=best_model,
        splits=SimpleNamespace(test=arcaps.load_data("digits").test.take(torch.arange(0, 1000, 20))),
        processes=Processes(0, 1, torch.device("cpu")),
        session=Session(),
    )
    result = evaluate_best(trainer)
    assert opened == tests
    assert (result.epoch, result.validation_error) == (2, 0.02)
    assert result.test["accuracy"] > 0.9
    other = result.chosen_as_in_the_paper
    assert other is not None
    assert (other["epoch"], other["test_validation_error"]) == (other_epoch, 0.1)
    assert (other["test"] == result.test) == (other_epoch == 2)
