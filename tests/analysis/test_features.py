"""Features by layer, and the read-out of the pose from them."""

import pytest
import torch

from arcaps import Classifier, Dataset
from arcaps.analysis import pose
from arcaps.analysis.features import pool, sketch
from tests.analysis.conftest import SHAPES, noise_images, small_model


def test_the_layers_of_a_capsule_network(trained: Classifier, digits: Dataset) -> None:
    images = digits.images[:3].float() / 255
    with torch.no_grad():
        found = trained.features(images)
        output = trained(images)
    assert list(found) == ["stem", "primary", "conv_caps.0", "class_caps"]
    assert output.capsules is not None
    torch.testing.assert_close(found["class_caps"], output.capsules)
    assert found["primary"].shape[-2:] == (3, 8)
    assert all(len(values) == 3 for values in found.values())


@pytest.mark.parametrize("name", ["strong_conv_net"])
def test_the_layers_of_a_cnn(name: str) -> None:
    model = small_model(name)
    with torch.no_grad():
        found = list(model.features(torch.rand(2, 1, 28, 28)).items())
    assert len(found) > 3
    assert found[-1][1].shape == (2, 8)
    assert found[0][1].ndim == 4


def test_pooling_is_the_mean_over_positions() -> None:
    capsules, maps = torch.rand(2, 3, 4, 5, 6), torch.rand(2, 7, 3, 4)
    pooled = pool(capsules)
    assert pooled is not None
    torch.testing.assert_close(pooled, capsules.mean((1, 2)).reshape(2, 30))
    torch.testing.assert_close(pool(maps), maps.mean((2, 3)))
    assert pool(torch.rand(2, 10, 6)) is None
    assert pool(torch.rand(2, 9)) is None


def test_the_random_projection_keeps_distances() -> None:
    """The squared length has the same mean, with a standard deviation of about sqrt(2 / width): 9 % of 256."""
    torch.manual_seed(0)
    features = torch.randn(200, 5000)
    small = sketch(features, 256)
    assert small.shape == (200, 256)
    ratio = (small.norm(dim=1) / features.norm(dim=1)).square()
    assert float(ratio.mean()) == pytest.approx(1, abs=0.02)
    assert float(ratio.std()) < 0.15
    assert torch.equal(small, sketch(features, 256))
    torch.testing.assert_close(sketch(features[:1] + features[1:2], 256), small[:1] + small[1:2], rtol=1e-4, atol=1e-4)
    assert sketch(features, 5000) is features


def test_pose_by_layer(trained: Classifier, digits: Dataset) -> None:
    found = pose(trained, digits, count=400, pixels=False, layers=True)
    rows = {(row.layer, row.kind): row for row in found.layers}
    kinds = ("pooled", "whole")
    spatial = [(layer, kind) for layer in ("stem", "primary", "conv_caps.0") for kind in kinds]
    assert list(rows) == [*spatial, *(("class_caps", kind) for kind in ("whole", "true class", "predicted class"))]
    assert rows["stem", "whole"].features > 1024
    assert rows["stem", "whole"].read_out.dim == 1024
    torch.testing.assert_close(rows["class_caps", "true class"].read_out.r2, found.read_outs["class capsule"].r2)
    shift = 4
    whole, pooled = (float(rows["stem", kind].read_out.r2[shift]) for kind in ("whole", "pooled"))
    assert whole > pooled + 0.2  # the mean over the positions of a convolution does not know the place
    assert whole > 0.5
    assert all((row.read_out.shuffled < 0.1).all() for row in found.layers)
    assert all(row.read_out.shared.isnan().all() for row in found.layers)


def test_pose_by_layer_of_a_cnn_and_colour_images() -> None:
    found = pose(
        small_model("strong_conv_net", SHAPES["cifar10"]),
        noise_images(SHAPES["cifar10"], 120),
        pixels=False,
        layers=True,
    )
    assert {row.kind for row in found.layers} == {"pooled", "whole"}
    assert found.layers[-1].features == 8
