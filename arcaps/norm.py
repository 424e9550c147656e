"""BatchNorm over the images of all processes."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from arcaps.compat import is_transformed
from arcaps.errors import ArcapsError
from arcaps.functional import widened

_seen: list[Literal["whole", "part", "again"]] = ["whole"]
"""What norms see at this moment is the last one: the whole batch, a part of it, or a part that they have seen."""


@contextmanager
def part_of_batch(*, again: bool = False) -> Iterator[None]:
    """A context in which norms see a part of the batch, and do not wait for other processes.

    With `again` it is a part that they have seen before, for the backward pass: the running statistics stay.
    """
    _seen.append("again" if again else "part")
    try:
        yield
    finally:
        _seen.pop()


def forward_and_again() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The contexts of a part of the batch that is computed twice: in the forward pass, and again for the backward."""
    return part_of_batch(), part_of_batch(again=True)


def over_processes() -> bool:
    """Whether norms see the images of several processes."""
    return _seen[-1] == "whole" and dist.is_available() and dist.is_initialized()


class Moments(NamedTuple):
    """Mean and variance of each channel over a batch."""

    mean: Float[Tensor, " channels"]
    variance: Float[Tensor, " channels"]
    unbiased: Float[Tensor, " channels"]
    """The variance for the running statistics, by `count - 1`."""


def moments(values: Float[Tensor, "batch channels *size"]) -> Moments:
    """The moments over everything but the channels, of all processes together."""
    rows = values.flatten(2) if values.ndim > 2 else values.unsqueeze(2)  # (batch, channels, size)
    together = all_reduce if over_processes() else lambda tensor: tensor
    count = together(rows.new_tensor(rows.shape[0] * rows.shape[2]))
    mean = together(rows.sum((0, 2))) / count
    variance = together((rows - mean.unsqueeze(-1)).square().sum((0, 2))) / count
    return Moments(mean, variance, variance * count / (count - 1).clamp_min(1))


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm as in Keras, over the images of all processes: what is learned does not depend on their number.

        y = w (x - mean(x)) / sqrt(var(x) + 1e-3) + b      of each channel, mean and variance over the batch

    In a part of the batch (`part_of_batch`, as layers with `images_at_once` use it) it is over the images of this part,
    which are of one process. Its running statistics then differ by process: a training keeps those of rank 0.

    A channel with a single value, as capsules of one image without positions have, becomes its bias, and the running
    statistics stay: one value does not say how much it varies.
    """

    def __init__(self, channels: int, momentum: float = 0.01) -> None:
        super().__init__(channels, eps=1e-3, momentum=momentum)

    def forward(
        self, input: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        several, single = over_processes(), input.numel() == input.shape[1]
        if not self.training or not (several or single):
            return self.forward_alone(input)
        values = widened(input)
        mean, variance, unbiased = moments(values)
        if several:
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            assert self.momentum is not None
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean.detach().to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(unbiased.detach().to(self.running_var.dtype), self.momentum)
        scale = self.weight * (variance + self.eps).rsqrt()
        normed = (values - mean.view(1, -1, 1, 1)) * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return normed.to(input.dtype)

    def forward_alone(
        self, input: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        """In one process, or over a part of the batch, whose running statistics stay where it was seen before.

        In training inside torch.func, which cannot follow the running statistics, say what to do.
        """
        if self.training and _seen[-1] == "again":
            assert self.running_mean is not None
            assert self.running_var is not None
            running = self.running_mean.clone(), self.running_var.clone()
            return F.batch_norm(input, *running, self.weight, self.bias, training=True, eps=self.eps)
        if not is_transformed():
            return super().forward(input)
        try:
            return super().forward(input)
        except RuntimeError as error:
            way = "call model.eval() or torch.func.replace_all_batch_norm_modules_(model) before"
            raise ArcapsError(f"BatchNorm cannot update its running statistics inside torch.func: {way}") from error


class CapsuleNorm(BatchNorm):
    """BatchNorm of every element of every capsule channel, over the images and the positions."""

    def __init__(self, caps: int, dim: int, momentum: float = 0.1) -> None:
        super().__init__(caps * dim, momentum)
        self.caps = caps

    def as_affine(self) -> tuple[Float[Tensor, " elements"], Float[Tensor, " elements"]]:
        """The factor and the summand of each element after training."""
        assert self.running_mean is not None
        assert self.running_var is not None
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return scale, self.bias - self.running_mean * scale

    def forward(self, input: Float[Tensor, "*where caps dim"]) -> Float[Tensor, "*where caps dim"]:
        rows = rearrange(input.flatten(0, -3), "row caps dim -> row (caps dim) 1 1")
        normed = rearrange(super().forward(rows), "row (caps dim) 1 1 -> row caps dim", caps=self.caps)
        return normed.reshape(input.shape)


class OutputNorm(nn.Module):
    """BatchNorm without parameters, over all axes but that of the output capsules, and over all processes.

    In evaluation the running statistics count, so one image does not depend on the others. At the start they are the
    mean over all batches so far, since what is normalised may vary much less than 1.
    """

    momentum = 0.1
    eps = 1e-5
    mean: Tensor
    variance: Tensor
    batches: Tensor

    def __init__(self, out_caps: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(out_caps))
        self.register_buffer("variance", torch.ones(out_caps))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, values: Float[Tensor, "row out size"]) -> Float[Tensor, "row out size"]:
        mean, variance = self.measure(values) if self.training else (self.mean, self.variance)
        return (values - mean.unsqueeze(-1)) * (variance.unsqueeze(-1) + self.eps).rsqrt()

    def measure(self, values: Float[Tensor, "row out size"]) -> tuple[Tensor, Tensor]:
        """Mean and variance of each output over the batch; the running ones follow."""
        mean, variance, unbiased = moments(values)
        if _seen[-1] != "again":
            self.batches += 1
            follow = (1 / self.batches).clamp_min(self.momentum).to(self.mean.dtype)
            self.mean.lerp_(mean.detach().to(self.mean.dtype), follow)
            self.variance.lerp_(unbiased.detach().to(self.variance.dtype), follow)
        return mean, variance
