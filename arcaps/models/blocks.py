"""Building blocks of the convolutional parts."""

import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.utils.fusion import fuse_conv_bn_eval

from arcaps.compat import is_transformed
from arcaps.errors import ArcapsError
from arcaps.init import start_plain_layers


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


class ConvBlock(nn.Module):
    """Convolution, BatchNorm if asked for, ReLU. The paper's stem is two of them.

    With `relu_first` BatchNorm comes after the ReLU.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernel: int = 3,
        stride: int = 1,
        padding: int | None = None,
        norm: bool = False,
        momentum: float = 0.01,
        relu_first: bool = False,
    ) -> None:
        super().__init__()
        self.relu_first = relu_first
        padding = kernel // 2 if padding is None else padding
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride=stride, padding=padding)
        self.norm = BatchNorm(out_channels, momentum) if norm else None
        start_plain_layers(self.conv)

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch out_channels new_height new_width"]:
        maps = self.conv(images)
        if self.relu_first and self.norm is not None:
            return self.norm(maps.relu_())
        return (maps if self.norm is None else self.norm(maps)).relu_()

    def fold(self) -> None:
        """Let the convolution do what BatchNorm does after training: fewer passes over the maps, the same answers."""
        if self.norm is not None and not self.relu_first:
            self.conv = fuse_conv_bn_eval(self.conv, self.norm)
            self.norm = None

    def __repr__(self) -> str:
        conv = self.conv
        kernel = "x".join(map(str, conv.kernel_size))
        options = ["batch norm", "relu"] if self.norm is not None else ["relu"]
        options = options[::-1] if self.relu_first else options
        return f"ConvBlock({conv.in_channels} -> {conv.out_channels}, {kernel}/{conv.stride[0]}, {', '.join(options)})"
