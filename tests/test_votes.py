"""Votes, presence and competition in a layer."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from arcaps import (
    ArcapsError,
    AttentionRouting,
    Capsules,
    ClassCaps,
    ConvCaps,
    ConvVotes,
    DynamicRouting,
    PrimaryCaps,
    Routed,
    Routing,
    WindowVotes,
    list_routings,
)
from arcaps.competition import Competition, list_competitions
from tests.dtypes import dtype, tolerance  # noqa: F401


def test_window_votes_are_one_matrix_per_place_and_channel() -> None:
    votes = WindowVotes(2, 3, 4, 5, kernel=3, stride=2)
    poses = torch.randn(1, 5, 6, 2, 3)
    found = votes(poses)
    assert found.shape == (1, 3, 3, 4, 18, 5)
    matrices = votes.weight.view(3, 3, 2, 3, 4, 5)
    assert votes.bias is not None
    for row, column, i, j, m, n in ((1, 1, 0, 2, 1, 3), (2, 2, 1, 0, 0, 0), (0, 1, 1, 1, 1, 2)):
        number = (i * 3 + j) * 2 + m
        expected = poses[0, 2 * row + i - 1, 2 * column + j - 1, m] @ matrices[i, j, m, :, n] + votes.bias[number, n]
        torch.testing.assert_close(found[0, row, column, n, number], expected, **tolerance())


def test_the_sum_of_window_votes_is_the_conv_vote() -> None:
    conv, window = ConvVotes(2, 3, 4, 5, bias=False), WindowVotes(2, 3, 4, 5, bias=False)
    with torch.no_grad():
        window.weight.copy_(conv.weight.permute(1, 2, 0, 3, 4, 5).reshape(window.weight.shape))
    poses = torch.randn(2, 4, 5, 2, 3)
    summed = window(poses).unflatten(-2, (9, 2)).sum(-3)
    torch.testing.assert_close(summed, conv(poses), **tolerance())


def test_a_padded_place_is_an_absent_input() -> None:
    votes = WindowVotes(2, 3, 4, 5)
    presence = votes.presence(Capsules(torch.randn(2, 4, 5, 2, 3)))
    assert presence is not None
    assert presence.sum((-1, -2, -3)).tolist() == [2 * (4 * 3 - 2) * (5 * 3 - 2)] * 2
    assert WindowVotes(2, 3, 4, 5, kernel=3, padding="valid").presence(Capsules(torch.randn(2, 4, 5, 2, 3))) is None


@pytest.mark.parametrize("votes", ["conv", "window"])
@pytest.mark.parametrize("routing", ["attention", "dynamic", "query_key", "uniform", "random"])
def test_absent_capsules_at_the_border_are_like_a_smaller_image(votes: str, routing: str) -> None:
    layer = ConvCaps(2, 4, 3, 4, votes=votes, routing=routing)
    poses = torch.randn(2, 6, 5, 2, 4)
    there = torch.ones(2, 6, 5, 2)
    there[:, 4:] = 0
    found, small = layer(Capsules(poses, there)), layer(Capsules(poses[:, :4], there[:, :4]))
    torch.testing.assert_close(found.poses[:, :4], small.poses, **tolerance())
    torch.testing.assert_close(layer(Capsules(poses, torch.ones_like(there))).poses, layer(poses).poses, **tolerance())


def test_the_fast_path_is_taken_with_conv_votes_where_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    layers = {votes: ConvCaps(2, 4, 3, 4, votes=votes) for votes in ("conv", "window")}

    def note(name: str, *given: Any) -> Routed:
        calls.append(name)
        return AttentionRouting.route(layers[name].routing, *given)  # type: ignore[arg-type]

    for name, layer in layers.items():
        monkeypatch.setattr(layer.routing, "route", partial(note, name))
    poses = torch.randn(1, 4, 4, 2, 4)
    layers["window"](poses)
    layers["conv"](Capsules(poses, torch.ones(1, 4, 4, 2)))
    assert calls == []
    layers["conv"](poses)
    assert calls == ["conv"]


def test_a_routing_gets_what_it_needs_and_no_more() -> None:
    seen: list[dict[str, Tensor]] = []

    class Curious(Routing):
        needs = frozenset({"inputs", "presence"})

        def __init__(self, in_caps: int, out_caps: int, dim: int, *, in_dim: int) -> None:
            super().__init__(in_caps, out_caps, dim)
            self.in_dim = in_dim

        def forward(self, votes: Tensor, **needed: Tensor) -> Routed:
            seen.append(needed)
            return Routed(votes.mean(-2), votes[..., 0], votes.mean((-1, -2)).sigmoid())

    layer = ConvCaps(2, 4, 3, 5, votes="window", routing=Curious)
    output = layer(torch.randn(1, 4, 4, 2, 4))
    (needed,) = seen
    assert sorted(needed) == ["inputs", "presence"]
    assert isinstance(layer.routing, Curious)
    assert layer.routing.in_dim == 4
    assert {name: tuple(value.shape) for name, value in needed.items() if isinstance(value, Tensor)} == {
        "inputs": (1, 4, 4, 18, 4),
        "presence": (1, 4, 4, 18),
    }
    assert output.presence is not None
    assert output.presence.shape == (1, 4, 4, 3)
    assert layer(output._replace(poses=torch.randn(1, 4, 4, 2, 4), presence=None)).poses.shape == (1, 4, 4, 3, 5)
    with pytest.raises(ArcapsError, match="Wrong needs votes: there are presence, inputs, compete"):
        type("Wrong", (Routing,), {"needs": frozenset({"votes"})})


def test_parts_are_names_finished_parts_or_factories() -> None:
    poses = torch.randn(1, 4, 4, 2, 4)
    finished = ConvCaps(2, 4, 3, 5, routing=DynamicRouting(18, 3, 5, iterations=2), votes=WindowVotes)
    assert repr(finished) == "ConvCaps(2x4 -> 3x5, 3x3/1, window, dynamic(iterations=2), capsule)"
    made = ConvCaps(2, 4, 3, 5, routing=partial(DynamicRouting, iterations=2), competition="outputs(leak=True)")
    assert repr(made) == "ConvCaps(2x4 -> 3x5, 3x3/1, dynamic(iterations=2), outputs(leak=True), capsule)"
    assert made(poses).poses.shape == (1, 4, 4, 3, 5)
    with pytest.raises(ArcapsError, match="a routing must be a Routing"):
        Routing.build(lambda *_: WindowVotes(2, 3, 4, 5), 2, 3, 4)
    with pytest.raises(ArcapsError, match="3 is no routing: give a name, a Routing or a callable"):
        Routing.build(3, 2, 3, 4)


def test_the_primary_layer_may_give_presence() -> None:
    capsules = PrimaryCaps(3, 2, 4, presence=True)(torch.randn(2, 3, 8, 8))
    assert capsules.presence is not None
    assert capsules.presence.shape == (2, 4, 4, 2)
    assert ((capsules.presence > 0) & (capsules.presence < 1)).all()


def shares(competition: str, logits: Tensor, kernel: int, size: tuple[int, int], **options: object) -> Tensor:
    votes = WindowVotes(logits.shape[-1] // kernel**2, 1, logits.shape[-2], 1, kernel, **options)  # type: ignore[arg-type]
    return Competition.build(competition)(logits, votes.overlap(*size))


def test_an_input_under_several_windows_divides_itself_among_them() -> None:
    logits = torch.zeros(1, 2, 2, 1, 9)
    found = shares("overlap", logits, 3, (4, 4), padding="valid")
    corner, edge, inner = found[0, 0, 0, 0, [0, 1, 4]].tolist()
    assert (corner, edge, inner) == pytest.approx((1, 1 / 2, 1 / 4))


@pytest.mark.parametrize(("leak", "scale"), [(False, 1.0), (False, 1e5), (True, 1.0)])
def test_the_shares_of_every_input_sum_to_one(leak: bool, scale: float) -> None:
    votes = WindowVotes(2, 1, 3, 1, kernel=3, stride=1)
    overlap = votes.overlap(4, 5)
    logits = (scale * torch.randn(2, 4, 5, 3, 18)).requires_grad_()
    found = Competition.build(f"overlap(leak={leak})")(logits, overlap)
    given = torch.zeros(2, overlap.children + 1)
    given.scatter_add_(1, overlap.child.flatten().expand(2, -1), found.detach().sum(-2).flatten(1))
    assert (given[:, -1] == 0).all()  # padded places
    if leak:
        assert (given[:, :-1] < 1).all()
    else:
        torch.testing.assert_close(given[:, :-1], torch.ones(2, 4 * 5 * 2), **tolerance())
    (gradient,) = torch.autograd.grad((found * torch.randn_like(found)).sum(), logits)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("stride", "padding"), [(1, "same"), (2, "valid"), (2, "same")])
@pytest.mark.parametrize("leak", [False, True])
def test_overlap_is_the_softmax_over_all_windows_in_plain_loops(leak: bool, stride: int, padding: str) -> None:
    logits = torch.randn(1, *WindowVotes(2, 1, 3, 1, 3, stride, padding).new_size(4, 5), 3, 18)
    found = shares(f"overlap(leak={leak})", logits, 3, (4, 5), stride=stride, padding=padding)
    border = 1 if padding == "same" else 0
    asked: dict[tuple[int, int, int], list[tuple[int, ...]]] = {}  # of every input capsule: who votes for whom
    for row, column, n, i, j, m in product(range(logits.shape[1]), range(logits.shape[2]), *map(range, (3, 3, 3, 2))):
        place = (stride * row + i - border, stride * column + j - border, m)
        if place[0] in range(4) and place[1] in range(5):
            asked.setdefault(place, []).append((0, row, column, n, (i * 3 + j) * 2 + m))
    expected = torch.zeros_like(logits)
    for votes in asked.values():
        total = sum(logits[vote].exp() for vote in votes) + leak
        for vote in votes:
            expected[vote] = logits[vote].exp() / total
    torch.testing.assert_close(found, expected, **tolerance())


def test_competition_of_outputs_and_of_the_image() -> None:
    logits = torch.randn(2, 3, 4, 5, 6)
    for name, axes in (("outputs", (-2,)), ("image", (-4, -3, -2))):
        torch.testing.assert_close(Competition.build(name)(logits).sum(axes), torch.ones_like(logits).mean(axes))
        leaking = Competition.build(f"{name}(leak=True)")(logits)
        expected = logits.exp() / (1 + logits.exp().sum(axes, keepdim=True))
        torch.testing.assert_close(leaking, expected, **tolerance())


@pytest.mark.parametrize("sixteen", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("leak", [False, True])
@pytest.mark.parametrize("name", list_competitions())
def test_shares_of_logits_in_sixteen_bits_are_rounded_once(name: str, leak: bool, sixteen: torch.dtype) -> None:
    logits = (8 * torch.randn(2, 4, 5, 3, 18)).to(sixteen)
    overlap = WindowVotes(2, 1, 3, 1, kernel=3).overlap(4, 5)
    competition = Competition.build(f"{name}(leak={leak})")
    found, expected = competition(logits, overlap), competition(logits.double(), overlap)
    assert found.dtype == sixteen
    limits = torch.finfo(sixteen)
    torch.testing.assert_close(found.double(), expected, rtol=limits.eps, atol=limits.tiny)


def test_one_iteration_over_the_image_divides_by_all_outputs_and_positions() -> None:
    votes = torch.randn(2, 3, 4, 5, 6, 8)  # as in DeepCaps
    found = DynamicRouting(6, 5, 8, iterations=1, bias=True)(votes, compete=Competition.build("image"))
    torch.testing.assert_close(found.capsules, votes.sum(-2) / (5 * 3 * 4) + 0.1, **tolerance())


def same(found: Capsules, expected: Capsules) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **tolerance())


@pytest.mark.parametrize("votes", ["conv", "window", "matrix(shared=True, coordinates=True)"])
@pytest.mark.parametrize("routing", list_routings())
@pytest.mark.parametrize("make", [ConvCaps, partial(ClassCaps, in_size=(4, 5))], ids=["conv", "class"])
def test_the_law_of_presence_in_a_layer(make: Callable[..., ConvCaps], routing: str, votes: str) -> None:
    divides = Routing.build(routing, 2, 2, 4, in_dim=4).divides
    competes = "compete" in Routing.find(routing).needs and divides != "inputs"
    densities = Routing.find(routing).logits_are_densities
    for competition, leak in product(list_competitions(), (False, True)):
        options = {"votes": votes, "routing": routing, "competition": f"{competition}(leak={leak})"}
        plain = competition == "outputs" and not leak
        if not (plain or competes) or (leak and densities) or (votes == "conv" and competition == "overlap"):
            with pytest.raises(ArcapsError, match=r"knows no competition|are densities|come from one capsule each"):
                make(2, 4, 3, 4, activation="identity", **options)
            continue
        layer = make(2, 4, 3, 4, activation="identity", **options).eval()
        poses, presence = torch.randn(3, 4, 5, 2, 4), (torch.rand(3, 4, 5, 2) - 0.5).relu()
        other = torch.where(presence.unsqueeze(-1) > 0, poses, 50 * torch.randn_like(poses))
        same(layer(Capsules(other, presence)), layer(Capsules(poses, presence)))
        same(layer(Capsules(poses, torch.ones_like(presence))), layer(poses))
        nothing = layer(Capsules(poses.requires_grad_(), torch.zeros_like(presence).requires_grad_()))
        assert all(one is None or (one == 0).all() for one in nothing)
        gradients = torch.autograd.grad(nothing.poses.sum(), [poses, *layer.parameters()], allow_unused=True)
        assert all(one is None or one.isfinite().all() for one in gradients)


def test_a_leak_is_an_output_whose_votes_are_zero() -> None:
    votes = torch.randn(3, 4, 5, 6)
    more = torch.cat([votes, torch.zeros(3, 1, 5, 6)], 1)
    found = DynamicRouting(5, 4, 6)(votes, compete=Competition.build("outputs(leak=True)"))
    expected = DynamicRouting(5, 5, 6)(more)
    torch.testing.assert_close(found.capsules, expected.capsules[:, :4], **tolerance())


def test_mistakes_are_named() -> None:
    with pytest.raises(ArcapsError, match="votes conv do not: give votes='window'"):
        ConvCaps(2, 4, 3, 5, routing="dynamic", competition="overlap")
    with pytest.raises(ArcapsError, match="routing attention knows no competition"):
        ConvCaps(2, 4, 3, 5, competition="image")
    for routing in ("random", "uniform(over='inputs')", "score"):
        with pytest.raises(ArcapsError, match=r"knows no competition, so overlap\b.* would change nothing"):
            ConvCaps(2, 4, 3, 5, votes="window", routing=routing, competition="overlap")
    with pytest.raises(ArcapsError, match=r"variational.* are densities.* image\(leak=True\).* without a leak"):
        ConvCaps(2, 4, 3, 5, routing="variational", competition="image(leak=True)")
    with pytest.raises(ArcapsError, match="uniform routing over 'all': there are outputs, inputs"):
        ConvCaps(2, 4, 3, 5, routing="uniform(over='all')")
