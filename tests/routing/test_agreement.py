"""The agreement family: its plain-loop reference, and figures computed by hand."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from arcaps import ArcapsError, Routing
from arcaps.competition import Competition
from arcaps.functional import squash, unit
from arcaps.routing import (
    DynamicRouting,
    InvertedRouting,
    SelfAttentionRouting,
    agreement_routing,
    dynamic_routing,
    query_key_routing,
)
from tests.routing import reference

H1 = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)
"""Two outputs, two inputs, two dimensions."""

same = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
hand = partial(torch.testing.assert_close, rtol=0, atol=1e-6)


def votes_of(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def both_inputs(*coefficients: float) -> Tensor:
    """Coefficients that are the same for two inputs."""
    return torch.tensor(coefficients, dtype=torch.float64).unsqueeze(-1).expand(-1, 2)


def layer_norm(capsules: Tensor) -> Tensor:
    return F.layer_norm(capsules, capsules.shape[-1:])


@pytest.mark.parametrize("name", ["squash", "unit", "layer_norm", "identity"])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_it_is_the_plain_loop(name: str, keep: bool, iterations: int) -> None:
    function = {"squash": squash, "unit": unit, "layer_norm": layer_norm, "identity": lambda s: s}[name]
    votes, presence, bias = votes_of(2, 3, 4, 5), torch.rand(2, 4, dtype=torch.float64), votes_of(3, 5)
    options: dict[str, Any] = {"reference": function, "keep": keep, "tau": 0.7, "iterations": iterations, "bias": bias}
    capsules, coefficients, sure = agreement_routing(votes, presence=presence, **options)
    assert sure is None
    for index in range(2):
        expected = reference.agreement(votes[index], presence[index], **options)
        same(capsules[index], expected[0])
        same(coefficients[index], expected[1])


TABLE: dict[str, tuple[Any, bool, float, int]] = {
    "dynamic": (squash, True, 1.0, 3),
    "kl": (unit, False, 1.0, 3),
    "inverted": (layer_norm, False, 5**0.5, 2),
    "self_attention": (lambda s: s, False, 5**0.5 / 3, 2),
    "uniform": (lambda s: s, False, 1.0, 1),
}
"""Reference, keep, tau and T, for 3 outputs of 5 elements: the table of `arcaps.routing.agreement`."""


@pytest.mark.parametrize("name", TABLE)
def test_a_named_routing_is_a_row_of_the_table(name: str) -> None:
    function, keep, tau, iterations = TABLE[name]
    votes, presence = votes_of(2, 3, 4, 5), torch.rand(2, 4, dtype=torch.float64)
    found = Routing.build(name, 4, 3, 5).double()(votes, presence=presence)
    options: dict[str, Any] = {"reference": function, "keep": keep, "tau": tau, "iterations": iterations}
    for index in range(2):
        sums, coefficients = reference.agreement(votes[index], presence[index], bias=0 * votes[0, :, 0], **options)
        same(found.capsules[index], layer_norm(sums) if name == "inverted" else sums)
        same(found.coefficients[index], coefficients)


def test_one_iteration_of_dynamic_routing_is_uniform() -> None:
    votes = votes_of(3, 4, 5, 6)
    uniform = Routing.build("uniform(over='outputs')", 5, 4, 6)(votes)
    same(dynamic_routing(votes, iterations=1).capsules, uniform.capsules)
    same(dynamic_routing(votes, iterations=1).coefficients, uniform.coefficients)
    same(uniform.coefficients, torch.full((3, 4, 5), 1 / 4, dtype=torch.float64))
    mean = Routing.build("uniform(over='inputs')", 5, 4, 6)(votes)
    same(mean.coefficients, torch.full((3, 4, 5), 1 / 5, dtype=torch.float64))
    same(mean.capsules, votes.mean(-2))


@pytest.mark.parametrize(("iterations", "expected"), [(2, (0.434308, 0.565692)), (3, (0.347052, 0.652948))])
def test_dynamic_by_hand(iterations: int, expected: tuple[float, float]) -> None:
    hand(dynamic_routing(H1, iterations=iterations).coefficients, both_inputs(*expected))


def test_lengths_of_one_iteration_by_hand() -> None:
    capsules = squash(dynamic_routing(H1, iterations=1).capsules)
    same(capsules.norm(dim=-1), torch.tensor([1 / 3, 1 / 2], dtype=torch.float64))


def test_without_a_bias_the_negative_is_routed_alike_and_with_it_not() -> None:
    votes = votes_of(3, 4, 5, 6)
    capsules, coefficients, _ = dynamic_routing(votes)
    negative = dynamic_routing(-votes)
    same(negative.capsules, -capsules)
    same(negative.coefficients, coefficients)
    with_bias = DynamicRouting(5, 4, 6, bias=True).double()
    assert with_bias.bias is not None
    torch.testing.assert_close(with_bias.bias.detach(), torch.full((4, 6), 0.1).double())
    assert not torch.allclose(with_bias(-votes).coefficients, with_bias(votes).coefficients)
    one = Routing.build("dynamic(bias=True, iterations=1)", 5, 4, 6).double()(votes)
    torch.testing.assert_close(one.capsules, votes.sum(-2) / 4 + 0.1)


def test_leaky_routing_has_one_more_output_without_votes() -> None:
    leak = Competition.build("outputs(leak=True)")
    votes = votes_of(3, 4, 5, 6)
    more = dynamic_routing(torch.cat([votes, torch.zeros_like(votes[:, :1])], 1))
    found = dynamic_routing(votes, compete=leak)
    same(found.capsules, more.capsules[:, :4])
    same(found.coefficients, more.coefficients[:, :4])
    same(
        dynamic_routing(votes, iterations=1, compete=leak).coefficients,
        torch.full((3, 4, 5), 1 / 5, dtype=torch.float64),
    )
    hand(dynamic_routing(H1, iterations=2, compete=leak).coefficients, both_inputs(0.325147, 0.388932))


def objective(votes: Tensor, c: Tensor, s: Tensor, tau: float) -> Tensor:
    """What `kl` makes smaller, with uniform p."""
    entropy = (c * (c * votes.shape[-3]).log()).sum((-2, -1))
    return tau * entropy - torch.einsum("bnm,bnmd,bnd->b", c, votes, s)


@pytest.mark.parametrize("tau", [0.2, 1.0, 5.0])
def test_kl_never_increases_its_objective(tau: float) -> None:
    votes = 2 * votes_of(50, 4, 6, 3)
    values = []
    s = None
    for iterations in range(1, 8):
        routed = Routing.build(f"kl(tau={tau}, iterations={iterations})", 6, 4, 3)(votes)
        if s is not None:
            values.append(objective(votes, routed.coefficients, s, tau))  # after the half-step of c
        s = unit(routed.capsules)
        values.append(objective(votes, routed.coefficients, s, tau))  # after the half-step of s
    steps = torch.stack(values).diff(dim=0)
    assert steps.max() <= 1e-12
    assert (steps[:2] < -1e-3).any(), "the first steps change something"


def test_kl_with_keep_descends_from_its_last_coefficients() -> None:
    votes, tau = votes_of(50, 4, 6, 3), 0.7
    one, two = (Routing.build(f"kl(keep=True, tau={tau}, iterations={t})", 6, 4, 3)(votes) for t in (2, 3))
    s = unit(one.capsules)
    p = one.coefficients
    products = torch.einsum("bnmd,bnd->bnm", votes, s)
    expected = p * (products / tau).exp()
    same(two.coefficients, expected / expected.sum(-2, keepdim=True))


def test_kl_at_its_limits() -> None:
    votes = votes_of(3, 4, 5, 6)
    hot = Routing.build("kl(tau=1e12)", 5, 4, 6)(votes)
    torch.testing.assert_close(hot.coefficients, torch.full((3, 4, 5), 1 / 4, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(unit(hot.capsules), unit(votes.mean(-2)), rtol=1e-9, atol=1e-9)
    cold = Routing.build("kl(tau=1e-9, iterations=2)", 5, 4, 6)(votes)
    products = torch.einsum("bnmd,bnd->bnm", votes, unit(votes.mean(-2)))
    same(cold.coefficients, F.one_hot(products.argmax(1), 4).transpose(1, 2).double())


def test_kl_by_hand() -> None:
    hand(Routing.build("kl(iterations=2)", 2, 2, 2)(H1).coefficients, both_inputs(0.427296, 0.572704))


def test_kl_turns_with_its_votes() -> None:
    votes = votes_of(3, 4, 5, 6)
    turn = torch.linalg.qr(votes_of(6, 6)).Q
    routing = Routing.build("kl", 5, 4, 6)
    same(routing(votes @ turn).capsules, routing(votes).capsules @ turn)
    same(routing(votes @ turn).coefficients, routing(votes).coefficients)


def test_a_capsule_of_length_zero_has_no_direction_and_no_gradient() -> None:
    capsules = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    directions = unit(capsules)
    torch.testing.assert_close(directions.detach(), torch.tensor([[0.0, 0.0], [0.6, 0.8]]))
    directions.sum().backward()
    assert capsules.grad is not None
    assert (capsules.grad[0] == 0).all()
    assert (capsules.grad[1] != 0).all()


def test_inverted_with_one_iteration_normalises_the_sum_of_the_votes() -> None:
    votes = 10 * votes_of(3, 4, 5, 6)
    routing = Routing.build("inverted(iterations=1)", 5, 4, 6).double()
    expected = F.layer_norm(votes.sum(-2), (6,))
    capsules = routing(votes).capsules
    torch.testing.assert_close(capsules, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(routing(1000 * votes).capsules, expected, rtol=1e-4, atol=1e-4)  # free of scale
    torch.testing.assert_close(capsules.mean(-1), torch.zeros(3, 4).double())
    torch.testing.assert_close(capsules.norm(dim=-1), torch.full((3, 4), 6**0.5).double(), rtol=1e-4, atol=0)


def test_inverted_is_kl_without_the_mean_of_a_capsule() -> None:
    votes = 3 * votes_of(3, 4, 5, 6)  # large beside the eps of LayerNorm
    close = partial(torch.testing.assert_close, rtol=0, atol=1e-4)
    inverted, kl = (Routing.build(spec, 5, 4, 6).double() for spec in ("inverted", "kl(tau=1.0, iterations=2)"))
    found = inverted(votes)
    options: dict[str, Any] = {"keep": False, "iterations": 2}
    without = agreement_routing(votes, reference=lambda s: unit(s - s.mean(-1, keepdim=True)), **options)
    close(found.coefficients, without.coefficients)
    close(found.capsules, 6**0.5 * unit(without.capsules - without.capsules.mean(-1, keepdim=True)))
    assert not torch.allclose(found.coefficients, kl(votes).coefficients, rtol=0, atol=0.1)
    centred = votes - votes.mean(-1, keepdim=True)
    close(inverted(centred).coefficients, kl(centred).coefficients)


def test_inverted_with_one_output_does_not_depend_on_iterations() -> None:
    votes = votes_of(3, 1, 5, 6)
    one, four = (Routing.build(f"inverted(iterations={t})", 5, 1, 6).double()(votes) for t in (1, 4))
    same(one.capsules, four.capsules)


def test_inverted_shares_its_learned_scale_and_shift() -> None:
    votes = votes_of(3, 4, 5, 6)
    routing = InvertedRouting(5, 4, 6).double()
    for parameter in routing.parameters():
        torch.nn.init.normal_(parameter)
    first = F.layer_norm(votes.sum(-2) / 4, (6,), routing.weight, routing.bias)
    c = (torch.einsum("bnmd,bnd->bnm", votes, first) / 6**0.5).softmax(1)
    same(routing(votes).coefficients, c)
    mixed = torch.einsum("bnm,bnmd->bnd", c, votes)
    same(routing(votes).capsules, F.layer_norm(mixed, (6,), routing.weight, routing.bias))
    nothing = routing(votes, presence=torch.zeros(3, 5).double())
    assert (nothing.capsules == 0).all(), "its shift is not the capsule of absent inputs"


def test_self_attention_by_hand() -> None:
    hand(Routing.build("self_attention", 2, 2, 2).double()(H1).coefficients, both_inputs(0.330238, 0.669762))


def test_self_attention_in_its_own_words() -> None:
    votes = votes_of(3, 4, 5, 6)
    routing = SelfAttentionRouting(5, 4, 6).double()
    torch.nn.init.normal_(routing.offset)
    c = (torch.einsum("bnmd,bnd->bnm", votes, votes.sum(-2)) / 6**0.5).softmax(1) + routing.offset
    same(routing(votes).coefficients, c)
    same(routing(votes).capsules, torch.einsum("bnm,bnmd->bnd", c, votes))
    equal = Routing.build("self_attention", 5, 4, 6).double()(votes[:, :1].expand(3, 4, 5, 6))
    same(equal.coefficients, torch.full((3, 4, 5), 1 / 4, dtype=torch.float64))


def test_self_attention_is_the_second_iteration_of_plain_agreement() -> None:
    votes = votes_of(3, 4, 5, 6)
    expected = agreement_routing(votes, reference=lambda s: s, keep=False, tau=6**0.5 / 4, iterations=2)
    found = Routing.build("self_attention", 5, 4, 6).double()(votes)
    same(found.capsules, expected.capsules)
    same(found.coefficients, expected.coefficients)


def test_the_mean_vote_as_query_is_query_key_without_matrices() -> None:
    votes = votes_of(3, 4, 5, 6)
    found = agreement_routing(
        votes, reference=lambda s: s, keep=False, tau=6**0.5, iterations=2, compete=lambda b: b.softmax(-1)
    )
    identity = torch.eye(6).double().expand(4, 6, 6)
    expected = query_key_routing(votes, identity, identity, heads=1)
    same(found.capsules, expected.capsules)
    same(found.coefficients, expected.coefficients)


def test_mistakes_are_named() -> None:
    with pytest.raises(ArcapsError, match=r"kl routing with tau=0\.0: give a temperature above 0"):
        Routing.build("kl(tau=0.0)", 2, 2, 4)
    with pytest.raises(ArcapsError, match="inverted routing with 0 iterations: give a whole number from 1 to 1000"):
        Routing.build("inverted(iterations=0)", 2, 2, 4)
    with pytest.raises(ArcapsError, match="got dim=1: give at least 2"):
        Routing.build("inverted", 2, 2, 1)
