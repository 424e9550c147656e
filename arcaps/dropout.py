"""Dropout with masks from random bytes: drawing floats or coin flips one by one costs ten times as much on a CPU."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.errors import ArcapsError


def random_bytes(count: int, device: torch.device) -> Tensor:
    """Uniform bytes, eight from each random number of torch's default generator."""
    words = torch.empty(-(-count // 8), dtype=torch.int64, device=device).random_(-(2**63), None)
    return words.view(torch.uint8)[:count]


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
        mask = torch.empty_like(values)
        chances = random_bytes(values.numel(), values.device).as_strided(values.shape, mask.stride())
        return values * torch.lt(chances, kept, out=mask).mul_(256 / max(kept, 1))

    def extra_repr(self) -> str:
        return f"p={self.p:g}"
