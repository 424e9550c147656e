"""The plain networks that capsules are compared with."""

from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from arcaps.init import start_plain_layers
from arcaps.losses import CrossEntropy
from arcaps.models.base import BatchLike, Classifier, Labels, Output, traceable
from arcaps.models.blocks import ConvBlock, make_stages
from arcaps.settings import ConvNetConfig, DenseHeadConfig, ModelConfig, StrongConvNetConfig


class ConvolutionalClassifier(Classifier):
    """Convolutional stages, then a dense head, then softmax. There are no capsules and no reconstruction."""

    renamed = {"features.": "stages."}  # noqa: RUF012 (nobody writes into it)
    stages: nn.Sequential
    head: nn.Sequential

    def __init__(self, settings: ModelConfig | None = None) -> None:
        super().__init__(settings)
        self.cross_entropy = CrossEntropy()

    def feature_layers(self) -> Iterator[tuple[str, nn.Module]]:
        for index, stage in enumerate(self.stages):
            yield f"stages.{index}", stage
        yield "head", self.head[-2]

    def forward(self, images: Float[Tensor, "batch channels height width"], labels: Labels | None = None) -> Output:
        logits = self.head(self.stages(self.accept(images)))
        return traceable(Output(logits.softmax(-1), logits=logits))

    def losses(self, output: Output, batch: BatchLike, progress: float = 1.0) -> dict[str, Tensor]:
        return {"cross_entropy": self.cross_entropy(output.scores, batch.labels, logits=output.logits)}


class ConvNet(ConvolutionalClassifier, name="conv_net"):
    """The CNN baseline of the CapsuleNet paper: three 5x5 convolutions, three dense layers, dropout, softmax.

    Its options are the fields of `arcaps.settings.ConvNetConfig`.
    """

    config_class = ConvNetConfig

    def __init__(self, **options: Any) -> None:
        c = ConvNetConfig(**options)
        super().__init__(c)
        self.require_size(1, "a convolution")
        widths = (c.channels, 256, 256, 128)
        self.stages = nn.Sequential(*(ConvBlock(inputs, outputs, kernel=5) for inputs, outputs in pairwise(widths)))
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(128 * prod(self.image_size), 328),
            nn.ReLU(),
            nn.Linear(328, 192),
            nn.ReLU(),
            nn.Dropout(c.dropout),
            nn.Linear(192, c.classes),
        )
        start_plain_layers(self.head)


class StrongConvNet(ConvolutionalClassifier, name="strong_conv_net"):
    """A modern small CNN: residual, with BatchNorm and global pooling, about as large as AR CapsNet.

    5.4 million parameters on MNIST. Each stage halves the image with a strided convolution; a residual block follows.
    Its options are the fields of `arcaps.settings.StrongConvNetConfig`.
    """

    config_class = StrongConvNetConfig
    channels_last = True

    def __init__(self, **options: Any) -> None:
        c = StrongConvNetConfig(**options)
        super().__init__(c)
        self.require_size(8, "3 strided layers")
        momentum = c.batch_norm_momentum
        stem = ConvBlock(c.channels, c.widths[0], norm=True, momentum=momentum)
        self.stages = nn.Sequential(stem, *make_stages(c.widths, momentum))
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(c.dropout), nn.Linear(c.widths[-1], c.classes)
        )
        start_plain_layers(self.head)


class DenseHead(ConvolutionalClassifier, name="dense_head"):
    """AR CapsNet without capsules: the control that says what routing adds to its stem.

    The stem and the convolution of the primary layer are those of `ar_capsnet`. Each conv caps layer is a plain 3x3
    convolution of as many channels, `caps * dim`, with ReLU; the class layer is a dense layer with softmax. Its options
    are the fields of `arcaps.settings.DenseHeadConfig`.
    """

    config_class = DenseHeadConfig
    channels_last = True

    def __init__(self, **options: Any) -> None:
        c = DenseHeadConfig(**options)
        super().__init__(c)
        assert c.strides is not None
        strided = c.strided
        self.require_size(max(8, 2 ** (strided + 1)), f"{strided} strided layers")
        widths = [c.caps * c.primary_dim, *[c.caps * c.dim] * c.layers]
        self.stages = nn.Sequential(
            ConvBlock(c.channels, c.stem_channels, norm=True, momentum=c.batch_norm_momentum),
            ConvBlock(c.stem_channels, c.stem_channels, norm=True, momentum=c.batch_norm_momentum),
            *make_stages((c.stem_channels, *c.stages), c.batch_norm_momentum),
            ConvBlock((c.stem_channels, *c.stages)[-1], widths[0], stride=2),
            *(ConvBlock(*pair, stride=stride) for pair, stride in zip(pairwise(widths), c.strides, strict=True)),
        )
        assert c.dropout is not None
        area = prod(-(-side // 2**strided) for side in self.image_size)
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(c.dropout), nn.Linear(widths[-1] * area, c.classes))
        start_plain_layers(self.head)
