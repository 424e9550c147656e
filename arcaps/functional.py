"""Pure functions on capsules. A capsule is the last axis, so each works on any leading axes.

The numbered equations are those of "Attention routing between capsules" (2019).
"""

from contextlib import AbstractContextManager, nullcontext
from math import log
from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from arcaps.compat import needs_plain_functions
from arcaps.kernels import Agreements, LayerNorm, MixedVotes
from arcaps.kernels.mixing import along_positions, memory_order, plain_agreements, plain_mixed_votes, sum_as_it_lies
from arcaps.kernels.norms import EPSILON


def autocasts(device: str) -> bool:
    """Whether there is an autocast under way on this type of device."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def in_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the number format of the autocast under way, if there is one: for products that it cannot see.

    As under torch's own, float64 stays.
    """
    device = tensors[0].device.type
    if not autocasts(device) or tensors[0].dtype == torch.float64:
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors)


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context in which no autocast changes number formats: for steps that need more than 16 bits."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if autocasts(device) else nullcontext()


def widened(values: Tensor) -> Tensor:
    """The values in float32; float64 stays."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def lengths(capsules: Float[Tensor, "*where dim"]) -> Float[Tensor, "*where"]:
    """The Euclidean length of each capsule. At the zero capsule both its derivatives are zero, not NaN.

    They are computed in float32 or better. The denominator of the second derivative is the third power of the length:
    a capsule so short that this power is no normal number, below 2.3e-13 in float32, counts as the zero capsule.
    """
    wide = widened(capsules)
    rows = wide.unsqueeze(-2)
    squares = agreements(rows, wide).squeeze(-1) if along_positions(rows) else wide.square().sum(-1)
    zero = squares < torch.finfo(wide.dtype).tiny ** (2 / 3)
    return (squares.masked_fill(zero, 1).sqrt() * ~zero).to(capsules.dtype)


def normalised_lengths(capsules: Float[Tensor, "*where dim"]) -> Float[Tensor, "*where"]:
    """`||u|| / sqrt(D)`, in 0..1 for capsules out of a tanh (eq. 10): the probability that the entity is there."""
    return lengths(capsules) / capsules.shape[-1] ** 0.5


def squash(capsules: Float[Tensor, "*where dim"]) -> Float[Tensor, "*where dim"]:
    """Shrink each capsule to a length below 1, keep its direction (eq. 1).

        squash(s) = ||s||^2 / (1 + ||s||^2) * s / ||s||

    Written without the division by `||s||`, so that value and gradient are exact and finite at zero. The equation is
    that of "Dynamic routing between capsules" (2017).
    """
    length = lengths(widened(capsules)).unsqueeze(-1)
    return capsules * (length / (1 + length.square())).to(capsules.dtype)


def squash_variant(capsules: Float[Tensor, "*where dim"]) -> Float[Tensor, "*where dim"]:
    """The squash that grows linearly near zero (eq. 2).

        squash_variant(s) = (1 - exp(-||s||)) * s / ||s||

    Its factor tends to 1 at zero; below the resolution of the number format it is 1, so the clamp changes nothing but
    the NaN.
    """
    length = lengths(widened(capsules)).unsqueeze(-1)
    length = length.clamp_min(torch.finfo(length.dtype).eps)
    return capsules * (-torch.expm1(-length) / length).to(capsules.dtype)


def unit(capsules: Float[Tensor, "*where dim"]) -> Float[Tensor, "*where dim"]:
    """Each capsule divided by its length. One that `lengths` takes for the zero capsule becomes 0, with gradient 0.

    It is computed in float32 or better; in float32 the limit is 2.3e-13.
    """
    wide = widened(capsules)
    length = lengths(wide).unsqueeze(-1)
    return (wide / length.masked_fill(length == 0, torch.inf)).to(capsules.dtype)


def smallest_length(dtype: torch.dtype) -> float:
    """The number whose square is the smallest normal number of a format: what is smaller counts as 0."""
    return torch.finfo(dtype).tiny ** 0.5


def shares_of(weights: Float[Tensor, "*where inp"]) -> Float[Tensor, "*where inp"]:
    """Weights divided by their sum. Where the sum is 0, or so small that its square is, all shares are 0.

    shares[m] = w[m] / sum over k of w[k]

    It is computed in float32 or better: in float16 the square of 0.0001 is 0.
    """
    wide = widened(weights)
    total = sum_over(wide, -1).unsqueeze(-1)
    return (wide / torch.where(total > smallest_length(wide.dtype), total, torch.inf)).to(weights.dtype)


def normalised_entropy(coefficients: Float[Tensor, "*where choices"]) -> Float[Tensor, "*where"]:
    """The entropy over its largest value, in 0..1: 0 where one gets all, 1 where all get the same.

    H = - sum over k of p[k] log p[k] / log K,   p[k] = c[k] / sum over j of c[j]
    """
    choices = coefficients.shape[-1]
    if choices == 1:
        return torch.zeros_like(coefficients[..., 0])
    tiny = torch.finfo(coefficients.dtype).tiny
    shares = coefficients / coefficients.sum(-1, keepdim=True).clamp_min(tiny)
    return (torch.special.entr(shares.clamp_min(tiny)).sum(-1) / log(choices)).clamp(0.0, 1.0)


def mix_votes(
    votes: Float[Tensor, "*where inp dim"],
    coefficients: Float[Tensor, "*where inp"],
) -> Float[Tensor, "*where dim"]:
    """The votes for each output capsule, summed over the input capsules with these weights (eq. 6).

    s[n] = sum over m of c[n, m] * s~[n, m]
    """
    mix = MixedVotes.apply if along_positions(votes, coefficients) else plain_mixed_votes
    return mix(votes, coefficients)


def agreements(
    votes: Float[Tensor, "*where inp dim"],
    vectors: Float[Tensor, "*where dim"],
) -> Float[Tensor, "*where inp"]:
    """The scalar product of each vote and the vector of its output capsule.

    b[n, m] = s~[n, m] . u[n]
    """
    agree = Agreements.apply if along_positions(votes, vectors) else plain_agreements
    return agree(votes, vectors)


def vote_products(
    votes: Float[Tensor, "*where out inp dim"], weight: Float[Tensor, "out inp_or_1 dim to"]
) -> Float[Tensor, "*where out inp to"]:
    """Each vote times the matrix of its output, or of its output and input. The products lie in memory as the votes.

    k[n, m] = s~[n, m] W[n, m]
    """
    if not along_positions(votes, weight):
        if weight.shape[1] == 1:
            return einsum(votes, weight.squeeze(1), "... out inp dim, out dim to -> ... out inp to")
        return einsum(votes, weight, "... out inp dim, out inp dim to -> ... out inp to")
    columns = rearrange(votes, "... out inp dim -> inp out dim (...)")
    products = rearrange(weight, "out inp dim to -> inp out to dim") @ columns
    return rearrange(products, "inp out to row -> row out inp to").view(*votes.shape[:-1], weight.shape[-1])


def with_elements_last(votes: Float[Tensor, "*where out inp dim"]) -> Float[Tensor, "*where out inp dim"]:
    """The same votes with the elements last in memory, for functions that need matrices."""
    if not along_positions(votes):
        return votes
    columns = rearrange(votes, "... out inp dim -> inp (out dim) (...)")
    rows = columns.mT.contiguous().unflatten(-1, (votes.shape[-3], -1))  # (inp, row, out, dim)
    return rearrange(rows, "inp row out dim -> row out inp dim").view(votes.shape)


def softmax(logits: Float[Tensor, "*shape"], axis: int) -> Float[Tensor, "*shape"]:
    """The softmax over an axis; the result lies in memory as the logits do. torch's own would copy them."""
    if logits.is_contiguous() or needs_plain_functions():
        return logits.softmax(axis)
    order = memory_order(logits)
    shares = logits.permute(order).softmax(order.index(axis % logits.ndim))
    return shares.permute([order.index(place) for place in range(logits.ndim)])


def layer_norm(
    capsules: Float[Tensor, "*where dim"],
    weight: Float[Tensor, " dim"] | None = None,
    bias: Float[Tensor, " dim"] | None = None,
) -> Float[Tensor, "*where dim"]:
    """Each capsule with mean 0 and variance 1, then scaled and shifted. The result lies in memory as the capsules.

    y[d] = w[d] (u[d] - mean(u)) / sqrt(var(u) + 1e-5) + b[d]      mean and variance over the elements d
    """
    if not along_positions(capsules.unsqueeze(-2)):
        return F.layer_norm(capsules, capsules.shape[-1:], weight, bias, EPSILON)
    normal = LayerNorm.apply(capsules)
    normal = normal if weight is None else normal * weight
    return normal if bias is None else normal + bias


def sum_over(values: Float[Tensor, "*shape"], axis: int) -> Float[Tensor, "*rest"]:
    """The sum over an axis; the result lies in memory as the values do. torch's own would reorder them."""
    return values.sum(axis) if values.is_contiguous() or needs_plain_functions() else sum_as_it_lies(values, axis)


def softmax_of_present(
    logits: Float[Tensor, "*where inp"], presence: Float[Tensor, "... inp"] | None
) -> Float[Tensor, "*where inp"]:
    """The softmax over inputs of which some may be absent; without presence the plain softmax.

        c[m] = a[m] exp(b[m]) / sum over k of a[k] exp(b[k])

    All inputs absent: all zero, with a finite gradient.
    """
    if presence is None:
        return softmax(logits, -1)
    lowest = torch.finfo(logits.dtype).min
    largest = torch.where(presence > 0, logits, lowest).amax(-1, keepdim=True).detach()
    return shares_of(presence * (logits - largest).clamp_max(0).exp())


def keep_one(
    capsules: Float[Tensor, "batch caps dim"],
    which: Int[Tensor, " batch"],
) -> Float[Tensor, "batch caps dim"]:
    """Every capsule but one set to zero: the decoder's input (section 3.5)."""
    kept = which.unsqueeze(-1) == torch.arange(capsules.shape[1], device=capsules.device)
    return capsules * kept.unsqueeze(-1)


def keep_labelled(
    capsules: Float[Tensor, "batch caps dim"],
    labels: Int[Tensor, " batch"] | Float[Tensor, "batch caps"],
) -> Float[Tensor, "batch caps dim"]:
    """Every capsule but those of the labels set to zero: of one class number, or of all classes that are there."""
    return keep_one(capsules, labels) if labels.ndim == 1 else capsules * labels.unsqueeze(-1).to(capsules.dtype)
