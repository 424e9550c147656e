"""The two capsule networks: AR CapsNet and CapsuleNet."""

from collections.abc import Iterator
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from arcaps.capsules import Capsules
from arcaps.functional import keep_labelled, keep_one
from arcaps.layers import ClassCaps, ConvCaps, Decoder, PrimaryCaps
from arcaps.losses import Loss, reconstruction_loss
from arcaps.models.base import BatchLike, Classifier, Labels, Output
from arcaps.models.blocks import ConvBlock
from arcaps.scores import Score
from arcaps.settings import ARCapsNetConfig, CapsuleNetConfig


class CapsuleClassifier(Classifier):
    """Stem, primary capsules, any number of conv capsule layers, class capsules, score, decoder."""

    stem: nn.Sequential
    primary: PrimaryCaps
    conv_caps: nn.ModuleList
    class_caps: ClassCaps
    score: Score
    loss_function: Loss
    decoder: Decoder | None
    reconstruction_weight: float

    def routing_layers(self) -> Iterator[tuple[str, ConvCaps]]:
        """Every layer that routes, by name, first layer first."""
        for index, layer in enumerate(self.conv_caps):
            assert isinstance(layer, ConvCaps)
            yield f"conv_caps.{index}", layer
        yield "class_caps", self.class_caps

    def feature_layers(self) -> Iterator[tuple[str, nn.Module]]:
        yield "stem", self.stem
        yield "primary", self.primary
        yield from self.routing_layers()

    def forward(self, images: Float[Tensor, "batch channels height width"], labels: Labels | None = None) -> Output:
        """Answer for `images`. `labels` say which capsules the decoder shows; without them, the best scored one."""
        capsules: Capsules = self.primary(self.stem(self.accept(images)))
        coefficients = {}
        for name, layer in self.routing_layers():
            capsules = layer(capsules)
            assert capsules.coefficients is not None
            coefficients[name] = capsules.coefficients
        scores, logits = self.score(capsules)
        reconstruction = None
        if self.decoder is not None:
            poses = capsules.poses
            shown = keep_one(poses, scores.argmax(-1)) if labels is None else keep_labelled(poses, labels)
            reconstruction = self.decoder(shown)
        return Output(scores, capsules.poses, reconstruction, logits, coefficients)

    def losses(self, output: Output, batch: BatchLike, progress: float = 0.0) -> dict[str, Tensor]:
        loss = self.loss_function
        parts = {loss.name: loss(output.scores, batch.labels, logits=output.logits, progress=progress)}
        if output.reconstruction is not None:
            parts["reconstruction"] = self.reconstruction_weight * reconstruction_loss(
                output.reconstruction, batch.images
            )
        return parts


class ARCapsNet(CapsuleClassifier, name="ar_capsnet"):
    """Attention Routing CapsuleNet (section 3), with the paper's MNIST network as the default.

    Its options are the fields of `arcaps.settings.ARCapsNetConfig`. The class layer's parameters grow with the area it
    sees: for larger images give more layers a stride of 2.
    """

    config_class = ARCapsNetConfig
    reconstruction_weight = 0.3
    channels_last = True

    def __init__(self, **options: Any) -> None:
        c = ARCapsNetConfig(**options)
        super().__init__(c)
        assert c.strides is not None
        strided = 1 + c.strides.count(2)
        self.require_size(max(8, 2 ** (strided + 1)), f"{strided} strided layers")
        self.stem = nn.Sequential(
            ConvBlock(c.channels, c.stem_channels, norm=True, momentum=c.batch_norm_momentum),
            ConvBlock(c.stem_channels, c.stem_channels, norm=True, momentum=c.batch_norm_momentum),
        )
        self.primary = PrimaryCaps(c.stem_channels, c.caps, c.primary_dim, activation=c.activation, presence=c.presence)
        dims = [c.primary_dim, *[c.dim] * c.layers]
        of_every_layer: dict[str, Any] = {
            "votes": c.votes,
            "routing": c.routing,
            "competition": c.competition,
            "activation": c.activation,
            "dropout": c.dropout,
            "images_at_once": c.images_at_once,
        }
        self.conv_caps = nn.ModuleList(
            ConvCaps(
                c.caps,
                dims[index],
                c.caps,
                c.dim,
                stride=stride,
                residual=c.residual and index > 0 and stride == 1,
                **of_every_layer,
            )
            for index, stride in enumerate(c.strides)
        )
        scale = 2**strided
        height, width = (-(-side // scale) for side in self.image_size)
        of_class_layer = {
            **of_every_layer,
            "layout": c.layout,
            "votes": c.class_votes or c.votes,
            "routing": c.class_routing or c.routing,
            "activation": c.class_activation or c.activation,
            "channel_dropout": c.channel_dropout,
        }
        self.class_caps = ClassCaps(c.caps, dims[-1], c.classes, c.dim, in_size=(height, width), **of_class_layer)
        self.score = Score.build(c.score, c.classes, c.dim, self.class_caps.activation.max_length)
        self.loss_function = Loss.build(c.loss)
        self.decoder = Decoder(c.classes, c.dim, (c.channels, *self.image_size)) if c.decoder else None


class CapsuleNet(CapsuleClassifier, name="capsule_net"):
    """The capsule network with dynamic routing that the paper compares with ("Dynamic routing between capsules", 2017).

    9x9 convolution, 9x9 primary capsules with stride 2, one matrix per input capsule, squash, dynamic routing. Its
    options are the fields of `arcaps.settings.CapsuleNetConfig`.
    """

    config_class = CapsuleNetConfig
    reconstruction_weight = 0.392

    def __init__(self, **options: Any) -> None:
        c = CapsuleNetConfig(**options)
        super().__init__(c)
        self.require_size(17, "two 9x9 convolutions")
        self.stem = nn.Sequential(ConvBlock(c.channels, c.stem_channels, kernel=9, padding=0))
        self.primary = PrimaryCaps(
            c.stem_channels, c.caps, c.primary_dim, kernel=9, padding=0, relu=False, activation="squash"
        )
        self.conv_caps = nn.ModuleList()
        height, width = ((side - 8 - 9) // 2 + 1 for side in self.image_size)
        self.class_caps = ClassCaps(
            c.caps,
            c.primary_dim,
            c.classes,
            c.dim,
            in_size=(height, width),
            votes="window",
            bias=False,
            routing=c.routing or f"dynamic(iterations={c.iterations})",
            competition=c.competition,
            activation="squash",
        )
        self.score = Score.build("length", c.classes, c.dim, self.class_caps.activation.max_length)
        self.loss_function = Loss.build(c.loss)
        image_shape = (c.channels, *self.image_size)
        self.decoder = Decoder(c.classes, c.dim, image_shape, hidden=(512, 1024)) if c.decoder else None
