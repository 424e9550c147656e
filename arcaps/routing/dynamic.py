"""Dynamic routing: CapsuleNet's routing by agreement."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.capsules import Routed
from arcaps.competition import over_outputs
from arcaps.functional import squash
from arcaps.routing.agreement import agreement_routing
from arcaps.routing.base import Compete, Routing, check_iterations


def dynamic_routing(
    votes: Float[Tensor, "*where out inp dim"],
    *,
    iterations: int = 3,
    presence: Float[Tensor, "*where inp"] | None = None,
    compete: Compete = over_outputs,
    bias: Float[Tensor, "out dim"] | None = None,
) -> Routed:
    """Route by agreement ("Dynamic routing between capsules", procedure 1).

        b = 0;  repeat: c = softmax over n of b;  s[n] = sum over m of a[m] c[n, m] v[n, m];  b += v . squash(s)

    Each input capsule divides itself among the output capsules: the softmax is over n, the outputs, or what `compete`
    says. Gradients flow through every iteration. The last squash is left to the layer's activation. The coefficients
    returned are `a * c`. It is `agreement_routing` with the squash as reference.
    """
    return agreement_routing(
        votes, reference=squash, iterations=iterations, presence=presence, compete=compete, bias=bias
    )


class DynamicRouting(Routing, name="dynamic"):
    """Dynamic routing with any number of iterations. It has no parameters, unless there is a `bias`.

    With `bias` a learned vector for each output, 0.1 at the start, is added to the sum of the votes in every
    iteration: so in the authors' code, though not in their paper, and in SegCaps. Without any bias, here or in the
    votes, a capsule network cannot tell an input from its negative. Leaky routing of the authors' code is
    `competition="outputs(leak=True)"`.
    """

    needs = frozenset({"presence", "compete"})
    divides = "outputs"

    def __init__(self, in_caps: int, out_caps: int, dim: int, *, iterations: int = 3, bias: bool = False) -> None:
        super().__init__(in_caps, out_caps, dim)
        check_iterations("dynamic", iterations)
        self.iterations = iterations
        self.bias = nn.Parameter(torch.full((out_caps, dim), 0.1)) if bias else None

    def forward(
        self,
        votes: Float[Tensor, "*where out inp dim"],
        *,
        presence: Float[Tensor, "*where inp"] | None = None,
        compete: Compete = over_outputs,
    ) -> Routed:
        return dynamic_routing(votes, iterations=self.iterations, presence=presence, compete=compete, bias=self.bias)
