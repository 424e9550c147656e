"""Names with options."""

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import arcaps
from arcaps import ArcapsError, ConvCaps, DynamicRouting, Routing
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


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(ArcapsError, match="routing name 'dynamic' is taken by arcaps"):

        class Mine(Routing, name="dynamic"):
            pass

    assert Routing.known["dynamic"].__name__ == "DynamicRouting"


def test_a_class_may_be_defined_again() -> None:
    def define(count: int) -> type[Routing]:
        class Again(Routing, name="again"):
            number = count

        return Again

    try:
        assert [define(1), define(2)][1] is Routing.find("again")
    finally:
        del Routing.known["again"]


def test_the_spec_asks_for_the_object_again() -> None:
    for spec in ("attention", "dynamic(iterations=5)", "query_key(heads=2)", "attention(heads=2, scale=True)"):
        routing = Routing.build(spec, 3, 2, 4)
        assert repr(routing) == routing.spec == spec
        assert repr(copy.deepcopy(routing)) == spec
    assert DynamicRouting(3, 2, 4, iterations=7).spec == "dynamic(iterations=7)"
    assert Routing.build("dynamic(iterations=3)", 3, 2, 4).spec == "dynamic"


def test_every_family_is_listed() -> None:
    assert {"attention", "dynamic", "query_key", "random", "uniform"} <= set(arcaps.list_routings())
    assert {"capsule", "identity", "layer_norm", "squash", "squash_variant"} <= set(arcaps.list_activations())
    assert {"ar_capsnet", "capsule_net", "conv_net", "strong_conv_net"} <= set(arcaps.list_models())
    assert {"conv", "window"} <= set(arcaps.list_votes())
    assert {"image", "outputs", "overlap"} <= set(arcaps.list_competitions())
    assert {"length", "linear", "presence"} <= set(arcaps.list_scores())
    assert {"cross_entropy", "margin", "spread"} <= set(arcaps.list_losses())


@pytest.mark.slow
def test_parts_of_the_package_are_found_after_a_plain_import() -> None:
    parts = ("functional", "testing", "routing", "models", "data", "training", "layers", "losses", "votes", "settings")
    code = "import arcaps\n" + "\n".join(f"arcaps.{part}" for part in parts)
    subprocess.run([sys.executable, "-c", code], check=True)
