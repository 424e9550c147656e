"""Pretrained weights: what is there, what it says of itself, and whether it is true."""

import contextlib
import importlib.util
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image

import arcaps
from arcaps import ArcapsError, Preprocessing, create_model
from arcaps.cli import main
from arcaps.models.base import copy_weights, start_from
from arcaps.page import page_options
from arcaps.settings import Recipe
from arcaps.weights import FOLDER, how_made, weight_file, weight_names
from tests.test_docs import ROOT, python_blocks

every_name = pytest.mark.parametrize("name", weight_names())


@pytest.fixture
def script() -> ModuleType:
    """scripts/make_weights.py."""
    spec = importlib.util.spec_from_file_location("make_weights", ROOT / "scripts/make_weights.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answers(model: arcaps.Classifier, images: torch.Tensor) -> torch.Tensor:
    """The class of each image."""
    with torch.no_grad():
        return torch.cat([model(model.preprocessing(part)).scores.argmax(-1) for part in images.split(100)])


def test_all_weights_together_are_small() -> None:
    assert "digits" in weight_names()
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 12e6


def test_a_model_that_starts_from_another_keeps_its_preprocessing() -> None:
    model = create_model("ar_capsnet", dim=4, caps=2, primary_dim=4, stem_channels=4)
    model.preprocessing = Preprocessing((28, 28), 1, "pad", 128.0, invert=True)
    new = start_from(model, {"classes": 5, "image_size": 32})
    assert new.preprocessing == replace(model.preprocessing, size=(32, 32))


@every_name
def test_weights_say_how_they_were_made(name: str) -> None:
    made = how_made(name)
    assert made["name"] == name
    recipe = Recipe.from_dict(made["recipe"])
    assert (recipe.data, recipe.seed) == (made["data"], made["seed"])
    assert arcaps.load(name).name == recipe.model
    assert {"accuracy", "tested", "interval_95", "versions", "commit", "licence"} <= made.keys()
    assert made["licence"].startswith("MIT, as arcaps")


@every_name
def test_they_are_as_good_as_they_say(name: str) -> None:
    model, made = arcaps.load(name), how_made(name)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    if made["data"] not in ("digits", "mnist"):
        pytest.skip(f"{made['data']} is not in the package")
    test = arcaps.load_data("digits").test  # of MNIST's test images the first 100 of each class
    accuracy = float((answers(model, test.images) == test.labels).float().mean())
    assert accuracy == pytest.approx(made["accuracy"], abs=1e-6 if made["data"] == "digits" else 0.01)


@every_name
def test_a_model_can_start_from_them(name: str) -> None:
    pretrained = arcaps.load(name)
    same = create_model(pretrained.name, pretrained=name)
    new = create_model(pretrained.name, pretrained=name, classes=5)
    for key, tensor in pretrained.state_dict().items():
        assert torch.equal(same.state_dict()[key], tensor)
        kept = new.state_dict()[key].shape == tensor.shape and torch.equal(new.state_dict()[key], tensor)
        assert kept or key.startswith(("class_caps", "score", "decoder")), key
    assert new.class_names == list("01234")
    assert new(torch.rand(2, new.channels, *new.image_size)).scores.shape == (2, 5)
    assert new.training


@every_name
def test_predict_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not page_options(Path(name), arcaps.load(name))["facts"].is_mnist:
        pytest.skip("not a model of digits")
    digits = arcaps.load_data("digits").test
    number = int((digits.labels == 4).nonzero()[0])
    Image.fromarray(digits.images[number, 0].numpy()).save(tmp_path / "four.png")
    monkeypatch.setattr("sys.argv", ["arcaps", "predict", name, str(tmp_path / "four.png"), "--json"])
    main()
    (found,) = json.loads(capsys.readouterr().out)
    assert found["class"] == "4"


@every_name
def test_their_page_has_examples_and_their_accuracy(name: str) -> None:
    made, options = how_made(name), page_options(Path(name), arcaps.load(name))
    assert len(options["examples"]) > 0
    assert (options["facts"].accuracy, options["facts"].tested) == (made["accuracy"], made["tested"])


def test_the_list_in_the_documents_is_that_of_the_files(script: ModuleType) -> None:
    assert f"{script.BEGIN}\n{script.table()}\n{script.END}" in script.PAGE.read_text()


@pytest.mark.parametrize("sample", python_blocks("docs/weights.md"))
def test_the_samples_print_what_they_say(sample: str) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(sample, {})
    assert printed.getvalue().splitlines() == re.findall(r"print.*# (.+)", sample)


@pytest.mark.slow
def test_a_run_becomes_pretrained_weights(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small: dict[str, Any] = {"limit": 60, "validation": 0.2, "dim": 4, "caps": 2, "primary_dim": 4, "stem_channels": 4}
    run = arcaps.train("digits", run=tmp_path / "run", epochs=1, silent=True, report=False, **small)
    (tmp_path / "weights").mkdir()
    monkeypatch.setattr("arcaps.weights.FOLDER", tmp_path / "weights")
    monkeypatch.setattr(script, "FOLDER", tmp_path / "weights")
    script.write_weights(str(run.path), "tiny")
    assert "tiny.safetensors: 1.4 MB" in capsys.readouterr().out
    assert weight_names() == ["tiny"]
    made = how_made("tiny")
    assert (made["data"], made["tested"], made["recipe"]["epochs"]) == ("digits", 1000, 1)
    test = arcaps.load_data("digits").test
    accuracy = float((answers(arcaps.load("tiny"), test.images) == test.labels).float().mean())
    assert accuracy == pytest.approx(made["accuracy"], abs=1e-6)
    assert "| `tiny` | `ar_capsnet` |" in script.table()
    start = arcaps.create_model("ar_capsnet", **{**run.recipe.options, "classes": 3})
    copy_weights(arcaps.load("tiny"), start)
    assert torch.equal(start.state_dict()["stem.0.conv.weight"], arcaps.load("tiny").state_dict()["stem.0.conv.weight"])


def test_licences(script: ModuleType) -> None:
    for data in ("digits", "mnist", "mnist+", "affnist-regenerated"):
        assert script.licence_of(data).endswith("CC BY-SA 3.0")
    assert script.licence_of("fashion-mnist") == "MIT, as arcaps; trained on Fashion-MNIST: MIT"
    assert script.licence_of("photos") == "MIT, as arcaps"


def test_mistakes_are_named() -> None:
    with pytest.raises(ArcapsError, match="unknown pretrained model 'digit': did you mean 'digits'"):
        create_model("ar_capsnet", pretrained="digit")
    with pytest.raises(ArcapsError, match="holds the architecture ar_capsnet, not CapsuleNet"):
        create_model("capsule_net", pretrained="digits")


def test_a_file_of_the_same_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    create_model("ar_capsnet", caps=2, dim=4, primary_dim=4, stem_channels=2, classes=3).save("digits")
    assert arcaps.load("digits").classes == 3
    assert weight_file("digits") != Path("digits")
