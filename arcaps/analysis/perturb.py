"""What does one dimension of a class capsule encode? Change it, and look at the reconstruction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from arcaps.analysis.base import (
    DoesNotApplyError,
    batches,
    choose_images,
    eval_mode,
    of_class,
    require_capsules,
)
from arcaps.analysis.experiment import Experiment, Measurement, Record, Settings, Subject
from arcaps.analysis.section import Picture, Section, Table, Text
from arcaps.data import Dataset
from arcaps.errors import ArcapsError
from arcaps.layers import Decoder
from arcaps.models import Classifier
from arcaps.progress import track

REACH, STEPS = 0.25, 11
"""A quarter of the greatest length either way, in eleven steps: the paper's."""


@dataclass(frozen=True)
class Perturbation:
    """Reconstructions as one dimension of the class capsule changes."""

    model: str
    data: str
    class_names: tuple[str, ...]
    """The names of the chosen classes."""
    labels: tuple[int, ...]
    """Their indices."""
    dims: tuple[int, ...]
    offsets: Float[Tensor, " steps"]
    """What is added to the dimension."""
    examples: Int[Tensor, " classes"]
    """The index of the image that is shown for each class."""
    images: Float[Tensor, "classes channels height width"]
    pictures: Float[Tensor, "classes dims steps channels height width"]
    """The reconstructions from the example's capsule."""
    change: Float[Tensor, "classes dims"]
    """How much a dimension changes the reconstruction: the root mean square, over pixels and steps, of the difference
    from the reconstruction with no offset; the mean over images of the class."""
    counts: Int[Tensor, " classes"]
    """How many images of each class `change` was measured on."""

    def ranking(self) -> Int[Tensor, "classes dims"]:
        """For each class the places in `dims`, the one with the largest change first."""
        return self.change.argsort(dim=-1, descending=True)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON, without the pictures."""
        order = self.ranking()
        return {
            "model": self.model,
            "data": self.data,
            "offsets": self.offsets.tolist(),
            "dims": list(self.dims),
            "classes": {
                name: {
                    "label": self.labels[row],
                    "example": int(self.examples[row]),
                    "count": int(self.counts[row]),
                    "ranking": [self.dims[place] for place in order[row]],
                    "change": {str(self.dims[place]): float(self.change[row, place]) for place in order[row]},
                }
                for row, name in enumerate(self.class_names)
            },
        }


def move_dimensions(
    capsules: Float[Tensor, "count dim"], dims: Sequence[int], offsets: Float[Tensor, " steps"]
) -> Float[Tensor, "count dims steps dim"]:
    """Copies of each capsule with one dimension moved."""
    moved = repeat(capsules, "count dim -> count dims steps dim", dims=len(dims), steps=len(offsets)).clone()
    for place, dim in enumerate(dims):
        moved[:, place, :, dim] += offsets
    return moved


def decode_class(
    decoder: Decoder, capsules: Float[Tensor, "*where dim"], label: int, classes: int
) -> Float[Tensor, "*where channels height width"]:
    """The reconstruction from capsules of one class, with all other capsules zero."""
    flat = capsules.flatten(0, -2)
    inputs = flat.new_zeros(len(flat), classes, flat.shape[-1])
    inputs[:, label] = flat
    return torch.cat([decoder(part) for part in inputs.split(2000)]).unflatten(0, capsules.shape[:-1])


def find_classes(names: tuple[str, ...], asked: Sequence[str | int] | None) -> list[int]:
    """The indices of classes given by name or index; None: all."""
    if asked is None:
        return list(range(len(names)))
    found = []
    for one in asked:
        if one in names:
            found.append(names.index(str(one)))
        elif str(one).isdecimal() and int(one) < len(names):
            found.append(int(one))
        else:
            raise ArcapsError(f"unknown class {one!r}: there are {', '.join(names)}")
    return found


def perturb(
    model: Classifier,
    dataset: Dataset,
    *,
    classes: Sequence[str | int] | None = None,
    dims: Sequence[int] | None = None,
    steps: int = STEPS,
    reach: float = REACH,
    count: int = 50,
) -> Perturbation:
    """Change each dimension of the class capsule, after its bound, and reconstruct (the paper's perturbation).

    A dimension changes by up to `reach` of the greatest length that a capsule can have: sqrt(D) for AR CapsNet, 1 for
    CapsuleNet. The example of a class is its first image that the model classifies correctly, else its first image.
    Dimensions are ranked on up to `count` images of each class.
    """
    capsule_net = require_capsules(model, "perturb")
    if capsule_net.decoder is None:
        raise DoesNotApplyError(f"perturb does not apply to this {model.name}: it has no decoder")
    choose_images(model, dataset, None)
    dim = capsule_net.class_caps.routing.dim
    chosen_dims = tuple(range(dim)) if dims is None else tuple(dims)
    for one in chosen_dims:
        if not 0 <= one < dim:
            raise ArcapsError(f"dimension {one} is asked for: the capsules have dimensions 0 to {dim - 1}")
    chosen = find_classes(dataset.class_names, classes)
    greatest = capsule_net.class_caps.activation.max_length or 1.0
    device = next(model.parameters()).device
    if steps < 2:
        raise ArcapsError(f"steps is {steps}: give at least 2")
    offsets = (2 * torch.arange(steps, device=device) - (steps - 1)) / (steps - 1) * (reach * greatest)
    examples, pictures, change, counts = [], [], [], []
    with eval_mode(model):
        for label in track(chosen, "perturb", len(chosen)):
            members = (dataset.labels == label).nonzero().flatten()[:count]
            if not len(members):
                raise ArcapsError(f"{dataset.name} has no image of class {dataset.class_names[label]}")
            found, right = [], []
            for images, labels in batches(model, dataset.take(members), 100):
                output = model(images, labels)
                assert output.capsules is not None
                found.append(of_class(output.capsules, labels))
                right.append(output.scores.argmax(-1) == labels)
            capsules, correct = torch.cat(found), torch.cat(right)
            example = int(correct.int().argmax())
            examples.append(int(members[example]))
            pictures.append(
                decode_class(
                    capsule_net.decoder,
                    move_dimensions(capsules[example : example + 1], chosen_dims, offsets)[0],
                    label,
                    model.classes,
                ).cpu()
            )
            change.append(picture_change(capsule_net.decoder, capsules, chosen_dims, offsets, label, model.classes))
            counts.append(len(members))
    return Perturbation(
        model.name,
        dataset.name,
        tuple(dataset.class_names[label] for label in chosen),
        tuple(chosen),
        chosen_dims,
        offsets.cpu(),
        torch.tensor(examples),
        model.preprocessing(dataset.images[examples]),
        torch.stack(pictures),
        torch.stack(change),
        torch.tensor(counts),
    )


def picture_change(
    decoder: Decoder,
    capsules: Float[Tensor, "count dim"],
    dims: Sequence[int],
    offsets: Float[Tensor, " steps"],
    label: int,
    classes: int,
) -> Float[Tensor, " dims"]:
    """How much each dimension changes the reconstruction, the mean over the images."""
    still = decode_class(decoder, capsules, label, classes)
    total = capsules.new_zeros(len(dims))
    for capsule, picture in zip(capsules.split(1), still, strict=True):
        drawn = decode_class(decoder, move_dimensions(capsule, dims, offsets)[0], label, classes)
        squares = rearrange((drawn - picture).square(), "dims steps c h w -> dims (steps c h w)")
        total += squares.mean(-1).sqrt()
    return (total / len(capsules)).cpu()


class PerturbExperiment(Experiment, name="perturb"):
    """Dimension perturbation: the reconstruction as one dimension of the class capsule changes. (paper, figure 4)"""

    def run(self, subject: Subject, settings: Settings) -> Measurement:
        """Change each dimension, and decode."""
        names, there = subject.dataset.class_names, subject.dataset.class_counts().nonzero().flatten()[:10]
        classes = [names[label] for label in there] if settings.classes is None else settings.classes
        count = 50 if settings.count is None else min(50, settings.count)
        found = perturb(subject.model, subject.dataset, classes=classes, dims=settings.dims, count=count)
        arrays = {"images": found.images, "pictures": found.pictures}
        return Measurement(found.as_dict(), {name: to_bytes(values) for name, values in arrays.items()})

    def section(self, record: Record) -> Section:
        """The dimensions with the largest change, class by class."""
        rows, files = [], []
        for place, (name, one) in enumerate(record["classes"].items()):
            changes = [one["change"][str(dim)] for dim in one["ranking"]]
            best = [f"{dim} ({one['change'][str(dim)]:.3f})" for dim in one["ranking"][:3]]
            strong = sum(change > changes[0] / 2 for change in changes)
            rows.append([name, str(one["count"]), ", ".join(best), f"{strong} of {len(changes)}"])
            files.append(f"`perturb-{one.get('label', place)}.png`")
        return Section(
            "Perturbation: what does one dimension of a class capsule encode?",
            (
                Text(
                    "{model} on {data}. One dimension of the class capsule is changed by up to \u00b1{reach:.3f}, a "
                    "quarter of the largest length of a capsule, and decoded. The change of a dimension is the root "
                    "mean square of the change of the pixels, the mean over n images.",
                    {**record, "reach": record["offsets"][-1]},
                ),
                Picture("perturb", "one dimension per class"),
                Picture("perturb-ranking", "all dimensions"),
                Table(["class", "n", "dimensions with the largest change", "dimensions with half of that"], rows),
                Text(f"Figures of all dimensions, class by class, in the run folder: {', '.join(files)}."),
            ),
        )


def to_bytes(values: Float[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    """Pixels in 0..1 as bytes."""
    return (255 * values).round().clamp(0, 255).to(torch.uint8)
