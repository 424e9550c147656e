"""What does one dimension of a class capsule stand for? Move it, and look at what the decoder draws."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from arcaps.analysis.base import DoesNotApplyError, at_rest, batches, choose_images, of_class, require_capsules, silent
from arcaps.data import Dataset
from arcaps.data.sources import Report
from arcaps.errors import ArcapsError
from arcaps.layers import Decoder
from arcaps.models import Classifier

REACH, STEPS = 0.25, 11
"""A quarter of the greatest length either way, in eleven steps: the paper's."""


@dataclass(frozen=True)
class Perturbation:
    """Reconstructions as one dimension of the class capsule moves."""

    model: str
    data: str
    class_names: tuple[str, ...]
    """Of the chosen classes."""
    labels: tuple[int, ...]
    """Their numbers."""
    dims: tuple[int, ...]
    offsets: Float[Tensor, " steps"]
    """What is added to the dimension."""
    examples: Int[Tensor, " classes"]
    """The number of the image that is shown for each class."""
    images: Float[Tensor, "classes channels height width"]
    pictures: Float[Tensor, "classes dims steps channels height width"]
    """What the decoder draws from the example's capsule."""
    change: Float[Tensor, "classes dims"]
    """How much a dimension changes the picture: the root mean square, over pixels and steps, of the difference from
    the picture with no offset; the mean over images of the class."""
    counts: Int[Tensor, " classes"]
    """How many images of each class `change` was measured on."""

    def ranking(self) -> Int[Tensor, "classes dims"]:
        """For each class the places in `dims`, the one that changes the picture most first."""
        return self.change.argsort(dim=-1, descending=True)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; the pictures are left out."""
        order = self.ranking()
        return {
            "model": self.model,
            "data": self.data,
            "offsets": self.offsets.tolist(),
            "classes": {
                name: {
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
    """What the decoder draws from capsules of one class, with all other capsules zero."""
    flat = capsules.flatten(0, -2)
    inputs = flat.new_zeros(len(flat), classes, flat.shape[-1])
    inputs[:, label] = flat
    return torch.cat([decoder(part) for part in inputs.split(2000)]).unflatten(0, capsules.shape[:-1])


def find_classes(names: tuple[str, ...], asked: Sequence[str | int] | None) -> list[int]:
    """The numbers of the classes asked for by name or number; all without asking."""
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
    report: Report = silent,
) -> Perturbation:
    """Move each dimension of the class capsule, after its bound, and draw (the paper's dimension perturbation).

    A dimension moves by up to `reach` of the greatest length that a capsule can have: sqrt(D) for AR CapsNet, 1 for
    CapsuleNet. The example of a class is its first image that the model gets right, or its first. Dimensions are
    ranked on up to `count` images of each class.
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
    greatest = capsule_net.class_caps.activation.max_length
    device = next(model.parameters()).device
    if steps < 2:
        raise ArcapsError(f"steps is {steps}: give at least 2")
    offsets = (2 * torch.arange(steps, device=device) - (steps - 1)) / (steps - 1) * (reach * greatest)
    examples, pictures, change, counts = [], [], [], []
    with at_rest(model):
        for label in chosen:
            members = (dataset.labels == label).nonzero().flatten()[:count]
            if not len(members):
                raise ArcapsError(f"{dataset.name} has no image of class {dataset.class_names[label]}")
            found, right = [], []
            for images, labels in batches(model, dataset.take(members), 100, report, "perturb"):
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
            report(f"perturb: class {dataset.class_names[label]}")
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
    """How much each dimension changes the picture, the mean over the images."""
    still = decode_class(decoder, capsules, label, classes)
    total = capsules.new_zeros(len(dims))
    for capsule, picture in zip(capsules.split(1), still, strict=True):
        drawn = decode_class(decoder, move_dimensions(capsule, dims, offsets)[0], label, classes)
        squares = rearrange((drawn - picture).square(), "dims steps c h w -> dims (steps c h w)")
        total += squares.mean(-1).sqrt()
    return (total / len(capsules)).cpu()
