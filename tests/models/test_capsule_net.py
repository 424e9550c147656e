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
