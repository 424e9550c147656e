"""Spectral routing: figures computed by hand, its invariances, its gradient and its schedule."""

from functools import partial
from math import cos, radians, sin

import pytest
import torch
from torch import Tensor

from arcaps import ArcapsError, ARCapsNet, Routing
from arcaps.routing import spectral_routing
from arcaps.routing.spectral import eigenvector_by_squaring
from arcaps.schedule import set_progress

same = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
hand = partial(torch.testing.assert_close, rtol=0, atol=1e-6)


def ratio_of(votes: Tensor) -> Tensor:
    """The explained part, read back from the presence."""
    return spectral_routing(votes, votes.new_zeros(votes.shape[-3]), eta=1.0).presence.logit()  # type: ignore[union-attr]


def plain(votes: Tensor, presence: Tensor, bias: Tensor, eta: float) -> tuple[Tensor, Tensor, Tensor]:
    """The definition by a full singular value decomposition, output by output."""
    capsules, coefficients, chances = [], [], []
    for n, rows in enumerate(votes * presence[:, None]):
        _, values, right = torch.linalg.svd(rows)
        u = right[0] if right[0] @ rows.sum(0) >= 0 else -right[0]
        capsules.append(u)
        coefficients.append((rows @ u) ** 2 / values[0] ** 2)
        chances.append(1 / (1 + torch.exp(-eta * (values[0] ** 2 / (values**2).sum() - bias[n]))))
    return torch.stack(capsules), torch.stack(coefficients), torch.stack(chances)


@pytest.mark.parametrize(("inputs", "dim"), [(5, 3), (3, 5), (4, 4), (1, 4), (4, 1)])
def test_it_is_the_singular_value_decomposition(inputs: int, dim: int) -> None:
    votes, presence = torch.randn(2, inputs, dim).double(), torch.rand(inputs).double()
    bias = torch.randn(2).double()
    found = spectral_routing(votes, bias, eta=3.0, presence=presence)
    for one, expected in zip(found, plain(votes, presence, bias, 3.0), strict=True):
        same(one, expected)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_votes_of_one_direction_are_explained_whole(dtype: torch.dtype, atol: float) -> None:
    direction = torch.randn(2, 1, 6, dtype=dtype)
    votes = torch.randn(2, 4, 1, dtype=dtype) * direction
    torch.testing.assert_close(ratio_of(votes), torch.ones(2, dtype=dtype), rtol=0, atol=atol)
    presence = spectral_routing(votes, torch.tensor([0.3, 0.6], dtype=dtype), eta=5.0).presence
    expected = torch.sigmoid(5 * (1 - torch.tensor([0.3, 0.6], dtype=dtype)))
    torch.testing.assert_close(presence, expected, rtol=0, atol=atol)


@pytest.mark.parametrize(("degrees", "ratio"), [(0, 1), (30, 0.933013), (60, 0.75), (90, 0.5)])
def test_two_unit_votes_at_an_angle(degrees: float, ratio: float) -> None:
    votes = torch.tensor([[[1.0, 0.0], [cos(radians(degrees)), sin(radians(degrees))]]]).double()
    hand(ratio_of(votes), torch.tensor([ratio]).double())


@pytest.mark.parametrize(("inputs", "dim"), [(3, 5), (5, 3)])
def test_orthonormal_votes_have_nothing_in_common(inputs: int, dim: int) -> None:
    votes = torch.eye(max(inputs, dim)).double()[None, :inputs, :dim]
    hand(ratio_of(votes), torch.full((1,), 1 / min(inputs, dim)).double())


def test_a_diagonal_by_hand() -> None:
    votes = torch.diag(torch.tensor([3.0, 1.0])).double()[None]
    hand(ratio_of(votes), torch.tensor([0.9]).double())
    found = spectral_routing(votes, torch.tensor([0.5]).double(), eta=10.0)
    hand(found.presence, torch.tensor([0.982014]).double())
    hand(found.capsules, torch.tensor([[1.0, 0.0]]).double())
    hand(found.coefficients, torch.tensor([[1.0, 0.0]]).double())


def test_the_sign_of_a_vote_and_the_order_of_the_inputs_do_not_matter() -> None:
    votes = torch.randn(2, 5, 4).double()
    for vote in range(5):
        flipped = votes.clone()
        flipped[:, vote] *= -1
        same(ratio_of(flipped), ratio_of(votes))
    order = torch.randperm(5)
    found, again = (spectral_routing(v, torch.zeros(2).double()) for v in (votes, votes[:, order]))
    same(again.capsules, found.capsules)
    same(again.coefficients, found.coefficients[:, order])
    same(found.coefficients.sum(-1), torch.ones(2).double())


def test_the_direction_follows_the_votes() -> None:
    votes = torch.randn(2, 5, 4).double()
    same(spectral_routing(-votes, torch.zeros(2).double()).capsules, -spectral_routing(votes, torch.zeros(2)).capsules)


def test_the_gradient_of_the_presence_is_exact_and_that_of_the_direction_bounded() -> None:
    votes = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda v: spectral_routing(v, bias).presence, (votes,))  # type: ignore[arg-type,return-value]
    equal = torch.eye(4, dtype=torch.float64)[None].requires_grad_()  # all singular values are the same
    found = spectral_routing(equal, bias[:1])
    (gradient,) = torch.autograd.grad(found.capsules.sum() + found.coefficients.square().sum(), equal)
    assert gradient.isfinite().all()
    assert gradient.abs().max() < 10


@pytest.mark.parametrize(("inputs", "dim"), [(5, 3), (3, 5)])
def test_the_gradient_of_the_direction_is_that_of_one_power_step(inputs: int, dim: int) -> None:
    votes = torch.randn(2, inputs, dim, dtype=torch.float64, requires_grad=True)
    presence = torch.rand(inputs, dtype=torch.float64, requires_grad=True)
    rows = votes * presence[:, None]
    u = plain(votes.detach(), presence.detach(), torch.zeros(2), 1.0)[0].unsqueeze(-1)
    stepped = rows.mT @ (rows @ u)
    direction = (stepped / stepped.norm(dim=-2, keepdim=True)).squeeze(-1)
    along = (rows @ direction.unsqueeze(-1)).squeeze(-1).square()
    expected = direction, along / along.sum(-1, keepdim=True)
    found = spectral_routing(votes, torch.zeros(2).double(), presence=presence)
    for one, other in zip(found[:2], expected, strict=True):
        weights = torch.randn_like(other)
        gradients = (
            torch.autograd.grad((value * weights).sum(), (votes, presence), retain_graph=True) for value in (one, other)
        )
        for ours, theirs in zip(*gradients, strict=True):
            same(ours, theirs)


def test_inputs_that_are_hardly_present_do_not_disturb_the_solver() -> None:
    """Of equal votes with presence 0, 1e-20 or 1, the solver answered NaN for one Gram matrix in forty, or failed."""
    vote = torch.randn(2000, 1, 1, 6)
    presence = torch.tensor([0, 1e-20, 1.0])[torch.randint(3, (2000, 5))]
    presence[:, 0] = 1
    found = spectral_routing(vote.expand(2000, 1, 5, 6), torch.zeros(1), presence=presence)
    torch.testing.assert_close(found.capsules, torch.nn.functional.normalize(vote[:, 0], dim=-1))
    torch.testing.assert_close(found.coefficients[:, 0], presence / presence.sum(-1, keepdim=True))


@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_squaring_finds_the_eigenvector_too(size: int) -> None:
    rows = torch.randn(50, size, 20).double()
    gram = rows @ rows.mT
    found, expected = eigenvector_by_squaring(gram), torch.linalg.eigh(gram)[1][..., -1]
    torch.testing.assert_close((found * expected).sum(-1).abs(), torch.ones(50).double(), rtol=0, atol=1e-9)
    assert (eigenvector_by_squaring(torch.zeros(1, 3, 3)) == 0).all()


@pytest.mark.parametrize(("progress", "eta"), [(0.0, 1.0), (1.0, 20.0)])
def test_the_module_starts_with_a_threshold_of_a_tenth(progress: float, eta: float) -> None:
    routing, votes = Routing.build("spectral", 5, 3, 4).double(), torch.randn(3, 5, 4).double()
    set_progress(routing, progress)
    expected = spectral_routing(votes, torch.full((3,), 0.1).double(), eta=eta)
    torch.testing.assert_close(routing(votes).presence, expected.presence, rtol=1e-6, atol=1e-6)


def test_eta_grows_in_the_course_of_the_training() -> None:
    small = {"image_size": (12, 12), "caps": 2, "dim": 4, "primary_dim": 4, "stem_channels": 4}
    model = ARCapsNet(**small, routing="spectral(eta=(2, 10))")
    routing = model.class_caps.routing
    assert routing.eta == 10
    set_progress(model, 0.25)
    assert routing.eta == 4
    assert Routing.build("spectral(eta=3)", 2, 3, 4).eta == 3
    with pytest.raises(ArcapsError, match="eta 0: give a positive number"):
        Routing.build("spectral(eta=0)", 2, 3, 4)
