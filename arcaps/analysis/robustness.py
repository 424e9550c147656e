"""Accuracy as the images are changed more and more, for several models at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from arcaps.analysis.base import batches, choose_images, eval_mode
from arcaps.analysis.experiment import Experiment, Measurement, Record, Settings, Subject
from arcaps.analysis.section import Block, Picture, Section, Table, Text
from arcaps.data import Dataset
from arcaps.data.warp import Transform, warp
from arcaps.errors import ArcapsError
from arcaps.models import Classifier
from arcaps.progress import track
from arcaps.statistics import wilson

Images = Float[Tensor, "count channels height width"]
Change = Callable[[Images, float, torch.Generator], Images]


def either_way(value: float, count: int, generator: torch.Generator) -> Float[Tensor, " count"]:
    """The value with a random sign for each image."""
    return value * (2.0 * (torch.rand(count, dtype=torch.float64, generator=generator) < 0.5) - 1.0)


def rotate(images: Images, degrees: float, generator: torch.Generator) -> Images:
    """Rotate each image, clockwise or counter-clockwise at random."""
    return warp(images, Transform.make(len(images), angle=either_way(degrees, len(images), generator)))


def shift(images: Images, pixels: float, generator: torch.Generator) -> Images:
    """Shift each image, in a random direction."""
    direction = 2 * torch.pi * torch.rand(len(images), dtype=torch.float64, generator=generator)
    return warp(
        images,
        Transform.make(len(images), shift_x=pixels * direction.cos(), shift_y=pixels * direction.sin()),
    )


def scale(images: Images, factor: float, _: torch.Generator) -> Images:
    """Make each image larger or smaller."""
    return warp(images, Transform.make(len(images), scale_x=factor, scale_y=factor))


def shear(images: Images, value: float, generator: torch.Generator) -> Images:
    """Shear each image, to the left or to the right at random."""
    return warp(images, Transform.make(len(images), shear=either_way(value, len(images), generator)))


def add_noise(images: Images, deviation: float, generator: torch.Generator) -> Images:
    """Add Gaussian noise to each pixel, and keep it in 0..1."""
    noise = torch.randn(images.shape, generator=generator).to(images)
    return (images + deviation * noise).clamp(0, 1)


def blur(images: Images, deviation: float, _: torch.Generator) -> Images:
    """Blur by a Gaussian, with black outside."""
    if deviation == 0:
        return images
    reach = ceil(3 * deviation)
    places = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    bell = torch.exp(-places.square() / (2 * deviation**2))
    bell = bell / bell.sum()
    channels = images.shape[1]
    columns, rows = bell.view(1, 1, -1, 1), bell.view(1, 1, 1, -1)
    smooth = F.conv2d(images, columns.expand(channels, 1, -1, 1), padding=(reach, 0), groups=channels)
    return F.conv2d(smooth, rows.expand(channels, 1, 1, -1), padding=(0, reach), groups=channels)


def occlude(images: Images, part: float, generator: torch.Generator) -> Images:
    """Cover a square at a random place inside each image with black; `part` is its side over the image's."""
    height, width = images.shape[2:]
    side = round(part * min(height, width))
    top, left = (
        (torch.rand(len(images), 1, generator=generator) * (room - side + 1)).long() for room in (height, width)
    )
    rows = (torch.arange(height) >= top) & (torch.arange(height) < top + side)
    columns = (torch.arange(width) >= left) & (torch.arange(width) < left + side)
    hidden = (rows[:, :, None] & columns[:, None, :]).unsqueeze(1).to(images.device)
    return images.masked_fill(hidden, 0.0)


CHANGES: dict[str, tuple[str, Change, tuple[float, ...]]] = {
    "rotation": ("degrees, either way", rotate, (0, 10, 20, 30, 40, 50, 60, 70, 80, 90)),
    "shift": ("pixels, in a random direction", shift, (0, 1, 2, 3, 4, 5, 6, 8, 10)),
    "scale": ("factor", scale, (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5)),
    "shear": ("shear, either way", shear, (0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1)),
    "noise": ("standard deviation, pixels in 0..1", add_noise, (0, 0.1, 0.2, 0.3, 0.4, 0.5)),
    "blur": ("standard deviation in pixels", blur, (0, 0.5, 1, 1.5, 2, 3)),
    "occlusion": ("side of the black square, part of the image's", occlude, (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)),
}
"""Each change: its unit, its function, the values tried."""
IDENTITY = {"scale": 1.0}
"""The value that changes nothing, where it is not zero."""


@dataclass(frozen=True)
class Curve:
    """How many images were classified correctly as one change grew."""

    unit: str
    values: tuple[float, ...]
    right: Int[Tensor, "models steps"]


@dataclass(frozen=True)
class Robustness:
    """Accuracy as each change grows."""

    models: tuple[str, ...]
    """The names of the models."""
    data: str
    count: int
    seed: int
    curves: dict[str, Curve]

    def accuracy(self, change: str) -> Float[Tensor, "models steps"]:
        """The share that was classified correctly."""
        return self.curves[change].right.double() / self.count

    def interval(self, change: str) -> Float[Tensor, "models steps 2"]:
        """Its 95 % confidence interval (Wilson)."""
        shares = self.accuracy(change).tolist()
        return torch.tensor([[wilson(share, self.count) for share in row] for row in shares])

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "models": list(self.models),
            "data": self.data,
            "count": self.count,
            "seed": self.seed,
            "changes": {
                name: {
                    "unit": curve.unit,
                    "values": list(curve.values),
                    "accuracy": dict(zip(self.models, self.accuracy(name).tolist(), strict=True)),
                    "interval_95": dict(zip(self.models, self.interval(name).tolist(), strict=True)),
                }
                for name, curve in self.curves.items()
            },
        }


def robustness(
    models: Classifier | Mapping[str, Classifier],
    dataset: Dataset,
    *,
    changes: Mapping[str, tuple[float, ...]] | None = None,
    count: int | None = 2000,
    batch_size: int = 250,
    seed: int = 0,
) -> Robustness:
    """Test one model or several, by name, on images under growing changes; all models get the same images.

    `changes` gives the changes to make and their values: `{"rotation": (0.0, 45.0, 90.0)}`.
    """
    named = {models.name: models} if isinstance(models, Classifier) else dict(models)
    if not named:
        raise ArcapsError("robustness needs a model: models is empty")
    chosen = dataset
    for model in named.values():
        chosen = choose_images(model, dataset, count)
    asked = {name: values for name, (_, _, values) in CHANGES.items()} if changes is None else dict(changes)
    for name in asked:
        if name not in CHANGES:
            raise ArcapsError(f"unknown change {name!r}: there are {', '.join(CHANGES)}")
    first = next(iter(named.values()))
    curves = {}
    with eval_mode(*named.values()):

        def count_right(name: str, value: float) -> list[int]:
            generator = torch.Generator().manual_seed(seed)
            right = [0] * len(named)
            for images, labels in batches(first, chosen, batch_size):
                changed = CHANGES[name][1](images, value, generator)
                for place, model in enumerate(named.values()):
                    scores = model(changed.to(next(model.parameters()).device)).scores
                    right[place] += int((scores.argmax(-1).cpu() == labels.cpu()).sum())
            return right

        unchanged: list[int] | None = None
        steps = [(name, float(value)) for name, values in asked.items() for value in values]
        columns: dict[str, list[list[int]]] = {name: [] for name in asked}
        for name, value in track(steps, "robustness", len(steps)):
            if value == IDENTITY.get(name, 0.0):
                unchanged = unchanged or count_right("rotation", 0.0)
                columns[name].append(unchanged)
            else:
                columns[name].append(count_right(name, value))
    for name, values in asked.items():
        curves[name] = Curve(CHANGES[name][0], tuple(map(float, values)), torch.tensor(columns[name]).T)
    return Robustness(tuple(named), chosen.name, len(chosen), seed, curves)


class RobustnessExperiment(Experiment, name="robustness"):
    """Robustness: accuracy under rotation, shift, scale, shear, noise, blur and occlusion of growing strength."""

    def run(self, subject: Subject, settings: Settings) -> Measurement:
        """Test all runs on the same changed images."""
        count = 2000 if settings.count is None else settings.count
        return Measurement(robustness(subject.models, subject.dataset, count=count).as_dict())

    def section(self, record: Record) -> Section:
        """Accuracy at each step."""
        blocks: list[Block] = []
        for name, one in record["changes"].items():
            rows = [[run, *(f"{share:.1%}" for share in one["accuracy"][run])] for run in record["models"]]
            blocks.append(Text("{change} ({unit}):", {"change": name, "unit": one["unit"]}))
            blocks.append(Table(["run", *(f"{value:g}" for value in one["values"])], rows))
        return Section(
            "Robustness: accuracy under growing changes",
            (
                Text(
                    "n = {count:,} images of {data}; all runs get the same changed images (seed {seed}). The tables "
                    "give the accuracy; the 95 % confidence intervals are in `robustness.json`.",
                    record,
                ),
                Picture("robustness", "accuracy as each change grows"),
                *blocks,
            ),
        )
