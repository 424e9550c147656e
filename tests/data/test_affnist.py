"""affNIST (regenerated): what it promises of each image. And the reader of the original."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from arcaps import ArcapsError, Dataset, load_data, warp
from arcaps.data.affnist import regenerate
from arcaps.data.formats import affnist_mat


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_data("digits").test.take(torch.arange(0, 1000, 5))


@pytest.fixture(scope="module")
def made(digits: Dataset) -> Dataset:
    return regenerate(digits)


def test_shape_name_and_labels(digits: Dataset, made: Dataset) -> None:
    assert made.images.shape == (6400, 1, 40, 40)
    assert made.name.startswith("affNIST (regenerated)")
    assert torch.equal(made.labels, digits.labels.repeat_interleave(32))


def test_the_same_seed_gives_the_same_bytes(digits: Dataset, made: Dataset) -> None:
    assert torch.equal(regenerate(digits).images, made.images)
    assert torch.equal(regenerate(digits.take(torch.arange(3)), chunk=7).images[:7], made.images[:7])
    assert not torch.equal(regenerate(digits, seed=1).images, made.images)


def test_no_ink_is_cut(digits: Dataset, made: Dataset) -> None:
    """In a frame twice as large there is nothing outside the middle."""
    assert made.transforms is not None
    originals = digits.images.repeat_interleave(32, 0).double()
    large = warp(originals, made.transforms, size=(80, 80))
    middle = large[:, :, 20:60, 20:60]
    assert (large.sum((1, 2, 3)) - middle.sum((1, 2, 3))).abs().max() < 1e-6
    assert torch.equal(middle.round().to(torch.uint8), made.images)  # the transformations are the exact ones


def test_the_digits_reach_every_side(made: Dataset) -> None:
    ink = made.images[:, 0] > 0
    for edge in (ink[:, 0], ink[:, -1], ink[:, :, 0], ink[:, :, -1]):
        assert edge.any(-1).float().mean() > 0.005


def test_ranges_and_spread(made: Dataset) -> None:
    assert made.transforms is not None
    ranges = {"angle": (-20, 20), "shear": (-0.2, 0.2), "scale_x": (0.8, 1.2), "scale_y": (0.8, 1.2)}
    for name, (low, high) in ranges.items():
        values = getattr(made.transforms, name)
        assert low <= values.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < values.max() <= high
        assert values.std().item() == pytest.approx((high - low) / 12**0.5, rel=0.03)
    together = torch.stack([getattr(made.transforms, name) for name in ranges])
    assert (torch.corrcoef(together) - torch.eye(4)).abs().max() < 0.05


def test_a_blank_image_stays_blank() -> None:
    blank = Dataset("blank", torch.zeros(1, 1, 28, 28, dtype=torch.uint8), torch.zeros(1, dtype=torch.long), ("0",))
    assert not regenerate(blank).images.any()


def test_ink_that_cannot_fit_is_refused() -> None:
    full = Dataset("full", torch.full((1, 1, 40, 40), 255, dtype=torch.uint8), torch.zeros(1, dtype=torch.long), ("0",))
    with pytest.raises(ArcapsError, match="larger than the"):
        regenerate(full)


def test_the_original_is_read_from_its_matlab_files(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 40, 40), dtype=np.uint8)
    content = {
        "image": images.reshape(5, 1600).T,
        "label_int": np.array([[3, 1, 4, 1, 5]], np.uint8),
        "human_readable_transform": np.arange(30.0).reshape(6, 5),
    }
    for part in ("validation", "test"):
        savemat(tmp_path / f"{part}.mat", {"affNISTdata": content})
    arrays = affnist_mat(tmp_path)
    np.testing.assert_array_equal(arrays["test_images"][:, 0], images)
    assert arrays["test_labels"].tolist() == [3, 1, 4, 1, 5]
    assert arrays["validation_transforms"][1].tolist() == [1, 6, 11, 16, 21, 26]
