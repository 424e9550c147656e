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
    weight: Float[Tensor, "head out logit inp dim"],
    shift: Float[Tensor, "out head logit"],
) -> tuple[Float[Tensor, "row out dim"], Float[Tensor, "row out head inp"]]:
    """All votes first, then `multi_head_attention_routing` of them; the bias adds `shift` to the logits."""
    votes = einsum(patches, kernels, "inp row patch, inp patch out dim -> row out inp dim")
    logits = einsum(votes, weight, "row out inp dim, head out logit inp dim -> row out head logit") + shift
    coefficients = logits.softmax(-1)
    votes = votes + rearrange(bias, "inp out dim -> out inp dim")
    slices = rearrange(votes, "row out inp (head d) -> row out head inp d", head=len(weight))
    mixed = einsum(coefficients, slices, "row out head inp, row out head inp d -> row out head d")
    return mixed.flatten(-2), coefficients


def aligned(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """An empty tensor whose rows all begin a cache line: products that write other rows are a quarter slower."""
    line = 64 // like.element_size()
    return like.new_empty(*shape[:-1], -(-shape[-1] // line) * line)[..., : shape[-1]]


class RoutedPatches(torch.autograd.Function):
    """The faster twin of `plain_routed_patches`, that is of `votes_of_patches` followed by attention routing.

    The votes, by far the largest tensor, lie as `(inp, out, dim, row)` in memory, one row for each position of each
    image: so the product of kernels and patches writes them, so the logits' products read them, and every other step
    runs along the rows without a break. They are never copied. A head weighs its own slice of each vote, so that for
    the weighted sum the same votes are `(inp, out head, d, row)`.
    """

    @staticmethod
    def forward(
        ctx: Any, patches: Tensor, kernels: Tensor, bias: Tensor, weight: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The bias adds `shift` to the logits; the votes themselves are without it."""
        heads, outputs = weight.shape[:2]
        # votes (eq. 5)
        columns = kernels.flatten(2).transpose(1, 2)  # (inp, out dim, patch)
        products = aligned((*columns.shape[:2], patches.shape[1]), patches)  # (inp, out dim, row)
        votes = torch.bmm(columns, patches.transpose(1, 2), out=products)  # (inp, out dim, row)
        votes = votes.unflatten(1, kernels.shape[2:])  # (inp, out, dim, row)
        # logits (eq. 7)
        vectors = rearrange(weight, "head out logit inp dim -> (inp out) (head logit) dim")
        logits = torch.bmm(vectors, votes.flatten(0, 1)).unflatten(0, votes.shape[:2])  # (inp, out, head logit, row)
        logits = logits.sum(0, dtype=torch.promote_types(votes.dtype, torch.float32))  # (out, head logit, row)
        # coefficients (eq. 8)
        logits = logits.view(outputs * heads, -1, logits.shape[-1])  # (out head, logit, row)
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
        ctx.save_for_backward(patches, kernels, bias, weight, shift, votes, coefficients)
        return (
            rearrange(mixed, "(out head) d row -> row out (head d)", head=heads),
            rearrange(coefficients, "(out head) inp row -> row out head inp", head=heads),
        )

    @staticmethod
    def backward(ctx: Any, of_mixed: Tensor, of_coefficients: Tensor) -> tuple[Tensor | None, ...]:
        patches, kernels, bias, weight, shift, votes, coefficients = ctx.saved_tensors
        if torch.is_grad_enabled():
            given = (patches, kernels, bias, weight, shift)
            return plain_gradients(plain_routed_patches, given, (of_mixed, of_coefficients))
        inputs, heads, parts = len(votes), len(weight), coefficients.to(votes.dtype)  # parts: (out head, inp, row)
        vectors = rearrange(weight, "head out logit inp dim -> (inp out) (head logit) dim")
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
        of_logits = of_logits.to(votes.dtype).view(votes.shape[1], -1, votes.shape[-1])  # (out, head logit, row)
        of_logits = of_logits.expand(inputs, *of_logits.shape).flatten(0, 1)  # (inp out, head logit, row)
        of_vectors = torch.bmm(of_logits, votes.flatten(0, 1).transpose(1, 2))  # (inp out, head logit, dim)
        # votes: from the sum, and from the logits
        of_votes = aligned(votes.shape, votes)  # (inp, out, dim, row)
        torch.mul(rearrange(parts, "outs inp row -> inp outs 1 row"), of_mixed, out=slices(of_votes, heads))
        of_products = of_votes.flatten(0, 1).baddbmm_(vectors.transpose(1, 2), of_logits)  # (inp out, dim, row)
        of_products = rearrange(of_products, "(inp out) dim row -> inp row (out dim)", inp=inputs)
        # patches, kernels and bias
        of_patches = torch.bmm(of_products, kernels.flatten(2).transpose(1, 2))  # (inp, row, patch)
        of_kernels = torch.bmm(patches.transpose(1, 2), of_products).view_as(kernels)  # (inp, patch, out, dim)
        of_bias = torch.bmm(parts, of_mixed.transpose(1, 2))  # (out head, inp, d)
        return (
            of_patches,
            of_kernels,
            rearrange(of_bias, "(out head) inp d -> inp out (head d)", head=heads),
            rearrange(of_vectors, "(inp out) (head logit) dim -> head out logit inp dim", inp=inputs, head=heads),
            of_shift,
        )


def slices(votes: Float[Tensor, "inp out dim row"], heads: int) -> Float[Tensor, "inp outs d row"]:
    """The same votes, as the slices that the heads weigh: a view `(inp, out head, d, row)`."""
    return votes.unflatten(2, (heads, -1)).flatten(1, 2)
