"""Attention routing: the paper's own."""

from math import prod
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from arcaps.errors import ArcapsError
from arcaps.functional import in_autocast, mix_votes
from arcaps.init import glorot_uniform_
from arcaps.routing.base import Routing


def multi_head_attention_routing(
    votes: Float[Tensor, "*where out inp dim"],
    weight: Float[Tensor, "head out inp inp dim"],
    *,
    scale: float = 1.0,
) -> tuple[Float[Tensor, "*where out dim"], Float[Tensor, "*where out inp"]]:
    """Mix the votes as `attention_routing` does, in several heads: each weighs its own slice of the vote.

    The logits of head h are `scale` times the scalar products of ALL the votes for output n with `weight[h, n, m]`. The
    coefficients returned are the mean over the heads; they too sum to 1 over the input channels.
    """
    logits = scale * einsum(votes, weight, "... out inp dim, head out logit inp dim -> ... out head logit")
    coefficients = logits.softmax(-1)
    slices = rearrange(votes, "... inp (head d) -> ... inp head d", head=len(weight))
    mixed = einsum(coefficients, slices, "... head inp, ... inp head d -> ... head d")
    return rearrange(mixed, "... head d -> ... (head d)"), coefficients.mean(-2)


def attention_routing(
    votes: Float[Tensor, "*where out inp dim"],
    weight: Float[Tensor, "out inp inp dim"],
) -> tuple[Float[Tensor, "*where out dim"], Float[Tensor, "*where out inp"]]:
    """Mix the votes for each output capsule by a learned attention (eqs. 6 to 8).

    The logit `b[n, m]` is the scalar product of ALL the votes for output n with a vector of their own, `weight[n,
    m]`; the softmax is over m, the input channels.
    """
    logits = einsum(votes, weight, "... out inp dim, out logit inp dim -> ... out logit")
    coefficients = logits.softmax(-1)
    return mix_votes(votes, coefficients), coefficients


def aligned(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """An empty tensor whose rows all begin a cache line: products that write other rows are a quarter slower."""
    line = 64 // like.element_size()
    return like.new_empty(*shape[:-1], -(-shape[-1] // line) * line)[..., : shape[-1]]


class RoutedPatches(torch.autograd.Function):
    """`attention_routing` of the votes of patches, and its gradient.

    The votes, by far the largest tensor, lie as `(inp, out, dim, row)` in memory, one row for each position of each
    image: so the product of kernels and patches writes them, so the logits' products read them, and every other step
    runs along the rows without a break. They are never copied.
    """

    @staticmethod
    def forward(
        ctx: Any, patches: Tensor, kernels: Tensor, bias: Tensor, weight: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The bias adds `shift` to the logits; the votes themselves are without it."""
        columns = kernels.flatten(2).transpose(1, 2)
        products = aligned((*columns.shape[:2], patches.shape[1]), patches)
        votes = torch.bmm(columns, patches.transpose(1, 2), out=products).unflatten(1, kernels.shape[2:])
        weight = rearrange(weight, "out logit inp dim -> (inp out) logit dim")
        logits = torch.bmm(weight, votes.flatten(0, 1)).unflatten(0, votes.shape[:2])
        logits = logits.sum(0, dtype=torch.promote_types(votes.dtype, torch.float32))
        coefficients = logits.add_(shift.unsqueeze(-1)).softmax(1)
        parts = coefficients.to(votes.dtype)
        mixed = torch.bmm(rearrange(bias, "inp out dim -> out dim inp"), parts)
        for vote, part in zip(votes, parts.unbind(1), strict=True):
            mixed.addcmul_(vote, part.unsqueeze(1))
        ctx.save_for_backward(patches, kernels, bias, weight, votes, coefficients)
        return rearrange(mixed, "out dim row -> row out dim"), rearrange(coefficients, "out inp row -> row out inp")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_mixed: Tensor, of_coefficients: Tensor) -> tuple[Tensor, ...]:
        patches, kernels, bias, weight, votes, coefficients = ctx.saved_tensors
        inputs, parts = len(votes), coefficients.to(votes.dtype)
        of_mixed = rearrange(of_mixed, "row out dim -> out dim row").contiguous()
        agreement = torch.bmm(rearrange(bias, "inp out dim -> out inp dim"), of_mixed)
        for vote, total in zip(votes, agreement.unbind(1), strict=True):
            total += (vote * of_mixed).sum(1)
        of_coefficients = rearrange(of_coefficients, "row out inp -> out inp row") + agreement
        of_logits = torch._softmax_backward_data(of_coefficients, coefficients, 1, coefficients.dtype)
        of_shift = of_logits.sum(2)
        of_logits = of_logits.to(votes.dtype).expand(inputs, *of_logits.shape).flatten(0, 1)
        of_weight = torch.bmm(of_logits, votes.flatten(0, 1).transpose(1, 2))
        of_votes = torch.mul(
            rearrange(parts, "out inp row -> inp out 1 row"), of_mixed, out=aligned(votes.shape, votes)
        )
        of_products = of_votes.flatten(0, 1).baddbmm_(weight.transpose(1, 2), of_logits).unflatten(0, (inputs, -1))
        of_products = rearrange(of_products, "inp out dim row -> inp row (out dim)")
        of_patches = torch.bmm(of_products, kernels.flatten(2).transpose(1, 2))
        of_kernels = torch.bmm(patches.transpose(1, 2), of_products).view_as(kernels)
        of_bias = rearrange(torch.bmm(parts, of_mixed.transpose(1, 2)), "out inp dim -> inp out dim")
        of_weight = rearrange(of_weight, "(inp out) logit dim -> out logit inp dim", inp=inputs)
        return of_patches, of_kernels, of_bias, of_weight, of_shift


class AttentionRouting(Routing, name="attention"):
    """Attention routing with its parameter vectors `w[n, m]`, each of size `in_caps * dim`. No bias.

    The paper has one head and no scaling. With `heads` each head weighs its own slice of the vote; with `scale` the
    logits are divided by the square root of the vectors' size, as in a transformer.
    """

    def __init__(self, in_caps: int, out_caps: int, dim: int, *, heads: int = 1, scale: bool = False) -> None:
        super().__init__(in_caps, out_caps, dim)
        if heads < 1 or dim % heads:
            raise ArcapsError(f"{heads} heads do not divide capsules of dimension {dim}: give a divisor of {dim}")
        self.heads = heads
        self.scale = (in_caps * dim) ** -0.5 if scale else 1.0
        shape = (out_caps, in_caps, in_caps, dim)
        self.weight = nn.Parameter(torch.empty(shape if heads == 1 else (heads, *shape)))
        glorot_uniform_(self.weight, in_caps * dim, in_caps * dim)

    def forward(
        self, votes: Float[Tensor, "*where out inp dim"]
    ) -> tuple[Float[Tensor, "*where out dim"], Float[Tensor, "*where out inp"]]:
        if self.heads > 1:
            return multi_head_attention_routing(votes, self.weight, scale=self.scale)
        return attention_routing(votes, self.scaled_weight)

    @property
    def scaled_weight(self) -> Tensor:
        """The weights with the scaling of the logits in them."""
        return self.weight if self.scale == 1 else self.weight * self.scale

    def route(
        self,
        patches: Float[Tensor, "*where inp patch"],
        weight: Float[Tensor, "inp patch out out_dim"],
        bias: Float[Tensor, "inp out out_dim"] | None,
    ) -> tuple[Float[Tensor, "*where out out_dim"], Float[Tensor, "*where out inp"]]:
        """With the votes in the order in memory that is the fastest where many positions share the kernels.

        With one position, as in the class layer, there are few rows and the plain way is faster. An exported program
        goes the plain way too, since it has no gradient of its own.
        """
        where = patches.shape[:-2]
        if prod(where[1:]) == 1 or self.heads > 1 or torch.compiler.is_exporting():
            return super().route(patches, weight, bias)
        rows = rearrange(patches.flatten(0, -3), "row inp patch -> inp row patch")
        if bias is None:
            bias = weight.new_zeros(self.in_caps, self.out_caps, self.dim)
        scaled = self.scaled_weight
        shift = einsum(bias, scaled, "inp out dim, out logit inp dim -> out logit")
        mixed, coefficients = RoutedPatches.apply(*in_autocast(rows, weight, bias, scaled), shift)
        return mixed.unflatten(0, where), coefficients.unflatten(0, where)

    def __repr__(self) -> str:
        options = [f"heads={self.heads}"] if self.heads > 1 else []
        options += ["scale=True"] if self.scale != 1 else []
        return f"{self.name}({', '.join(options)})" if options else self.name
