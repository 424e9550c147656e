"""CapsuleNet as its authors' published code has it."""

from typing import Any

import pytest
import torch
from torch import nn

from arcaps import CapsuleNet
from arcaps.data import Batch
from arcaps.functional import squash

SMALL = {"stem_channels": 4, "caps": 3, "primary_dim": 4, "dim": 4, "decoder": False}


@pytest.mark.parametrize(("competition", "parts"), [("outputs", 3), ("outputs(leak=True)", 4)])
def test_a_primary_capsule_is_divided_by_their_number(competition: str, parts: int) -> None:
    model = CapsuleNet(**SMALL, faithful=True, competition=competition).double()
    features = torch.randn(2, 4, 20, 20).double()
    conv = nn.functional.conv2d(features, model.primary.conv.weight, stride=2).permute(0, 2, 3, 1).unflatten(-1, (3, 4))
    torch.testing.assert_close(model.primary(features).poses, squash(conv / parts + 0.1))


@pytest.mark.parametrize("leak", [False, True])
def test_it_is_the_network_of_the_authors_code(leak: bool) -> None:
    model: Any = CapsuleNet(**SMALL, faithful=True, competition=f"outputs(leak={leak})").double()
    images = torch.rand(2, 1, 28, 28).double()
    stem, primary, layer = model.stem[0].conv, model.primary.conv, model.class_caps
    maps = nn.functional.conv2d(images, stem.weight, stem.bias).relu()
    maps = nn.functional.conv2d(maps, primary.weight, stride=2) / (3 + leak) + 0.1
    capsules = squash(maps.permute(0, 2, 3, 1).reshape(2, 108, 4))  # 6 x 6 positions of 3 capsules
    votes = torch.einsum("bmi,mind->bnmd", capsules, layer.votes.weight[:, 0, 0])
    logits = torch.zeros_like(votes[..., 0])
    for _ in range(3):
        shares = logits.exp() / (logits.exp().sum(1, keepdim=True) + leak)
        out = squash((shares.unsqueeze(-1) * votes).sum(2) + 0.1)
        logits = logits + (votes * out.unsqueeze(2)).sum(-1)
    found = model(images)
    torch.testing.assert_close(found.capsules, out)
    torch.testing.assert_close(found.scores, out.norm(dim=-1))


def test_the_loss_is_twenty_times_that_of_the_authors_code() -> None:
    model = CapsuleNet(**{**SMALL, "decoder": True}, faithful=True)
    batch = Batch(torch.rand(3, 1, 28, 28), torch.tensor([0, 4, 9]), 3)
    output, there = model(batch.images, batch.labels), nn.functional.one_hot(batch.labels, 10)
    too_short, too_long = (0.9 - output.scores).relu() ** 2, (output.scores - 0.1).relu() ** 2
    margin = 0.5 * (there * too_short + 0.5 * (1 - there) * too_long).mean()
    reconstruction = 0.0005 * (output.reconstruction - batch.images).square().sum((1, 2, 3)).mean()
    found = model.losses(output, batch)
    torch.testing.assert_close(found["margin"], 20 * margin)
    torch.testing.assert_close(found["reconstruction"], 20 * reconstruction)


def test_biases_weights_and_the_weight_of_the_reconstruction() -> None:
    plain, faithful = CapsuleNet(), CapsuleNet(faithful=True)
    assert (plain.primary.divide_by, faithful.primary.divide_by) == (1, 32)
    assert faithful.parameter_count() == plain.parameter_count() + 160  # the bias of the class capsules
    assert faithful.reconstruction_weight == pytest.approx(7.84)
    assert plain.reconstruction_weight == pytest.approx(0.392)
    for name, parameter in faithful.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0.1).all(), name
        else:
            deviation = 0.05 if name.startswith("stem") else 0.1
            assert parameter.abs().max() <= 2 * deviation, name
            assert 0.85 * deviation < parameter.std() < 0.91 * deviation, name  # cut off at two deviations: 0.88


def test_without_a_bias_minus_the_votes_give_minus_the_capsules() -> None:
    for faithful in (False, True):
        layer = CapsuleNet(**SMALL, faithful=faithful).class_caps.double()
        capsules = torch.randn(2, 6, 6, 3, 4).double()
        there, mirrored = layer(capsules), layer(-capsules)
        odd = torch.allclose(there.poses, -mirrored.poses)
        assert odd == (not faithful)
