"""Looking into the routing."""

import pytest
import torch

from arcaps import ArcapsError, Classifier, ConvCaps, Dataset
from arcaps.analysis import attention
from arcaps.analysis.attention import divided_over
from arcaps.analysis.base import choose_images
from arcaps.functional import normalised_entropy
from arcaps.models.capsules import CapsuleClassifier
from tests.analysis.conftest import SHAPES, noise_images, small_model


def test_entropy() -> None:
    cases = torch.tensor([[1.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0], [2.0, 2, 0, 0]])
    assert normalised_entropy(cases).tolist() == pytest.approx([0, 1, 0.5, 0.5])
    assert normalised_entropy(torch.ones(3, 1)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("routing", "over"), [("attention", "inputs"), ("dynamic", "outputs"), ("uniform(over='outputs')", "outputs")]
)
def test_which_axis_is_divided(routing: str, over: str) -> None:
    assert divided_over(ConvCaps(3, 4, 5, 4, routing=routing)) == over


def test_the_coefficients_of_ar_capsnet(trained: Classifier, digits: Dataset) -> None:
    found = attention(trained, digits, count=50, batch_size=20)
    spatial, last = found.layers
    assert (spatial.name, spatial.over, spatial.choices) == ("conv_caps.0", "inputs", 3)
    assert spatial.coefficients.shape == (10, 7, 7, 3, 3)
    assert last.coefficients.shape == (10, 1, 1, 10, 3)
    chosen = choose_images(trained, digits, 50)
    sevens = chosen.take((chosen.labels == 7).nonzero().flatten())
    with torch.no_grad():
        coefficients = trained(sevens.images.float() / 255).coefficients
    assert coefficients is not None
    expected = coefficients["conv_caps.0"].mean(0).double()
    torch.testing.assert_close(spatial.coefficients[7], expected, rtol=0, atol=1e-5)
    own = coefficients["class_caps"][:, 7].mean(0).double()
    torch.testing.assert_close(last.by_channel()[7, 0, 0], own, rtol=0, atol=1e-5)
    entropy = normalised_entropy(coefficients["class_caps"][:, 7]).mean().double()
    torch.testing.assert_close(last.entropy[7, 0, 0], entropy, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        spatial.by_channel().sum(-1), torch.ones(10, 7, 7, dtype=torch.float64), rtol=0, atol=1e-4
    )


def test_class_capsules_of_several_channels() -> None:
    """In the layout of the code an element of class j's capsule comes from output channel (j + k N) // D."""
    model = small_model("ar_capsnet", layout="code")
    assert isinstance(model, CapsuleClassifier)
    images = noise_images((28, 28, 1), 10)
    last = attention(model, images).layers[-1]
    with torch.no_grad():
        raw = model(images.images[3:4].float() / 255).coefficients["class_caps"][0].double()  # the image of class 3
    dim = model.class_caps.out_dim
    channels = [place // dim for place in range(3, 10 * dim, 10)]
    torch.testing.assert_close(last.by_channel()[3, 0, 0], raw[channels].mean(0), rtol=0, atol=1e-6)
    entropy = normalised_entropy(raw[channels]).mean()
    torch.testing.assert_close(last.entropy[3, 0, 0], entropy, rtol=0, atol=1e-6)


def test_capsule_net_has_maps_in_its_class_layer() -> None:
    model = small_model("capsule_net")
    assert isinstance(model, CapsuleClassifier)
    images = noise_images((28, 28, 1), 10)
    (layer,) = attention(model, images).layers
    assert (layer.name, layer.over, layer.choices) == ("class_caps", "outputs", 10)
    assert layer.coefficients.shape == (10, 6, 6, 10, 2)  # each input divides itself among the ten outputs
    torch.testing.assert_close(layer.coefficients.sum(3), torch.ones(10, 6, 6, 2, dtype=torch.float64))
    with torch.no_grad():
        raw = model(images.images[4:5].float() / 255).coefficients
    assert raw is not None
    number = (3 * 6 + 5) * 2 + 1  # row 3, column 5, channel 1
    assert float(layer.coefficients[4, 3, 5, 8, 1]) == pytest.approx(float(raw["class_caps"][0, 8, number]), abs=1e-6)


def test_removing_a_channel(trained: Classifier, digits: Dataset) -> None:
    assert isinstance(trained, CapsuleClassifier)
    found = attention(trained, digits, count=100)
    chosen = choose_images(trained, digits, 100)
    images = chosen.images.float() / 255
    layer = found.layers[0]
    with torch.no_grad():
        capsules = trained.primary(trained.stem(trained.accept(images)))
        capsules.poses[..., 2, :] = 0
        scores = trained.score(trained.class_caps(trained.conv_caps[0](capsules))).scores
        whole = trained(images).scores
    right = float((scores.argmax(-1) == chosen.labels).double().mean())
    assert float(layer.removed_accuracy[2]) == pytest.approx(right)
    lengths = scores[chosen.labels == 1, 1].double().mean()
    torch.testing.assert_close(layer.removed_length[2, 1], lengths, rtol=0, atol=1e-5)
    assert found.accuracy == pytest.approx(float((whole.argmax(-1) == chosen.labels).double().mean()))
    torch.testing.assert_close(trained(images).scores, whole)  # nothing is left behind
    assert not trained.training


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("routing", ["attention", "dynamic", "query_key(heads=2)"])
def test_every_routing(routing: str, shape: tuple[int, int, int]) -> None:
    model = small_model("ar_capsnet", shape, routing=routing, layers=2)
    found = attention(model, noise_images(shape, 7))  # three classes have no image
    assert [layer.name for layer in found.layers] == ["conv_caps.0", "conv_caps.1", "class_caps"]
    assert {layer.over for layer in found.layers} == {"outputs" if routing == "dynamic" else "inputs"}
    written = found.as_dict()["layers"]["class_caps"]
    assert 0 <= written["entropy"] <= 1
    assert written["entropy_by_class"][9] is None
    assert len(written["accuracy_without_channel"]) == 3


def test_a_cnn_has_no_routing(digits: Dataset) -> None:
    with pytest.raises(ArcapsError, match="attention does not apply to strong_conv_net: it has no capsules"):
        attention(small_model("strong_conv_net"), digits)
