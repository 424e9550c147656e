"""Votes of matrix capsules: a pose is a small matrix, and a vote is its product with another."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.errors import ArcapsError
from arcaps.init import glorot_uniform_
from arcaps.votes.conv import WindowVotes


class MatrixVotes(WindowVotes, name="matrix"):
    """Votes by p x p matrices: `v[n, m] = pose[m] W[n, m]`, one vote of each capsule in the window.

    A capsule is a p x p matrix, row by row: both dimensions are `p * p`, such as 16. A vote has `p^2` parameters
    instead of the `p^4` of `window`, whose matrix would be `kron(1, W)`. The options are those of `window`; the
    coordinates go to the first two elements of the right-hand column, as in the paper. From "Matrix capsules with EM
    routing" (Hinton, Sabour, Frosst, 2018), which has no bias; here it is the layer's choice.
    """

    @property
    def side(self) -> int:
        """p: a pose is p x p."""
        return round(self.in_dim**0.5)

    def make_parameters(self, count: int, bias: bool) -> None:
        """One matrix from each input to each output channel, Glorot uniform; zero biases."""
        if self.in_dim != self.out_dim or self.side**2 != self.in_dim:
            raise ArcapsError(
                f"matrix votes from dimension {self.in_dim} to {self.out_dim}: give both the same square, "
                "such as 16 for 4x4"
            )
        self.weight = nn.Parameter(torch.empty(count, self.side, self.out_caps, self.side))
        self.bias = nn.Parameter(torch.zeros(count, self.out_caps, self.out_dim)) if bias else None
        glorot_uniform_(self.weight, self.side, self.side)

    @property
    def coordinate_elements(self) -> tuple[int, int]:
        return self.side - 1, 2 * self.side - 1

    def vote(
        self, patches: Float[Tensor, "batch h w place inp in_dim"]
    ) -> Float[Tensor, "batch h w place out inp dim"]:
        where = patches.shape[:-2]
        rows = rearrange(patches.flatten(0, -3), "r m (i j) -> m (r i) j", i=self.side)
        products = torch.bmm(rows, self.weight.flatten(2))  # (inp, row i, out k)
        votes = rearrange(products, "m (r i) (n k) -> r n m (i k)", i=self.side, k=self.side)
        if self.bias is not None:
            votes = votes + rearrange(self.bias, "m n e -> n m e")
        return votes.unflatten(0, where)
