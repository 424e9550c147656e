"""The assertions catch the mistakes that capsule code is full of."""

import pytest
import torch
from torch import Tensor, nn

from arcaps import Capsules, ClassCaps, ConvCaps, PrimaryCaps, Routed, Routing, testing
from arcaps.capsules import as_capsules
from arcaps.functional import mix_votes, shares_of


class LastAnswerBroken(ConvCaps):
    """Answers its third call with NaN."""

    calls = 0

    def forward(self, capsules: Capsules | Tensor) -> Capsules:
        self.calls += 1
        found = super().forward(capsules)
        return found._replace(poses=found.poses * torch.nan) if self.calls == 3 else found


def test_nan_is_no_equivariance() -> None:
    with pytest.raises(AssertionError, match="changes the capsules by nan"):
        testing.assert_shift_equivariant(LastAnswerBroken(2, 4, 3, 4), torch.randn(2, 9, 9, 2, 4), stride=1)


class WrongReshape(PrimaryCaps):
    """Cuts the feature maps into capsules across pixels."""

    def forward(self, features: Tensor) -> Capsules:
        maps = self.conv(features)
        return Capsules(maps.reshape(len(maps), *maps.shape[2:], self.caps, self.dim))


class MixedChannels(ClassCaps):
    """Reads (D, N) as (N, D)."""

    def forward(self, capsules: Capsules | Tensor) -> Capsules:
        output = super().forward(capsules).poses
        return Capsules(output.mT.reshape(output.shape))


class MixedBatch(ConvCaps):
    """Normalises over the batch, in evaluation too."""

    def forward(self, capsules: Capsules | Tensor) -> Capsules:
        poses = as_capsules(capsules).poses
        return super().forward(poses - poses.mean(0))


class BorderEverywhere(ConvCaps):
    """Adds to each capsule a value that depends on its place."""

    def forward(self, capsules: Capsules | Tensor) -> Capsules:
        poses = super().forward(capsules).poses
        rows, columns = (torch.arange(size) for size in poses.shape[1:3])
        return Capsules(poses + rows.view(-1, 1, 1, 1) + columns.view(-1, 1, 1))


class DividingSquash(nn.Module):
    """The squash as it is usually written."""

    def forward(self, capsules: Tensor) -> Tensor:
        square = capsules.square().sum(-1, keepdim=True)
        return square / (1 + square) * capsules / square.sqrt()


class WrongAxis(ConvCaps):
    """Softmax over the outputs, where attention sums over the inputs."""

    def forward(self, capsules: Capsules | Tensor) -> Capsules:
        output = super().forward(capsules)
        assert output.coefficients is not None
        return output._replace(coefficients=output.coefficients.log().softmax(-2))


def test_a_capsule_cut_across_pixels_is_caught() -> None:
    features = torch.randn(2, 3, 18, 18)
    layer = WrongReshape(3, 2, 4)
    with pytest.raises(AssertionError, match="not the 3x3 window"):
        testing.assert_one_pixel(layer, features, kernel=3, stride=2)
    with pytest.raises(AssertionError, match="shifted input"):
        testing.assert_shift_equivariant(layer, features, stride=2)


def test_a_window_that_is_too_small_is_caught() -> None:
    with pytest.raises(AssertionError, match="not the 5x5 window"):
        testing.assert_one_pixel(ConvCaps(2, 3, 2, 3), torch.randn(1, 9, 9, 2, 3), kernel=5, stride=1)


def test_a_place_dependent_layer_is_caught() -> None:
    with pytest.raises(AssertionError, match="shifted input"):
        testing.assert_shift_equivariant(BorderEverywhere(2, 3, 2, 3), torch.randn(1, 9, 9, 2, 3), stride=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_shift_by_less_than_the_stride_is_no_shift_of_the_capsules(dtype: torch.dtype) -> None:
    layer = ConvCaps(2, 3, 2, 4, stride=2).to(dtype)
    assert testing.equivariance_error(layer, torch.randn(2, 17, 17, 2, 3, dtype=dtype), stride=2, shift=1) > 0.1


def test_mixed_channels_are_caught() -> None:
    with pytest.raises(AssertionError, match="serve several output channels"):
        testing.assert_own_parameters(MixedChannels(2, 3, 5, 4, in_size=(3, 3)), torch.randn(2, 3, 3, 2, 3))


def test_a_mixed_batch_is_caught() -> None:
    with pytest.raises(AssertionError, match="alone differs"):
        testing.assert_batch_independent(MixedBatch(2, 3, 2, 3), torch.randn(3, 4, 4, 2, 3))


def test_the_nan_at_zero_is_caught() -> None:
    with pytest.raises(AssertionError, match="not finite"):
        testing.assert_finite_gradients(DividingSquash(), torch.zeros(2, 3))


def test_a_softmax_over_the_wrong_axis_is_caught() -> None:
    with pytest.raises(AssertionError, match="sum over the inputs is off 1"):
        testing.assert_coefficients_sum_to_one(WrongAxis(3, 4, 2, 4), torch.randn(2, 4, 4, 3, 4), over="inputs")


class SeesAbsentInputs(Routing):
    """The mean of the votes that are there, weighed by inputs of which some are absent."""

    needs = frozenset({"presence", "inputs"})

    def __init__(self, in_caps: int, out_caps: int, dim: int, *, in_dim: int) -> None:
        super().__init__(in_caps, out_caps, dim)

    def forward(self, votes: Tensor, *, presence: Tensor | None, inputs: Tensor) -> Routed:
        there = torch.ones_like(votes[..., 0]) if presence is None else presence.unsqueeze(-2).expand(votes.shape[:-1])
        coefficients = shares_of(there) * inputs.mean((-2, -1)).sigmoid()[..., None, None]
        return Routed(mix_votes(votes, coefficients), coefficients)


def test_an_absent_input_that_is_seen_is_caught() -> None:
    routing = SeesAbsentInputs(4, 3, 5, in_dim=2)
    with pytest.raises(AssertionError, match="an absent input changes the capsules by"):
        testing.assert_absent_inputs_are_ignored(routing, torch.randn(2, 3, 4, 5), torch.randn(2, 4, 2))


def test_an_input_that_is_all_border_is_refused() -> None:
    with pytest.raises(AssertionError, match="give a larger input"):
        testing.assert_shift_equivariant(ConvCaps(2, 3, 2, 3), torch.randn(1, 4, 4, 2, 3), stride=1)


def test_the_mode_of_the_layer_is_left_as_it_was() -> None:
    layer = ConvCaps(2, 3, 2, 3, dropout=0.5)
    testing.assert_batch_independent(layer, torch.randn(2, 3, 3, 2, 3))
    assert layer.training
