"""Attention routing of votes whose positions come last."""

from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from arcaps.compat import softmax_gradient
from arcaps.kernels.memory import aligned
from arcaps.kernels.twice import plain_gradients


def plain_routed_votes(
    votes: Float[Tensor, "inp out dim row"],
    bias: Float[Tensor, "inp out dim"],
    weight: Float[Tensor, "head out logit inp dim"],
    shift: Float[Tensor, "out head logit"],
) -> tuple[Float[Tensor, "row out dim"], Float[Tensor, "row out head inp"]]:
    """`multi_head_attention_routing` of votes that have their bias apart; the bias adds `shift` to the logits."""
    votes = rearrange(votes, "inp out dim row -> row out inp dim")
    logits = einsum(votes, weight, "row out inp dim, head out logit inp dim -> row out head logit") + shift
    coefficients = logits.softmax(-1)
    votes = votes + rearrange(bias, "inp out dim -> out inp dim")
    slices = rearrange(votes, "row out inp (head d) -> row out head inp d", head=len(weight))
    mixed = einsum(coefficients, slices, "row out head inp, row out head inp d -> row out head d")
    return mixed.flatten(-2), coefficients


class RoutedVotes(torch.autograd.Function):
    """The faster twin of `plain_routed_votes`: attention routing of votes whose positions come last.

    The votes, by far the largest tensor, lie as `(inp, out, dim, row)` in memory, one row for each position of each
    image. The products of the logits read them so, and every other step runs along the rows without a break. They are
    never copied. A head weighs its own slice of each vote, so that for the weighted sum the same votes are
    `(inp, out head, d, row)`. The gradient is made input by input, while the votes of one input are in the cache.
    """

    @staticmethod
    def forward(ctx: Any, votes: Tensor, bias: Tensor, weight: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """The bias adds `shift` to the logits; the votes themselves are without it."""
        heads, outputs = weight.shape[:2]
        # logits (eq. 7)
        vectors = rearrange(weight, "head out logit inp dim -> (inp out) (head logit) dim")
        logits = torch.bmm(vectors, votes.flatten(0, 1)).unflatten(0, votes.shape[:2])  # (inp, out, head logit, row)
        logits = logits.sum(0).to(torch.promote_types(votes.dtype, torch.float32))  # (out, head logit, row)
        # coefficients (eq. 8)
        logits = logits.view(outputs * heads, weight.shape[2], logits.shape[-1])  # (out head, logit, row)
        coefficients = logits.add_(shift.flatten(0, 1).unsqueeze(-1)).softmax(1)  # (out head, inp, row)
        parts = coefficients.to(votes.dtype)  # (out head, inp, row)
        # the weighted sum of the votes (eq. 6)
        mixed = torch.bmm(
            rearrange(bias, "inp out (head d) -> (out head) d inp", head=heads), parts
        )  # (out head, d, row)
        for vote, part in zip(
            slices(votes, heads), parts.unbind(1), strict=True
        ):  # (out head, d, row), (out head, row)
            mixed.addcmul_(vote, part.unsqueeze(1))
        ctx.save_for_backward(votes, bias, weight, shift, coefficients)
        return (
            rearrange(mixed, "(out head) d row -> row out (head d)", head=heads),
            rearrange(coefficients, "(out head) inp row -> row out head inp", head=heads),
        )

    @staticmethod
    def backward(ctx: Any, of_mixed: Tensor, of_coefficients: Tensor) -> tuple[Tensor | None, ...]:
        votes, bias, weight, shift, coefficients = ctx.saved_tensors
        if torch.is_grad_enabled():
            return plain_gradients(plain_routed_votes, (votes, bias, weight, shift), (of_mixed, of_coefficients))
        inputs, heads, parts = len(votes), len(weight), coefficients.to(votes.dtype)  # parts: (out head, inp, row)
        # the weighted sum: how much each vote agrees with the gradient
        of_mixed = rearrange(of_mixed, "row out (head d) -> (out head) d row", head=heads).contiguous()
        agreement = torch.bmm(
            rearrange(bias, "inp out (head d) -> (out head) inp d", head=heads), of_mixed
        )  # (out head, inp, row)
        for vote, total in zip(
            slices(votes, heads), agreement.unbind(1), strict=True
        ):  # (out head, d, row), (out head, row)
            total += (vote * of_mixed).sum(1)
        # coefficients and logits
        of_coefficients = rearrange(of_coefficients, "row out head inp -> (out head) inp row") + agreement
        of_logits = softmax_gradient(of_coefficients, coefficients, 1)  # (out head, logit, row)
        of_shift = of_logits.sum(2).view_as(shift)  # (out, head, logit)
        of_logits = of_logits.to(votes.dtype).view(
            votes.shape[1], heads * weight.shape[2], votes.shape[-1]
        )  # (out, head logit, row)
        # votes: from the sum, and from the logits
        vectors = rearrange(weight, "head out logit inp dim -> inp out dim (head logit)")
        of_vectors = weight.new_empty(inputs, *of_logits.shape[:2], votes.shape[2])  # (inp, out, head logit, dim)
        of_votes = aligned(votes.shape, votes)  # (inp, out, dim, row)
        for m, of_slices in enumerate(slices(of_votes, heads)):
            torch.mul(parts[:, m].unsqueeze(1), of_mixed, out=of_slices)  # (out head, d, row)
            of_votes[m].baddbmm_(vectors[m], of_logits)  # (out, dim, row)
            torch.bmm(of_logits, votes[m].transpose(1, 2), out=of_vectors[m])  # (out, head logit, dim)
        of_bias = torch.bmm(parts, of_mixed.transpose(1, 2))  # (out head, inp, d)
        return (
            of_votes,
            rearrange(of_bias, "(out head) inp d -> inp out (head d)", head=heads),
            rearrange(of_vectors, "inp out (head logit) dim -> head out logit inp dim", head=heads),
            of_shift,
        )


def slices(votes: Float[Tensor, "inp out dim row"], heads: int) -> Float[Tensor, "inp outs d row"]:
    """The same votes, as the slices that the heads weigh: a view `(inp, out head, d, row)`."""
    return votes.unflatten(2, (heads, -1)).flatten(1, 2)
