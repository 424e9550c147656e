"""Dynamic routing: CapsuleNet's routing by agreement."""

from einops import einsum
from jaxtyping import Float
from torch import Tensor

from arcaps.errors import ArcapsError
from arcaps.functional import mix_votes, squash
from arcaps.routing.base import Routing


def dynamic_routing(
    votes: Float[Tensor, "*where out inp dim"],
    *,
    iterations: int = 3,
) -> tuple[Float[Tensor, "*where out dim"], Float[Tensor, "*where out inp"]]:
    """Route by agreement ("Dynamic routing between capsules", procedure 1).

    Each input capsule divides itself among the output capsules: the softmax is over n, the outputs. Gradients flow
    through every iteration. The last squash is left to the layer's activation.
    """
    logits = votes.new_zeros(votes.shape[:-1])
    coefficients = logits.softmax(-2)
    capsules = mix_votes(votes, coefficients)
    for _ in range(iterations - 1):
        logits = logits + einsum(votes, squash(capsules), "... out inp dim, ... out dim -> ... out inp")
        coefficients = logits.softmax(-2)
        capsules = mix_votes(votes, coefficients)
    return capsules, coefficients


class DynamicRouting(Routing, name="dynamic"):
    """Dynamic routing with any number of iterations. It has no parameters."""

    def __init__(self, in_caps: int, out_caps: int, dim: int, *, iterations: int = 3) -> None:
        super().__init__(in_caps, out_caps, dim)
        if iterations < 1:
            raise ArcapsError(f"dynamic routing with {iterations} iterations: give at least 1")
        self.iterations = iterations

    def forward(
        self, votes: Float[Tensor, "*where out inp dim"]
    ) -> tuple[Float[Tensor, "*where out dim"], Float[Tensor, "*where out inp"]]:
        return dynamic_routing(votes, iterations=self.iterations)

    def __repr__(self) -> str:
        return f"dynamic(iterations={self.iterations})"
