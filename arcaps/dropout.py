"""Dropout with masks from random bytes."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.compat import needs_plain_functions
from arcaps.errors import ArcapsError
from arcaps.kernels import dropout_mask


class Dropout(nn.Module):
    """Set each element to zero with probability `p`, to the nearest 1/256, and scale up the others: 0.5 is exact."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ArcapsError(f"dropout is {p}: give a probability")
        self.p = p

    def forward(self, values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        kept = 256 - round(256 * self.p)
        if not self.training or kept == 256:
            return values
        if needs_plain_functions():
            return F.dropout(values, 1 - kept / 256)
        return values * dropout_mask(values, kept)

    def extra_repr(self) -> str:
        return f"p={self.p:g}"
