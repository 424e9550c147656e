"""BatchNorm over the images of all processes."""

import torch.distributed as dist
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from arcaps.compat import is_transformed
from arcaps.errors import ArcapsError


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm as in Keras, over the images of all processes: what is learned does not depend on their number."""

    def __init__(self, channels: int, momentum: float = 0.01) -> None:
        super().__init__(channels, eps=1e-3, momentum=momentum)

    def forward(
        self, input: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        if not (self.training and dist.is_available() and dist.is_initialized()):
            return self.forward_alone(input)
        count = all_reduce(input.new_tensor(input.numel() / input.shape[1]))
        mean = all_reduce(input.sum((0, 2, 3))) / count
        centred = input - mean.view(1, -1, 1, 1)
        variance = all_reduce(centred.square().sum((0, 2, 3))) / count
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean.detach(), self.momentum)
        self.running_var.lerp_((variance * count / (count - 1)).detach(), self.momentum)
        scale = self.weight * (variance + self.eps).rsqrt()
        return centred * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)

    def forward_alone(
        self, input: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        """In one process. In training inside torch.func, which cannot follow the running statistics, say what to do."""
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
