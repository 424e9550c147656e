"""The routing coefficients: which input channels they select, at which positions, and what each channel contributes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from arcaps.analysis.base import batches, choose_images, eval_mode, of_class, plain, require_capsules
from arcaps.analysis.experiment import Experiment, Measurement, Record, Settings, Subject
from arcaps.analysis.section import Block, Picture, Section, Table, Text, code, number
from arcaps.capsules import as_capsules
from arcaps.data import Dataset
from arcaps.functional import normalised_entropy
from arcaps.layers import ClassCaps, ConvCaps
from arcaps.models import Classifier
from arcaps.models.capsules import CapsuleClassifier
from arcaps.progress import track
from arcaps.votes import WindowVotes

Over = Literal["inputs", "outputs"]


def divided_over(layer: ConvCaps) -> Over:
    """The axis over which a layer's coefficients are shares.

    In attention routing the coefficients of each output sum to 1 over the inputs; in dynamic routing those of each
    input sum to 1 over the outputs. Where they sum to 1 over neither, each output's are compared by their shares.
    """
    return "outputs" if layer.routing.divides == "outputs" else "inputs"


def as_maps(
    coefficients: Float[Tensor, "batch *where out inp"], layer: ConvCaps
) -> Float[Tensor, "batch height width out channels"]:
    """The coefficients with the positions of the layer; a class layer that sees the whole image at once has one."""
    if not isinstance(layer, ClassCaps):
        return coefficients
    if isinstance(layer.votes, WindowVotes):
        height, width = layer.in_size
        return rearrange(coefficients, "b out (h w m) -> b h w out m", h=height, w=width)
    return rearrange(coefficients, "b out inp -> b 1 1 out inp")


def class_shares(layer: ClassCaps) -> Float[Tensor, "classes out"]:
    """The part of each class capsule's elements that comes from each output channel, by the layout of the layer."""
    numbers = torch.arange(layer.out_caps, dtype=torch.float32, device=layer.votes.weight.device)
    elements = layer.of_channels(numbers.view(1, -1, 1).expand(1, -1, layer.out_dim))
    return F.one_hot(elements[0].long(), layer.out_caps).float().mean(1)


def of_classes(
    maps: Float[Tensor, "batch height width out channels"], layer: ConvCaps
) -> Float[Tensor, "batch height width out channels"]:
    """The coefficients of the class capsules: the mean over the output channels that each is made of."""
    if not isinstance(layer, ClassCaps):
        return maps
    return einsum(class_shares(layer), maps, "classes out, b h w out m -> b h w classes m")


@dataclass(frozen=True)
class LayerAttention:
    """The routing of one layer."""

    name: str
    over: Over
    """Whether the coefficients are shares of the inputs (for each output), or of the outputs (for each input)."""
    choices: int
    """The number of inputs or outputs that they sum over."""
    coefficients: Float[Tensor, "classes height width out channels"]
    """The mean coefficients over the images of each class, at each position; in a class layer those of the class
    capsules."""
    entropy: Float[Tensor, "classes height width"]
    """The normalised entropy, the mean over images and capsules. In a class layer over inputs: of the capsule of the
    true class."""
    removed_accuracy: Float[Tensor, " channels"]
    """The accuracy when the input capsules of a channel are set to zero."""
    removed_length: Float[Tensor, "channels classes"]
    """The mean length of the capsule of the true class then, by class."""

    def by_channel(self) -> Float[Tensor, "classes height width channels"]:
        """The coefficient of each input channel, for each class of images and position.

        In a class layer: of the capsule of that class; in other layers: the mean over the output channels.
        """
        if self.name == "class_caps":
            classes = torch.arange(len(self.coefficients))
            return self.coefficients[classes, :, :, classes]
        return self.coefficients.mean(-2)


@dataclass(frozen=True)
class Attention:
    """The routing of every layer."""

    model: str
    data: str
    count: int
    class_names: tuple[str, ...]
    layers: tuple[LayerAttention, ...]
    accuracy: float
    length: Float[Tensor, " classes"]
    """The mean length of the capsule of the true class, by class."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "model": self.model,
            "data": self.data,
            "count": self.count,
            "class_names": list(self.class_names),
            "accuracy": self.accuracy,
            "length": plain(self.length),
            "layers": {
                layer.name: {
                    "coefficients_are_parts_of": f"1 over the {layer.choices} {layer.over}",
                    "entropy": float(layer.entropy.nanmean()),
                    "entropy_by_class": plain(layer.entropy.mean((1, 2))),
                    "entropy_maps": plain(layer.entropy),
                    "listened": plain(layer.by_channel().mean((1, 2))),
                    "listened_maps": plain(layer.by_channel()),
                    "accuracy_without_channel": plain(layer.removed_accuracy),
                    "length_without_channel": plain(layer.removed_length),
                }
                for layer in self.layers
            },
        }


def class_means(
    values: Float[Tensor, "batch ..."], labels: Int[Tensor, " batch"], sums: Float[Tensor, "classes ..."]
) -> None:
    """Add the values of each class to its sum."""
    sums.index_add_(0, labels.cpu(), values.double().cpu())


def attention(
    model: Classifier,
    dataset: Dataset,
    *,
    count: int | None = 1000,
    batch_size: int = 250,
) -> Attention:
    """Measure the routing: mean coefficients as maps, by class, their entropy, and the effect of removing a channel.

    An input channel is removed by setting its capsules to zero wherever the layer uses them, in the residual too.
    """
    capsule_net = require_capsules(model, "attention")
    chosen = choose_images(model, dataset, count)
    classes = len(chosen.class_names)
    numbers = chosen.labels.bincount(minlength=classes).double()
    sums: dict[str, Tensor] = {}
    unsure: dict[str, Tensor] = {}
    layers = dict(capsule_net.routing_layers())
    over = {name: divided_over(layer) for name, layer in layers.items()}
    with eval_mode(model):
        for images, labels in batches(model, chosen, batch_size, "attention: coefficients"):
            found = model(images).coefficients
            for name, layer in layers.items():
                maps = as_maps(found[name], layer)
                surety = layer_entropy(maps, over[name], layer, labels)
                for totals, values in ((sums, of_classes(maps, layer)), (unsure, surety)):
                    totals.setdefault(name, torch.zeros(classes, *values.shape[1:], dtype=torch.float64))
                    class_means(values, labels, totals[name])
        accuracy, length = without_channel(capsule_net, chosen, None, 0, batch_size)
        results = []
        for name, layer in layers.items():
            maps = sums[name] / numbers.view(-1, 1, 1, 1, 1)
            channels = maps.shape[-1]
            removed = [
                without_channel(capsule_net, chosen, layer, channel, batch_size)
                for channel in track(range(channels), f"attention: {name} without a channel", channels)
            ]
            choices = layer.routing.in_caps if over[name] == "inputs" else layer.routing.out_caps
            results.append(
                LayerAttention(
                    name,
                    over[name],
                    choices,
                    maps,
                    unsure[name] / numbers.view(-1, 1, 1),
                    torch.tensor([right for right, _ in removed], dtype=torch.float64),
                    torch.stack([lengths for _, lengths in removed]),
                )
            )
    return Attention(model.name, chosen.name, len(chosen), chosen.class_names, tuple(results), accuracy, length)


def layer_entropy(
    maps: Float[Tensor, "batch height width out channels"], over: Over, layer: ConvCaps, labels: Int[Tensor, " batch"]
) -> Float[Tensor, "batch height width"]:
    """The entropy at each position, the mean over the output channels; in a class layer those of the true class."""
    if over == "outputs":
        return normalised_entropy(rearrange(maps, "b h w out m -> b h w m out")).mean(-1)
    entropy = normalised_entropy(maps)
    if not isinstance(layer, ClassCaps):
        return entropy.mean(-1)
    by_class = einsum(class_shares(layer), entropy, "classes out, b h w out -> b classes h w")
    return of_class(by_class.flatten(2), labels).unflatten(1, maps.shape[1:3])


def without_channel(
    model: CapsuleClassifier, dataset: Dataset, layer: ConvCaps | None, channel: int, batch_size: int
) -> tuple[float, Float[Tensor, " classes"]]:
    """Accuracy, and mean length of the true class's capsule by class, with an input channel of a layer set to zero."""

    def set_to_zero(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        capsules = as_capsules(inputs[0])
        poses = capsules.poses.clone()
        poses[..., channel, :] = 0
        presence = None if capsules.presence is None else capsules.presence.clone()
        if presence is not None:
            presence[..., channel] = 0
        return (capsules._replace(poses=poses, presence=presence), *inputs[1:])

    classes = len(dataset.class_names)
    total, right = torch.zeros(classes, dtype=torch.float64), 0
    handle = None if layer is None else layer.register_forward_pre_hook(set_to_zero)
    try:
        for images, labels in batches(model, dataset, batch_size):
            scores = model(images).scores
            right += int((scores.argmax(-1) == labels).sum())
            class_means(scores.gather(1, labels.unsqueeze(1))[:, 0], labels, total)
    finally:
        if handle is not None:
            handle.remove()
    return right / len(dataset), total / dataset.labels.bincount(minlength=classes)


class AttentionExperiment(Experiment, name="attention"):
    """Routing coefficients: which input channels they select, at which positions, and what each channel contributes."""

    def run(self, subject: Subject, settings: Settings) -> Measurement:
        """Average the coefficients by class; remove each input channel."""
        count = 1000 if settings.count is None else settings.count
        return Measurement(attention(subject.model, subject.dataset, count=count).as_dict())

    def section(self, record: Record) -> Section:
        """Coefficient, accuracy and length without each input channel, layer by layer."""
        blocks: list[Block] = []
        for name, layer in record["layers"].items():
            rows = []
            for channel, accuracy in enumerate(layer["accuracy_without_channel"]):
                weight = mean([row[channel] for row in layer["listened"]])
                length = mean(layer["length_without_channel"][channel])
                rows.append([str(channel), number(weight), f"{accuracy:.1%}", number(length)])
            blocks.append(
                Text(
                    "{layer}: the coefficients sum to {parts}. Their normalised entropy is {entropy:.3f} (0: one gets "
                    "all, 1: all get the same).",
                    {
                        "layer": code(name),
                        "parts": layer["coefficients_are_parts_of"],
                        "entropy": layer["entropy"],
                    },
                )
            )
            blocks.append(Picture(f"attention-{name}", f"coefficients of {name}"))
            heading = ["input channel", "mean coefficient", "accuracy without it", "length without it"]
            blocks.append(Table(heading, rows))
        return Section(
            "Attention: which input channels the routing selects",
            (
                Text(
                    "{model} on {data}, n = {count:,} images. With all channels the accuracy is {accuracy:.1%}, and "
                    "the mean length of the capsule of the true class {mean_length} (1: the largest length).",
                    {**record, "mean_length": number(mean(record["length"]))},
                ),
                Picture("attention", "accuracy and length without each channel"),
                *blocks,
            ),
        )


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are there."""
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None
