"""Pure functions on capsules. A capsule is the last axis, so each works on any leading axes.

The numbered equations are those of "Attention routing between capsules" (2019).
"""

from contextlib import AbstractContextManager, nullcontext
from math import log
from typing import Any

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor


def autocasts(device: str) -> bool:
    """Whether there is an autocast under way on this type of device."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def in_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the number format of the autocast under way, if there is one: for products that it cannot see."""
    device = tensors[0].device.type
    if not autocasts(device):
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors)


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context in which no autocast changes number formats: for steps that need more than 16 bits."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if autocasts(device) else nullcontext()


def lengths(capsules: Float[Tensor, "*where dim"]) -> Float[Tensor, "*where"]:
    """The Euclidean length of each capsule. At the zero capsule its gradient is zero, not NaN."""
    return torch.linalg.vector_norm(capsules, dim=-1)


def normalised_lengths(capsules: Float[Tensor, "*where dim"]) -> Float[Tensor, "*where"]:
    """`||u|| / sqrt(D)`, in 0..1 for capsules out of a tanh (eq. 10): the probability that the entity is there."""
    return lengths(capsules) / capsules.shape[-1] ** 0.5


def squash(capsules: Float[Tensor, "*where dim"]) -> Float[Tensor, "*where dim"]:
    """Shrink each capsule to a length below 1, keep its direction (eq. 1).

        squash(s) = ||s||^2 / (1 + ||s||^2) * s / ||s||

    Written without the division by `||s||`, so that value and gradient are exact and finite at zero. The equation is
    that of "Dynamic routing between capsules" (2017).
    """
    length = lengths(capsules).unsqueeze(-1)
    return capsules * (length / (1 + length.square()))


def squash_variant(capsules: Float[Tensor, "*where dim"]) -> Float[Tensor, "*where dim"]:
    """The squash that grows linearly near zero (eq. 2).

        squash_variant(s) = (1 - exp(-||s||)) * s / ||s||

    Its factor tends to 1 at zero; below the resolution of the number format it is 1, so the clamp changes nothing but
    the NaN.
    """
    length = lengths(capsules).unsqueeze(-1).clamp_min(torch.finfo(capsules.dtype).eps)
    return capsules * (-torch.expm1(-length) / length)


def unit(capsules: Float[Tensor, "*where dim"]) -> Float[Tensor, "*where dim"]:
    """Each capsule divided by its length. One shorter than rounding has no direction: it becomes 0, with gradient 0."""
    length = lengths(capsules).unsqueeze(-1)
    return capsules / torch.where(length > torch.finfo(capsules.dtype).eps, length, torch.inf)


def shares_of(weights: Float[Tensor, "*where inp"]) -> Float[Tensor, "*where inp"]:
    """Weights divided by their sum. Where the sum is 0, all shares are 0, with gradient 0.

    shares[m] = w[m] / sum over k of w[k]
    """
    total = weights.sum(-1, keepdim=True)
    smallest = torch.finfo(weights.dtype).tiny ** 0.5
    return weights / torch.where(total > smallest, total, torch.inf)


def normalised_entropy(coefficients: Float[Tensor, "*where choices"]) -> Float[Tensor, "*where"]:
    """The entropy over its largest value, in 0..1: 0 where one gets all, 1 where all get the same."""
    choices = coefficients.shape[-1]
    if choices == 1:
        return torch.zeros_like(coefficients[..., 0])
    tiny = torch.finfo(coefficients.dtype).tiny
    shares = coefficients / coefficients.sum(-1, keepdim=True).clamp_min(tiny)
    return (torch.special.entr(shares.clamp_min(tiny)).sum(-1) / log(choices)).clamp(0.0, 1.0)


def mix_votes(
    votes: Float[Tensor, "*where out inp dim"],
    coefficients: Float[Tensor, "*where out inp"],
) -> Float[Tensor, "*where out dim"]:
    """The votes for each output capsule, summed over the input capsules with these weights (eq. 6).

    s[n] = sum over m of c[n, m] * s~[n, m]
    """
    return einsum(coefficients, votes, "... out inp, ... out inp dim -> ... out dim")


def softmax_of_present(
    logits: Float[Tensor, "*where inp"], presence: Float[Tensor, "... inp"] | None
) -> Float[Tensor, "*where inp"]:
    """The softmax over inputs of which some may be absent; without presence the plain softmax.

        c[m] = a[m] exp(b[m]) / sum over k of a[k] exp(b[k])

    All inputs absent: all zero, with a finite gradient.
    """
    if presence is None:
        return logits.softmax(-1)
    lowest = torch.finfo(logits.dtype).min
    largest = torch.where(presence > 0, logits, lowest).amax(-1, keepdim=True).detach()
    weights = presence * (logits - largest).clamp_max(0).exp()
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1)


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
