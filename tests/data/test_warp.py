"""The warp against an independent reference and cases done by hand."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import affine_transform, gaussian_filter
from torch import Tensor

from arcaps import Augmentation, load_data, warp
from arcaps.data import Transform
from arcaps.data.warp import augment, sample_transforms


def dot(row: int, column: int, size: int = 9) -> Tensor:
    """A black image with one white pixel."""
    image = torch.zeros(1, 1, size, size, dtype=torch.float64)
    image[0, 0, row, column] = 1
    return image


@pytest.mark.parametrize(
    ("change", "row", "column"),
    [
        ({}, 4, 7),
        ({"angle": 90.0}, 1, 4),  # counter-clockwise: from the right to the top
        ({"angle": -90.0}, 7, 4),
        ({"shift_x": 1.0}, 4, 8),
        ({"shift_y": 2.0}, 6, 7),
        ({"flip": True}, 4, 1),
        ({"flip": True, "shift_x": 1.0}, 4, 2),  # the shift comes last
        ({"angle": 90.0, "shift_x": 1.0}, 1, 5),
        ({"flip": True, "angle": 90.0}, 7, 4),
    ],
)
def test_conventions(change: dict[str, Any], row: int, column: int) -> None:
    moved = warp(dot(4, 7), Transform.make(1, **change))
    torch.testing.assert_close(moved, dot(row, column))


def test_shear_moves_to_the_right_what_is_below() -> None:
    moved = warp(dot(6, 4), Transform.make(1, shear=1.0))
    torch.testing.assert_close(moved, dot(6, 6))


def test_scale_is_a_factor() -> None:
    moved = warp(dot(4, 6), Transform.make(1, scale_x=2.0))
    torch.testing.assert_close(moved[0, 0, 4], torch.tensor([0, 0, 0, 0, 0, 0, 0, 0.5, 1.0], dtype=torch.float64))


def test_half_a_pixel_is_half_of_each() -> None:
    moved = warp(dot(4, 4), Transform.make(1, shift_x=0.5))
    torch.testing.assert_close(moved, (dot(4, 4) + dot(4, 5)) / 2)


CHANGES: list[dict[str, Any]] = [
    {"angle": 17.0},
    {"shear": -0.3},
    {"scale_x": 1.3},
    {"scale_y": 0.7},
    {"shift_x": 2.25},
    {"shift_y": -3.5},
    {"flip": True},
    {"angle": -33.0, "shear": 0.2, "scale_x": 0.8, "scale_y": 1.2, "shift_x": 1.3, "shift_y": -2.7, "flip": True},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("size", [(28, 28), (40, 37)])
def test_the_warp_is_scipys(change: dict[str, Any], size: tuple[int, int]) -> None:
    """The matrix is put together here; scipy maps each output pixel (row, column) to its source."""
    images = load_data("digits").test.images[:3].double()
    found = warp(images, Transform.make(3, **change), size=size)

    numbers = {"angle": 0.0, "shear": 0.0, "scale_x": 1.0, "scale_y": 1.0, "shift_x": 0.0, "shift_y": 0.0, **change}
    turn = np.deg2rad(numbers["angle"])
    rotate = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    shear = np.array([[1, numbers["shear"]], [0, 1]])
    scale = np.diag([numbers["scale_x"] * (-1 if change.get("flip") else 1), numbers["scale_y"]])
    back = np.linalg.inv(rotate @ shear @ scale)[::-1, ::-1]  # from (x, y) to (row, column)
    old_middle = (np.array(images.shape[2:]) - 1) / 2
    new_middle = (np.array(size) - 1) / 2 + np.array([numbers["shift_y"], numbers["shift_x"]])
    for image, mine in zip(images[:, 0].numpy(), found[:, 0].numpy(), strict=True):
        padded = np.pad(image, 4)  # so that the border is the same black for both
        expected = affine_transform(padded, back, old_middle + 4 - back @ new_middle, size, order=1)
        np.testing.assert_allclose(mine, expected, atol=1e-5)


def test_the_inverse_brings_a_smooth_image_back() -> None:
    noise = np.random.default_rng(0).normal(size=(48, 48))
    image = torch.from_numpy(gaussian_filter(noise, 6))[None, None]
    there = warp(image, Transform.make(1, angle=25.0, shift_x=2.4))
    # undo the rotation, then the shift: the shift comes first here, turned by the rotation
    turn = np.deg2rad(-25.0)
    back = Transform.make(1, angle=-25.0, shift_x=-2.4 * np.cos(turn), shift_y=2.4 * np.sin(turn))
    inside = (..., slice(14, 34), slice(14, 34))
    error = (warp(there, back)[inside] - image[inside]).abs().max() / image.abs().max()
    assert error < 0.01


def test_each_image_has_its_own_transformation() -> None:
    images = torch.cat([dot(4, 7), dot(4, 7), dot(4, 7)])
    angles = torch.tensor([0.0, 90.0, 180.0], dtype=torch.float64)
    moved = warp(images, Transform.make(3, angle=angles))
    torch.testing.assert_close(moved, torch.cat([dot(4, 7), dot(1, 4), dot(4, 1)]))


def test_borders() -> None:
    images = torch.arange(5.0).expand(1, 1, 5, 5)
    shift = Transform.make(1, shift_x=2.0)
    assert warp(images, shift)[0, 0, 2].tolist() == pytest.approx([0, 0, 0, 1, 2], abs=1e-6)
    assert warp(images + 1, shift, border="border")[0, 0, 2].tolist() == pytest.approx([1, 1, 1, 2, 3])
    assert warp(images, shift, border="reflection")[0, 0, 2].tolist() == pytest.approx([1, 0, 0, 1, 2], abs=1e-6)


def test_augmentation_stays_in_its_ranges_and_fills_them() -> None:
    augmentation = Augmentation(rotation=20.0, shift=0.1, scale=0.2, shear=0.3, flip=True)
    transform = sample_transforms(augmentation, 20_000, (10, 40), torch.Generator().manual_seed(0))
    ranges = {
        "angle": (-20, 20),
        "shear": (-0.3, 0.3),
        "scale_x": (0.8, 1.2),
        "scale_y": (0.8, 1.2),
        "shift_x": (-4, 4),
        "shift_y": (-1, 1),
    }
    for name, (low, high) in ranges.items():
        values = getattr(transform, name)
        assert low <= values.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < values.max() <= high
        assert values.mean().item() == pytest.approx((low + high) / 2, abs=0.02 * (high - low))
    assert transform.flip.float().mean().item() == pytest.approx(0.5, abs=0.02)
    assert not sample_transforms(Augmentation(), 100, (8, 8), torch.Generator()).flip.any()


def test_bending_moves_the_points_of_its_grid_and_leaves_the_others() -> None:
    """On 9x9 pixels the points of the grid of 5x5 lie on every second pixel."""
    bend = torch.zeros(1, 2, 5, 5)
    bend[0, 0, 2, 3], bend[0, 1, 2, 3] = 1.0, -2.0  # the point at row 4, column 6: one to the right, two up
    transform = dataclasses.replace(Transform.make(1), bend=bend)
    numbers = torch.arange(81.0).view(1, 1, 9, 9)
    moved = warp(numbers, transform, border="border")
    assert moved[0, 0, 4, 6].item() == pytest.approx(numbers[0, 0, 6, 5].item(), abs=1e-4)  # what was left and below
    others = torch.ones(9, 9, dtype=torch.bool)
    others[:, 2:] = False
    others[0::2, 0::2] = True
    others[4, 6] = False
    torch.testing.assert_close(moved[0, 0][others], numbers[0, 0][others], rtol=0, atol=1e-4)
    halfway = moved[0, 0, 4, 5] - numbers[0, 0, 4, 5]
    assert 0 < halfway < moved[0, 0, 4, 6] - numbers[0, 0, 4, 6]


def test_elastic_augmentation_bends_each_image_within_its_range() -> None:
    augmentation = Augmentation(elastic=0.1)
    assert augmentation
    transform = sample_transforms(augmentation, 1000, (10, 40), torch.Generator().manual_seed(0))
    for values, most in zip(transform.bend.unbind(1), (4, 1), strict=True):
        assert 0.99 * most < values.abs().max() <= most
        assert values.mean().item() == pytest.approx(0, abs=0.02 * most)
    digits = load_data("digits").test.images[:2].repeat(2, 1, 1, 1).float()
    bent = augment(digits, augmentation, torch.Generator().manual_seed(0))
    assert (bent[0] - bent[2]).abs().max() > 50  # the same digit, bent in two ways
    assert bent.sum().item() == pytest.approx(digits.sum().item(), rel=0.2)  # and still whole


def test_elastic_augmentation_leaves_the_other_changes_as_they_were() -> None:
    settings: dict[str, Any] = {"rotation": 20.0, "shift": 0.1, "flip": True}
    without = sample_transforms(Augmentation(**settings), 10, (8, 8), torch.Generator().manual_seed(0))
    bent = sample_transforms(Augmentation(**settings, elastic=0.1), 10, (8, 8), torch.Generator().manual_seed(0))
    assert torch.equal(without.linear(), bent.linear())
    assert torch.equal(without.shift(), bent.shift())


def test_a_part_of_the_images_is_augmented() -> None:
    every = Augmentation(rotation=20.0, shift=0.1, scale=0.1, shear=0.1, elastic=0.1, flip=True)
    some = dataclasses.replace(every, augmented=0.3)
    whole = sample_transforms(every, 1000, (8, 8), torch.Generator().manual_seed(0))
    part = sample_transforms(some, 1000, (8, 8), torch.Generator().manual_seed(0))
    same = (part.linear() == torch.eye(2)).all((1, 2)) & (part.shift() == 0).all(1) & (part.bend == 0).all((1, 2, 3))
    assert (~same).double().mean().item() == pytest.approx(0.3, abs=0.05)
    torch.testing.assert_close(part.linear()[~same], whole.linear()[~same])
    torch.testing.assert_close(part.shift()[~same], whole.shift()[~same])
    torch.testing.assert_close(part.bend[~same], whole.bend[~same])
    assert not dataclasses.replace(every, augmented=0.0)


def test_no_augmentation_changes_nothing() -> None:
    images = load_data("digits").test.images[:5].double()
    torch.testing.assert_close(augment(images, Augmentation(), torch.Generator()), images)
