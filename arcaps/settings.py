"""Settings as frozen dataclasses, without torch. A setting is written down here, and nowhere else.

Command-line flags with their help, `config.json`, grids of sweeps and the documentation are made from the fields.
Values are checked where an object is made, so that a wrong one never gets further.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from arcaps.errors import ArcapsError
from arcaps.fields import Options, Settings, within

Optimiser = Literal["rmsprop", "adamw", "sgd"]
Schedule = Literal["inverse", "one_cycle", "cosine", "constant"]
Border = Literal["zeros", "border", "reflection"]
Fit = Literal["pad", "scale"]
MANY = 1_000_000
"""More than any size of a network."""


@dataclass(frozen=True)
class Augmentation(Settings):
    """Data augmentation: random changes of the training images, each uniform within its range and on its own."""

    rotation: float = within(0, 180, 0.0)
    """Rotate by up to this many degrees, either way."""
    shift: float = within(0, 1, 0.0)
    """Shift by up to this part of the image's side, either way, in x and in y."""
    scale: float = within(0, 0.95, 0.0)
    """Scale by a factor from 1 - scale to 1 + scale, in x and in y on their own."""
    shear: float = within(0, 10, 0.0)
    """Shear by up to this, either way."""
    elastic: float = within(0, 1, 0.0)
    """Bend the image smoothly: move the points of a grid of 5x5 by up to this part of the side, either way."""
    flip: bool = False
    """Mirror every second image, left to right."""
    augmented: float = within(0, 1, 1.0)
    """The probability with which an image is augmented; otherwise it stays as it is."""
    border: Border = "zeros"
    """What lies outside the image: black, the nearest pixel, or the mirrored image."""

    def __bool__(self) -> bool:
        """True if the images are changed at all."""
        return self.augmented > 0 and any((self.rotation, self.shift, self.scale, self.shear, self.elastic, self.flip))


@dataclass(frozen=True)
class Recipe(Settings):
    """An experiment: data, model, optimiser and number of epochs. The defaults are the paper's."""

    name: str
    """What the recipe is called."""
    about: str
    """What it is, in a line."""
    data: str
    """A data set's name, or a folder or CSV file of your own images."""
    test_data: str | None = None
    """Another data set to test on."""
    image_size: tuple[int, int] | None = within(1, 10_000, None)
    """Height and width of the model's images; by default those of the data set."""
    channels: int | None = within(1, 1_000, None)
    """Channels of the model's images: 1 for grey, 3 for colour; by default those of the data set."""
    fit: Fit = "scale"
    """How images come to image_size: scale enlarges smaller ones, pad puts black around them."""
    invert: bool = False
    """Turn black into white and white into black."""
    skip_broken: bool = False
    """Leave out files of your own that cannot be read."""
    model: str = "ar_capsnet"
    """The model: ar_capsnet, capsule_net, matrix_capsules, efficient_capsnet, conv_net, strong_conv_net, dense_head, or
    one of your own."""
    options: Options = field(default_factory=Options)
    """The model's own settings, where they are not its defaults."""
    epochs: int = within(1, 1_000_000, 20)
    """Passes over the training images."""
    patience: int | None = within(1, 1_000_000, None)
    """Stop early after this number of epochs without a lower validation error."""
    batch_size: int = within(1, 1_000_000, 100)
    """Images per step, of all processes together."""
    optimiser: Optimiser = "rmsprop"
    """How gradients change the weights."""
    learning_rate: float = within(0, 1_000, 1e-3)
    """The largest learning rate: the schedule goes down from it."""
    schedule: Schedule = "inverse"
    """How the learning rate changes."""
    decay: float = within(0, 1_000, 1e-4)
    """Of the inverse schedule: the learning rate is divided by 1 + decay * step."""
    warm_up: float = within(0, 0.99, 0.2)
    """Of the one_cycle schedule: the part of the training in which the learning rate grows."""
    halve_after: int | None = within(0, 1_000_000, None)
    """From this epoch on the learning rate is halved."""
    weight_decay: float = within(0, 100, 0.0)
    """Weight decay of the optimiser."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    """Random changes of the training images."""
    validation: float = within(0.0001, 0.9, 0.1)
    """The part of the training images that is held out, to choose the best epoch."""
    limit: int | None = within(1, 10**12, None)
    """Use no more training images than this."""
    average: float = within(0, 0.999999, 0.0)
    """Validate and keep a moving average of the weights, with this decay per step; 0 is without."""
    seed: int = within(0, 2**62, 0)
    """Seed of the weights, the split, the order, the augmentation and the dropout."""

    @property
    def flat(self) -> dict[str, Any]:
        """Every setting with its value: fields, those of the augmentation, and the model's options."""
        values = {known.name: getattr(self, known.name) for known in fields(self)}
        del values["augmentation"], values["options"]
        return {**values, **vars(self.augmentation), **self.options}


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Settings):
    """What every classifier is told by its data."""

    image_size: tuple[int, int] = within(1, MANY, (28, 28))
    """Height and width of the images, such as 32 32."""
    channels: int = within(1, MANY, 1)
    """Channels of the images: 1 grey, 3 colour."""
    classes: int = within(1, MANY, 10)
    """Number of classes."""

    def as_options(self) -> dict[str, Any]:
        """The fields by name, as the constructor takes them."""
        return {known.name: getattr(self, known.name) for known in fields(self)}


FROM_THE_DATA = tuple(known.name for known in fields(ModelConfig))
"""Options of a model that come from the data."""


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(ModelConfig):
    """The shapes of ar_capsnet, which dense_head has too; the defaults are the paper's MNIST network."""

    layers: int = within(0, 100, 1)
    """Conv caps layers between the primary and the class layer."""
    dim: int = within(1, MANY, 32)
    """Dimension of the capsules of the conv caps layers and the class layer."""
    caps: int = within(1, MANY, 8)
    """Capsule channels of the primary layer and the conv caps layers."""
    primary_dim: int = within(1, MANY, 16)
    """Dimension of the primary capsules."""
    strides: tuple[int, ...] | None = None
    """Stride of each conv caps layer, such as 2 2 1; by default 2 for the first, 1 for the others."""
    dropout: float | None = within(0, 0.99, 0.5)
    """Part of the elements of the input capsules of every routing layer that is dropped in training."""
    batch_norm_momentum: float = within(0, 1, 0.01)
    """How fast BatchNorm's running statistics follow; the paper's framework has 0.01."""
    stem_channels: int = within(1, MANY, 64)
    """Channels of the convolutions before the capsules."""
    stages: tuple[int, ...] = within(1, MANY, ())
    """Residual stages between these convolutions and the capsules, none in the paper: the channels of each, such as
    64 128. Each halves the maps."""

    @property
    def strided(self) -> int:
        """How often the maps are halved before the class layer."""
        assert self.strides is not None
        return len(self.stages) + 1 + self.strides.count(2)

    def __post_init__(self) -> None:
        if self.strides is None and isinstance(self.layers, int):
            object.__setattr__(self, "strides", (2, *[1] * (self.layers - 1))[: self.layers])
        super().__post_init__()
        assert self.strides is not None
        if len(self.strides) != self.layers or any(stride not in (1, 2) for stride in self.strides):
            raise ArcapsError(
                f"strides {self.strides} do not fit {self.layers} conv caps layers: give one stride, 1 or 2, per layer"
            )


@dataclass(frozen=True, kw_only=True)
class ARCapsNetConfig(BackboneConfig):
    """Settings of ar_capsnet; the defaults are the paper's MNIST network."""

    dropout: float | None = within(0, 0.99, None)
    """Part of the elements of the input capsules of every routing layer that is dropped in training; by default 0.5,
    and 0 where the score is the presence, since dropped elements look like votes that disagree."""
    residual: bool = True
    """Add a conv caps layer's input to its output, from the second layer on, unless it strides."""
    votes: str = "conv"
    """Votes of every capsule layer, by name: conv, window, matrix."""
    routing: str = "attention"
    """Routing of every capsule layer, by name, with options: attention, "dynamic(iterations=5)"."""
    competition: str = "outputs"
    """Among whom an input divides itself, for routings that know it: outputs, overlap, image, "outputs(leak=True)"."""
    activation: str = "capsule"
    """Activation of every capsule layer, by name, with options: squash, "capsule(compression=4)"."""
    head: Literal["full", "pooled"] = "full"
    """The class layer: the paper's full kernel, or pooled, where all positions share their votes, each vote says where
    it is from, and an attention that treats all inputs alike chooses among all of them; for use with stages."""
    class_votes: str | None = None
    """Votes of the class layer, where they are not those of the head."""
    class_routing: str | None = None
    """Routing of the class layer, where it is not that of the other layers."""
    class_activation: str | None = None
    """Activation of the class layer, where it is not that of the other layers, such as "capsule(across=True)"."""
    layout: Literal["text", "code"] = "text"
    """How output channels become class capsules: one channel a class, as in the paper's text, or as in the authors'
    code, where the elements of all channels are distributed over the classes."""
    presence: bool | None = None
    """Give each primary capsule a presence of its own, by a second convolution; by default where the routing of the
    capsule layers gives presence too."""
    channel_dropout: float = within(0, 0.99, 0.0)
    """Part of the channels of the class layer's input capsules that is dropped in training."""
    entropy: float = within(0, MANY, 0.0)
    """Weight of a loss that keeps the class layer's coefficients apart from one-hot: one minus their normalised
    entropy."""
    score: str = "length"
    """What the score of a class is read from, by name: length, presence (of a routing that gives it), linear."""
    loss: str = "margin"
    """Loss of the scores, by name, with options: margin, "spread(low=0.2, high=0.9)", cross_entropy."""
    decoder: bool = True
    """Reconstruct the image from the class capsule."""
    images_at_once: int | None = within(1, MANY, None)
    """Keep the votes of no more images in memory at a time, and make them again for the backward pass."""

    def __post_init__(self) -> None:
        if self.dropout is None:
            object.__setattr__(self, "dropout", 0.0 if str(self.score).startswith("presence") else 0.5)
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class CapsuleNetConfig(ModelConfig):
    """Settings of capsule_net."""

    dim: int = within(1, MANY, 16)
    """Dimension of the class capsules."""
    caps: int = within(1, MANY, 32)
    """Channels of the primary capsules."""
    primary_dim: int = within(1, MANY, 8)
    """Dimension of the primary capsules."""
    iterations: int = within(1, 1_000, 3)
    """Iterations of dynamic routing."""
    stem_channels: int = within(1, MANY, 256)
    """Channels of the convolution before the capsules."""
    routing: str | None = None
    """Routing of the class layer, by name, with options; by default dynamic with these iterations."""
    competition: str = "outputs"
    """Among whom an input divides itself: "outputs(leak=True)" is leaky routing."""
    faithful: bool = False
    """Follow the authors' published code where it differs from their text: primary capsules are divided by their
    number, all capsules have a bias that starts at 0.1, and the reconstruction weighs 20 times more."""
    loss: str = "margin"
    """Loss of the scores, by name, with options: margin, "spread(low=0.2, high=0.9)"."""
    decoder: bool = True
    """Reconstruct the image from the class capsule."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.routing is not None and (self.iterations != 3 or self.faithful):
            without = "iterations" if self.iterations != 3 else "faithful"
            raise ArcapsError(
                f"{without} belongs to the default routing: leave it out, or leave out routing {self.routing!r}"
            )


@dataclass(frozen=True, kw_only=True)
class MatrixCapsulesConfig(ModelConfig):
    """Settings of matrix_capsules; the defaults are the paper's network for smallNORB."""

    stem_channels: int = within(1, MANY, 64)
    """Channels of the convolution before the capsules (A in the paper)."""
    primary_caps: int = within(1, MANY, 8)
    """Channels of the primary capsules (B)."""
    caps: int = within(1, MANY, 16)
    """Channels of both conv caps layers (C and D)."""
    dim: int = within(1, MANY, 16)
    """Dimension of every capsule, a square: 16 is a pose of 4x4."""
    routing: str = "em"
    """Routing of every capsule layer, one that gives presence, by name, with options."""
    competition: str = "overlap"
    """Among whom an input divides itself: overlap is all windows over it, outputs those of one window."""
    loss: str = "spread"
    """Loss of the scores, by name, with options: spread, margin."""


@dataclass(frozen=True, kw_only=True)
class EfficientCapsNetConfig(ModelConfig):
    """Settings of efficient_capsnet; the defaults are the paper's network for MNIST."""

    stem_widths: tuple[int, int, int] = within(1, MANY, (32, 64, 64))
    """Channels of the first three convolutions."""
    caps: int = within(1, MANY, 16)
    """Number of primary capsules."""
    primary_dim: int = within(1, MANY, 8)
    """Dimension of the primary capsules."""
    dim: int = within(1, MANY, 16)
    """Dimension of the class capsules."""
    routing: str = "self_attention"
    """Routing of the class layer, by name, with options."""
    loss: str = "margin"
    """Loss of the scores, by name, with options: margin, "spread(low=0.2, high=0.9)"."""
    decoder: bool = False
    """Reconstruct the image from the class capsule."""


@dataclass(frozen=True, kw_only=True)
class DenseHeadConfig(BackboneConfig):
    """Settings of dense_head: those of ar_capsnet that say how large it is."""


@dataclass(frozen=True, kw_only=True)
class ConvNetConfig(ModelConfig):
    """Settings of conv_net."""

    dropout: float = within(0, 0.99, 0.5)
    """Part of the features before the last dense layer that is dropped in training."""


@dataclass(frozen=True, kw_only=True)
class StrongConvNetConfig(ModelConfig):
    """Settings of strong_conv_net."""

    widths: tuple[int, int, int, int] = within(1, MANY, (64, 128, 256, 384))
    """Channels of the stem and the three stages."""
    dropout: float = within(0, 0.99, 0.2)
    """Part of the features before the dense layer that is dropped in training."""
    batch_norm_momentum: float = within(0, 1, 0.01)
    """How fast BatchNorm's running statistics follow; short trainings need a larger value."""
