"""Self-routing: its plain-loop reference, and figures computed by hand."""

from functools import partial

import pytest
import torch
from torch import Tensor

from arcaps import ConvCaps, Routing
from arcaps.routing import self_routing
from tests.routing import reference

same = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
VOTES = torch.tensor([[[0.0], [1.0]], [[2.0], [4.0]]], dtype=torch.float64)
PRESENCE = torch.tensor([0.2, 0.8], dtype=torch.float64)


def votes_of(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def hand(found: Tensor | None, *expected: float) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


def test_it_is_the_plain_loop() -> None:
    votes, inputs, presence = votes_of(2, 3, 4, 5), votes_of(2, 4, 6), torch.rand(2, 4, dtype=torch.float64)
    weight, bias = votes_of(4, 6, 3), votes_of(4, 3)
    found = self_routing(votes, inputs, weight, bias, presence=presence)
    for index in range(2):
        expected = reference.self_routing(votes[index], presence[index], inputs[index], weight, bias)
        for one, other in zip(found, expected, strict=True):
            assert one is not None
            same(one[index], other)
    assert found.presence is not None
    same(found.presence.sum(-1), torch.ones(2).double())


def test_by_hand() -> None:
    inputs, weight, bias = torch.ones(2, 1).double(), torch.zeros(2, 1, 2).double(), torch.zeros(2, 2).double()
    start = self_routing(VOTES, inputs, weight, bias, presence=PRESENCE)
    hand(start.capsules[:, 0], 0.8, 3.6)
    hand(start.presence, 0.5, 0.5)
    weight[0, 0, 0] = 1
    found = self_routing(VOTES, inputs, weight, bias, presence=PRESENCE)
    hand(found.capsules[:, 0], 0.732317, 3.762937)
    hand(found.presence, 0.546212, 0.453788)


def test_at_the_start_it_is_the_weighted_mean() -> None:
    routing = Routing.build("self", 4, 3, 5, in_dim=6).double()
    votes, presence = votes_of(2, 3, 4, 5), torch.rand(2, 4, dtype=torch.float64)
    found = routing(votes, inputs=votes_of(2, 4, 6), presence=presence)
    same(found.capsules, (votes * presence[:, None, :, None]).sum(2) / presence.sum(-1)[:, None, None])
    same(found.presence, torch.full((2, 3), 1 / 3, dtype=torch.float64))


def test_what_votes_are_made_from_is_gathered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = ConvCaps(2, 4, 3, 5, routing="self")
    gather, calls = layer.votes.patches, []

    def counted(poses: Tensor) -> Tensor:
        calls.append(poses)
        return gather(poses)

    monkeypatch.setattr(layer.votes, "patches", counted)
    layer(torch.randn(2, 6, 6, 2, 4))
    assert len(calls) == 1
