"""Matrix capsules with EM routing."""

from typing import Any

from torch import nn

from arcaps.errors import ArcapsError
from arcaps.layers import ClassCaps, ConvCaps, PrimaryCaps
from arcaps.losses import Loss
from arcaps.models.blocks import ConvBlock
from arcaps.models.capsules import CapsuleClassifier, gives_presence
from arcaps.scores import Score
from arcaps.settings import MatrixCapsulesConfig


class MatrixCapsules(CapsuleClassifier, name="matrix_capsules"):
    """The network of "Matrix capsules with EM routing" (Hinton, Sabour, Frosst, 2018).

    5x5 convolution with stride 2, primary capsules (linear poses of 4x4, and a presence), two conv caps layers of 3x3
    with strides 2 and 1, and a class layer whose votes all positions share, with the position added to them. No
    padding, no activation function, no decoder, no dropout. 68,754 parameters with two channels and five classes, as on
    smallNORB, whatever the size of the images. Its options are the fields of `arcaps.settings.MatrixCapsulesConfig`.

    The paper adds weight decay, 2e-7, and a learning rate of 1e-2, which it needs: `arcaps train digits --model
    matrix_capsules --learning-rate 1e-2`. How our EM routing differs from the paper's is said in `arcaps.routing.em`;
    the primary capsules start as in the authors' code (truncated normal numbers: standard deviation 0.5 for poses,
    3 for the presence, whose bias is -1), so that parts of the image differ in presence from the first step; all
    other weights start as Glorot has it.
    """

    config_class = MatrixCapsulesConfig

    def __init__(self, **options: Any) -> None:
        c = MatrixCapsulesConfig(**options)
        super().__init__(c)
        self.require_size(17, "a 5x5 convolution and two capsule layers without padding")
        if not gives_presence(c.routing):
            raise ArcapsError(f"matrix_capsules needs a routing that gives presence, not {c.routing}: give em")
        self.stem = nn.Sequential(ConvBlock(c.channels, c.stem_channels, kernel=5, stride=2, padding=0))
        self.primary = PrimaryCaps(
            c.stem_channels,
            c.primary_caps,
            c.dim,
            kernel=1,
            stride=1,
            padding=0,
            relu=False,
            activation="identity",
            presence=True,
        )
        assert self.primary.presence is not None
        for conv, deviation, bias in ((self.primary.conv, 0.5, 0.0), (self.primary.presence, 3.0, -1.0)):
            nn.init.trunc_normal_(conv.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
            assert conv.bias is not None
            nn.init.constant_(conv.bias, bias)
        of_every_layer: dict[str, Any] = {"bias": False, "routing": c.routing, "activation": "identity"}
        of_conv: dict[str, Any] = {
            **of_every_layer,
            "votes": "matrix",
            "competition": c.competition,
            "padding": "valid",
        }
        self.conv_caps = nn.ModuleList(
            [
                ConvCaps(c.primary_caps, c.dim, c.caps, c.dim, stride=2, **of_conv),
                ConvCaps(c.caps, c.dim, c.caps, c.dim, stride=1, **of_conv),
            ]
        )
        height, width = (((side - 5) // 2 + 1 - 3) // 2 + 1 - 2 for side in self.image_size)
        votes = "matrix(shared=True, coordinates=True)"
        self.class_caps = ClassCaps(
            c.caps, c.dim, c.classes, c.dim, in_size=(height, width), votes=votes, **of_every_layer
        )
        self.score = Score.build("presence", c.classes, c.dim, self.class_caps.activation.max_length)
        self.loss_function = Loss.build(c.loss)
        self.decoder = None
