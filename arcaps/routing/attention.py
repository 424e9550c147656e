"""Attention routing: the paper's own."""

from math import prod
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from arcaps.functional import in_autocast, mix_votes
from arcaps.init import glorot_uniform_
from arcaps.routing.base import Routing


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


class MixedVotes(torch.autograd.Function):
    """`sum_m c[n, m] (patch[m] @ kernel[m, n])`: votes made and mixed, with coefficients that are known already.

    The votes are written once, in the order in which the products come, and never copied. Their gradient is the outer
    product of the coefficients and the capsules' gradient.
    """

    @staticmethod
    def forward(ctx: Any, patches: Tensor, kernels: Tensor, coefficients: Tensor) -> Tensor:
        votes = torch.bmm(patches.transpose(0, 1), kernels.flatten(2)).unflatten(2, kernels.shape[2:])
        mixed = votes[0] * coefficients[..., :1]
        for m in range(1, len(votes)):
            mixed.addcmul_(votes[m], coefficients[..., m : m + 1])
        ctx.save_for_backward(patches, kernels, coefficients, votes)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        patches, kernels, coefficients, votes = ctx.saved_tensors
        of_coefficients = torch.stack([torch.linalg.vecdot(vote, gradient) for vote in votes], -1)
        of_votes = torch.mul(rearrange(coefficients, "p n m -> m p n 1"), gradient, out=torch.empty_like(votes))
        of_patches = torch.empty_like(patches)
        torch.bmm(of_votes.flatten(2), kernels.flatten(2).transpose(1, 2), out=of_patches.transpose(0, 1))
        of_kernels = torch.bmm(rearrange(patches, "p m k -> m k p"), of_votes.flatten(2))
        return of_patches, of_kernels.view_as(kernels), of_coefficients


class AttentionRouting(Routing, name="attention"):
    """Attention routing with its parameter vectors `w[n, m]`, each of size `in_caps * dim`. No bias, no scaling."""

    def __init__(self, in_caps: int, out_caps: int, dim: int) -> None:
        super().__init__(in_caps, out_caps, dim)
        self.weight = nn.Parameter(torch.empty(out_caps, in_caps, in_caps, dim))
        glorot_uniform_(self.weight, in_caps * dim, in_caps * dim)

    def forward(
        self, votes: Float[Tensor, "*where out inp dim"]
    ) -> tuple[Float[Tensor, "*where out dim"], Float[Tensor, "*where out inp"]]:
        return attention_routing(votes, self.weight)

    def route(
        self,
        patches: Float[Tensor, "*where inp patch"],
        weight: Float[Tensor, "inp patch out out_dim"],
        bias: Float[Tensor, "inp out out_dim"] | None,
    ) -> tuple[Float[Tensor, "*where out out_dim"], Float[Tensor, "*where out inp"]]:
        """The logits come straight from the patches: votes and logits are both linear, so one kernel does for both.

        This takes more multiply-adds (a quarter more with the paper's sizes), but the votes, by far the largest
        tensor, need not be read for the logits, nor brought into another order. It pays where many positions of an
        image share the kernels.
        """
        where = patches.shape[:-2]
        if prod(where[1:]) == 1:
            return super().route(patches, weight, bias)
        rows = patches.flatten(0, -3)
        kernels = einsum(weight, self.weight, "inp patch out dim, out logit inp dim -> inp patch out logit")
        logits = rows.flatten(1) @ rearrange(kernels, "inp patch out logit -> (inp patch) (out logit)")
        logits = logits.unflatten(1, (self.out_caps, self.in_caps))
        if bias is not None:
            logits = logits + einsum(bias, self.weight, "inp out dim, out logit inp dim -> out logit")
        coefficients = logits.softmax(-1)
        mixed: Tensor = MixedVotes.apply(*in_autocast(rows, weight, coefficients))
        if bias is not None:
            mixed = mixed + einsum(coefficients, bias, "row out inp, inp out dim -> row out dim")
        return mixed.unflatten(0, where), coefficients.unflatten(0, where)
