"""Variational routing: a mixture of Gaussians with priors, so that no output can collapse onto one vote."""

from math import e, log, pi
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from arcaps.capsules import Routed
from arcaps.competition import over_outputs
from arcaps.functional import mix_votes, sum_over
from arcaps.norm import OutputNorm
from arcaps.routing.base import Compete, Routing, check_iterations, in_float32
from arcaps.routing.differences import SquaredDifferences


class Posterior(NamedTuple):
    """What is known of each output's Gaussian, given the votes and their weights."""

    mass: Float[Tensor, "*where out"]
    """R, the inputs that belong to it."""
    centre: Float[Tensor, "*where out dim"]
    """m, the expected mean."""
    scatter: Float[Tensor, "*where out dim"]
    """P, the inverse scale of the precision, a diagonal."""
    log_precision: Float[Tensor, "*where out"]
    """The expected logarithm of the precision's determinant."""
    log_share: Float[Tensor, "*where out"]
    """The expected logarithm of its part in the mixture."""
    squares: SquaredDifferences
    """The squared differences of the votes and the centre."""


class VariationalRouted(NamedTuple):
    """The outcome of the iterations, before it is normalised."""

    posterior: Posterior
    coefficients: Float[Tensor, "*where out inp"]
    """The share that each output gets of each input, times the input's presence."""
    entropy: Float[Tensor, "*where out"]
    """The expected entropy of the Gaussian."""


def digamma(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The digamma function of positive numbers."""
    return digamma_by_series(values) if torch.compiler.is_exporting() else torch.digamma(values)


def digamma_by_series(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The same by plain operations, for exported programs: ONNX has no digamma function.

        psi(x) = psi(x + 10) - sum over i < 10 of 1 / (x + i)
        psi(y) = ln y - 1 / (2 y) - 1 / (12 y^2) + 1 / (120 y^4) - 1 / (252 y^6) + 1 / (240 y^8)

    The series is good to 1e-12 where y is 10 or more.
    """
    below = sum((1 / (values + i) for i in range(10)), torch.zeros_like(values))
    y = values + 10
    square = 1 / y.square()
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    return y.log() - 0.5 / y - series - below


def sum_of_digammas(mass: Float[Tensor, "*shape"], dim: int) -> Float[Tensor, "*shape"]:
    """`sum over i < D of psi((D + 1 + R - i) / 2)`, with one digamma function in place of D where D is even.

    Two neighbouring terms are one of twice the argument, and whole steps are reciprocals:

        psi(x) + psi(x + 1/2) = 2 psi(2 x) - 2 ln 2;     psi(x + k) = psi(x) + sum over i < k of 1 / (x + i)

    The pairs are `2 psi(2 + R + 2 j) - 2 ln 2`, j < D / 2. Where D is odd, one term is left: `psi((D + 1 + R) / 2)`.
    """
    pairs = dim // 2
    total = 2 * pairs * (digamma(2 + mass) - log(2))
    for i in range(2 * pairs - 2):
        total = total + 2 * (pairs - 1 - i // 2) / (2 + i + mass)
    return total + digamma((dim + 1 + mass) / 2) if dim % 2 else total


def posterior_of(votes: Float[Tensor, "*where out inp dim"], weights: Float[Tensor, "*where out inp"]) -> Posterior:
    """Update the distribution of the parameters of each output, with priors alpha0 = kappa0 = 1, m0 = 0, Psi0 = I.

    R = sum over m of w;  alpha = 1 + R;  kappa = 1 + R;  nu = D + 1 + R
    mu = sum w v / R;  m = R mu / kappa;  P = 1 + sum w (v - mu)^2 + R / kappa mu^2 = 1 + sum w (v - m)^2 + m^2
    E ln|L| = sum over i < D of psi((nu - i) / 2) + D ln 2 - sum over d of ln P
    E ln pi = psi(alpha) - psi(sum over n of alpha)
    """
    dim = votes.shape[-1]
    mass = sum_over(weights, -1)
    centre = mix_votes(votes, weights) / (1 + mass.unsqueeze(-1))
    squares = SquaredDifferences(votes, centre)
    scatter = 1 + squares.over_inputs(weights) + centre.square()
    log_precision = sum_of_digammas(mass, dim) + dim * log(2) - sum_over(scatter.log(), -1)
    log_share = digamma(1 + mass) - digamma(sum_over(1 + mass, -1).unsqueeze(-1))
    return Posterior(mass, centre, scatter, log_precision, log_share, squares)


def expected_log_likelihood(posterior: Posterior) -> Float[Tensor, "*where out inp"]:
    """The logits of the responsibilities.

        z = E ln pi + E ln|L| / 2 - D/2 ln 2 pi - (D / kappa + nu sum over d of (v - m)^2 / P) / 2

    It is the expected logarithm of the density of each vote under each output, and of that output's part.
    """
    dim = posterior.centre.shape[-1]
    distance = posterior.squares.over_elements(posterior.scatter.reciprocal())
    of_output = posterior.log_share + (posterior.log_precision - dim * log(2 * pi) - dim / (1 + posterior.mass)) / 2
    return distance * (-(dim + 1 + posterior.mass) / 2).unsqueeze(-1) + of_output.unsqueeze(-1)


def variational_routing(
    votes: Float[Tensor, "*where out inp dim"],
    *,
    iterations: int = 3,
    presence: Float[Tensor, "*where inp"] | None = None,
    compete: Compete = over_outputs,
) -> VariationalRouted:
    """Cluster the votes by variational Bayes: outputs are Gaussians, inputs belong to them by responsibilities.

        r = compete(0);  repeat: w = r a;  update the posterior (`posterior_of`);  r = compete(z)
        H = D/2 ln(2 pi e) - E ln|L| / 2

    After "Capsule routing via variational Bayes" (Ribeiro, 2020), with its priors and a diagonal precision; the last
    iteration does not update r. What differs: the competition is one of ours, in log space (that of the authors is
    spatial, and clamped in exp space); responsibilities contain `E ln pi`, which one version of their code leaves out
    of the numerator; an output to which nothing belongs has mean 0 instead of 0/0. The prior keeps P at 1 or more, so
    an output with one input has no infinite density, and no floor of the variance is needed.
    """

    def weigh(logits: Tensor) -> Tensor:
        return compete(logits) if presence is None else compete(logits) * presence.unsqueeze(-2)

    coefficients = weigh(torch.zeros_like(votes[..., 0]))
    posterior = posterior_of(votes, coefficients)
    for _ in range(iterations - 1):
        coefficients = weigh(expected_log_likelihood(posterior))
        posterior = posterior_of(votes, coefficients)
    entropy = votes.shape[-1] / 2 * log(2 * pi * e) - posterior.log_precision / 2
    return VariationalRouted(posterior, coefficients, entropy)


class VariationalRouting(Routing, name="variational"):
    """Variational routing: capsules are the normalised centres, presence comes from the entropy.

        s[n] = BN(m[n]);   A[n] = sigmoid(BN(-exp(E ln pi[n]) H[n]))

    Both norms are without parameters, over everything but the output capsules, as in the authors' code. The source has
    two parameters more, which add a constant to each output before the norm; the norm takes it away again, so they
    cannot be learned, and are left out. Where all inputs are absent the capsule and its presence are 0. With
    `images_at_once` the norms see only those images.
    """

    needs = frozenset({"presence", "compete"})
    divides = "outputs"
    gives_presence = True
    logits_are_densities = True

    def __init__(self, in_caps: int, out_caps: int, dim: int, *, iterations: int = 3) -> None:
        super().__init__(in_caps, out_caps, dim)
        check_iterations("variational", iterations)
        self.iterations = iterations
        self.norm_of_capsules = OutputNorm(out_caps)
        self.norm_of_presence = OutputNorm(out_caps)

    @in_float32
    def forward(
        self,
        votes: Float[Tensor, "*where out inp dim"],
        *,
        presence: Float[Tensor, "*where inp"] | None = None,
        compete: Compete = over_outputs,
    ) -> Routed:
        found = variational_routing(votes, iterations=self.iterations, presence=presence, compete=compete)
        centre = found.posterior.centre
        evidence = -found.posterior.log_share.exp() * found.entropy
        capsules = self.norm_of_capsules(centre.flatten(0, -3) if centre.ndim > 2 else centre.unsqueeze(0))
        capsules = capsules.reshape(centre.shape)
        chance = self.norm_of_presence(evidence.reshape(-1, self.out_caps, 1)).reshape(evidence.shape).sigmoid()
        if presence is not None:
            there = (presence > 0).any(-1, keepdim=True)
            capsules, chance = capsules * there.unsqueeze(-1), chance * there
        return Routed(capsules, found.coefficients, chance)
