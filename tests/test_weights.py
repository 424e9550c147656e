"""Pretrained weights: what is there, what it says of itself, and whether it is true."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import arcaps
from arcaps import ArcapsError, create_model
from arcaps.cli import main
from arcaps.weights import FOLDER, how_made, weight_file, weight_names


def test_all_weights_together_are_small() -> None:
    assert "digits" in weight_names()
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 12e6


@pytest.mark.parametrize("name", weight_names())
def test_weights_say_how_they_were_made(name: str) -> None:
    made = how_made(name)
    assert made["name"] == name
    assert made["recipe"]["model"] == "ar_capsnet"
    assert {"data", "seed", "accuracy", "tested", "interval_95", "versions", "licence"} <= made.keys()
    assert "MNIST" in made["licence"]


def test_the_digits_are_as_good_as_they_say() -> None:
    model = arcaps.load("digits")
    test = arcaps.load_data("digits").test
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    with torch.no_grad():
        right = [
            model(model.preprocessing(images)).scores.argmax(-1) == labels
            for images, labels in zip(test.images.split(100), test.labels.split(100), strict=True)
        ]
    assert float(torch.cat(right).float().mean()) == pytest.approx(how_made("digits")["accuracy"], abs=1e-6)


def test_a_model_can_start_from_them() -> None:
    pretrained = arcaps.load("digits")
    same = create_model("ar_capsnet", pretrained="digits")
    new = create_model("ar_capsnet", pretrained="digits", classes=5)
    for name, tensor in pretrained.state_dict().items():
        assert torch.equal(same.state_dict()[name], tensor)
        kept = new.state_dict()[name].shape == tensor.shape and torch.equal(new.state_dict()[name], tensor)
        assert kept or name.startswith(("class_caps", "decoder")), name
    assert new.class_names == list("01234")
    assert new(torch.rand(2, 1, 28, 28)).scores.shape == (2, 5)
    assert new.training


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


def test_predict_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    digits = arcaps.load_data("digits").test
    number = int((digits.labels == 4).nonzero()[0])
    Image.fromarray(digits.images[number, 0].numpy()).save(tmp_path / "four.png")
    monkeypatch.setattr("sys.argv", ["arcaps", "predict", "digits", str(tmp_path / "four.png"), "--json"])
    main()
    (found,) = json.loads(capsys.readouterr().out)
    assert "4" in (found.get("class"), found.get("label"))
