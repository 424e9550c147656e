"""Building blocks of the convolutional parts."""

from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from arcaps.init import start_plain_layers
from arcaps.norm import BatchNorm


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


class ResidualBlock(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, channels: int, momentum: float) -> None:
        super().__init__()
        self.channels = channels
        self.body = nn.Sequential(
            ConvBlock(channels, channels, norm=True, momentum=momentum),
            ConvBlock(channels, channels, norm=True, momentum=momentum),
        )

    def forward(
        self, maps: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        return maps + self.body(maps)

    def __repr__(self) -> str:
        return f"ResidualBlock({self.channels} -> {self.channels}, 2 of 3x3, batch norm, relu)"


def make_stages(widths: tuple[int, ...], momentum: float) -> list[nn.Module]:
    """Residual stages from `widths[0]` channels on: each halves the maps with a strided convolution, then a block."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers.append(ConvBlock(inputs, outputs, stride=2, norm=True, momentum=momentum))
        layers.append(ResidualBlock(outputs, momentum))
    return layers
