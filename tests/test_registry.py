"""Names with options."""

from typing import Any

import pytest
import torch
from torch import Tensor

from arcaps import ArcapsError, ConvCaps, Routing
from arcaps.functional import mix_votes
from arcaps.registry import parse_spec


@pytest.mark.parametrize(
    ("spec", "name", "options"),
    [
        ("attention", "attention", {}),
        (" dynamic(iterations=5) ", "dynamic", {"iterations": 5}),
        ("x(a=1.5, b=(2, 3), c='d', e=None)", "x", {"a": 1.5, "b": (2, 3), "c": "d", "e": None}),
    ],
)
def test_parse_spec(spec: str, name: str, options: dict[str, Any]) -> None:
    assert parse_spec(spec) == (name, options)


@pytest.mark.parametrize(
    "spec", ["", "two words", "dynamic(5)", "dynamic(iterations=n)", "a.b", "f(x=__import__('os'))"]
)
def test_what_is_no_spec_is_refused(spec: str) -> None:
    with pytest.raises(ArcapsError, match="cannot read"):
        parse_spec(spec)


def test_names_and_options_get_suggestions() -> None:
    with pytest.raises(ArcapsError, match="unknown routing 'atention': did you mean 'attention'"):
        ConvCaps(2, 2, 2, 2, routing="atention")
    with pytest.raises(ArcapsError, match="activation 'squash' has no option 'compression': it takes none"):
        ConvCaps(2, 2, 2, 2, activation="squash(compression=2)")
    with pytest.raises(
        ArcapsError,
        match="unknown activation 'attention': there are capsule, identity, layer_norm, squash",
    ):
        ConvCaps(2, 2, 2, 2, activation="attention")


def test_a_routing_of_ones_own_is_known_by_its_name() -> None:
    class MeanRouting(Routing, name="mean"):
        def forward(self, votes: Tensor) -> tuple[Tensor, Tensor]:
            coefficients = torch.full_like(votes[..., 0], 1 / self.in_caps)
            return mix_votes(votes, coefficients), coefficients

    try:
        layer = ConvCaps(3, 4, 2, 4, routing="mean")
        assert repr(layer) == "ConvCaps(3x4 -> 2x4, 3x3/1, mean, capsule)"
        votes = torch.randn(5, 2, 3, 4)
        torch.testing.assert_close(layer.routing(votes)[0], votes.mean(-2))
    finally:
        del Routing.known["mean"]
