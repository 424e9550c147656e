"""Attention routing from patches."""

from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from arcaps.compat import softmax_gradient
from arcaps.kernels.twice import plain_gradients


def plain_routed_patches(
    patches: Float[Tensor, "inp row patch"],
    kernels: Float[Tensor, "inp patch out dim"],
    bias: Float[Tensor, "inp out dim"],
    weight: Float[Tensor, "out logit inp dim"],
    shift: Float[Tensor, "out logit"],
) -> tuple[Float[Tensor, "row out dim"], Float[Tensor, "row out inp"]]:
    """All votes first, then `attention_routing` of them; the bias adds `shift` to the logits."""
    votes = einsum(patches, kernels, "inp row patch, inp patch out dim -> row out inp dim")
    logits = einsum(votes, weight, "row out inp dim, out logit inp dim -> row out logit") + shift
    coefficients = logits.softmax(-1)
    votes = votes + rearrange(bias, "inp out dim -> out inp dim")
    return einsum(coefficients, votes, "row out inp, row out inp dim -> row out dim"), coefficients


def aligned(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """An empty tensor whose rows all begin a cache line: products that write other rows are a quarter slower."""
    line = 64 // like.element_size()
    return like.new_empty(*shape[:-1], -(-shape[-1] // line) * line)[..., : shape[-1]]


class RoutedPatches(torch.autograd.Function):
    """The faster twin of `plain_routed_patches`, that is of `votes_of_patches` followed by `attention_routing`.

    The votes, by far the largest tensor, lie as `(inp, out, dim, row)` in memory, one row for each position of each
    image: so the product of kernels and patches writes them, so the logits' products read them, and every other step
    runs along the rows without a break. They are never copied.
    """

    @staticmethod
    def forward(
        ctx: Any, patches: Tensor, kernels: Tensor, bias: Tensor, weight: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The bias adds `shift` to the logits; the votes themselves are without it."""
        # votes (eq. 5)
        columns = kernels.flatten(2).transpose(1, 2)  # (inp, out dim, patch)
        products = aligned((*columns.shape[:2], patches.shape[1]), patches)  # (inp, out dim, row)
        votes = torch.bmm(columns, patches.transpose(1, 2), out=products)  # (inp, out dim, row)
        votes = votes.unflatten(1, kernels.shape[2:])  # (inp, out, dim, row)
        # logits (eq. 7)
        vectors = rearrange(weight, "out logit inp dim -> (inp out) logit dim")
        logits = torch.bmm(vectors, votes.flatten(0, 1)).unflatten(0, votes.shape[:2])  # (inp, out, logit, row)
        logits = logits.sum(0, dtype=torch.promote_types(votes.dtype, torch.float32))  # (out, logit, row)
        # coefficients (eq. 8)
        coefficients = logits.add_(shift.unsqueeze(-1)).softmax(1)  # (out, inp, row)
        parts = coefficients.to(votes.dtype)  # (out, inp, row)
        # the weighted sum of the votes (eq. 6)
        mixed = torch.bmm(rearrange(bias, "inp out dim -> out dim inp"), parts)  # (out, dim, row)
        for vote, part in zip(votes, parts.unbind(1), strict=True):  # (out, dim, row), (out, row)
            mixed.addcmul_(vote, part.unsqueeze(1))
        ctx.save_for_backward(patches, kernels, bias, weight, shift, votes, coefficients)
        return rearrange(mixed, "out dim row -> row out dim"), rearrange(coefficients, "out inp row -> row out inp")

    @staticmethod
    def backward(ctx: Any, of_mixed: Tensor, of_coefficients: Tensor) -> tuple[Tensor | None, ...]:
        patches, kernels, bias, weight, shift, votes, coefficients = ctx.saved_tensors
        if torch.is_grad_enabled():
            given = (patches, kernels, bias, weight, shift)
            return plain_gradients(plain_routed_patches, given, (of_mixed, of_coefficients))
        inputs, parts = len(votes), coefficients.to(votes.dtype)  # parts: (out, inp, row)
        vectors = rearrange(weight, "out logit inp dim -> (inp out) logit dim")
        # the weighted sum: how much each vote agrees with the gradient
        of_mixed = rearrange(of_mixed, "row out dim -> out dim row").contiguous()
        agreement = torch.bmm(rearrange(bias, "inp out dim -> out inp dim"), of_mixed)  # (out, inp, row)
        for vote, total in zip(votes, agreement.unbind(1), strict=True):  # (out, dim, row), (out, row)
            total += (vote * of_mixed).sum(1)
        # coefficients and logits
        of_coefficients = rearrange(of_coefficients, "row out inp -> out inp row") + agreement
        of_logits = softmax_gradient(of_coefficients, coefficients, 1)  # (out, logit, row)
        of_shift = of_logits.sum(2)  # (out, logit)
        of_logits = of_logits.to(votes.dtype).expand(inputs, *of_logits.shape).flatten(0, 1)  # (inp out, logit, row)
        of_vectors = torch.bmm(of_logits, votes.flatten(0, 1).transpose(1, 2))  # (inp out, logit, dim)
        # votes: from the sum, and from the logits
        of_votes = torch.mul(
            rearrange(parts, "out inp row -> inp out 1 row"), of_mixed, out=aligned(votes.shape, votes)
        )  # (inp, out, dim, row)
        of_products = of_votes.flatten(0, 1).baddbmm_(vectors.transpose(1, 2), of_logits)  # (inp out, dim, row)
        of_products = rearrange(of_products, "(inp out) dim row -> inp row (out dim)", inp=inputs)
        # patches, kernels and bias
        of_patches = torch.bmm(of_products, kernels.flatten(2).transpose(1, 2))  # (inp, row, patch)
        of_kernels = torch.bmm(patches.transpose(1, 2), of_products).view_as(kernels)  # (inp, patch, out, dim)
        of_bias = rearrange(torch.bmm(parts, of_mixed.transpose(1, 2)), "out inp dim -> inp out dim")
        of_weight = rearrange(of_vectors, "(inp out) logit dim -> out logit inp dim", inp=inputs)
        return of_patches, of_kernels, of_bias, of_weight, of_shift
