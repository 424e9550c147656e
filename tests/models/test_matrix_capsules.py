"""Matrix capsules: the published number of parameters, any image, and what its parts do."""

from math import exp
from pathlib import Path

import pytest
import torch

from arcaps import ArcapsError, Capsules, ConvCaps, MatrixCapsules, create_model, load
from arcaps.data import Batch, load_data


def test_the_parameters_are_those_of_the_paper() -> None:
    model = MatrixCapsules(image_size=(32, 32), channels=2, classes=5)
    counts = [sum(p.numel() for p in layer.parameters()) for _, layer in model.feature_layers()]
    assert counts == [3264, 8840, 18464, 36896, 1290]
    assert model.parameter_count() == 68_754


def test_at_the_start_parts_of_a_digit_differ_in_presence() -> None:
    images = load_data("digits").test.images[:20].float() / 255
    torch.manual_seed(0)
    model = MatrixCapsules()
    presence = model.primary(model.stem(images)).presence.detach()
    assert presence.std() > 0.1  # 0.02 where the presence starts as Glorot has it
    assert presence[:, 0, 0].mean() == pytest.approx(1 / (1 + exp(1)), abs=0.01)  # black corners


@pytest.mark.parametrize(("size", "channels", "classes"), [((17, 17), 1, 2), ((28, 28), 1, 10), ((20, 33), 3, 4)])
def test_any_image(size: tuple[int, int], channels: int, classes: int) -> None:
    model = MatrixCapsules(image_size=size, channels=channels, classes=classes, stem_channels=8, caps=4).eval()
    output = model(torch.rand(2, channels, *size))
    assert output.scores.shape == (2, classes)
    assert ((output.scores > 0) & (output.scores < 1)).all()
    assert output.capsules is not None
    assert output.capsules.shape == (2, classes, 16)
    assert list(output.coefficients) == ["conv_caps.0", "conv_caps.1", "class_caps"]


@pytest.mark.parametrize("routing", ["em", "em(iterations=3)", "variational"])
def test_it_has_finite_gradients_and_a_file(routing: str, tmp_path: Path) -> None:
    model = MatrixCapsules(stem_channels=8, primary_caps=3, caps=4, routing=routing)
    batch = Batch(torch.rand(3, 1, 28, 28), torch.tensor([0, 1, 2]), 3)
    for progress in (0.0, 1.0):
        losses = model.loss(batch, progress)
        assert list(losses) == ["spread"]
        losses["spread"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert sum(bool((p.grad != 0).any()) for p in model.parameters()) == len(list(model.parameters()))  # type: ignore[union-attr]
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    torch.testing.assert_close(again(batch.images).scores, model.eval()(batch.images).scores, rtol=0, atol=0)


def test_an_input_divides_itself_among_all_windows_over_it() -> None:
    model = MatrixCapsules(stem_channels=8, primary_caps=3, caps=4).double().eval()
    capsules = model.primary(model.stem(torch.rand(2, 1, 28, 28).double()))
    layer = model.conv_caps[0]
    assert isinstance(layer, ConvCaps)
    coefficients = layer(capsules).coefficients
    overlap = layer.votes.overlap(*capsules.poses.shape[1:3])
    assert overlap is not None
    totals = torch.zeros(2, overlap.children + 1).double()
    totals.scatter_add_(1, overlap.child.flatten().expand(2, -1), coefficients.sum(-2).flatten(1))
    seen = torch.zeros(overlap.children + 1).scatter_add_(0, overlap.child.flatten(), torch.ones(overlap.child.numel()))
    expected = capsules.presence.flatten(1) * (seen[:-1] > 0)
    torch.testing.assert_close(totals[:, :-1], expected.double(), rtol=0, atol=1e-9)


def test_the_class_layer_adds_the_position_to_the_right_hand_column() -> None:
    layer = MatrixCapsules(stem_channels=8, primary_caps=3, caps=4).class_caps
    size = layer.in_size
    found = layer(Capsules(torch.zeros(1, *size, 4, 16), torch.ones(1, *size, 4)))
    expected = torch.zeros(1, 10, 16)
    expected[..., [3, 7]] = 0.5  # the mean of (row + 0.5) / h, and of (column + 0.5) / w
    torch.testing.assert_close(found.poses, expected)


def test_it_can_be_exported_with_any_batch() -> None:
    model = MatrixCapsules(stem_channels=8, primary_caps=2, caps=3).eval()
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(model, (torch.rand(3, 1, 28, 28),), dynamic_shapes=({0: batch},))
    images = torch.rand(5, 1, 28, 28)
    torch.testing.assert_close(program.module()(images).scores, model(images).scores)


def test_mistakes_are_named() -> None:
    with pytest.raises(ArcapsError, match="needs a routing that gives presence, not dynamic"):
        create_model("matrix_capsules", routing="dynamic")
    with pytest.raises(ArcapsError, match="so overlap would change nothing: give competition='outputs'"):
        create_model("matrix_capsules", routing="spectral")
    with pytest.raises(ArcapsError, match="16x16 is too small"):
        create_model("matrix_capsules", image_size=(16, 16))
