"""EM routing: its plain-loop reference, and figures computed by hand."""

from functools import partial
from math import log, pi
from typing import Any

import pytest
import torch
from torch import Tensor

from arcaps import ArcapsError, ConvCaps, Routing, create_model
from arcaps.capsules import Capsules
from arcaps.data import load_data
from arcaps.kernels import Squares
from arcaps.kernels.squares import plain_squares
from arcaps.routing import EMRouting, em_routing
from tests.routing import reference

E1 = torch.tensor([[[0.0], [2.0], [4.0]], [[1.0], [1.0], [4.0]]], dtype=torch.float64)
"""Two outputs, three inputs, one dimension."""
SCHEDULE = [0.0005, 0.000975, 0.00142625]
NOUGHT = torch.zeros(2, dtype=torch.float64)

same = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def hand(found: Tensor | None, *expected: object) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


def votes_of(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def plain(votes: Tensor, steps: int, **options: object) -> tuple[Tensor, Tensor, Tensor]:
    """Without floor, betas and schedule, as the figures by hand."""
    out = votes.new_zeros(votes.shape[-3])
    found = em_routing(votes, out, out, **({"inverse_temperatures": [1.0] * steps, "floor": 0.0} | options))  # type: ignore[arg-type]
    assert found.presence is not None
    return found.capsules, found.coefficients, found.presence


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("damping", [1.0, 0.9])
@pytest.mark.parametrize("relative", [False, True])
def test_it_is_the_plain_loop(steps: int, damping: float, relative: bool) -> None:
    votes, presence = votes_of(2, 3, 4, 5), torch.rand(2, 4, dtype=torch.float64)
    betas = votes_of(2, 3)
    options: dict[str, Any] = {"inverse_temperatures": [0.1, 0.2, 0.3][:steps], "mass_scale": 0.8}
    options |= {"damping": damping, "floor": 0.01, "relative": relative}
    found = em_routing(votes, *betas, presence=presence, **options)
    for index in range(2):
        expected = reference.em(votes[index], presence[index], *betas, **options)
        for one, other in zip(found, expected, strict=True):
            assert one is not None
            same(one[index], other)


def test_one_iteration_is_mean_and_variance() -> None:
    votes = votes_of(7, 3, 5, 4)
    presence = torch.full((7, 5), 0.6, dtype=torch.float64)
    capsules, coefficients, activation = plain(votes, 1, presence=presence)
    same(capsules, votes.mean(-2))
    same(coefficients.sum(-1), torch.full((7, 3), 5 * 0.6 / 3, dtype=torch.float64))
    cost = 0.6 * 5 / 3 * 0.5 * votes.var(-2, correction=0).log().sum(-1)
    same(activation, (-cost).sigmoid())


def test_two_iterations_by_hand() -> None:
    capsules, coefficients, activation = plain(E1, 1)
    hand(capsules[:, 0], 2, 2)
    hand(coefficients.sum(-1), 1.5, 1.5)
    hand(activation, 0.323962, 0.372885)
    hand(-activation.logit(), 0.735622, 0.519860)
    hand((-activation.logit() / 0.75).exp(), 8 / 3, 2)  # the variances: the cost is 1.5 ln(var) / 2
    capsules, coefficients, activation = plain(E1, 2)
    hand(coefficients, (0.313354, 0.491380, 0.491380), (0.686646, 0.508620, 0.508620))
    hand(capsules[:, 0], 2.274707, 1.895518)
    hand(activation, 0.361346, 0.368213)
    variance = (coefficients * (E1[..., 0] - capsules).square()).sum(-1) / coefficients.sum(-1)
    hand(variance, 2.408065, 1.884601)


def test_the_schedule_by_hand() -> None:
    routing = Routing.build("em(mass='paper', iterations=3)", 3, 2, 1)
    assert routing.inverse_temperatures == pytest.approx(SCHEDULE)
    capsules, coefficients, activation = plain(E1, 2, inverse_temperatures=SCHEDULE[:2])
    hand(coefficients, (0.344367, 0.526501, 0.526501), (0.655633, 0.473499, 0.473499))
    hand(capsules[:, 0], 2.260682, 1.886353)
    hand(activation, 0.499849, 0.499877)


@pytest.mark.parametrize(
    ("mass", "variance", "iterations"),
    [("paper", "paper", 3), ("relative", "paper", 3), ("paper", "relative", 3), ("relative", "relative", 2)],
)
@pytest.mark.parametrize(("damping", "floor"), [(1.0, 1e-4), (0.9, 5e-4)])
def test_a_module_is_the_plain_loop_too(
    mass: str, variance: str, iterations: int, damping: float, floor: float
) -> None:
    """With the relative mass lambda is 1, not 0.01; with the relative variance beta_a is in units of the last one."""
    spec = f"em(iterations={iterations}, mass='{mass}', variance='{variance}', damping={damping}, floor={floor})"
    default = "em(iterations=2, mass='relative', variance='relative', damping=1.0, floor=0.0001)"
    routing: Any = Routing.build("em" if spec == default else spec, 4, 3, 5).double()
    for parameter in routing.parameters():
        assert (parameter == 0).all(), "where it starts"
        torch.nn.init.normal_(parameter)
    votes, presence = votes_of(2, 3, 4, 5), torch.rand(2, 4, dtype=torch.float64)
    found = routing(votes, presence=presence)
    schedule = [(100 if mass == "relative" else 1) * value for value in SCHEDULE[:iterations]]
    options: dict[str, Any] = {"inverse_temperatures": schedule, "damping": damping, "floor": floor}
    options |= {"mass_scale": 3 / 4 if mass == "relative" else 1.0, "relative": variance == "relative"}
    for index in range(2):
        betas = routing.beta_u, routing.beta_a / (schedule[-1] if variance == "relative" else 1)
        expected = reference.em(votes[index], presence[index], *betas, **options)
        for one, other in zip(found, expected, strict=True):
            same(one[index], other)


def test_beta_a_is_in_units_of_the_last_logit() -> None:
    votes = votes_of(1, 3, 4, 5).flatten(1, 2)
    votes = ((votes - votes.mean(1)) / votes.std(1, correction=0)).unflatten(1, (3, 4))  # in units of their variance
    relative, paper = EMRouting(4, 3, 5).double(), EMRouting(4, 3, 5, variance="paper").double()
    assert relative.inverse_temperatures == pytest.approx([0.05, 0.0975])
    with torch.no_grad():
        relative.beta_a.normal_()
        paper.beta_a.copy_(relative.beta_a / 0.0975)
    for one, other in zip(relative(votes), paper(votes), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_damping_by_hand() -> None:
    capsules, _, activation = plain(E1, 1, damping=0.9, floor=5e-4)
    hand(capsules[:, 0], 1.8, 1.8)
    cost = -activation.logit()  # 1.5 ln(var) / 2
    hand((cost / 0.75).exp(), 2.707167, 2.0405)


def test_the_m_step_of_the_code_that_the_authors_released() -> None:
    """Its logit is `lambda (R (-sum over d of ln var - beta_s D (ln(2 pi) + 1)) - 5000 beta_b)`, with lambda 0.0005."""
    options: dict[str, Any] = {"mass": "paper", "variance": "paper", "inverse_temperature": 0.02}
    routing = EMRouting(5, 3, 4, iterations=1, damping=0.9, floor=5e-4, **options).double()
    beta_s, beta_b = 0.5, 0.5  # where they start
    torch.nn.init.constant_(routing.beta_u, beta_s * (log(2 * pi) + 1) / 2)
    torch.nn.init.constant_(routing.beta_a, -2500 * beta_b)
    votes = votes_of(7, 3, 5, 4)
    variance = (votes - 0.9 * votes.mean(-2, keepdim=True)).square().mean(-2) + 5e-4
    logit = 0.0005 * (5 / 3 * (-variance.log().sum(-1) - beta_s * 4 * (log(2 * pi) + 1)) - 5000 * beta_b)
    same(routing(votes).presence, logit.sigmoid())


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("variance", ["relative", "paper"])
def test_moving_all_votes_moves_the_capsules_alone(iterations: int, variance: str) -> None:
    votes, by = votes_of(7, 3, 5, 4), votes_of(4)
    routing = Routing.build(f"em(iterations={iterations}, variance='{variance}')", 5, 3, 4).double()
    still, moved = routing(votes), routing(votes + by)
    torch.testing.assert_close(moved.capsules, still.capsules + by, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moved.coefficients, still.coefficients, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(moved.presence, still.presence, rtol=1e-8, atol=1e-9)


def test_the_relative_mass_does_not_depend_on_the_number_of_inputs() -> None:
    votes = votes_of(7, 3, 5, 4)
    twice = torch.cat([votes, votes], 2)
    few, many = Routing.build("em", 5, 3, 4).double(), Routing.build("em", 10, 3, 4).double()
    same(few(votes).presence, many(twice).presence)
    same(few(votes).capsules, many(twice).capsules)
    few, many = (Routing.build("em(mass='paper')", inputs, 3, 4).double() for inputs in (5, 10))
    assert not torch.allclose(few(votes).presence, many(twice).presence)


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_the_relative_variance_does_not_depend_on_the_scale_of_the_votes(iterations: int) -> None:
    votes = votes_of(7, 3, 5, 4)
    routing = Routing.build(f"em(iterations={iterations})", 5, 3, 4).double()
    still, scaled = routing(votes), routing(100 * votes)
    torch.testing.assert_close(scaled.presence, still.presence, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(scaled.capsules, 100 * still.capsules, rtol=1e-6, atol=1e-6)
    paper = Routing.build(f"em(iterations={iterations}, variance='paper')", 5, 3, 4).double()
    assert not torch.allclose(paper(votes).presence, paper(100 * votes).presence)


@pytest.mark.parametrize("damping", [1.0, 0.9])
def test_the_cost_is_relative_to_one_gaussian_for_all_votes(damping: float) -> None:
    votes = votes_of(7, 3, 5, 4)
    options: dict[str, Any] = {"floor": 0.01, "damping": damping}
    _, coefficients, presence = plain(votes, 1, relative=True, **options)
    together = votes.flatten(1, 2).var(1, correction=0)
    centre = damping * votes.mean(-2)
    variance = (votes - centre.unsqueeze(-2)).square().mean(-2)
    cost = 5 / 3 * 0.5 * (variance / together.unsqueeze(1) + 0.01).log().sum(-1)
    torch.testing.assert_close(presence, (-cost).sigmoid(), rtol=1e-6, atol=1e-6)
    assert (coefficients == 1 / 3).all()


@pytest.mark.parametrize("model", ["ar_capsnet", "matrix_capsules"])
def test_at_the_start_the_presence_of_real_digits_is_undecided(model: str) -> None:
    """With the paper's cost it is above 0.99 for all classes of matrix_capsules: no gradient, nothing is learned."""
    images = load_data("digits").test.images[:20].float() / 255
    options = {"routing": "em", "score": "presence"} if model == "ar_capsnet" else {}
    torch.manual_seed(0)
    scores = create_model(model, **options)(images).scores
    assert 0.2 < scores.mean() < 0.9
    assert scores.std(-1).mean() > 0.02


def test_absent_inputs_are_as_if_they_were_not_there() -> None:
    votes, betas = votes_of(7, 3, 5, 4), votes_of(2, 3)
    presence = torch.tensor([1.0, 0.0, 0.3, 0.0, 0.5], dtype=torch.float64).expand(7, 5)
    there = presence[0] > 0
    found = em_routing(votes, *betas, inverse_temperatures=[0.5, 1.0], presence=presence)
    alone = em_routing(votes[:, :, there], *betas, inverse_temperatures=[0.5, 1.0], presence=presence[:, there])
    same(found.capsules, alone.capsules)
    same(found.presence, alone.presence)
    same(found.coefficients[:, :, there], alone.coefficients)


def test_the_presence_of_an_input_has_an_effect() -> None:
    votes = votes_of(7, 3, 5, 4)
    sure = torch.ones(7, 5).double()
    unsure = sure.clone()
    unsure[:, 0] = 0.1
    routing = Routing.build("em", 5, 3, 4).double()
    assert not torch.allclose(routing(votes, presence=sure).capsules, routing(votes, presence=unsure).capsules)


def test_overlapping_windows_share_an_input() -> None:
    layer = ConvCaps(1, 4, 1, 4, padding="valid", votes="window", routing="em(iterations=1)", competition="overlap")
    coefficients = layer(torch.zeros(1, 4, 4, 1, 4)).coefficients[0, :, :, 0].detach()  # (2, 2, 9)
    assert coefficients[0, 0].view(3, 3)[0, 0] == 1, "a corner is under one window"
    torch.testing.assert_close(coefficients[0, 0].view(3, 3)[0, 1], torch.tensor(1 / 2))
    torch.testing.assert_close(coefficients[0, 0].view(3, 3)[1, 1], torch.tensor(1 / 4))


def test_each_input_is_divided_among_all_windows_over_it() -> None:
    layer = ConvCaps(2, 4, 3, 4, padding="same", votes="window", routing="em(iterations=3)", competition="overlap")
    layer = layer.double()
    presence = torch.rand(2, 5, 6, 2).double()
    capsules = Capsules(votes_of(2, 5, 6, 2, 4), presence)
    weights = layer(capsules).coefficients  # a * r
    child = layer.votes.overlap(5, 6).child.flatten()  # type: ignore[union-attr]
    totals = torch.zeros(2, 5 * 6 * 2 + 1).double().index_add(1, child, weights.sum(-2).flatten(1))
    same(totals[:, :-1], presence.flatten(1))
    assert (totals[:, -1] == 0).all(), "padded places get nothing"


def test_extreme_votes_stay_finite() -> None:
    votes = torch.cat([1e4 * torch.randn(3, 4, 5, 6), torch.zeros(3, 4, 5, 6)], 2).requires_grad_()
    for spec in ("em(iterations=3)", "em(iterations=3, mass='paper')", "em(damping=0.9, floor=5e-4)"):
        found = Routing.build(spec, 10, 4, 6)(votes)
        (gradient,) = torch.autograd.grad(sum(x.sum() for x in found), votes)
        assert all(x.isfinite().all() for x in (*found, gradient))


@pytest.mark.parametrize("damping", [0.9, 0.5])
@pytest.mark.parametrize("spread", [0.0, 1e-3])
def test_damping_of_votes_that_are_nearly_equal_stays_finite(damping: float, spread: float) -> None:
    """Their variance is not the difference of two large numbers, which rounding could make negative."""
    votes = (10 * torch.randn(5, 1, 1, 6) + spread * torch.randn(5, 4, 8, 6)).requires_grad_()
    found = EMRouting(8, 4, 6, damping=damping)(votes)
    (gradient,) = torch.autograd.grad(sum(x.sum() for x in found), votes)
    assert all(x.isfinite().all() for x in (*found, gradient))


def test_it_does_not_run_in_sixteen_bits_and_its_presence_is_not_rounded() -> None:
    routing = Routing.build("em", 5, 4, 6)
    votes = torch.randn(3, 4, 5, 6)
    with torch.autocast("cpu", torch.bfloat16):
        found = routing(votes.bfloat16())
    expected = routing(votes.bfloat16().float())
    assert torch.equal(found.capsules, expected.capsules.bfloat16())
    assert torch.equal(found.coefficients, expected.coefficients.bfloat16())
    assert torch.equal(found.presence, expected.presence)


def test_mistakes_are_named() -> None:
    for spec, message in {
        "em(iterations=0)": "em routing with 0 iterations: give a whole number from 1 to 1000",
        "em(inverse_temperature=0.0)": "em routing with inverse_temperature=0.0: give a number above 0",
        "em(mass='other')": "em routing with mass='other': there are relative, paper",
        "em(variance='other')": "em routing with variance='other': there are relative, paper",
        "em(damping=0.0)": "give a number above 0, at most 1",
        "em(floor=0.0)": "give a variance above 0",
    }.items():
        with pytest.raises(ArcapsError, match=message):
            Routing.build(spec, 5, 4, 6)


def test_the_kernel_of_squared_differences_is_its_plain_twin() -> None:
    votes = votes_of(2, 5, 3, 4).permute(1, 2, 0, 3)  # as a layer makes them: the inputs are the first axis in memory
    leaves = [votes.requires_grad_(), votes_of(5, 3, 4).requires_grad_()]
    found, expected = Squares.apply(*leaves), plain_squares(*leaves)
    same(found, expected)
    weights = torch.rand_like(found)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
        strict=True,
    ):
        same(one, other)
    assert torch.autograd.gradgradcheck(Squares.apply, leaves)
