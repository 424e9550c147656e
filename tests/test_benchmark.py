"""The benchmark's arithmetic and its files; times themselves are not tested."""

import json
from collections import defaultdict
from itertools import chain, repeat
from pathlib import Path

import pytest
import torch

import arcaps.benchmark
from arcaps import ArcapsError, bench, create_model
from arcaps.benchmark import Benchmark, multiply_adds
from arcaps.cli.bench import print_tables
from arcaps.reports.benchmark import save_benchmark

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result() -> Benchmark:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arcaps.benchmark, "MATMUL_SIDE", 64)
        patch.setattr(arcaps.benchmark, "ROUND_SECONDS", 0.01)
        patch.setattr(arcaps.benchmark, "growth_settings", lambda: [("batch", "2", {"layers": 0}, 2)])
        models, precisions = ("ar_capsnet", "capsule_net"), ("float32",)
        return bench(models, ("mnist",), rounds=2, batch_size=2, precisions=precisions, growth=True)


def test_which_processors_compute_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = ({"cpu_name": "bf16", "avx2": True}, {"avx512_bf16": False, "amx_bf16": True}, {"avx512_bf16": False})
    found = []
    for capabilities in cases:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda known=capabilities: known)
        found.append(arcaps.benchmark.computes_in_bfloat16())
    assert found == [False, True, False]


def test_every_act_of_every_model_is_timed(result: Benchmark) -> None:
    operations = [(row.model, row.operation, row.batch_size) for row in result.timings if row.precision == "float32"]
    assert operations == [
        (model, operation, images)
        for model in ("ar_capsnet", "capsule_net")
        for operation, images in (("training step", 2), ("forward", 2), ("latency", 1))
    ]


def test_the_floor_is_the_multiply_adds_at_the_best_rate(result: Benchmark) -> None:
    work = multiply_adds("ar_capsnet", {})
    for row in result.timings:
        if row.model == "ar_capsnet":
            passes = 3 if row.operation == "training step" else 1
            floor_ms = 2 * work * passes * row.batch_size / (result.gflops["float32"] * 1e6)
            assert row.times_floor == pytest.approx(row.median_ms / floor_ms)
            assert row.images_per_second == pytest.approx(1000 * row.batch_size / row.median_ms)
            assert row.minimum_ms <= row.median_ms
            assert row.peak_mb is None or row.peak_mb > 100


def test_a_round_is_also_compared_with_the_products_just_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    products = chain([0.001], repeat(0.002))  # at its best once, half as fast ever after
    monkeypatch.setattr(arcaps.benchmark, "matmul_seconds", lambda _: next(products))
    monkeypatch.setattr(arcaps.benchmark, "seconds", lambda _: 2.0)
    monkeypatch.setattr(arcaps.benchmark, "alone", lambda *_: defaultdict(lambda: None))
    result = bench(("ar_capsnet",), ("mnist",), rounds=3, precisions=("float32",))
    assert result.median_gflops == pytest.approx(result.gflops["float32"] / 2)
    for row in result.timings:
        assert row.median_ms == 2000
        assert row.times_floor == pytest.approx(2 * row.times_recent_floor)


def test_ratios_are_capsule_net_over_ar_capsnet(result: Benchmark) -> None:
    ratio = result.ratios[0]
    ours, theirs = create_model("ar_capsnet"), create_model("capsule_net")
    assert ratio["parameters"] == theirs.parameter_count() / ours.parameter_count()
    assert ratio["multiply_adds"] == pytest.approx(3.2, abs=0.1)
    median = {
        (row.model, row.operation): row.median_ms for row in result.timings if row.precision == ratio["precision"]
    }
    assert ratio["forward"] == median["capsule_net", "forward"] / median["ar_capsnet", "forward"]


def test_growth_is_measured_alone(result: Benchmark) -> None:
    (row,) = result.growth
    assert (row.setting, row.value, row.batch_size) == ("batch", "2", 2)
    assert row.ms_per_image == row.step_ms / 2


def test_tables_json_and_chart(result: Benchmark, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(result)
    printed = capsys.readouterr().out
    assert f"{torch.get_num_threads()} threads" in printed
    assert "CapsuleNet over AR CapsNet" in printed
    assert max(map(len, printed.splitlines()[:20])) <= 80
    save_benchmark(result, tmp_path / "bench")
    assert json.loads((tmp_path / "bench/bench.json").read_text())["timings"][0]["model"] == "ar_capsnet"
    assert (tmp_path / "bench/bench.png").stat().st_size > 5000


def test_mistakes_are_named() -> None:
    with pytest.raises(ArcapsError, match="unknown data 'svhn': there are mnist, cifar10"):
        bench(data=("svhn",))
    with pytest.raises(ArcapsError, match="rounds is 0"):
        bench(rounds=0)
    with pytest.raises(ArcapsError, match="batch size is 0"):
        bench(batch_size=0)
    with pytest.raises(ArcapsError, match="unknown precision"):
        bench(precisions=("float8",))
