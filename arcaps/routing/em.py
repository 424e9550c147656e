"""EM routing: the votes as a mixture of Gaussians, one for each output capsule."""

from collections.abc import Sequence
from math import inf, isfinite, log, pi

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.capsules import Routed
from arcaps.competition import over_outputs
from arcaps.errors import ArcapsError
from arcaps.functional import mix_votes, shares_of, sum_over
from arcaps.routing.base import Compete, Routing, check_iterations, in_float32
from arcaps.routing.differences import SquaredDifferences


def em_routing(
    votes: Float[Tensor, "*where out inp dim"],
    beta_u: Float[Tensor, " out"],
    beta_a: Float[Tensor, " out"],
    *,
    inverse_temperatures: Sequence[float],
    mass_scale: float = 1.0,
    damping: float = 1.0,
    floor: float = 1e-4,
    relative: bool = False,
    presence: Float[Tensor, "*where inp"] | None = None,
    compete: Compete = over_outputs,
) -> Routed:
    """Fit a Gaussian to the votes for each output ("Matrix capsules with EM routing", 2018).

    From `r = compete(0)`, for each of the inverse temperatures `lambda`:

        M-step   w[n, m] = r[n, m] a[m];   R[n] = sum over m of w[n, m]
                 mu[n]  = sum over m of w[n, m] v[n, m] / R[n]
                 var[n] = sum over m of w[n, m] (v[n, m] - mu[n])^2 / R[n]  +  floor unit
                 cost[n] = mass_scale R[n] * sum over d of (beta_u[n] + ln(var[n, d] / unit[d]) / 2)
                 A[n] = sigmoid(lambda (beta_a[n] - cost[n]))
        E-step   z[n, m] = ln A[n] - sum over d of ((v[n, m, d] - mu[n, d])^2 / var[n, d] + ln(2 pi var[n, d])) / 2
                 r = compete(z)                                                 not after the last M-step

    Returned are the capsules `mu`, the coefficients `w` and the presence `A`. Densities stay logarithms, `ln A` is a
    logsigmoid, and the floor keeps the variance of a single vote from being 0. With `damping` below 1 the centre is
    `damping * mean + (1 - damping) * last centre`, from 0, and the variance is about that centre. An output whose mass
    is 0 in the number format has presence 0. Where all inputs are absent, all three are 0. Gradients flow through every
    iteration.

    `unit` is 1, as in the paper. With `relative` it is the variance of all votes for all outputs together, by the
    weights of the first M-step: the cost then compares an output's Gaussian with a single one for everything, and does
    not change with the scale of the votes.
    """
    dim, last = votes.shape[-1], len(inverse_temperatures) - 1
    shares = compete(torch.zeros_like(votes[..., 0]))
    centre, unit = votes.new_zeros(()), votes.new_ones(dim)
    for step, inverse_temperature in enumerate(inverse_temperatures):
        # M-step
        weights = shares if presence is None else shares * presence.unsqueeze(-2)  # (..., out, inp)
        mass = sum_over(weights, -1)  # (..., out)
        parts = shares_of(weights)  # (..., out, inp)
        mean = mix_votes(votes, parts)  # (..., out, dim)
        centre = mean if damping == 1 else damping * mean + (1 - damping) * centre
        squares = SquaredDifferences(votes, centre)
        variance = squares.over_inputs(parts)  # (..., out, dim)
        if relative and step == 0:
            spread = variance if damping == 1 else SquaredDifferences(votes, mean).over_inputs(parts)
            unit = total_variance(mean, spread, mass).unsqueeze(-2)  # (..., 1, dim)
        variance = variance + floor * unit
        log_variance = sum_over(variance.log(), -1)  # (..., out)
        cost = mass_scale * mass * (dim * beta_u + 0.5 * (log_variance - sum_over(unit.log(), -1)))
        logits = inverse_temperature * (beta_a - cost)
        if step < last:
            # E-step
            distance = squares.over_elements(1 / variance)  # (..., out, inp)
            constant = F.logsigmoid(logits) - 0.5 * (log_variance + dim * log(2 * pi))
            shares = compete(-0.5 * distance + constant.unsqueeze(-1))
    return Routed(centre, weights, torch.where(mass > 0, logits.sigmoid(), 0))


def total_variance(
    means: Float[Tensor, "*where out dim"],
    variances: Float[Tensor, "*where out dim"],
    mass: Float[Tensor, "*where out"],
) -> Float[Tensor, "*where dim"]:
    """The variance of all votes together, within the outputs and between them, with 1e-7 added.

    Not less: the exporter to ONNX takes numbers up to 1e-8 for 0 and leaves out their addition.
    """
    parts = shares_of(mass)
    mean = mix_votes(means, parts).unsqueeze(-2)
    return mix_votes(variances + (means - mean).square(), parts) + 1e-7


class EMRouting(Routing, name="em"):
    """EM routing with its `beta_u` and `beta_a`, one of each for every output channel; both start at 0.

    The inverse temperature of iteration t = 0, 1, ... is `lambda (1 - 0.95^(t + 1))`, as the authors wrote. How large
    a cost becomes depends on how many inputs there are for an output. With `mass="relative"` it is counted per unit of
    `inp / out`, the mass at the start with the competition `outputs`, and `inverse_temperature`, lambda, is 1: one
    value then serves layers of all sizes (Gritzman 2019), with this competition. With `overlap` the start has as many
    times less mass as there are windows over an input, with `image` as there are positions, and costs count that much
    less. With `mass="paper"` the mass is as it is, and lambda 0.01.

    How large a cost is depends on the scale of the votes too. At the start of a training votes become shorter from
    layer to layer; with the paper's cost all variances are then near the floor, and all outputs are present alike,
    without a gradient. With `variance="relative"` variances, and the floor, are counted in units of the variance of all
    votes together. The parameter `beta_a` is then counted in units of the last logit, so that it learns as fast as the
    others. Where the presence is the score, dropout before the votes looks like disagreement: train without it.

    What differs from the paper: the relative mass and variance, two iterations instead of three, which two
    re-implementations found better, and a floor of the variance. The M-step of the code that the authors released is
    `em(mass="paper", variance="paper", inverse_temperature=0.02, damping=0.9, floor=5e-4)`, where only the betas start
    elsewhere. For the paper's own layer give votes "matrix", competition "overlap", activation "identity" and score
    "presence". It is computed in float32 or better: variances do not fit into 16 bits.
    """

    needs = frozenset({"presence", "compete"})
    divides = "outputs"
    gives_presence = True
    logits_are_densities = True

    def __init__(
        self,
        in_caps: int,
        out_caps: int,
        dim: int,
        *,
        iterations: int = 2,
        mass: str = "relative",
        inverse_temperature: float | None = None,
        damping: float = 1.0,
        floor: float = 1e-4,
        variance: str = "relative",
    ) -> None:
        super().__init__(in_caps, out_caps, dim)
        check_iterations("em", iterations)
        if mass not in ("relative", "paper"):
            raise ArcapsError(f"em routing with mass={mass!r}: there are relative, paper")
        if variance not in ("relative", "paper"):
            raise ArcapsError(f"em routing with variance={variance!r}: there are relative, paper")
        if not 0 < damping <= 1:
            raise ArcapsError(f"em routing with damping={damping}: give a number above 0, at most 1 (no damping)")
        if not (isfinite(floor) and floor > 0):
            raise ArcapsError(f"em routing with floor={floor}: give a variance above 0, such as 1e-4")
        self.iterations, self.damping, self.floor = iterations, damping, floor
        self.mass_scale = out_caps / in_caps if mass == "relative" else 1.0
        if inverse_temperature is None:
            inverse_temperature = 1.0 if mass == "relative" else 0.01
        if not (isinstance(inverse_temperature, float | int) and 0 < inverse_temperature < inf):
            raise ArcapsError(f"em routing with inverse_temperature={inverse_temperature!r}: give a number above 0")
        self.inverse_temperatures = [inverse_temperature * (1 - 0.95 ** (t + 1)) for t in range(iterations)]
        self.relative = variance == "relative"
        self.beta_u = nn.Parameter(torch.zeros(out_caps))
        self.beta_a = nn.Parameter(torch.zeros(out_caps))

    @in_float32
    def forward(
        self,
        votes: Float[Tensor, "*where out inp dim"],
        *,
        presence: Float[Tensor, "*where inp"] | None = None,
        compete: Compete = over_outputs,
    ) -> Routed:
        return em_routing(
            votes,
            self.beta_u.to(votes.dtype),
            self.beta_a.to(votes.dtype) / (self.inverse_temperatures[-1] if self.relative else 1),
            inverse_temperatures=self.inverse_temperatures,
            mass_scale=self.mass_scale,
            damping=self.damping,
            floor=self.floor,
            relative=self.relative,
            presence=presence,
            compete=compete,
        )
