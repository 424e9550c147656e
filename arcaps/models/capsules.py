"""The two capsule networks: AR CapsNet and CapsuleNet."""

from collections.abc import Iterator, Sequence

from jaxtyping import Float, Int
from torch import Tensor, nn

from arcaps.errors import ArcapsError
from arcaps.functional import keep_one
from arcaps.layers import ClassCaps, ConvCaps, Decoder, PrimaryCaps
from arcaps.losses import margin_loss, reconstruction_loss
from arcaps.models.base import Classifier, Output
from arcaps.models.blocks import ConvBlock


class CapsuleClassifier(Classifier):
    """Stem, primary capsules, any number of conv capsule layers, class capsules, decoder."""

    stem: nn.Sequential
    primary: PrimaryCaps
    conv_caps: nn.ModuleList
    class_caps: ClassCaps
    decoder: Decoder | None
    reconstruction_weight: float

    def routing_layers(self) -> Iterator[tuple[str, ConvCaps]]:
        """Every layer that routes, by name, first layer first."""
        for index, layer in enumerate(self.conv_caps):
            assert isinstance(layer, ConvCaps)
            yield f"conv_caps.{index}", layer
        yield "class_caps", self.class_caps

    def forward(
        self,
        images: Float[Tensor, "batch channels height width"],
        labels: Int[Tensor, " batch"] | None = None,
        *,
        return_coefficients: bool = False,
    ) -> Output:
        capsules = self.primary(self.stem(self.accept(images)))
        coefficients = {}
        for name, layer in self.routing_layers():
            capsules, coefficients[name] = layer(capsules, return_coefficients=True)
        scores = self.class_caps.scores(capsules)
        reconstruction = None
        if self.decoder is not None:
            reconstruction = self.decoder(keep_one(capsules, scores.argmax(-1) if labels is None else labels))
        return Output(scores, capsules, reconstruction, coefficients=coefficients if return_coefficients else None)

    def losses(
        self,
        output: Output,
        images: Float[Tensor, "batch channels height width"],
        labels: Int[Tensor, " batch"],
    ) -> dict[str, Tensor]:
        parts = {"margin": margin_loss(output.scores, labels)}
        if output.reconstruction is not None:
            parts["reconstruction"] = self.reconstruction_weight * reconstruction_loss(output.reconstruction, images)
        return parts


class ARCapsNet(CapsuleClassifier, name="ar_capsnet"):
    """Attention Routing CapsuleNet (section 3), with the paper's MNIST network as the default.

    | argument            | meaning                                                                                |
    |---------------------|----------------------------------------------------------------------------------------|
    | layers              | conv caps layers between the primary and the class layer                               |
    | dim                 | capsule dimension of the conv caps layers and the class layer                          |
    | caps                | capsule channels of the primary layer and the conv caps layers                         |
    | primary_dim         | capsule dimension of the primary layer                                                 |
    | strides             | one per conv caps layer; by default 2 for the first, 1 for the others                  |
    | residual            | add a conv caps layer's input to its output, from the second layer on, unless it strides |
    | routing, activation | of every capsule layer, by name: `"dynamic(iterations=3)"`, `"squash"`                 |
    | class_routing, class_activation | of the class layer, where they are not those of the other layers           |
    | layout              | of the class layer: the paper's `text`, or the authors' `code`; see `ClassCaps`        |
    | dropout             | on the input capsules of every routing layer                                           |
    | channel_dropout     | on whole channels of the class layer's input capsules                                  |
    | batch_norm_momentum | how fast BatchNorm's running statistics follow; the paper's framework has 0.01         |
    | decoder             | without it there is no reconstruction                                                  |
    | images_at_once      | no more images' votes are in memory at a time; they are made again for the backward pass |

    The class layer's parameters grow with the area it sees: for larger images give more layers a stride of 2.
    """

    reconstruction_weight = 0.3
    channels_last = True

    def __init__(
        self,
        *,
        image_size: int | tuple[int, int] = (28, 28),
        channels: int = 1,
        classes: int = 10,
        layers: int = 1,
        dim: int = 32,
        caps: int = 8,
        primary_dim: int = 16,
        strides: Sequence[int] | None = None,
        residual: bool = True,
        routing: str = "attention",
        activation: str = "capsule",
        class_routing: str | None = None,
        class_activation: str | None = None,
        layout: str = "text",
        dropout: float = 0.5,
        channel_dropout: float = 0.0,
        batch_norm_momentum: float = 0.01,
        stem_channels: int = 64,
        decoder: bool = True,
        images_at_once: int | None = None,
    ) -> None:
        strides = tuple(strides) if strides is not None else (2, *[1] * (layers - 1))[:layers]
        super().__init__(
            image_size=image_size,
            channels=channels,
            classes=classes,
            layers=layers,
            dim=dim,
            caps=caps,
            primary_dim=primary_dim,
            strides=strides,
            residual=residual,
            routing=routing,
            activation=activation,
            class_routing=class_routing,
            class_activation=class_activation,
            layout=layout,
            dropout=dropout,
            channel_dropout=channel_dropout,
            batch_norm_momentum=batch_norm_momentum,
            stem_channels=stem_channels,
            decoder=decoder,
            images_at_once=images_at_once,
        )
        if len(strides) != layers or any(stride not in (1, 2) for stride in strides):
            raise ArcapsError(
                f"strides {strides} do not fit {layers} conv caps layers: give one stride, 1 or 2, per layer"
            )
        strided = 1 + strides.count(2)
        self.require_size(max(8, 2 ** (strided + 1)), f"{strided} strided layers")

        self.stem = nn.Sequential(
            ConvBlock(channels, stem_channels, norm=True, momentum=batch_norm_momentum),
            ConvBlock(stem_channels, stem_channels, norm=True, momentum=batch_norm_momentum),
        )
        self.primary = PrimaryCaps(stem_channels, caps, primary_dim, activation=activation)
        dims = [primary_dim, *[dim] * layers]
        self.conv_caps = nn.ModuleList(
            ConvCaps(
                caps,
                dims[index],
                caps,
                dim,
                stride=stride,
                routing=routing,
                activation=activation,
                residual=residual and index > 0 and stride == 1,
                dropout=dropout,
                images_at_once=images_at_once,
            )
            for index, stride in enumerate(strides)
        )
        scale = 2**strided
        height, width = (-(-side // scale) for side in self.image_size)
        self.class_caps = ClassCaps(
            caps,
            dims[-1],
            classes,
            dim,
            in_size=(height, width),
            layout=layout,
            routing=class_routing or routing,
            activation=class_activation or activation,
            dropout=dropout,
            channel_dropout=channel_dropout,
            images_at_once=images_at_once,
        )
        self.decoder = Decoder(classes, dim, (channels, *self.image_size)) if decoder else None


class CapsuleNet(CapsuleClassifier, name="capsule_net"):
    """The capsule network with dynamic routing that the paper compares with ("Dynamic routing between capsules", 2017).

    9x9 convolution, 9x9 primary capsules with stride 2, one matrix per input capsule, squash, dynamic routing.
    """

    reconstruction_weight = 0.392

    def __init__(
        self,
        *,
        image_size: int | tuple[int, int] = (28, 28),
        channels: int = 1,
        classes: int = 10,
        dim: int = 16,
        caps: int = 32,
        primary_dim: int = 8,
        iterations: int = 3,
        stem_channels: int = 256,
        decoder: bool = True,
    ) -> None:
        super().__init__(
            image_size=image_size,
            channels=channels,
            classes=classes,
            dim=dim,
            caps=caps,
            primary_dim=primary_dim,
            iterations=iterations,
            stem_channels=stem_channels,
            decoder=decoder,
        )
        self.require_size(17, "two 9x9 convolutions")
        self.stem = nn.Sequential(ConvBlock(channels, stem_channels, kernel=9, padding=0))
        self.primary = PrimaryCaps(
            stem_channels, caps, primary_dim, kernel=9, padding=0, relu=False, activation="squash"
        )
        self.conv_caps = nn.ModuleList()
        height, width = ((side - 8 - 9) // 2 + 1 for side in self.image_size)
        self.class_caps = ClassCaps(
            caps,
            primary_dim,
            classes,
            dim,
            in_size=(height, width),
            per_position=True,
            bias=False,
            routing=f"dynamic(iterations={iterations})",
            activation="squash",
        )
        self.decoder = Decoder(classes, dim, (channels, *self.image_size), hidden=(512, 1024)) if decoder else None
