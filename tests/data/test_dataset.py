"""Data sets, and the digits that come with the package."""

import hashlib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

from arcaps import ArcapsError, Dataset, contact_sheet, load_data
from arcaps.data.catalogue import MNIST, assemble
from arcaps.data.digits import first_of_each
from arcaps.data.sources import data_directory, stored_file


def test_the_embedded_digits_are_balanced() -> None:
    data = load_data("digits")
    assert data.train is not None
    assert data.train.images.shape == (5000, 1, 28, 28)
    assert data.test.images.shape == (1000, 1, 28, 28)
    assert data.train.labels.bincount().tolist() == [500] * 10
    assert data.test.labels.bincount().tolist() == [100] * 10
    digest = hashlib.sha256(data.train.images.numpy().tobytes() + data.test.images.numpy().tobytes()).hexdigest()
    assert digest == "d5602e32c9349c2be3d65d2347fda02646b6b2920ab50433fa03e206ba70747e"


def test_the_embedded_digits_are_small_and_say_where_they_come_from() -> None:
    folder = Path(str(files("arcaps.data") / "digits_of_mnist"))
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1.1e6
    assert "CC BY-SA 3.0" in (folder / "NOTICE").read_text()


@pytest.mark.skipif(not stored_file(MNIST, data_directory()).exists(), reason="MNIST has not been fetched here")
def test_the_embedded_digits_are_the_first_of_mnist() -> None:
    mnist, digits = assemble(MNIST, data_directory()), load_data("digits")
    for whole, part, number in ((mnist.train, digits.train, 500), (mnist.test, digits.test, 100)):
        assert whole is not None
        assert part is not None
        chosen = whole.take(first_of_each(whole.labels, number))
        assert torch.equal(chosen.images, part.images)
        assert torch.equal(chosen.labels, part.labels)


def test_a_split_holds_out_a_part_of_every_class() -> None:
    train = load_data("digits").train
    assert train is not None
    rest, held_out = train.split(0.1, seed=3)
    assert held_out.labels.bincount().tolist() == [50] * 10
    assert rest.labels.bincount().tolist() == [450] * 10
    pixels = {image.numpy().tobytes() for image in rest.images}
    assert not any(image.numpy().tobytes() in pixels for image in held_out.images)
    assert torch.equal(train.split(0.1, seed=3)[1].images, held_out.images)
    assert not torch.equal(train.split(0.1, seed=4)[1].images, held_out.images)


def test_a_split_of_uneven_classes_is_exact_in_total() -> None:
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate((5923, 6742, 5958, 6131, 35))])
    images = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    rest, held_out = Dataset("uneven", images, labels, tuple("abcde")).split(0.1)
    assert len(held_out) == round(0.1 * len(labels))
    assert len(rest) + len(held_out) == len(labels)
    parts = held_out.labels.bincount() - 0.1 * labels.bincount()
    assert parts.abs().max() < 1


def test_padding_puts_the_image_in_the_middle() -> None:
    test = load_data("digits").test
    padded = test.pad((40, 41))
    assert padded.images.shape == (1000, 1, 40, 41)
    assert torch.equal(padded.images[:, :, 6:34, 6:34], test.images)
    assert padded.images.sum() == test.images.sum()
    with pytest.raises(ArcapsError, match="give a larger frame"):
        test.pad((20, 40))


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ArcapsError, match="unknown data set 'cifar': did you mean 'cifar10'"):
        load_data("cifar")


def test_a_contact_sheet_shows_images_and_their_labels() -> None:
    test = load_data("digits").test
    sheet = contact_sheet(test, count=24, columns=6)
    assert sheet.size == (6 + 6 * 62, 12 + 26 + 4 * (56 + 13 + 12))
    first = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:24]
    digit = test.images[first[test.labels[first].sort(stable=True).indices[0]], 0]
    shown = sheet.crop((6, 25, 62, 81)).convert("L").resize((28, 28), 0)
    assert np.array_equal(np.asarray(shown), digit.numpy())
