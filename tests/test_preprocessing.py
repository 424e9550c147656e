"""One picture everywhere: what a file becomes is what training saw."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import arcaps
from arcaps import ArcapsError, Loader, Preprocessing
from arcaps.fields import Options
from arcaps.preprocessing import to_array
from arcaps.settings import Recipe
from arcaps.training import splits as splits_module
from arcaps.training.recipes import RECIPES
from arcaps.training.splits import build_model, load_splits


@pytest.mark.parametrize(
    "recipe",
    [recipe for recipe in RECIPES.values() if recipe.fit == "pad"]
    + [replace(RECIPES["digits"], image_size=(41, 41), fit="pad")],
    ids=lambda recipe: recipe.name,
)
def test_a_digit_in_a_file_is_what_training_saw(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a frame, version 0.1 padded in training and scaled in prediction."""

    def digits(_: Any, **options: Any) -> arcaps.Data:
        return arcaps.load_data("digits", **{key: value for key, value in options.items() if key != "data_dir"})

    monkeypatch.setattr(splits_module, "load_data", digits)  # MNIST and affNIST need not be here
    small = replace(recipe, options=Options(dim=4, caps=2, primary_dim=4, stem_channels=4))
    images = load_splits(small)
    model = build_model(small, images)
    train = arcaps.load_data("digits").train
    assert train is not None
    train = train.split(recipe.validation, seed=recipe.seed)[0]
    batch = next(iter(Loader(images.train, 3, shuffle=False, preprocessing=model.preprocessing)))
    files = [tmp_path / f"{number}.png" for number in range(3)]
    for file, image in zip(files, train.images, strict=False):
        Image.fromarray(image[0].numpy()).save(file)
    assert torch.equal(model.preprocessing.prepare(files), batch.images)
    model.save(tmp_path / "model.safetensors")
    assert torch.equal(arcaps.load(tmp_path / "model.safetensors").preprocessing.prepare(files), batch.images)
    seen: list[torch.Tensor] = []
    accept = type(model).accept

    def watch(self: arcaps.Classifier, images: torch.Tensor) -> torch.Tensor:
        seen.append(images)
        return accept(self, images)

    monkeypatch.setattr(type(model), "accept", watch)
    arcaps.predict(tmp_path / "model.safetensors", files)
    assert torch.equal(torch.cat(seen), batch.images)


@pytest.mark.parametrize("size", [(28, 28), (20, 20), (56, 56), (40, 17)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("fit", ["pad", "scale"])
def test_evaluation_and_prediction_see_the_same_pixels(
    size: tuple[int, int], channels: int, fit: Any, tmp_path: Path
) -> None:
    test = arcaps.load_data("digits").test.take(torch.arange(3))
    wanted = Preprocessing(size, channels, fit)
    found = test.fit(wanted).images
    for number, image in enumerate(test.images):
        Image.fromarray(image[0].numpy()).save(tmp_path / f"{number}.png")
        assert torch.equal(wanted.pixels(tmp_path / f"{number}.png"), found[number])
        assert torch.equal(wanted.pixels(image), found[number])
        assert torch.equal(wanted.pixels(image[0].numpy()), found[number])
    assert found.shape == (3, channels, *size)
    assert torch.equal(wanted.prepare(test.images), found / 255)


def test_pad_keeps_the_pixels_and_scale_fills_the_size() -> None:
    digit = arcaps.load_data("digits").test.images[0]
    padded = Preprocessing((40, 41), 1, "pad").pixels(digit)
    assert torch.equal(padded[:, 6:34, 6:34], digit)
    assert padded.sum() == digit.sum()
    full = torch.full((1, 10, 20), 255, dtype=torch.uint8)
    scaled = Preprocessing((40, 40), 1, "scale").pixels(full)
    assert scaled[0, 10:30].eq(255).all()
    assert scaled[0].sum() == 255 * 20 * 40
    assert torch.equal(Preprocessing((8, 8), 1, "pad").pixels(full), Preprocessing((8, 8), 1, "scale").pixels(full))
    assert Preprocessing((8, 8), 1).pixels(torch.full((1, 1, 5000), 9, dtype=torch.uint8)).max() == 9


def test_inversion_leaves_the_padding_black() -> None:
    paper = torch.full((1, 4, 4), 255, dtype=torch.uint8)
    paper[0, 1] = 0
    found = Preprocessing((6, 6), 1, "pad", invert=True).pixels(paper)
    assert found.sum() == 4 * 255
    assert found[0, 2, 1:5].eq(255).all()


def test_a_data_set_is_not_inverted_twice() -> None:
    test = arcaps.load_data("digits", invert=True).test
    plain = arcaps.load_data("digits").test
    assert torch.equal(test.images, 255 - plain.images)
    assert torch.equal(test.fit(test.preprocessing).images, test.images)
    assert torch.equal(test.fit(plain.preprocessing).images, plain.images)


def test_an_array_with_four_axes_is_several_images() -> None:
    images = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)  # (count, height, width, channels)
    wanted = Preprocessing((3, 4), 3)
    found = wanted.prepare(images)
    assert torch.equal(found, wanted.prepare([images[0], images[1]]))
    assert torch.equal(found, wanted.prepare(torch.from_numpy(images).permute(0, 3, 1, 2)))


@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_may_have_the_channels_first(channels: int) -> None:
    """As `Dataset.from_arrays` takes them: an axis of 1 or 3 that is alone at the front is the channels."""
    image = np.random.default_rng(0).integers(0, 256, (5, 6, channels), np.uint8)
    assert np.array_equal(to_array(np.moveaxis(image, 2, 0)), image)
    assert to_array(np.zeros((3, 4, 3), np.uint8)).shape == (3, 4, 3)


def test_preprocessing_divides_bytes() -> None:
    pixels = torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8)
    torch.testing.assert_close(Preprocessing()(pixels), torch.tensor([[[[0.0, 0.2, 1.0]]]]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Preprocessing((0, 4)), "size is"),
        (lambda: Preprocessing.from_dict({"size": [4.0, 4]}, (4, 4), 1), "size is"),
        (lambda: Preprocessing.from_dict({"fit": "crop"}, (4, 4), 1), "give pad or scale"),
        (lambda: Preprocessing(divide_by=float("nan")), "divide_by is nan"),
        (lambda: Preprocessing(channels=0), "channels is 0"),
        (lambda: Preprocessing().pixels(np.zeros((4, 4))), "float64: give bytes"),
        (lambda: Preprocessing().pixels(np.zeros((4, 0), np.uint8)), "shape"),
        (lambda: to_array(3), "int is not an image"),
        (lambda: Preprocessing().prepare([]), "no images"),
        (lambda: Preprocessing(channels=3).pixels(np.zeros((4, 4, 2), np.uint8)), "only grey"),
    ],
)
def test_mistakes_are_named(make: Any, message: str) -> None:
    with pytest.raises(ArcapsError, match=message):
        make()
