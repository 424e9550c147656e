"""Efficient-CapsNet: the published number of parameters, any image, its file."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from arcaps import EfficientCapsNet, load
from arcaps.data import Batch
from arcaps.functional import squash_variant


def test_the_parameters_are_those_of_the_paper() -> None:
    assert EfficientCapsNet().parameter_count() == 161_824


def test_it_is_the_network_of_the_paper() -> None:
    model: Any = EfficientCapsNet(stem_widths=(4, 5, 6)).double().eval()
    torch.nn.init.normal_(model.class_caps.routing.offset)
    images = torch.rand(2, 1, 28, 28).double()
    maps = images
    for block, stride in zip(model.stem, (1, 1, 1, 2), strict=True):
        torch.nn.init.normal_(block.norm.running_mean)
        torch.nn.init.uniform_(block.norm.running_var, 0.5, 2)
        maps = block.norm(F.conv2d(maps, block.conv.weight, block.conv.bias, stride).relu())
    assert maps.shape == (2, 128, 9, 9)
    conv = model.primary.conv
    primary = squash_variant(F.conv2d(maps, conv.weight, conv.bias, groups=128).view(2, 16, 8))
    votes = torch.einsum("bmi,mind->bnmd", primary, model.class_caps.votes.weight[:, 0, 0])
    c = (torch.einsum("bnmd,bnd->bnm", votes, votes.sum(2)) / 4).softmax(1) + model.class_caps.routing.offset
    capsules = squash_variant(torch.einsum("bnm,bnmd->bnd", c, votes))
    torch.testing.assert_close(model(images).capsules, capsules)
    torch.testing.assert_close(model(images).scores, capsules.norm(dim=-1))


def test_votes_start_as_in_the_authors_framework() -> None:
    """He normal there; the fan-in is all axes of the tensor (classes, capsules, elements, elements) but the last."""
    weight = EfficientCapsNet().class_caps.votes.weight
    assert weight.std().item() == pytest.approx((2 / (10 * 16 * 8)) ** 0.5, rel=0.02)


@pytest.mark.parametrize(("size", "channels", "classes"), [((11, 11), 1, 2), ((20, 33), 3, 4)])
def test_any_image(size: tuple[int, int], channels: int, classes: int) -> None:
    model = EfficientCapsNet(
        image_size=size, channels=channels, classes=classes, stem_widths=(4, 4, 4), decoder=True
    ).eval()
    output = model(torch.rand(2, channels, *size))
    assert output.scores.shape == (2, classes)
    assert ((output.scores >= 0) & (output.scores <= 1)).all()
    assert output.reconstruction is not None
    assert output.reconstruction.shape == (2, channels, *size)


def test_it_learns_two_digits_and_has_a_file(tmp_path: Path) -> None:
    model = EfficientCapsNet(stem_widths=(8, 8, 8))
    batch = Batch(torch.rand(8, 1, 28, 28), torch.arange(8), 8)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    first = last = 0.0
    for step in range(30):
        optimiser.zero_grad()
        loss = model.loss(batch)["margin"]
        loss.backward()
        optimiser.step()
        first, last = (loss.item(), last) if step == 0 else (first, loss.item())
    assert last < first / 5
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    torch.testing.assert_close(again(batch.images).scores, model.eval()(batch.images).scores, rtol=0, atol=0)


def test_for_inference_answers_the_same() -> None:
    model = EfficientCapsNet(stem_widths=(8, 8, 8)).eval()
    images = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(model.for_inference()(images).scores, model(images).scores)
