"""CapsuleNet as its authors' published code has it."""

import pytest
import torch
from torch import nn

from arcaps import CapsuleNet
from arcaps.functional import squash

SMALL = {"stem_channels": 4, "caps": 3, "primary_dim": 4, "dim": 4, "decoder": False}


@pytest.mark.parametrize(("competition", "parts"), [("outputs", 3), ("outputs(leak=True)", 4)])
def test_a_primary_capsule_is_divided_by_their_number(competition: str, parts: int) -> None:
    model = CapsuleNet(**SMALL, faithful=True, competition=competition).double()
    features = torch.randn(2, 4, 20, 20).double()
    conv = nn.functional.conv2d(features, model.primary.conv.weight, stride=2).permute(0, 2, 3, 1).unflatten(-1, (3, 4))
    torch.testing.assert_close(model.primary(features).poses, squash(conv / parts + 0.1))


def test_biases_weights_and_the_weight_of_the_reconstruction() -> None:
    plain, faithful = CapsuleNet(), CapsuleNet(faithful=True)
    assert faithful.parameter_count() == plain.parameter_count() + 160  # the bias of the class capsules
    assert faithful.reconstruction_weight == pytest.approx(7.84)
    assert plain.reconstruction_weight == pytest.approx(0.392)
    torch.testing.assert_close(faithful.class_caps.routing.bias, torch.full((10, 16), 0.1))
    for weight in (faithful.primary.conv.weight, faithful.class_caps.votes.weight):
        assert weight.abs().max() <= 0.2
        assert 0.08 < weight.std() < 0.1


def test_without_a_bias_minus_the_votes_give_minus_the_capsules() -> None:
    for faithful in (False, True):
        layer = CapsuleNet(**SMALL, faithful=faithful).class_caps.double()
        capsules = torch.randn(2, 6, 6, 3, 4).double()
        there, mirrored = layer(capsules), layer(-capsules)
        odd = torch.allclose(there.poses, -mirrored.poses)
        assert odd == (not faithful)
