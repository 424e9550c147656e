"""Moving one dimension of a class capsule."""

import pytest
import torch

from arcaps import ArcapsError, Classifier, Dataset
from arcaps.analysis import Settings, Subject, perturb
from arcaps.analysis.perturb import PerturbExperiment, move_dimensions
from arcaps.functional import keep_one
from arcaps.models.capsules import CapsuleClassifier
from tests.analysis.conftest import SHAPES, noise_images, small_model


def test_one_dimension_moves() -> None:
    moved = move_dimensions(torch.zeros(2, 4), [3, 1], torch.tensor([-1.0, 0.0, 1.0]))
    assert moved.shape == (2, 2, 3, 4)
    assert moved[1, 0].tolist() == [[0, 0, 0, -1], [0, 0, 0, 0], [0, 0, 0, 1]]
    assert moved[0, 1, 2].tolist() == [0, 1, 0, 0]


def test_the_papers_figure(trained: Classifier, digits: Dataset) -> None:
    assert isinstance(trained, CapsuleClassifier)
    assert trained.decoder is not None
    found = perturb(trained, digits, count=5)
    assert found.pictures.shape == (10, 8, 11, 1, 28, 28)
    step = 0.05 * 8**0.5
    assert found.offsets.tolist() == pytest.approx([step * n for n in range(-5, 6)])
    assert found.offsets[5] == 0
    image = digits.images[found.examples[4]][None].float() / 255
    with torch.no_grad():
        output = trained(image, torch.tensor([4]))
        torch.testing.assert_close(found.pictures[4, 2, 5], output.reconstruction[0])  # unmoved: the reconstruction
        capsules = keep_one(output.capsules, torch.tensor([4]))
        capsules[0, 4, 6] -= 0.25 * 8**0.5
        torch.testing.assert_close(found.pictures[4, 6, 0], trained.decoder(capsules)[0])
    assert (digits.labels[found.examples] == torch.arange(10)).all()


def test_dimensions_are_ranked_by_what_they_change(digits: Dataset) -> None:
    model = small_model("ar_capsnet")
    assert isinstance(model, CapsuleClassifier)
    assert model.decoder is not None
    weight = model.decoder.get_parameter("layers.0.weight")
    with torch.no_grad():  # class 3's dimension 5 drives the decoder, dimension 2 is not seen by it
        weight[:, 3 * 8 + 5] *= 20
        weight[:, 3 * 8 + 2] = 0
    found = perturb(model, digits, classes=["3", 7], dims=[0, 2, 5], count=3)
    assert found.class_names == ("3", "7")
    written = found.as_dict()["classes"]["3"]
    assert written["ranking"][0] == 5
    assert written["ranking"][-1] == 2
    assert written["change"]["2"] < 1e-6
    assert written["count"] == 3


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("name", "reach"), [("ar_capsnet", 0.25 * 8**0.5), ("capsule_net", 0.25)])
def test_every_capsule_network(name: str, reach: float, shape: tuple[int, int, int]) -> None:
    height, width, channels = shape
    found = perturb(small_model(name, shape), noise_images(shape), dims=[0, 1], count=2)
    assert found.pictures.shape == (10, 2, 11, channels, height, width)
    assert found.offsets[-1] == pytest.approx(reach)  # a quarter of the longest capsule


def test_the_experiment_passes_over_classes_without_images(digits: Dataset) -> None:
    some = digits.take(((digits.labels == 2) | (digits.labels == 5)).nonzero().flatten())
    found = PerturbExperiment().run(Subject("run", small_model("ar_capsnet"), some), Settings(count=2, dims=(0,)))
    assert list(found.record["classes"]) == ["2", "5"]


def test_mistakes(digits: Dataset) -> None:
    with pytest.raises(ArcapsError, match="perturb does not apply to strong_conv_net: it has no capsules"):
        perturb(small_model("strong_conv_net"), digits)
    with pytest.raises(ArcapsError, match="it has no decoder"):
        perturb(small_model("ar_capsnet", decoder=False), digits)
    model = small_model("ar_capsnet")
    with pytest.raises(ArcapsError, match="the capsules have dimensions 0 to 7"):
        perturb(model, digits, dims=[8])
    with pytest.raises(ArcapsError, match="unknown class 'ten': there are 0, 1,"):
        perturb(model, digits, classes=["ten"])
    with pytest.raises(ArcapsError, match="has no image of class 9"):
        perturb(model, digits.take((digits.labels != 9).nonzero().flatten()), classes=["9"])
