"""What is done with trained models, from the command line."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import arcaps
from arcaps import ArcapsError, Dataset, Result, Run
from arcaps.cli import main
from arcaps.models import Classification
from arcaps.training import inference
from arcaps.training.evaluate import choose_precision, class_scores, evaluate
from arcaps.training.inference import evaluate_ensemble
from arcaps.training.reproduce import Row, combine
from arcaps.training.sweep import point_name, read_grid, run_sweep

SMALL: dict[str, Any] = {"dim": 4, "caps": 2, "primary_dim": 4, "stem_channels": 4}
OPTIONS = "--dim 4 --caps 2 --primary-dim 4 --stem-channels 4"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two small runs that learned something."""
    folder = tmp_path_factory.mktemp("runs")
    return [
        arcaps.train("digits", run=folder / f"run{seed}", epochs=2, seed=seed, silent=True, report=False, **SMALL).path
        for seed in range(2)
    ]


@pytest.fixture
def arcaps_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command, get what it printed."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr("sys.argv", ["arcaps", *map(str, arguments)])
        main()
        return capsys.readouterr().out

    return run


def test_evaluate(runs: list[Path], arcaps_command: Any) -> None:
    stored = Run(runs[0]).result
    assert stored is not None
    found = json.loads(arcaps_command("evaluate", runs[0], "--precision", "float32", "--json"))
    assert found == stored.test
    printed = arcaps_command("evaluate", runs[0])
    assert f"digits, test: {found['accuracy']:.2%} of 1,000 right (95 % interval" in printed
    assert len(printed.splitlines()) == 11
    part = json.loads(arcaps_command("evaluate", runs[0], "--part", "validation", "--json"))
    assert part["count"] == 500
    file = runs[0] / "model.safetensors"
    assert json.loads(arcaps_command("evaluate", file, "--data", "digits", "--json"))["accuracy"] == found["accuracy"]
    with pytest.raises(SystemExit, match="does not say what it was tested on: give --data"):
        arcaps_command("evaluate", file)


def test_predict(runs: list[Path], tmp_path: Path, arcaps_command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    test = arcaps.load_data("digits").test
    for number in range(3):
        Image.fromarray(test.images[number, 0].numpy()).save(tmp_path / f"{number}.png")
    expected = class_scores(Run(runs[0]).model(), test.take(torch.arange(3)))
    found = json.loads(arcaps_command("predict", runs[0], tmp_path, tmp_path / "1.png", "--json"))
    assert [Path(one["file"]).name for one in found] == ["0.png", "1.png", "2.png", "1.png"]
    for one, scores in zip(found, expected, strict=False):
        assert list(one["scores"].values()) == pytest.approx(scores.tolist(), abs=1e-5)
        assert one["class"] == str(int(scores.argmax()))
    assert arcaps_command("predict", runs[0], tmp_path / "0.png").startswith(
        f"{tmp_path / '0.png'}: {found[0]['class']}"
    )
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(SystemExit, match="1 of 4 files cannot be read"):
        arcaps_command("predict", runs[0], tmp_path, "--csv", tmp_path / "all.csv")
    printed = capsys.readouterr()
    assert "bad.png is not an image that Pillow can read" in printed.err
    assert len(printed.out.splitlines()) == 3
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 4
    with pytest.raises(SystemExit, match="top is 0: give at least 1"):
        arcaps_command("predict", runs[0], tmp_path / "0.png", "--top", 0)
    with pytest.raises(SystemExit, match="is not a run folder"):
        arcaps_command("predict", tmp_path, tmp_path / "0.png")


def test_ensemble(runs: list[Path], arcaps_command: Any) -> None:
    found = json.loads(arcaps_command("ensemble", *runs, "--json"))
    test = arcaps.load_data("digits").test
    scores = sum(class_scores(Run(run).model(), test) for run in runs)
    assert isinstance(scores, torch.Tensor)
    right = (scores.argmax(-1) == test.labels).float().mean().item()
    assert found["ensemble"]["accuracy"] == pytest.approx(right)
    assert list(found["members"]) == [str(run) for run in runs]
    printed = arcaps_command("ensemble", *runs)
    assert "ensemble of 2 (95 % interval" in printed
    assert all(str(run) in printed for run in runs)
    with pytest.raises(SystemExit, match="two runs or more"):
        arcaps_command("ensemble", runs[0])


def test_int8_is_calibrated_on_a_folder_that_has_no_parts(tmp_path: Path) -> None:
    for name in "01":
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("L", (28, 28), 100).save(tmp_path / "images" / name / "0.png")
    model = arcaps.load("digits")
    assert len(inference.calibration_images("digits", model, tmp_path / "images", None)) == 2
    assert len(inference.calibration_images("digits", model, None, None)) == 5000


def test_each_member_reads_the_images_as_it_takes_them(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In another order the larger images were made from the smaller ones, and those with colour from grey ones."""
    generator = torch.Generator().manual_seed(0)
    for name in "0123456789":
        (tmp_path / "images" / name).mkdir(parents=True)
        noise = torch.randint(256, (48, 48, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(noise.numpy()).save(tmp_path / "images" / name / "0.png")
    large = tmp_path / "large.safetensors"
    arcaps.create_model("ar_capsnet", image_size=48, channels=3, **SMALL).save(large)
    seen: list[torch.Tensor] = []

    def scores_of(model: Any, dataset: Dataset, **options: Any) -> torch.Tensor:
        seen.append(dataset.images)
        return class_scores(model, dataset, **options)

    monkeypatch.setattr(inference, "class_scores", scores_of)
    evaluate_ensemble([runs[0], large], data=tmp_path / "images")
    assert torch.equal(seen[1], arcaps.load_data(tmp_path / "images", image_size=48, test=1.0).test.images)
    assert not caplog.records
    evaluate_ensemble([runs[0], large])
    assert "made to fit; --data reads them anew" in caplog.text


def test_shifts_average_the_scores_of_shifted_images(runs: list[Path], arcaps_command: Any) -> None:
    test = arcaps.load_data("digits").test
    model = Run(runs[0]).model()
    total = torch.zeros(len(test), 10)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            moved = torch.zeros_like(test.images)
            rows, columns = slice(max(down, 0), 28 + min(down, 0)), slice(max(right, 0), 28 + min(right, 0))
            from_rows, from_columns = slice(max(-down, 0), 28 - max(down, 0)), slice(max(-right, 0), 28 - max(right, 0))
            moved[..., rows, columns] = test.images[..., from_rows, from_columns]
            total += class_scores(model, replace(test, images=moved)) / 9
    torch.testing.assert_close(class_scores(model, test, shifts=1), total)
    found = json.loads(arcaps_command("evaluate", runs[0], "--shifts", 1, "--json"))
    assert found["accuracy"] == pytest.approx((total.argmax(-1) == test.labels).float().mean().item())
    members = json.loads(arcaps_command("ensemble", *runs, "--shifts", 1, "--json"))["members"]
    assert members[str(runs[0])] == found
    with pytest.raises(SystemExit, match="shifts is -1: give a number of pixels from 0 to 27"):
        arcaps_command("evaluate", runs[0], "--shifts", -1)


def test_a_row_is_tested_with_shifts_and_as_an_ensemble(
    runs: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "arcaps")
    folder = tmp_path / "runs"
    for seed, run in enumerate(runs):
        shutil.copytree(run, folder / f"small-seed{seed}")
    row = Row("small", "small", "digits", combined=True)
    combine(row, folder, tmp_path)
    found = json.loads((tmp_path / "small-combined.json").read_text())
    assert found["runs"] == ["small-seed0", "small-seed1"]
    members, together = evaluate_ensemble(runs, shifts=1)
    assert [test["confusion"] for test in found["shifts"]] == [one.confusion.tolist() for one in members.values()]
    assert found["ensemble_with_shifts"]["confusion"] == together.confusion.tolist()
    assert found["ensemble"]["confusion"] == evaluate_ensemble(runs)[1].confusion.tolist()
    assert "small: test-time shifts, ensemble" in caplog.text
    caplog.clear()
    combine(row, folder, tmp_path)
    assert not caplog.text  # nothing is tested twice


def test_train_from_the_command_line(tmp_path: Path, arcaps_command: Any, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "run"
    with pytest.raises(SystemExit) as stopped:
        arcaps_command("train", "digits", "--epochs", 1, "--run", place, "--max-minutes", 1e-6, *OPTIONS.split())
    assert stopped.value.code == 0
    caplog.set_level("INFO", "arcaps")
    printed = arcaps_command("train", "--resume", place, "--no-report")
    assert "4,500 training, 500 validation, 1,000 test images of 28x28x1, 10 classes: 0, 1, 2" in caplog.text
    assert "resuming after step 1 of 90" in caplog.text
    assert "epoch   1/1  loss " in caplog.text
    assert "test accuracy " in printed
    assert Run(place).recipe.options.items() >= {"dim": 4, "caps": 2, "primary_dim": 4, "stem_channels": 4}.items()
    with pytest.raises(SystemExit, match="unknown recipe 'digit': did you mean 'digits'"):
        arcaps_command("train", "digit")
    with pytest.raises(SystemExit, match="is not a recipe: for images of your own give  arcaps train folder --data"):
        arcaps_command("train", str(place))


def test_recipes(arcaps_command: Any) -> None:
    assert json.loads(arcaps_command("recipes", "--json"))["cifar10"]["epochs"] == 200
    assert "mnist+-fast" in arcaps_command("recipes")


def test_sweep(tmp_path: Path, arcaps_command: Any) -> None:
    grid = read_grid(("dim=4,8", "caps=2"))
    assert grid == {"dim": [4, 8], "caps": [2]}
    long = [point_name({"routing": 190 * "x" + end, "dim": dim}) for end in ("1", "2") for dim in (8, 16)]
    assert len(set(long)) == 4
    assert all(len(name) <= 200 for name in long)
    assert read_grid(("routing=dynamic",)) == {"routing": ["dynamic"]}
    fixed: dict[str, Any] = {"epochs": 1, "batch_size": 450, "primary_dim": 4, "stem_channels": 4}
    results = run_sweep("digits", grid, tmp_path, silent=True, report=False, **fixed)
    assert list(results) == ["dim=4,caps=2", "dim=8,caps=2"]
    assert Run(tmp_path / "dim=8,caps=2").recipe.options["dim"] == 8
    before = [(tmp_path / name / "result.json").stat().st_mtime_ns for name in results]
    assert run_sweep("digits", grid, tmp_path, silent=True, report=False, **fixed) == results
    assert [(tmp_path / name / "result.json").stat().st_mtime_ns for name in results] == before
    flags = "--epochs 1 --batch-size 450 --primary-dim 4 --stem-channels 4".split()  # noqa: SIM905
    command = ("sweep", "digits", "--grid", "dim=4,8", "caps=2", "--folder", tmp_path)
    printed = arcaps_command(*command, *flags)
    assert len(printed.splitlines()) == 2
    with pytest.raises(SystemExit, match="holds another experiment: epochs is 1 there and 8 here"):
        arcaps_command(*command)
    assert [(tmp_path / name / "result.json").stat().st_mtime_ns for name in results] == before


def test_a_failed_point_does_not_hide_the_others(tmp_path: Path) -> None:
    fixed: dict[str, Any] = {"epochs": 1, "batch_size": 450, **SMALL}
    results = run_sweep("digits", {"image_size": [28, 5]}, tmp_path, silent=True, report=False, **fixed)
    assert isinstance(results["image_size=28"], Result)
    assert "too small" in str(results["image_size=5"])
    with pytest.raises(ArcapsError, match="unknown schedule 'cosin'"):  # before the first point
        run_sweep("digits", {"schedule": ["cosine", "cosin"]}, tmp_path / "other", **fixed)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("dim=16,32", [16, 32]),
        ("strides=(2,2),(2,1)", [(2, 2), (2, 1)]),
        ("routing=attention,dynamic(iterations=5)", ["attention", "dynamic(iterations=5)"]),
        ("routing=dynamic(iterations=5, squash=True)", ["dynamic(iterations=5, squash=True)"]),
        ("learning-rate=1e-3,3e-3", [1e-3, 3e-3]),
        ("residual=True,False", [True, False]),
        ("data=my folder/a", ["my folder/a"]),
        ("test_data=mnist", ["mnist"]),
        ("decay=-1", [-1]),
    ],
)
def test_values_of_a_grid(setting: str, values: list[Any]) -> None:
    (name,) = read_grid((setting,))
    assert read_grid((setting,))[name] == values
    assert name == setting.partition("=")[0].replace("-", "_")


@pytest.mark.parametrize("setting", ["dim", "dim=", "=3", "", "3=4", "dim = "])
def test_what_is_no_grid(setting: str) -> None:
    with pytest.raises(ArcapsError, match=r"cannot read .* write it as dim=16,32"):
        read_grid((setting,))


def test_an_evaluation_by_hand() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    dataset = Dataset("six", torch.zeros(6, 1, 8, 8, dtype=torch.uint8), labels, ("a", "b", "c"))
    found = Classification(dataset.name, dataset.class_names)
    found.add(torch.eye(3)[[0, 0, 1, 1, 2, 2]], labels)
    assert found.confusion.tolist() == [[2, 1, 0], [0, 1, 1], [0, 0, 1]]
    assert found.accuracy == pytest.approx(4 / 6)
    assert found.per_class == pytest.approx({"a": 2 / 3, "b": 1 / 2, "c": 1})
    many = Classification("many", ("a",), torch.tensor([[9946, 54], [0, 0]]))
    assert many.interval == pytest.approx((0.99296, 0.99586), abs=1e-5)  # Wilson's, for 9,946 of 10,000


def test_a_model_of_another_size_is_refused() -> None:
    model = arcaps.create_model("ar_capsnet", image_size=40, **SMALL)
    with pytest.raises(ArcapsError, match="the model takes images of 1x40x40, digits, test has 1x28x28"):
        evaluate(model, arcaps.load_data("digits").test)


def test_precision() -> None:
    cpu = torch.device("cpu")
    assert choose_precision("float32", cpu) == torch.float32
    assert choose_precision("auto", cpu) == torch.float32  # bfloat16 is slower on CPUs, also where they have it
    with pytest.raises(ArcapsError, match="unknown precision 'half'"):
        choose_precision("half", cpu)
