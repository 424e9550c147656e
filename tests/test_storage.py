"""One file holds a model, and any other file is refused with the reason."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import arcaps
from arcaps import ArcapsError, ARCapsNet, CapsuleNet, Classifier, create_model
from tests.test_models import SMALL


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    create_model("ar_capsnet", image_size=12, **SMALL["ar_capsnet"]).save(path)
    return path


def rewrite(path: Path, **changes: Any) -> None:
    """Change the metadata of a saved file; without a checksum, as version 0.1 wrote it."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    metadata.pop("checksum", None)
    save_file(load_file(path), path, {**metadata, **{key: json.dumps(value) for key, value in changes.items()}})


@pytest.mark.parametrize("name", sorted(Classifier.known))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loaded_model_answers_as_the_saved_one(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = create_model(name, image_size=(20, 17), channels=3, classes=4, **SMALL[name]).to(dtype)
    model.class_names = ["ant", "bee", "cat", "dog"]
    model.preprocessing = replace(model.preprocessing, fit="pad", divide_by=127.5, invert=True)
    model(torch.rand(2, 3, 20, 17, dtype=dtype))  # moves the BatchNorm statistics
    path = tmp_path / "x.safetensors"
    model.save(path)
    loaded = arcaps.load(path)
    images = torch.rand(2, 3, 20, 17, dtype=dtype)
    assert torch.equal(loaded(images).scores, model.eval()(images).scores)
    assert type(loaded) is type(model)
    assert not loaded.training
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert loaded.config == model.config
    assert loaded.class_names == model.class_names
    assert loaded.preprocessing == model.preprocessing
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]


def test_the_metadata_says_everything(saved: Path) -> None:
    with safe_open(saved, framework="pt") as file:
        metadata = {key: json.loads(value) for key, value in file.metadata().items()}
    assert metadata["architecture"] == "ar_capsnet"
    assert metadata["config"]["caps"] == 2
    assert metadata["class_names"] == list("0123456789")
    assert metadata["input_shape"] == [1, 12, 12]
    fields = {"size": [12, 12], "channels": 1, "fit": "scale", "divide_by": 255.0, "invert": False}
    assert metadata["preprocessing"] == fields
    assert metadata["arcaps_version"] == arcaps.__version__


def test_a_file_of_version_0_1_gets_the_size_of_its_model(saved: Path) -> None:
    rewrite(saved, preprocessing={"divide_by": 127.5})
    assert arcaps.load(saved).preprocessing == arcaps.Preprocessing((12, 12), 1, "scale", 127.5)


@pytest.mark.parametrize("wrong", [{"size": [9, 9]}, {"colour": True}, {"divide_by": 0}, {"fit": "crop"}, [], None])
def test_a_preprocessing_that_does_not_fit_is_refused(saved: Path, wrong: Any) -> None:
    rewrite(saved, preprocessing=wrong)
    with pytest.raises(ArcapsError, match="was written by arcaps"):
        arcaps.load(saved)


@pytest.mark.parametrize("part", [0.02, 0.3, 0.99])
def test_a_truncated_file(saved: Path, part: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ArcapsError, match="is truncated or damaged"):
        arcaps.load(saved)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not a safetensors file .it is empty"),
        (b"short", "is not a safetensors file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "is not a safetensors file"),
        (b"PK\x03\x04" + bytes(100), "looks like a pickle, which arcaps never opens"),
        (b"\x80\x02}q\x00" + bytes(100), "looks like a pickle, which arcaps never opens"),
    ],
)
def test_a_file_of_another_kind(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ArcapsError, match=reason):
        arcaps.load(path)


def test_a_safetensors_file_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(ArcapsError, match="not one that arcaps wrote"):
        arcaps.load(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ArcapsError, match="cannot be read: No such file"):
        arcaps.load(tmp_path / "none.safetensors")


def test_another_architecture(saved: Path) -> None:
    assert isinstance(ARCapsNet.load(saved), ARCapsNet)
    with pytest.raises(ArcapsError, match="holds the architecture ar_capsnet, not CapsuleNet"):
        CapsuleNet.load(saved)


def test_an_unknown_architecture(saved: Path) -> None:
    rewrite(saved, architecture="super_capsnet", arcaps_version="9.0")
    with pytest.raises(ArcapsError, match=r"written by arcaps 9\.0: unknown model 'super_capsnet'"):
        arcaps.load(saved)


def test_weights_of_another_architecture(saved: Path) -> None:
    small = {**create_model("ar_capsnet", image_size=12, **SMALL["ar_capsnet"]).config, "dim": 4}
    rewrite(saved, config=small)
    with pytest.raises(ArcapsError, match="does not hold the weights of the ar_capsnet that it describes"):
        arcaps.load(saved)


def test_a_newer_format(saved: Path) -> None:
    rewrite(saved, arcaps_format=2, arcaps_version="9.0")
    with pytest.raises(ArcapsError, match=r"written by arcaps 9\.0 in format 2.*install a newer arcaps"):
        arcaps.load(saved)


def test_a_changed_bit_is_noticed(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[-100] ^= 1
    saved.write_bytes(content)
    with pytest.raises(ArcapsError, match=r"is damaged, its checksum is wrong: copy it again"):
        arcaps.load(saved)


def test_the_same_model_makes_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    arcaps.load(saved).save(tmp_path / "again.safetensors")
    code = f"import arcaps; arcaps.load({str(saved)!r}).save({str(tmp_path / 'other.safetensors')!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "again.safetensors").read_bytes() == saved.read_bytes()
    assert (tmp_path / "other.safetensors").read_bytes() == saved.read_bytes()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(saved: Path, value: float) -> None:
    model = arcaps.load(saved)
    model.primary.conv.weight.data[0, 0, 0, 0] = value
    with pytest.raises(ArcapsError, match=r"primary\.conv\.weight has values that are not finite"):
        model.save(saved)
    with safe_open(saved, framework="pt") as file:  # as version 0.1 wrote it
        metadata = {key: text for key, text in file.metadata().items() if key != "checksum"}
    save_file(model.state_dict(), saved, metadata)
    with pytest.raises(ArcapsError, match=r"primary\.conv\.weight holds values that are not finite"):
        arcaps.load(saved)


def test_weights_of_another_type(saved: Path) -> None:
    with safe_open(saved, framework="pt") as file:
        metadata = {key: value for key, value in file.metadata().items() if key != "checksum"}
    tensors = load_file(saved)
    save_file({name: value.to(torch.int32) for name, value in tensors.items()}, saved, metadata)
    with pytest.raises(ArcapsError, match=r"should hold torch\.float32 and holds torch\.int32"):
        arcaps.load(saved)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("architecture", None),
        ("architecture", 3),
        ("config", []),
        ("config", {"image_size": "large"}),
        ("config", {"dim": -1}),
        ("config", {"no_such_option": 1}),
        ("class_names", "abc"),
        ("class_names", ["a"]),
        ("class_names", [1, 2]),
        ("class_names", ["a"] * 10),
        ("arcaps_format", "1"),
        ("arcaps_format", None),
    ],
)
def test_metadata_that_do_not_fit(saved: Path, key: str, value: Any) -> None:
    rewrite(saved, **{key: value})
    with pytest.raises(ArcapsError, match=r"model\.safetensors"):
        arcaps.load(saved)


def test_a_failed_write_leaves_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        create_model("ar_capsnet", image_size=16, **SMALL["ar_capsnet"]).save(saved)
    assert saved.read_bytes() == before
    assert [file.name for file in saved.parent.iterdir()] == [saved.name]


@pytest.mark.parametrize("name", ["ar_capsnet", "capsule_net", "strong_conv_net"])
def test_files_of_version_0_1_give_the_same_answers(name: str) -> None:
    files = Path(__file__).parent / "files"
    expected = torch.tensor(json.loads((files / "version_0_1_scores.json").read_text())[name])
    model = arcaps.load(files / f"version_0_1_{name}.safetensors")
    images = arcaps.load_data("digits").test.images[:6, :, 4:24, 4:24]
    torch.testing.assert_close(model(model.preprocessing(images)).scores, expected, rtol=1e-6, atol=1e-6)
    assert model.class_names == ["ant", "bee", "cat", "dog"]
