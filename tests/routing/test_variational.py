"""Variational routing: its plain-loop reference, figures computed by hand, and its norms."""

from functools import partial
from math import e, log, pi

import pytest
import torch
from torch import Tensor

from arcaps import ArcapsError, Routing
from arcaps.routing import variational_routing
from arcaps.routing.variational import digamma_by_series, expected_log_likelihood

E1 = torch.tensor([[0.0, 2.0, 4.0], [1.0, 1.0, 4.0]], dtype=torch.float64).unsqueeze(-1)
"""Two outputs, three inputs, one dimension."""

same = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
hand = partial(torch.testing.assert_close, rtol=0, atol=1e-6)


def plain(votes: Tensor, presence: Tensor, iterations: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Centres, coefficients, shares of the mixture and entropies, in loops over outputs, inputs and dimensions."""
    outputs, inputs, dim = votes.shape
    r = [[1 / outputs] * inputs for _ in range(outputs)]
    for iteration in range(iterations):
        w = [[r[n][m] * float(presence[m]) for m in range(inputs)] for n in range(outputs)]
        mass = [sum(row) for row in w]
        psi = lambda x: float(torch.digamma(torch.tensor(x, dtype=torch.float64)))  # noqa: E731
        share = [psi(1 + one) - psi(outputs + sum(mass)) for one in mass]
        centres = torch.zeros(outputs, dim, dtype=torch.float64)
        scatter = torch.zeros(outputs, dim, dtype=torch.float64)
        precision = []
        for n in range(outputs):
            for d in range(dim):
                mean = sum(w[n][m] * votes[n, m, d] for m in range(inputs)) / mass[n]
                centres[n, d] = mass[n] * mean / (1 + mass[n])
                spread = sum(w[n][m] * (votes[n, m, d] - mean) ** 2 for m in range(inputs))
                scatter[n, d] = 1 + spread + mass[n] / (1 + mass[n]) * mean**2
            wishart = sum(psi((dim + 1 + mass[n] - i) / 2) for i in range(dim))
            precision.append(wishart + dim * log(2) - float(scatter[n].log().sum()))
        if iteration == iterations - 1:
            break
        for m in range(inputs):
            z = []
            for n in range(outputs):
                distance = float((((votes[n, m] - centres[n]) ** 2) / scatter[n]).sum())
                quadratic = dim / (1 + mass[n]) + (dim + 1 + mass[n]) * distance
                z.append(share[n] + precision[n] / 2 - dim / 2 * log(2 * pi) - quadratic / 2)
            for n in range(outputs):
                r[n][m] = e ** z[n] / sum(e**one for one in z)
    entropy = [dim / 2 * log(2 * pi * e) - one / 2 for one in precision]
    table = [torch.tensor(values, dtype=torch.float64) for values in (w, share, entropy)]
    return centres, table[0], table[1], table[2]


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_it_is_the_plain_loop(iterations: int) -> None:
    votes, presence = torch.randn(2, 3, 4, 5).double(), torch.rand(2, 4).double()
    found = variational_routing(votes, iterations=iterations, presence=presence)
    for index in range(2):
        centres, coefficients, share, entropy = plain(votes[index], presence[index], iterations)
        same(found.posterior.centre[index], centres)
        same(found.coefficients[index], coefficients)
        same(found.posterior.log_share[index], share)
        same(found.entropy[index], entropy)


def test_one_iteration_by_hand() -> None:
    posterior = variational_routing(E1, iterations=1).posterior
    hand(posterior.mass, torch.tensor([1.5, 1.5]).double())
    hand(posterior.centre, torch.tensor([[1.2], [1.2]]).double())
    hand(posterior.scatter, torch.tensor([[7.4], [6.4]]).double())
    hand(posterior.log_precision, torch.tensor([-1.060860, -0.915678]).double())
    hand(posterior.log_share, torch.tensor([-0.802961, -0.802961]).double())


def test_the_responsibilities_by_hand() -> None:
    posterior = variational_routing(E1, iterations=1).posterior
    expected = torch.tensor([[0.400785, 0.446949, 0.554064], [0.599215, 0.553051, 0.445936]]).double()
    hand(expected_log_likelihood(posterior).softmax(-2), expected)
    hand(variational_routing(E1, iterations=2).coefficients, expected)


def test_the_series_is_the_digamma_function() -> None:
    values = torch.logspace(-2, 4, 200, dtype=torch.float64).requires_grad_()
    torch.testing.assert_close(digamma_by_series(values), torch.digamma(values), rtol=1e-12, atol=1e-11)


def test_the_centre_goes_to_the_mean_as_inputs_come() -> None:
    vote = torch.randn(1, 1, 3).double()
    for inputs in (1, 10, 1000):
        posterior = variational_routing(vote.expand(1, inputs, 3), iterations=1).posterior
        same(posterior.centre, vote[:, 0] * inputs / (1 + inputs))


def test_equal_votes_for_all_outputs_are_divided_equally() -> None:
    votes = torch.randn(1, 4, 3).double().expand(5, 4, 3)
    same(variational_routing(votes).coefficients, torch.full((5, 4), 0.2, dtype=torch.float64))


def test_capsules_and_presence_are_the_normalised_centre_and_entropy() -> None:
    votes = torch.randn(64, 3, 5, 4).double()
    found = variational_routing(votes, iterations=3)
    routed = Routing.build("variational", 5, 3, 4).double()(votes)
    centre, evidence = found.posterior.centre, -found.posterior.log_share.exp() * found.entropy

    def normal(values: Tensor, over: tuple[int, ...]) -> Tensor:
        variance = values.var(over, correction=0, keepdim=True)
        return (values - values.mean(over, keepdim=True)) / (variance + 1e-5).sqrt()

    same(routed.capsules, normal(centre, (0, 2)))
    same(routed.presence, normal(evidence, (0,)).sigmoid())
    same(routed.coefficients, found.coefficients)


def test_an_output_that_loses_all_inputs_is_that_of_the_prior() -> None:
    """Its mass is 0 in float32 and hardly more in float64; the priors leave nothing undefined."""
    votes = torch.tensor([[0.0, 1.0], [300.0, -300.0]], dtype=torch.float64).view(1, 2, 2, 1)
    single, double = (
        Routing.build("variational", 2, 2, 1).eval()(votes.to(one)) for one in (torch.float, torch.double)
    )
    assert (single.coefficients[0, 1] == 0).all()
    assert (double.coefficients[0, 1] > 0).all()
    torch.testing.assert_close(single.capsules.double(), double.capsules)
    torch.testing.assert_close(single.presence.double(), double.presence)


def test_the_norms_see_the_batch_in_training_and_the_past_in_evaluation() -> None:
    routing = Routing.build("variational", 5, 3, 4)
    votes = 3 + torch.randn(64, 3, 5, 4)
    capsules, _, presence = routing(votes)
    torch.testing.assert_close(capsules.mean((0, 2)), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(capsules.var((0, 2), correction=0), torch.ones(3), rtol=0, atol=1e-3)
    torch.testing.assert_close(presence.logit().mean(0), torch.zeros(3), rtol=0, atol=1e-5)
    routing.eval()
    torch.testing.assert_close(routing(votes).capsules, capsules, rtol=0, atol=1e-2)  # one batch is all that was seen
    torch.testing.assert_close(routing(votes).presence, presence, rtol=0, atol=1e-2)
    torch.testing.assert_close(routing(votes[:1]).capsules, routing(votes).capsules[:1])


def test_one_image_can_be_trained_on() -> None:
    capsules, _, presence = Routing.build("variational", 5, 3, 4)(torch.randn(1, 3, 5, 4))
    assert capsules.isfinite().all()
    torch.testing.assert_close(presence, torch.full((1, 3), 0.5))


def test_mistakes_are_named() -> None:
    with pytest.raises(ArcapsError, match="variational routing with 0 iterations: give a whole number from 1 to 1000"):
        Routing.build("variational(iterations=0)", 2, 3, 4)
