"""Dynamic routing: CapsuleNet's routing by agreement."""

from collections.abc import Callable

from einops import einsum
from jaxtyping import Float
from torch import Tensor

from arcaps.capsules import Routed
from arcaps.competition import over_outputs
from arcaps.errors import ArcapsError
from arcaps.functional import mix_votes, squash
from arcaps.routing.base import Routing


def dynamic_routing(
    votes: Float[Tensor, "*where out inp dim"],
    *,
    iterations: int = 3,
    presence: Float[Tensor, "*where inp"] | None = None,
    compete: Callable[[Tensor], Tensor] = over_outputs,
) -> Routed:
    """Route by agreement ("Dynamic routing between capsules", procedure 1).

        b = 0;  repeat: c = softmax over n of b;  s[n] = sum over m of a[m] c[n, m] v[n, m];  b += v . squash(s)

    Each input capsule divides itself among the output capsules: the softmax is over n, the outputs, or what `compete`
    says. Gradients flow through every iteration. The last squash is left to the layer's activation. The coefficients
    returned are `a * c`.
    """
    logits = votes.new_zeros(votes.shape[:-1])

    def mix() -> tuple[Tensor, Tensor]:
        coefficients = compete(logits)
        coefficients = coefficients if presence is None else coefficients * presence.unsqueeze(-2)
        return mix_votes(votes, coefficients), coefficients

    capsules, coefficients = mix()
    for _ in range(iterations - 1):
        logits = logits + einsum(votes, squash(capsules), "... out inp dim, ... out dim -> ... out inp")
        capsules, coefficients = mix()
    return Routed(capsules, coefficients)


class DynamicRouting(Routing, name="dynamic"):
    """Dynamic routing with any number of iterations. It has no parameters."""

    needs = frozenset({"presence", "compete"})
    divides = "outputs"

    def __init__(self, in_caps: int, out_caps: int, dim: int, *, iterations: int = 3) -> None:
        super().__init__(in_caps, out_caps, dim)
        if iterations < 1:
            raise ArcapsError(f"dynamic routing with {iterations} iterations: give at least 1")
        self.iterations = iterations

    def forward(
        self,
        votes: Float[Tensor, "*where out inp dim"],
        *,
        presence: Float[Tensor, "*where inp"] | None = None,
        compete: Callable[[Tensor], Tensor] = over_outputs,
    ) -> Routed:
        return dynamic_routing(votes, iterations=self.iterations, presence=presence, compete=compete)
