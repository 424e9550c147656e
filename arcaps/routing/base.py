"""What every routing is."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from arcaps.registry import Named
from arcaps.votes import votes_of_patches


class Routing(nn.Module, Named, ABC, kind="routing"):
    """The votes for one output capsule become one vector.

    A routing maps votes `(..., out_caps, in_caps, dim)` to capsules `(..., out_caps, dim)` and the coefficients
    `(..., out_caps, in_caps)` that mixed them. It works on any leading axes and knows nothing of images. Its
    constructor takes `(in_caps, out_caps, dim)`, then its options by keyword.
    """

    def __init__(self, in_caps: int, out_caps: int, dim: int) -> None:
        super().__init__()
        self.in_caps, self.out_caps, self.dim = in_caps, out_caps, dim

    @abstractmethod
    def forward(
        self, votes: Float[Tensor, "*where out inp dim"]
    ) -> tuple[Float[Tensor, "*where out dim"], Float[Tensor, "*where out inp"]]:
        """Mix the votes; return the capsules and the coefficients."""

    def route(
        self,
        patches: Float[Tensor, "*where inp patch"],
        weight: Float[Tensor, "inp patch out out_dim"],
        bias: Float[Tensor, "inp out out_dim"] | None,
    ) -> tuple[Float[Tensor, "*where out out_dim"], Float[Tensor, "*where out inp"]]:
        """Route the votes that `patches` and kernels make: the call of a layer.

        A routing that can do with less than all the votes in memory at once overrides it, for speed alone: the result
        is that of `forward`.
        """
        return self(votes_of_patches(patches, weight, bias))

    def __repr__(self) -> str:
        return self.name
