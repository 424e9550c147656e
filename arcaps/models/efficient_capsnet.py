"""Efficient-CapsNet."""

from typing import Any

from torch import nn

from arcaps.layers import ClassCaps, Decoder, PrimaryCaps
from arcaps.losses import Loss
from arcaps.models.blocks import ConvBlock
from arcaps.models.capsules import CapsuleClassifier
from arcaps.scores import Score
from arcaps.settings import EfficientCapsNetConfig


class EfficientCapsNet(CapsuleClassifier, name="efficient_capsnet"):
    """The network of "Efficient-CapsNet: capsule network with self-attention routing" (Mazzia, 2021), for MNIST.

    Four convolutions without padding (5x5, 3x3, 3x3, and 3x3 with stride 2), each with ReLU, then BatchNorm; a
    depthwise convolution as large as what they leave, which makes 16 capsules of dimension 8; 10 class capsules of
    dimension 16, routed in one pass. 161,824 parameters on MNIST without the decoder. The convolutions before the
    capsules and the votes start normal (He); the fan-in of the votes is that of the authors' framework, all axes of
    their tensor but the last. Its options are the fields of `arcaps.settings.EfficientCapsNetConfig`.

    For larger images the depthwise kernel grows; the authors have other stems for other data.
    """

    config_class = EfficientCapsNetConfig
    reconstruction_weight = 0.392

    def __init__(self, **options: Any) -> None:
        c = EfficientCapsNetConfig(**options)
        super().__init__(c)
        self.require_size(11, "four convolutions without padding")
        first, second, third = c.stem_widths
        fourth = c.caps * c.primary_dim
        block: dict[str, Any] = {"padding": 0, "norm": True, "relu_first": True}
        self.stem = nn.Sequential(
            ConvBlock(c.channels, first, kernel=5, **block),
            ConvBlock(first, second, **block),
            ConvBlock(second, third, **block),
            ConvBlock(third, fourth, stride=2, **block),
        )
        left = tuple((side - 11) // 2 + 1 for side in self.image_size)
        self.primary = PrimaryCaps(
            fourth,
            c.caps,
            c.primary_dim,
            kernel=(left[0], left[1]),
            stride=1,
            padding=0,
            groups=fourth,
            relu=False,
            activation="squash_variant",
        )
        self.conv_caps = nn.ModuleList()
        self.class_caps = ClassCaps(
            c.caps,
            c.primary_dim,
            c.classes,
            c.dim,
            in_size=(1, 1),
            votes="window",
            bias=False,
            routing=c.routing,
            activation="squash_variant",
        )
        nn.init.normal_(self.class_caps.votes.weight, std=(2 / (c.classes * c.caps * c.primary_dim)) ** 0.5)
        for block_of_stem in self.stem:
            assert isinstance(block_of_stem, ConvBlock)
            nn.init.kaiming_normal_(block_of_stem.conv.weight, nonlinearity="relu")
        self.score = Score.build("length", c.classes, c.dim, self.class_caps.activation.max_length)
        self.loss_function = Loss.build(c.loss)
        image_shape = (c.channels, *self.image_size)
        self.decoder = Decoder(c.classes, c.dim, image_shape, hidden=(512, 1024)) if c.decoder else None
