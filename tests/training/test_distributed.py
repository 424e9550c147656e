"""Several processes train as one."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from arcaps import Run
from arcaps.storage import digest
from arcaps.training.evaluate import evaluate
from arcaps.training.loop import has_unused_parameters
from arcaps.training.recipes import find_recipe, override
from arcaps.training.splits import build_model, load_splits

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent


def start(folder: Path, processes: int, die_at: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the worker in this number of processes."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = [
        "torch.distributed.run",
        f"--nproc-per-node={processes}",
        "--master-addr=127.0.0.1",
        f"--master-port={port}",
    ]
    worker = ["-m", "tests.training.worker", str(folder), str(die_at), json.dumps(options)]
    command = [sys.executable, "-m", *torchrun, *worker]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)


def seen(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("seen-*.json"))]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes."""
    folder = tmp_path_factory.mktemp("two")
    result = start(folder, 2)
    assert result.returncode == 0, result.stderr
    return folder


def test_two_processes_learn_what_one_learns(two: Path, tmp_path: Path) -> None:
    result = start(tmp_path, 1)
    assert result.returncode == 0, result.stderr
    (alone,), (first, second) = seen(tmp_path), seen(two)
    assert len(alone["curve"]) == 20
    assert first["curve"] == second["curve"]
    assert first["curve"] == pytest.approx(alone["curve"], rel=1e-4)
    assert first["digest"] == second["digest"]  # the same parameters, to the bit
    assert first["metrics"][0]["loss"] == pytest.approx(alone["metrics"][0]["loss"], rel=1e-4)


def test_a_parameter_without_a_gradient_does_not_stop_two_processes(tmp_path: Path) -> None:
    recipe = find_recipe("digits", routing="em(iterations=1)", dim=4, caps=2, primary_dim=4, stem_channels=4)
    splits = load_splits(recipe)
    assert has_unused_parameters(build_model(recipe, splits), splits.train)  # the betas of the class layer
    assert not has_unused_parameters(build_model(override(recipe, routing="attention"), splits), splits.train)
    result = start(tmp_path, 2, routing="em(iterations=1)")
    assert result.returncode == 0, result.stderr
    first, second = seen(tmp_path)
    assert first["digest"] == second["digest"]
    assert len(first["curve"]) == 20


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_norms_of_a_part_of_the_batch_are_validated_and_saved_alike(average: float, tmp_path: Path) -> None:
    norms: dict[str, Any] = {"activation": "capsule(norm=True)", "images_at_once": 40}
    result = start(tmp_path, 2, average=average, limit=900, **norms)
    assert result.returncode == 0, result.stderr
    first, second = seen(tmp_path)
    assert first["digest"] != second["digest"]  # the running statistics of each process, after the last step
    assert first["kept"] == second["kept"] == digest(dict(Run.open(tmp_path / "run").model().state_dict()))


def test_two_processes_validate_and_test_each_image_once(two: Path) -> None:
    run, (first, _) = Run.open(two / "run"), seen(two)
    images = load_splits(run.recipe)
    found = evaluate(run.model(), images.validation)
    assert first["metrics"][0]["validation_error"] == pytest.approx(1 - found.accuracy, abs=1 / found.count)
    assert run.result is not None
    assert run.result.test["count"] == 1000


def test_a_process_that_dies_ends_the_run_with_an_error_and_it_can_be_resumed(two: Path, tmp_path: Path) -> None:
    result = start(tmp_path, 2, die_at=5)
    assert result.returncode != 0
    assert not seen(tmp_path)
    result = start(tmp_path, 2)
    assert result.returncode == 0, result.stderr
    for resumed, whole in zip(seen(tmp_path), seen(two), strict=True):
        assert resumed["curve"] == pytest.approx(whole["curve"][-len(resumed["curve"]) :], rel=1e-9)
        assert len(resumed["curve"]) >= 15
        assert resumed["digest"] == whole["digest"]
