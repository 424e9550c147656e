"""Score routing: its plain-loop reference, and figures computed by hand."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arcaps import ArcapsError, ConvCaps, Routing
from arcaps.routing import ScoreRouting, query_key_routing

H1 = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)
"""Two outputs, two inputs, two dimensions."""

same = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)

SPECS = [
    f"score(score='{score}', query='{query}', over='{over}')"
    for score in ("dot", "general", "additive")
    for query in ("mean", "learned")
    for over in ("inputs", "outputs")
]
every_spec = pytest.mark.parametrize("spec", SPECS)


def made(spec: str, inputs: int, outputs: int, dim: int) -> Any:
    """A routing whose parameters are not those of its start."""
    routing = Routing.build(spec, inputs, outputs, dim)
    for parameter in routing.parameters():
        nn.init.normal_(parameter)
    return routing.double()


def plain(routing: ScoreRouting, votes: Tensor, presence: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, in loops over outputs and inputs."""
    outputs, inputs, _ = votes.shape
    b = votes.new_zeros(outputs, inputs)
    for n in range(outputs):
        mean = sum(presence[m] * votes[n, m] for m in range(inputs)) / presence.sum()
        q = mean if routing.query is None else routing.query[n]
        for m in range(inputs):
            v = votes[n, m]
            if routing.score == "dot":
                b[n, m] = q @ v
            elif routing.score == "general":
                b[n, m] = q @ routing.weight[n] @ v
            else:
                asked = q @ routing.of_query[n] + v @ routing.of_vote[n] + routing.bias[n]
                b[n, m] = routing.weight[n] @ asked.tanh()
    weights = b.exp() * presence
    over_inputs = routing.divides == "inputs"
    c = weights / weights.sum(-1, keepdim=True) if over_inputs else weights / b.exp().sum(-2, keepdim=True)
    return (c.unsqueeze(-1) * votes).sum(-2), c


@every_spec
def test_it_is_the_plain_loop(spec: str) -> None:
    routing = made(spec, 4, 3, 5)
    votes, presence = torch.randn(2, 3, 4, 5).double(), torch.rand(2, 4).double()
    capsules, coefficients, sure = routing(votes, presence=presence)
    assert sure is None
    for index in range(2):
        expected = plain(routing, votes[index], presence[index])
        same(capsules[index], expected[0])
        same(coefficients[index], expected[1])


@pytest.mark.parametrize("spec", [*SPECS, "query_key(heads=1)"])
def test_to_permute_the_inputs_permutes_the_coefficients(spec: str) -> None:
    routing, votes, order = made(spec, 4, 3, 5), torch.randn(2, 3, 4, 5).double(), torch.randperm(4)
    capsules, coefficients, _ = routing(votes)
    permuted, shares, _ = routing(votes[:, :, order])
    same(permuted, capsules)
    same(shares, coefficients[..., order])


def test_attention_routing_is_not_so() -> None:
    routing, votes = Routing.build("attention", 4, 3, 5).double(), torch.randn(2, 3, 4, 5).double()
    assert not torch.allclose(routing(votes).capsules, routing(votes.flip(2)).capsules)


@every_spec
def test_without_weights_it_is_the_mean(spec: str) -> None:
    routing, votes = made(spec, 4, 3, 5), torch.randn(2, 3, 4, 5).double()
    for parameter in routing.parameters():
        nn.init.zeros_(parameter)
    if routing.score == "dot" and routing.query is None:
        votes = votes - votes.mean(-2, keepdim=True)  # the query is zero
    capsules, coefficients, _ = routing(votes)
    count = 4 if routing.divides == "inputs" else 3
    same(coefficients, torch.full_like(coefficients, 1 / count))
    same(capsules, votes.sum(-2) / count)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if "inputs" in spec])
def test_equal_votes_are_their_own_mixture(spec: str) -> None:
    vote = torch.randn(2, 3, 1, 5).double()
    same(made(spec, 4, 3, 5)(vote.expand(2, 3, 4, 5)).capsules, vote[:, :, 0])


def test_the_dot_product_with_the_mean_by_hand() -> None:
    routing = made("score(score='dot')", 2, 2, 2)
    same(routing.logits(H1, None), torch.tensor([[0.5, 0.5], [1.0, 1.0]]).double())
    same(routing(H1).coefficients, torch.full((2, 2), 0.5).double())


def test_general_with_the_identity_is_dot() -> None:
    general, dot = made("score(score='general')", 4, 3, 5), made("score(score='dot')", 4, 3, 5)
    with torch.no_grad():
        general.weight.copy_(torch.eye(5).expand(3, 5, 5))
    votes = torch.randn(2, 3, 4, 5).double()
    for one, other in zip(general(votes)[:2], dot(votes)[:2], strict=True):
        same(one, other)


def test_general_contains_query_key_with_one_head() -> None:
    general, votes = made("score(score='general')", 4, 3, 5), torch.randn(2, 3, 4, 5).double()
    query, key = torch.randn(2, 3, 5, 5).double()
    with torch.no_grad():
        general.weight.copy_(query @ key.mT / 5**0.5)
    capsules, coefficients, _ = query_key_routing(votes, query, key, heads=1)
    same(general(votes).capsules, capsules)
    same(general(votes).coefficients, coefficients)


def test_additive_that_does_not_look_at_the_votes_is_uniform() -> None:
    routing = made("score(score='additive')", 4, 3, 5)
    nn.init.zeros_(routing.of_vote)
    coefficients = routing(torch.randn(2, 3, 4, 5).double()).coefficients
    same(coefficients, torch.full_like(coefficients, 0.25))


def test_over_the_outputs_it_knows_every_competition() -> None:
    layer = ConvCaps(2, 3, 4, 5, votes="window", routing="score(over='outputs')", competition="overlap")
    assert layer(torch.randn(2, 5, 5, 2, 3)).poses.shape == (2, 5, 5, 4, 5)


def test_a_learned_query_starts_small() -> None:
    query = ScoreRouting(4, 100, 50, query="learned").query
    assert query is not None
    assert query.std().item() == pytest.approx(0.02, rel=0.1)


def test_mistakes_are_named() -> None:
    for spec, match in (
        ("score(score='cosine')", "score 'cosine': there are dot, general, additive"),
        ("score(query='first')", "query 'first': there are mean, learned"),
        ("score(over='all')", "over 'all': there are inputs, outputs"),
        ("score(hidden=0)", "hidden 0: give at least 1"),
    ):
        with pytest.raises(ArcapsError, match=match):
            Routing.build(spec, 2, 2, 2)


def test_query_key_weighs_the_slice_of_each_head_by_itself() -> None:
    votes, query, key = torch.randn(2, 3, 4, 6).double(), *torch.randn(2, 3, 6, 6).double()
    presence = torch.tensor([[1.0, 0.0, 0.3, 1.0], [1.0, 1.0, 1.0, 1.0]]).double()
    capsules, coefficients, _ = query_key_routing(votes, query, key, heads=2, presence=presence)
    for image in range(2):
        a = presence[image]
        for n in range(3):
            keys = votes[image, n] @ key[n]
            asked = (a @ votes[image, n] / a.sum()) @ query[n]
            shares = []
            for part in (slice(0, 3), slice(3, 6)):
                weights = a * (keys[:, part] @ asked[part] / 3**0.5).exp()
                shares.append(weights / weights.sum())
                same(capsules[image, n, part], shares[-1] @ votes[image, n, :, part])
            same(coefficients[image, n], sum(shares) / 2)
