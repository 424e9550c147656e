"""Which input does a capsule listen to, where, how surely, and what if that input were gone?"""

from dataclasses import dataclass
from math import log
from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from arcaps.analysis.base import at_rest, batches, choose_images, of_class, plain, require_capsules, silent
from arcaps.data import Dataset
from arcaps.data.sources import Report
from arcaps.layers import ClassCaps, ConvCaps
from arcaps.models import Classifier
from arcaps.models.capsules import CapsuleClassifier

Over = Literal["inputs", "outputs"]


def normalised_entropy(coefficients: Float[Tensor, "*where choices"]) -> Float[Tensor, "*where"]:
    """How unsure a choice is, in 0..1: 0 where one gets all, 1 where all get the same."""
    choices = coefficients.shape[-1]
    if choices == 1:
        return torch.zeros_like(coefficients[..., 0])
    shares = coefficients / coefficients.sum(-1, keepdim=True).clamp_min(torch.finfo(coefficients.dtype).tiny)
    return (torch.special.entr(shares).sum(-1) / log(choices)).clamp(0.0, 1.0)


def divided_over(coefficients: Float[Tensor, "*where out inp"]) -> Over:
    """Over which axis the coefficients sum to 1.

    In attention routing each output divides its attention over the inputs; in dynamic routing each input divides
    itself over the outputs.
    """
    off = {
        "inputs": (coefficients.sum(-1) - 1).abs().mean(),
        "outputs": (coefficients.sum(-2) - 1).abs().mean(),
    }
    return "inputs" if off["inputs"] <= off["outputs"] else "outputs"


def as_maps(
    coefficients: Float[Tensor, "batch *where out inp"], layer: ConvCaps
) -> Float[Tensor, "batch height width out channels"]:
    """The coefficients of any layer with its positions; a class layer that sees the whole image at once has one."""
    if not isinstance(layer, ClassCaps):
        return coefficients
    if layer.per_position:
        height, width = layer.in_size
        return rearrange(coefficients, "b out (h w m) -> b h w out m", h=height, w=width)
    return rearrange(coefficients, "b out inp -> b 1 1 out inp")


@dataclass(frozen=True)
class LayerAttention:
    """The routing of one layer."""

    name: str
    over: Over
    """What a coefficient is a part of: an output's attention to all inputs, or an input's gift to all outputs."""
    choices: int
    """Among how many it is divided."""
    coefficients: Float[Tensor, "classes height width out channels"]
    """The mean coefficients over the images of each class, at each position."""
    entropy: Float[Tensor, "classes height width"]
    """How unsure the routing is, in 0..1, the mean over images and capsules. In a class layer over inputs: of the
    true class's capsule."""
    removed_accuracy: Float[Tensor, " channels"]
    """The accuracy when the input capsules of a channel are set to zero."""
    removed_length: Float[Tensor, "channels classes"]
    """The mean length of the true class's capsule then, by class."""

    def listened(self) -> Float[Tensor, "classes height width channels"]:
        """For each class of images and position, how much each input channel is listened to.

        In a class layer: by the capsule of that class; in others: the mean over the output channels.
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
    """The mean length of the true class's capsule, by class."""

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
                    "listened": plain(layer.listened().mean((1, 2))),
                    "listened_maps": plain(layer.listened()),
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
    report: Report = silent,
) -> Attention:
    """Look into the routing: mean coefficients as maps, by class, their entropy, and the effect of removing an input.

    An input channel is removed by setting its capsules to zero wherever the layer uses them, in the residual too.
    """
    capsule_net = require_capsules(model, "attention")
    chosen = choose_images(model, dataset, count)
    classes = len(chosen.class_names)
    numbers = chosen.labels.bincount(minlength=classes).double()
    sums: dict[str, Tensor] = {}
    unsure: dict[str, Tensor] = {}
    over: dict[str, Over] = {}
    layers = dict(capsule_net.routing_layers())
    with at_rest(model):
        for images, labels in batches(model, chosen, batch_size, report, "attention"):
            found = model(images, return_coefficients=True).coefficients
            assert found is not None
            for name, layer in layers.items():
                over.setdefault(name, divided_over(found[name]))
                maps = as_maps(found[name], layer)
                surety = layer_entropy(maps, over[name], labels if name == "class_caps" else None)
                for totals, values in ((sums, maps), (unsure, surety)):
                    totals.setdefault(name, torch.zeros(classes, *values.shape[1:], dtype=torch.float64))
                    class_means(values, labels, totals[name])
        accuracy, length = without(capsule_net, chosen, None, 0, batch_size, report)
        results = []
        for name, layer in layers.items():
            maps = sums[name] / numbers.view(-1, 1, 1, 1, 1)
            channels = maps.shape[-1]
            report(f"attention: {name}, its {channels} input channels removed one at a time")
            removed = [without(capsule_net, chosen, layer, channel, batch_size, report) for channel in range(channels)]
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
    maps: Float[Tensor, "batch height width out channels"], over: Over, labels: Int[Tensor, " batch"] | None
) -> Float[Tensor, "batch height width"]:
    """The entropy at each position: of the capsule of the class `labels`, or the mean over capsules."""
    if over == "outputs":
        return normalised_entropy(rearrange(maps, "b h w out m -> b h w m out")).mean(-1)
    entropy = normalised_entropy(maps)
    if labels is None:
        return entropy.mean(-1)
    return rearrange(
        of_class(rearrange(entropy, "b h w out -> b out (h w)"), labels), "b (h w) -> b h w", w=maps.shape[2]
    )


def without(
    model: CapsuleClassifier, dataset: Dataset, layer: ConvCaps | None, channel: int, batch_size: int, report: Report
) -> tuple[float, Float[Tensor, " classes"]]:
    """Accuracy, and mean length of the true class's capsule by class, with one input channel of a layer set to zero."""

    def silence(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        capsules = inputs[0].clone()
        capsules[..., channel, :] = 0
        return (capsules, *inputs[1:])

    classes = len(dataset.class_names)
    total, right = torch.zeros(classes, dtype=torch.float64), 0
    handle = None if layer is None else layer.register_forward_pre_hook(silence)
    try:
        for images, labels in batches(model, dataset, batch_size, report, "attention"):
            scores = model(images).scores
            right += int((scores.argmax(-1) == labels).sum())
            class_means(scores.gather(1, labels.unsqueeze(1))[:, 0], labels, total)
    finally:
        if handle is not None:
            handle.remove()
    return right / len(dataset), total / dataset.labels.bincount(minlength=classes)
