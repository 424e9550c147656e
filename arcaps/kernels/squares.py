"""Squared differences of votes and their centres."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from arcaps.kernels.twice import plain_gradients


def plain_squares(
    votes: Float[Tensor, "*where out inp dim"], centre: Float[Tensor, "*where out dim"]
) -> Float[Tensor, "*where out inp dim"]:
    """`(votes[..., n, m, :] - centre[..., n, :])^2`."""
    return (votes - centre.unsqueeze(-2)).square()


class Squares(torch.autograd.Function):
    """The faster twin of `plain_squares`.

    The backward pass makes the differences again instead of keeping them: one tensor of the size of the votes less in
    memory for each use, and fewer passes over it. All of them lie in memory as the votes do.
    """

    @staticmethod
    def forward(ctx: Any, votes: Tensor, centre: Tensor) -> Tensor:
        ctx.save_for_backward(votes, centre)
        return (votes - centre.unsqueeze(-2)).square_()  # (..., out, inp, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        votes, centre = ctx.saved_tensors
        if torch.is_grad_enabled():
            return plain_gradients(plain_squares, (votes, centre), (gradient,))
        of_votes = (votes - centre.unsqueeze(-2)).mul_(gradient).mul_(2)  # (..., out, inp, dim)
        return of_votes, of_votes.sum(-2).neg_()  # the last one: (..., out, dim)
