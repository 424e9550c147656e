"""Building blocks of the convolutional parts."""

from jaxtyping import Float
from torch import Tensor, nn

from arcaps.init import start_plain_layers


class ConvBlock(nn.Module):
    """Convolution, BatchNorm if asked for, ReLU. The paper's stem is two of them."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernel: int = 3,
        stride: int = 1,
        padding: int | None = None,
        norm: bool = False,
    ) -> None:
        super().__init__()
        padding = kernel // 2 if padding is None else padding
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride=stride, padding=padding)
        self.norm = nn.BatchNorm2d(out_channels, eps=1e-3, momentum=0.01) if norm else None
        start_plain_layers(self.conv)

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch out_channels new_height new_width"]:
        maps = self.conv(images)
        return (maps if self.norm is None else self.norm(maps)).relu()

    def __repr__(self) -> str:
        conv = self.conv
        kernel = "x".join(map(str, conv.kernel_size))
        norm = "batch norm, " if self.norm is not None else ""
        return f"ConvBlock({conv.in_channels} -> {conv.out_channels}, {kernel}/{conv.stride[0]}, {norm}relu)"
