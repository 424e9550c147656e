"""The read-out of the pose."""

import numpy as np
import pytest
import torch

from arcaps import ArcapsError, Classifier, Dataset
from arcaps.analysis import pose, ridge_predictions
from arcaps.analysis.pose import read_out, transformed
from arcaps.analysis.ridge import STRENGTHS, decompose, ridge
from arcaps.data import affnist
from arcaps.data.warp import warp
from tests.analysis.conftest import SHAPES, noise_images, small_model


@pytest.mark.parametrize("shape", [(30, 7), (7, 30), (12, 12)])
def test_decompose_is_the_svd(shape: tuple[int, int]) -> None:
    matrix = torch.randn(*shape, dtype=torch.float64)
    left, scales, right = decompose(matrix)
    torch.testing.assert_close(left @ torch.diag(scales) @ right.T, matrix)
    torch.testing.assert_close(scales, torch.linalg.svdvals(matrix)[: len(scales)])
    assert decompose(matrix, 3)[0].shape == (shape[0], 3)
    assert len(decompose(torch.zeros(4, 3, dtype=torch.float64))[1]) == 0


def test_ridge_is_the_textbooks() -> None:
    """The strength that leaves out one image at a time best, by refitting; then the normal equations."""
    features = torch.randn(25, 4, dtype=torch.float64)
    targets = features[:, :2] @ torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    targets = targets + torch.randn(25, 1, dtype=torch.float64)
    new = torch.randn(3, 4, dtype=torch.float64)

    def solve(x: torch.Tensor, y: torch.Tensor, to: torch.Tensor, strength: torch.Tensor) -> torch.Tensor:
        middle, level = x.mean(0), y.mean(0)
        gram = (x - middle).T @ (x - middle) + strength * torch.eye(4, dtype=torch.float64)
        return level + (to - middle) @ torch.linalg.solve(gram, (x - middle).T @ (y - level))

    prediction, chosen = ridge(features, targets, new)
    unit = torch.linalg.svdvals(features - features.mean(0)).square().mean()
    torch.testing.assert_close(prediction, solve(features, targets, new, chosen[0] * unit))
    errors = []
    for strength in STRENGTHS:
        off = [
            targets[k] - solve(features[rest], targets[rest], features[k], strength * unit)
            for k in range(25)
            for rest in [torch.arange(25) != k]
        ]
        errors.append(float(torch.stack(off).square().mean()))
    assert float(chosen[0]) == pytest.approx(float(STRENGTHS[int(np.argmin(errors))]))


def test_a_linear_pose_is_read_out_and_noise_is_not() -> None:
    labels = torch.arange(300) % 3
    features = torch.randn(300, 10, dtype=torch.float64)
    weights = torch.randn(3, 10, 6, dtype=torch.float64)
    targets = torch.einsum("cf,cfp->cp", features, weights[labels]) + 100 * labels.unsqueeze(1)
    targets[:, 5] = torch.randn(300)
    found = read_out(features, targets, labels, 4)
    assert (found.r2[:5] > 0.99).all()
    assert found.r2[5] < 0.1
    assert (found.shuffled < 0.1).all()
    assert (found.shared[:5] < 0.9).all()  # the classes have different directions
    assert found.per_class[3].isnan().all()  # no image
    assert found.as_dict()["per_class"][3] == [None] * 6
    same = read_out(features, features[:, :6] + 7 * labels.unsqueeze(1), labels, 3)
    assert (same.shared > 0.99).all()
    few = read_out(features, features[:, :6], labels, 3, components=2)
    assert few.dim == 2
    assert (few.r2 < 0.6).all()


def test_predictions_come_from_other_images() -> None:
    """More features than images fit anything that was seen; what was not seen stays unknown."""
    features, targets = torch.randn(40, 200), torch.randn(40, 1)
    predictions, strengths = ridge_predictions(features, targets, folds=4)
    assert strengths.shape == (4, 1)
    assert 1 - (targets - predictions).square().sum() / (targets - targets.mean()).square().sum() < 0.2
    with pytest.raises(ArcapsError, match="has 6 images: give at least 10"):
        ridge_predictions(features[:6], targets[:6])


def test_transformed_images_have_their_transformations(digits: Dataset) -> None:
    some = digits.take(torch.arange(20))
    moved = transformed(some)
    assert moved.transforms is not None
    again = warp(some.images.float(), moved.transforms).round().clamp(0, 255)
    assert torch.equal(moved.images.float(), again)
    assert float(moved.transforms.shift_x.abs().max()) <= 4
    assert "transformed (rotation within 20 degrees" in moved.name
    known = affnist.regenerate(some, versions=2)
    assert transformed(known) is known


def test_the_pose_of_real_digits(trained: Classifier, digits: Dataset) -> None:
    found = pose(trained, digits)
    assert list(found.read_outs) == ["class capsule", "pixels", "pixels, 8 components"]
    capsule, pixels = (found.read_outs[name] for name in ("class capsule", "pixels"))
    assert capsule.dim == 8
    assert float(pixels.r2[4]) > 0.5  # a shift can be seen
    assert float(capsule.r2[5] - capsule.shuffled[5]) > 0.1  # the capsule knows more of it than the control
    assert (capsule.shuffled < 0.1).all()
    assert found.as_dict()["count"] == 1000


def test_a_cnn_and_colour_images() -> None:
    model = small_model("strong_conv_net", SHAPES["cifar10"])
    found = pose(model, noise_images(SHAPES["cifar10"], 120), components=4)
    assert list(found.read_outs) == ["last layer", "last layer, 4 components", "pixels", "pixels, 4 components"]
    assert found.features == "last layer"
    assert found.read_outs["pixels"].dim == 3072
    assert found.read_outs["pixels"].shared.isnan().all()
    assert found.as_dict()["read_outs"]["pixels"]["shared"]["angle"] is None
    images = torch.rand(3, 3, 32, 32)
    features = list(model.features(images).values())[-1]
    linear = model.get_submodule("head.3")
    torch.testing.assert_close(linear(features), model(images).logits)


def test_affnist_is_taken_as_it_is(digits: Dataset) -> None:
    known = affnist.regenerate(digits.take(torch.arange(300)), versions=1)
    found = pose(small_model("ar_capsnet", (40, 40, 1)), known)
    assert found.data == "affNIST (regenerated) of digits, test"
    assert found.count == 300
