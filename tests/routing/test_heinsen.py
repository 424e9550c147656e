"""Heinsen's routing: its plain-loop reference, and what follows from its equations."""

from functools import partial

import pytest
import torch
from torch import Tensor

from arcaps import Routing
from arcaps.routing import HeinsenRouting, heinsen_routing
from tests.routing import reference

same = partial(torch.testing.assert_close, rtol=1e-11, atol=1e-11)


def votes_of(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_it_is_the_plain_loop(iterations: int) -> None:
    routing = Routing.build(f"heinsen(iterations={iterations})", 4, 3, 5, in_dim=6).double()
    for parameter in routing.parameters():
        torch.nn.init.normal_(parameter)
    # Far from zero: there the loop, which normalises s / sqrt(inp), and its eps of 1e-5 are the same thing.
    votes, inputs, presence = 3 * votes_of(2, 3, 4, 5), votes_of(2, 4, 6), torch.rand(2, 4, dtype=torch.float64)
    found = routing(votes, inputs=inputs, presence=presence)
    parameters: dict[str, Tensor] = dict(routing.named_parameters())
    for index in range(2):
        expected = reference.heinsen(votes[index], presence[index], inputs[index], parameters, iterations=iterations)
        same(found.capsules[index], expected[0])
        same(found.coefficients[index], expected[1])


def test_using_and_ignoring_at_one_price_cancels_for_two_outputs() -> None:
    votes, activity, beta = votes_of(7, 2, 5, 4), torch.rand(7, 5).double(), votes_of(2, 5)
    found = heinsen_routing(votes, activity, beta, beta, lambda s: s[..., :1], iterations=1)
    same(found.coefficients, torch.zeros(7, 2, 5).double())
    same(found.capsules, torch.zeros(7, 2, 4).double())


def test_where_ignoring_costs_nothing_the_benefit_is_a_share() -> None:
    votes, activity, beta = votes_of(7, 3, 5, 4), torch.rand(7, 5).double(), votes_of(3, 5)
    found = heinsen_routing(votes, activity, beta, torch.zeros(3, 5).double(), lambda s: s[..., :1], iterations=1)
    same(found.coefficients, beta * activity.unsqueeze(-2) / 3)


def test_one_output_uses_all_there_is() -> None:
    routing = HeinsenRouting(5, 1, 4, in_dim=6).double()
    inputs = votes_of(7, 5, 6)
    found = routing(votes_of(7, 1, 5, 4), inputs=inputs)
    same(found.coefficients, routing.beta_use * routing.activity(inputs).unsqueeze(-2))


def test_capsules_are_normalised_if_asked() -> None:
    votes, inputs = 10 * votes_of(7, 3, 5, 4), votes_of(7, 5, 6)
    torch.manual_seed(1)
    normal = Routing.build("heinsen", 5, 3, 4, in_dim=6).double()
    plain = Routing.build("heinsen(normalise=False)", 5, 3, 4, in_dim=6).double()
    plain.load_state_dict(normal.state_dict())
    capsules = plain(votes, inputs=inputs).capsules
    assert capsules.mean(-1).abs().max() > 0.1
    same(normal(votes, inputs=inputs).capsules, torch.nn.functional.layer_norm(capsules, (4,)))
