"""Squared differences of votes and their centres."""

from typing import Any

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from arcaps.kernels.mixing import sum_as_it_lies, sum_of_inputs
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
        return of_votes, sum_as_it_lies(of_votes, -2).neg_()  # the last one: (..., out, dim)


def plain_spread(
    votes: Float[Tensor, "*where inp dim"], centre: Float[Tensor, "*where dim"], weights: Float[Tensor, "*where inp"]
) -> Float[Tensor, "*where dim"]:
    """`sum over m of weights[..., m] (votes[..., m, :] - centre)^2`."""
    return einsum(weights, plain_squares(votes, centre), "... inp, ... inp dim -> ... dim")


def plain_distances(
    votes: Float[Tensor, "*where inp dim"], centre: Float[Tensor, "*where dim"], precision: Float[Tensor, "*where dim"]
) -> Float[Tensor, "*where inp"]:
    """`sum over d of precision[..., d] (votes[..., m, d] - centre[..., d])^2`."""
    return einsum(plain_squares(votes, centre), precision, "... inp dim, ... dim -> ... inp")


class Spread(torch.autograd.Function):
    """The faster twin of `plain_spread`, for votes with the positions last in memory.

    The squares of one input or one element at a time are in memory, never all of them.
    """

    @staticmethod
    def forward(ctx: Any, votes: Tensor, centre: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(votes, centre, weights)
        total = torch.zeros_like(centre)  # (..., dim)
        for m in range(votes.shape[-2]):
            total.addcmul_((votes[..., m, :] - centre).square_(), weights[..., m, None])
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        votes, centre, weights = ctx.saved_tensors
        if torch.is_grad_enabled():
            return plain_gradients(plain_spread, (votes, centre, weights), (gradient,))
        of_votes, of_weights, twice = torch.empty_like(votes), torch.zeros_like(weights), 2 * weights
        for d in range(votes.shape[-1]):
            differences = votes[..., d] - centre[..., None, d]  # (..., inp)
            scaled = differences * gradient[..., None, d]  # (..., inp)
            of_weights.addcmul_(scaled, differences)
            torch.mul(scaled, twice, out=of_votes[..., d])
        return of_votes, sum_of_inputs(of_votes).neg_(), of_weights


class Distances(torch.autograd.Function):
    """The faster twin of `plain_distances`, as `Spread` is."""

    @staticmethod
    def forward(ctx: Any, votes: Tensor, centre: Tensor, precision: Tensor) -> Tensor:
        ctx.save_for_backward(votes, centre, precision)
        total = torch.zeros_like(votes[..., 0])  # (..., inp)
        for d in range(votes.shape[-1]):
            total.addcmul_((votes[..., d] - centre[..., None, d]).square_(), precision[..., None, d])
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        votes, centre, precision = ctx.saved_tensors
        if torch.is_grad_enabled():
            return plain_gradients(plain_distances, (votes, centre, precision), (gradient,))
        of_votes, twice = torch.empty_like(votes), 2 * precision
        of_centre, of_precision = torch.zeros_like(centre), torch.zeros_like(precision)
        for m in range(votes.shape[-2]):
            differences = votes[..., m, :] - centre  # (..., dim)
            scaled = differences * gradient[..., m, None]  # (..., dim)
            of_precision.addcmul_(scaled, differences)
            of_centre.sub_(torch.mul(scaled, twice, out=of_votes[..., m, :]))
        return of_votes, of_centre, of_precision
