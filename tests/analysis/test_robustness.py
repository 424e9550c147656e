"""Accuracy under growing changes."""

import pytest
import torch

from arcaps import ArcapsError, Classifier, Dataset
from arcaps.analysis import robustness
from arcaps.analysis.robustness import CHANGES, add_noise, blur, occlude, rotate, scale, shear, shift
from arcaps.statistics import wilson
from arcaps.training.evaluate import class_scores
from tests.analysis.conftest import SHAPES, noise_images, small_model


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_no_change_changes_nothing() -> None:
    images = torch.rand(4, 3, 12, 15)
    for change, value in ((rotate, 0.0), (shift, 0.0), (scale, 1.0), (shear, 0.0), (add_noise, 0.0), (blur, 0.0)):
        torch.testing.assert_close(change(images, value, seeded()), images, rtol=0, atol=1e-5)
    torch.testing.assert_close(occlude(images, 0.0, seeded()), images)


def test_each_change_does_what_it_says() -> None:
    dot = torch.zeros(50, 1, 21, 21)
    dot[:, :, 10, 10] = 1
    moved = shift(dot, 5.0, seeded())
    rows, columns = moved.sum((1, 3)), moved.sum((1, 2))
    places = torch.arange(21.0) - 10
    distance = torch.hypot(rows @ places, columns @ places)
    torch.testing.assert_close(distance, torch.full((50,), 5.0), rtol=0, atol=0.01)

    smooth = blur(dot, 1.5, seeded())[0, 0]
    assert float(smooth.sum()) == pytest.approx(1, abs=1e-4)
    spread = float((smooth.sum(0) * places.square()).sum()) ** 0.5
    assert spread == pytest.approx(1.5, abs=0.05)

    hidden = occlude(torch.ones(50, 2, 20, 30), 0.4, seeded()) == 0
    assert (hidden.sum((2, 3)) == 64).all()  # 8x8, always whole
    assert len(hidden[:, 0].flatten(1).unique(dim=0)) > 20  # at many places

    noisy = add_noise(torch.full((4, 1, 50, 50), 0.5), 0.1, seeded())
    assert float(noisy.std()) == pytest.approx(0.1, abs=0.005)

    bar = torch.zeros(20, 1, 21, 21)
    bar[:, :, 4, 10] = 1  # above the middle: counter-clockwise is to the left
    turned = rotate(bar, 90.0, seeded())[:, 0, 10, [4, 16]]
    assert turned.sum() == pytest.approx(20, abs=0.01)
    assert (turned.sum(0) > 2).all()  # both ways


def test_accuracy_falls_and_models_meet_the_same_images(trained: Classifier, digits: Dataset) -> None:
    twin = small_model("ar_capsnet", stem_channels=8, primary_dim=8)
    twin.load_state_dict(trained.state_dict())
    other = small_model("strong_conv_net")
    asked = {"rotation": (0.0, 90.0), "noise": (0.0, 0.3), "scale": (0.5, 1.0)}
    found = robustness({"one": trained, "twin": twin, "other": other}, digits, changes=asked, count=200)
    assert found.models == ("one", "twin", "other")
    for name in asked:
        shares = found.accuracy(name)
        assert torch.equal(shares[0], shares[1])
    chosen = digits.take(torch.arange(200) * 5)
    right = float((class_scores(trained, chosen).argmax(-1) == chosen.labels).double().mean())
    assert found.accuracy("rotation")[0, 0] == pytest.approx(right)
    assert found.accuracy("scale")[0, 1] == found.accuracy("noise")[0, 0] == pytest.approx(right)
    assert right > 0.6
    assert found.accuracy("rotation")[0, 1] < right - 0.2
    assert found.interval("rotation")[0, 0].tolist() == pytest.approx(wilson(right, 200))
    assert found.as_dict()["changes"]["rotation"]["accuracy"]["one"][0] == pytest.approx(right)


@pytest.mark.parametrize("name", ["ar_capsnet", "capsule_net", "strong_conv_net"])
def test_every_model(name: str) -> None:
    found = robustness(small_model(name, SHAPES["cifar10"]), noise_images(SHAPES["cifar10"], 10), count=10)
    assert list(found.curves) == list(CHANGES)


def test_mistakes(digits: Dataset) -> None:
    model = small_model("ar_capsnet")
    with pytest.raises(ArcapsError, match="unknown change 'rotatoin'"):
        robustness(model, digits, changes={"rotatoin": (0.0,)})
    with pytest.raises(ArcapsError, match="the model takes images of 3x32x32"):
        robustness({"a": model, "b": small_model("ar_capsnet", SHAPES["cifar10"])}, digits)
    with pytest.raises(ArcapsError, match="needs a model"):
        robustness({}, digits)
