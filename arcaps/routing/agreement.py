"""Routing by agreement: one function, and the systems that are settings of it.

| system                         | reference N(s) | keep | tau             | T | besides                            |
|--------------------------------|----------------|------|-----------------|---|------------------------------------|
| `dynamic` (Sabour 2017)        | squash         | yes  | 1               | 3 | a learned bias, if asked           |
| `kl` (after Wang and Liu 2018) | unit length    | no   | free            | 3 |                                    |
| `inverted` (Tsai 2020)         | LayerNorm      | no   | sqrt(dim)       | 2 | the output is N(s)                 |
| `self_attention` (Mazzia 2021) | s itself       | no   | sqrt(dim) / out | 2 | a learned offset after the softmax |
| `uniform` (over the outputs)   |                |      |                 | 1 |                                    |

Leaky routing is `dynamic` with the competition `outputs(leak=True)`. `dynamic` has a file of its own.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.capsules import Routed
from arcaps.competition import over_outputs
from arcaps.errors import ArcapsError
from arcaps.functional import agreements, layer_norm, mix_votes, squash, unit
from arcaps.routing.base import Compete, Routing, check_iterations

Reference = Callable[[Tensor], Tensor]
"""Capsules `(..., out_caps, dim)` become the vectors that the votes are compared with."""


def agreement_routing(
    votes: Float[Tensor, "*where out inp dim"],
    *,
    reference: Reference = squash,
    keep: bool = True,
    tau: float = 1.0,
    iterations: int = 3,
    presence: Float[Tensor, "*where inp"] | None = None,
    compete: Compete = over_outputs,
    bias: Float[Tensor, "out dim"] | None = None,
    offset: Float[Tensor, "out inp"] | None = None,
) -> Routed:
    """Route by agreement: an input goes to the outputs whose capsule its vote agrees with.

        b[n, m] = 0
        repeat T times:  c = compete(b)                                          softmax over n, the outputs
                         s[n] = sum over m of a[m] c[n, m] v[n, m]  + bias[n]
                         b[n, m] = keep b[n, m] + <v[n, m], N(s[n])> / tau       not after the last

    `a` is the presence, `N` the `reference`; `keep` adds the agreements of all iterations up. `offset` is added to the
    last `c`. Gradients flow through every iteration. Returned are the last `s`, to which the activation of the layer is
    left, and `a * c`. Where all inputs are absent, `s` is the bias, or 0 without one.
    """
    logits = torch.zeros_like(votes[..., 0])
    for left in reversed(range(iterations)):
        shares = compete(logits)
        if offset is not None and not left:
            shares = shares + offset
        coefficients = shares if presence is None else shares * presence.unsqueeze(-2)
        capsules = mix_votes(votes, coefficients)
        if bias is not None:
            capsules = capsules + bias
        if left:
            agreement = agreements(votes, reference(capsules) / tau)
            logits = logits + agreement if keep else agreement
    return Routed(capsules, coefficients)


class KLRouting(Routing, name="kl"):
    """Routing as the descent of one objective ("An optimization view on dynamic routing between capsules", 2018).

        F(c, s) = - sum over n, m of c[n, m] <v[n, m], s[n]>  +  tau sum over n, m of c[n, m] ln(c[n, m] / p[n, m])

    with `||s[n]|| <= 1` and, for each input m, `sum over n of c[n, m] = 1`. Each half-step finds the exact minimum:

        s[n] = sum over m of c[n, m] v[n, m], divided by its length;   c[n, m] ~ p[n, m] exp(<v[n, m], s[n]> / tau)

    Without `keep`, `p` is uniform: the second term is the entropy of `c`. With `keep`, `p` is the last `c`, so that
    the agreements add up as in dynamic routing. `tau` and the scale of the votes trade off. No parameters.

    The descent is derived from the objective, not quoted: the text of Wang and Liu was not at hand. The capsule
    returned is the sum before the division by its length, so that its length says how far the votes agree; the
    bound on the norms of the transformation matrices is left out.
    """

    needs = frozenset({"presence", "compete"})
    divides = "outputs"

    def __init__(
        self, in_caps: int, out_caps: int, dim: int, *, iterations: int = 3, tau: float = 1.0, keep: bool = False
    ) -> None:
        super().__init__(in_caps, out_caps, dim)
        check_iterations("kl", iterations)
        if not tau > 0:
            raise ArcapsError(f"kl routing with tau={tau}: give a temperature above 0")
        self.iterations, self.tau, self.keep = iterations, tau, keep

    def forward(
        self,
        votes: Float[Tensor, "*where out inp dim"],
        *,
        presence: Float[Tensor, "*where inp"] | None = None,
        compete: Compete = over_outputs,
    ) -> Routed:
        return agreement_routing(
            votes,
            reference=unit,
            keep=self.keep,
            tau=self.tau,
            iterations=self.iterations,
            presence=presence,
            compete=compete,
        )


class InvertedRouting(Routing, name="inverted"):
    """Inverted dot-product attention ("Capsules with inverted dot-product attention routing", 2020).

        b[n, m] = <v[n, m], N(s[n])> / sqrt(dim);   c = softmax over n of b;   s[n] = sum over m of a[m] c[n, m] v[n, m]

    from `c = 1 / out`; the capsule is `N(s[n])`. `N` is a LayerNorm over the elements of a capsule with a learned
    scale and shift, one for the layer: all outputs and iterations share it. Its length says nothing of its presence:
    with the activation `identity` give `score="linear"`.

    What differs: the layers route one after another, not all at once ("concurrent routing"); the authors' votes are
    `votes="matrix"`; their logits are one learned vector's products with all class capsules, while the score `linear`
    has a vector for each class. Where all inputs are absent, the capsule is 0.
    """

    needs = frozenset({"presence", "compete"})
    divides = "outputs"

    def __init__(self, in_caps: int, out_caps: int, dim: int, *, iterations: int = 2) -> None:
        super().__init__(in_caps, out_caps, dim)
        check_iterations("inverted", iterations)
        if dim < 2:
            raise ArcapsError(f"inverted routing normalises the elements of a capsule, got dim={dim}: give at least 2")
        self.iterations = iterations
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(
        self,
        votes: Float[Tensor, "*where out inp dim"],
        *,
        presence: Float[Tensor, "*where inp"] | None = None,
        compete: Compete = over_outputs,
    ) -> Routed:
        normalise = partial(layer_norm, weight=self.weight, bias=self.bias)
        sums, coefficients, _ = agreement_routing(
            votes,
            reference=normalise,
            keep=False,
            tau=self.dim**0.5,
            iterations=self.iterations,
            presence=presence,
            compete=compete,
        )
        capsules = normalise(sums)
        if presence is not None:
            capsules = torch.where((presence > 0).any(-1)[..., None, None], capsules, 0)
        return Routed(capsules, coefficients)


class SelfAttentionRouting(Routing, name="self_attention"):
    """Self-attention routing ("Efficient-CapsNet: capsule network with self-attention routing", 2021).

        b[n, m] = <v[n, m], sum over k of a[k] v[n, k]> / sqrt(dim);   c = softmax over n of b
        s[n] = sum over m of a[m] (c[n, m] + offset[n, m]) v[n, m]

    One pass. The `offset` is learned, starts at 0 and is added AFTER the softmax, so that the coefficients sum to 1
    over the outputs at the start only. The authors squash with `activation="squash_variant"`, and their votes have no
    bias. The law of presence, `a`, is ours.
    """

    needs = frozenset({"presence"})
    divides = "neither"

    def __init__(self, in_caps: int, out_caps: int, dim: int) -> None:
        super().__init__(in_caps, out_caps, dim)
        self.offset = nn.Parameter(torch.zeros(out_caps, in_caps))

    def forward(
        self,
        votes: Float[Tensor, "*where out inp dim"],
        *,
        presence: Float[Tensor, "*where inp"] | None = None,
    ) -> Routed:
        return agreement_routing(
            votes,
            reference=lambda capsules: capsules,
            keep=False,
            tau=self.dim**0.5 / self.out_caps,
            iterations=2,
            presence=presence,
            offset=self.offset,
        )
