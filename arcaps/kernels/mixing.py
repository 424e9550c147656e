"""Sums of votes over the inputs and over their elements, where the votes lie with the positions last in memory.

In this order every step runs along thousands of positions without a break. With the elements last the same sums are
as many small matrix products as there are positions and outputs, and take ten times as long on a CPU.
"""

from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from arcaps.compat import needs_plain_functions
from arcaps.kernels.twice import plain_gradients


def along_positions(votes: Float[Tensor, "*where inp dim"], *others: Tensor) -> bool:
    """Whether the passes of this file are for these tensors: float32 or 64, on a CPU, the elements not last."""
    return (
        votes.device.type == "cpu"
        and votes.stride(-1) != 1
        and votes.dtype in (torch.float32, torch.float64)
        and all(other.dtype == votes.dtype for other in others)
        and not needs_plain_functions()
    )


def memory_order(values: Tensor) -> list[int]:
    """The axes, those with the largest steps in memory first."""
    return sorted(range(values.ndim), key=values.stride, reverse=True)


def sum_as_it_lies(values: Tensor, axis: int) -> Tensor:
    """The sum over an axis; its other axes keep their order in memory."""
    order = memory_order(values)
    axis %= values.ndim
    total = values.permute(order).sum(order.index(axis))
    rest = [place for place in order if place != axis]
    return total.permute([rest.index(place) for place in range(values.ndim) if place != axis])


def plain_mixed_votes(
    votes: Float[Tensor, "*where inp dim"], coefficients: Float[Tensor, "*where inp"]
) -> Float[Tensor, "*where dim"]:
    """`sum over m of coefficients[..., m] votes[..., m, :]`."""
    return einsum(coefficients, votes, "... inp, ... inp dim -> ... dim")


def plain_agreements(
    votes: Float[Tensor, "*where inp dim"], vectors: Float[Tensor, "*where dim"]
) -> Float[Tensor, "*where inp"]:
    """`sum over d of votes[..., m, d] vectors[..., d]`."""
    return einsum(votes, vectors, "... inp dim, ... dim -> ... inp")


def sum_over_inputs(votes: Tensor, coefficients: Tensor) -> Tensor:
    """Mix the votes, input by input."""
    total = votes[..., 0, :] * coefficients[..., 0, None]  # (..., dim)
    for m in range(1, votes.shape[-2]):
        total.addcmul_(votes[..., m, :], coefficients[..., m, None])
    return total


def sum_of_inputs(votes: Tensor) -> Tensor:
    """Add the votes up, input by input."""
    total = votes[..., 0, :].clone()  # (..., dim)
    for m in range(1, votes.shape[-2]):
        total.add_(votes[..., m, :])
    return total


def sum_over_elements(votes: Tensor, vectors: Tensor) -> Tensor:
    """Scalar products with the votes, element by element."""
    total = votes[..., 0] * vectors[..., None, 0]  # (..., inp)
    for d in range(1, votes.shape[-1]):
        total.addcmul_(votes[..., d], vectors[..., None, d])
    return total


def outer(coefficients: Tensor, vectors: Tensor, votes: Tensor) -> Tensor:
    """The product of each coefficient and each element: a gradient of the votes, which lies in memory as they do."""
    return torch.mul(coefficients.unsqueeze(-1), vectors.unsqueeze(-2), out=torch.empty_like(votes))


class MixedVotes(torch.autograd.Function):
    """The faster twin of `plain_mixed_votes`."""

    @staticmethod
    def forward(ctx: Any, votes: Tensor, coefficients: Tensor) -> Tensor:
        ctx.save_for_backward(votes, coefficients)
        return sum_over_inputs(votes, coefficients)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        votes, coefficients = ctx.saved_tensors
        if torch.is_grad_enabled():
            return plain_gradients(plain_mixed_votes, (votes, coefficients), (gradient,))
        return (
            outer(coefficients, gradient, votes) if ctx.needs_input_grad[0] else None,
            sum_over_elements(votes, gradient) if ctx.needs_input_grad[1] else None,
        )


def plain_sum_with_vector(
    votes: Float[Tensor, "*where inp dim"], vectors: Float[Tensor, "*where dim"]
) -> Float[Tensor, "*where inp dim"]:
    """`votes[..., m, :] + vectors`."""
    return votes + vectors.unsqueeze(-2)


class SumWithVector(torch.autograd.Function):
    """The faster twin of `plain_sum_with_vector`."""

    @staticmethod
    def forward(ctx: Any, votes: Tensor, vectors: Tensor) -> Tensor:
        return plain_sum_with_vector(votes, vectors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.sum(-2) if torch.is_grad_enabled() else sum_of_inputs(gradient)


class Agreements(torch.autograd.Function):
    """The faster twin of `plain_agreements`."""

    @staticmethod
    def forward(ctx: Any, votes: Tensor, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(votes, vectors)
        return sum_over_elements(votes, vectors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        votes, vectors = ctx.saved_tensors
        if torch.is_grad_enabled():
            return plain_gradients(plain_agreements, (votes, vectors), (gradient,))
        return (
            outer(gradient, vectors, votes) if ctx.needs_input_grad[0] else None,
            sum_over_inputs(votes, gradient) if ctx.needs_input_grad[1] else None,
        )


def reorder_to_positions_last(values: Float[Tensor, "*where a b"]) -> Float[Tensor, "*where a b"]:
    """The same values, the last two axes first in memory."""
    columns = values.flatten(-2).flatten(0, -2).mT.contiguous()  # (a b, row)
    return columns.mT.view(values.shape)


def reorder_to_elements_last(values: Float[Tensor, "*where a b"]) -> Float[Tensor, "*where a b"]:
    """The same values, contiguous. By way of two axes: torch's own copy takes ten times as long."""
    return rearrange(values, "... a b -> (a b) (...)").mT.contiguous().view(values.shape)


class PositionsLast(torch.autograd.Function):
    """`reorder_to_positions_last`; the gradient is reordered back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return reorder_to_positions_last(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return reorder_to_elements_last(gradient)


class ElementsLast(torch.autograd.Function):
    """`reorder_to_elements_last`; the gradient is reordered back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return reorder_to_elements_last(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return reorder_to_positions_last(gradient)
