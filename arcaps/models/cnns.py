"""The plain networks that capsules are compared with."""

from itertools import pairwise
from math import prod

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from arcaps.init import start_plain_layers
from arcaps.models.base import Classifier, Output
from arcaps.models.blocks import ConvBlock


class ConvolutionalClassifier(Classifier):
    """Features, then dense layers, then softmax. There are no capsules, no reconstruction and no coefficients."""

    features: nn.Sequential
    head: nn.Sequential

    def forward(
        self,
        images: Float[Tensor, "batch channels height width"],
        labels: Int[Tensor, " batch"] | None = None,
        *,
        return_coefficients: bool = False,
    ) -> Output:
        logits = self.head(self.features(self.accept(images)))
        return Output(logits.softmax(-1), logits=logits, coefficients={} if return_coefficients else None)

    def losses(
        self,
        output: Output,
        images: Float[Tensor, "batch channels height width"],
        labels: Int[Tensor, " batch"],
    ) -> dict[str, Tensor]:
        assert output.logits is not None
        return {"cross_entropy": F.cross_entropy(output.logits, labels)}


class ConvNet(ConvolutionalClassifier, name="conv_net"):
    """The CNN baseline of the CapsuleNet paper: three 5x5 convolutions, three dense layers, dropout, softmax."""

    def __init__(
        self,
        *,
        image_size: int | tuple[int, int] = (28, 28),
        channels: int = 1,
        classes: int = 10,
        dropout: float = 0.5,
    ) -> None:
        super().__init__(image_size=image_size, channels=channels, classes=classes, dropout=dropout)
        self.require_size(1, "a convolution")
        widths = (channels, 256, 256, 128)
        self.features = nn.Sequential(*(ConvBlock(inputs, outputs, kernel=5) for inputs, outputs in pairwise(widths)))
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(128 * prod(self.image_size), 328),
            nn.ReLU(),
            nn.Linear(328, 192),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(192, classes),
        )
        start_plain_layers(self.head)


class ResidualBlock(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.body = nn.Sequential(ConvBlock(channels, channels, norm=True), ConvBlock(channels, channels, norm=True))

    def forward(
        self, maps: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        return maps + self.body(maps)

    def __repr__(self) -> str:
        return f"ResidualBlock({self.channels} -> {self.channels}, 2 of 3x3, batch norm, relu)"


class StrongConvNet(ConvolutionalClassifier, name="strong_conv_net"):
    """A modern small CNN: residual, with BatchNorm and global pooling, about as large as AR CapsNet.

    5.4 million parameters on MNIST. Each stage halves the image with a strided convolution; a residual block follows.
    """

    channels_last = True

    def __init__(
        self,
        *,
        image_size: int | tuple[int, int] = (28, 28),
        channels: int = 1,
        classes: int = 10,
        widths: tuple[int, int, int, int] = (64, 128, 256, 384),
        dropout: float = 0.2,
    ) -> None:
        super().__init__(image_size=image_size, channels=channels, classes=classes, widths=widths, dropout=dropout)
        self.require_size(8, "3 strided layers")
        stem, first, second, third = widths
        self.features = nn.Sequential(
            ConvBlock(channels, stem, norm=True),
            ConvBlock(stem, first, stride=2, norm=True),
            ResidualBlock(first),
            ConvBlock(first, second, stride=2, norm=True),
            ResidualBlock(second),
            ConvBlock(second, third, stride=2, norm=True),
            ResidualBlock(third),
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(third, classes))
        start_plain_layers(self.head)
