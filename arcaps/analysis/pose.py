"""Does a capsule encode the pose? A linear read-out of the true transformation of an image.

Ridge regression from the class capsule to the angle, shear, scales and shifts that an image was made with. It is fitted
within each class: the pose is read from the capsule of one class, by weights of that class. Each prediction is made for
images that were not in the fit. The same read-out from every layer shows where in the network the pose is encoded.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from arcaps.analysis.base import DoesNotApplyError, batches, choose_images, eval_mode, of_class, plain
from arcaps.analysis.experiment import Experiment, Measurement, Record, Settings, Subject
from arcaps.analysis.features import pool, sketch
from arcaps.analysis.ridge import ridge_predictions
from arcaps.analysis.section import Block, Picture, Section, Table, Text, code, number
from arcaps.data import Augmentation, Dataset
from arcaps.data.warp import Transform, sample_transforms, warp
from arcaps.models import Classifier
from arcaps.models.capsules import CapsuleClassifier
from arcaps.progress import track

PARAMETERS = ("angle", "shear", "scale_x", "scale_y", "shift_x", "shift_y")
RANGES = Augmentation(rotation=20.0, shift=1 / 7, scale=0.2, shear=0.2)
"""affNIST's ranges; the shift is 4 pixels of 28."""
WIDEST = 1024
"""Wider features, such as colour pixels, get no read-out shared by all classes: it would take long."""


def within_classes(values: Float[Tensor, "count width"], labels: Int[Tensor, " count"]) -> Float[Tensor, "count width"]:
    """The values less the mean of their class."""
    centred = values.double().clone()
    for label in labels.unique():
        centred[labels == label] -= centred[labels == label].mean(0)
    return centred


@dataclass(frozen=True)
class ReadOut:
    """How well features give the pose. R2 is 1 for a perfect read-out, 0 for one without information."""

    dim: int
    r2: Float[Tensor, " parameters"]
    """One regression per class, the errors of all classes added: the main number."""
    per_class: Float[Tensor, "classes parameters"]
    shared: Float[Tensor, " parameters"]
    """One regression for all classes, with a mean per class: whether the classes share their directions. NaN where
    the features are too wide, or where it was not asked for."""
    shuffled: Float[Tensor, " parameters"]
    """The same as `r2` with the transformations shuffled within each class: a control, about zero."""
    strength: Float[Tensor, "classes parameters"]
    """The median strength of the ridge."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        named = {name: dict(zip(PARAMETERS, plain(getattr(self, name)), strict=True)) for name in ("r2", "shared")}
        return {
            "dim": self.dim,
            **named,
            "shuffled": dict(zip(PARAMETERS, plain(self.shuffled), strict=True)),
            "per_class": plain(self.per_class),
            "strength": plain(self.strength),
        }


def read_out(
    features: Float[Tensor, "count features"],
    targets: Float[Tensor, "count parameters"],
    labels: Int[Tensor, " count"],
    classes: int,
    *,
    components: int | None = None,
    folds: int = 5,
    seed: int = 0,
    shared: bool = True,
) -> ReadOut:
    """Fit and test a read-out, within each class and (`shared`) for all classes together."""
    width = targets.shape[1]
    wrong, whole, mixed = (torch.full((classes, width), torch.nan, dtype=torch.float64) for _ in range(3))
    strength = wrong.clone()
    generator = torch.Generator().manual_seed(seed)
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten()
        own, wanted = features[members], targets[members].double()
        shuffled = wanted[torch.randperm(len(members), generator=generator)]
        both, chosen = ridge_predictions(
            own, torch.cat([wanted, shuffled], dim=1), folds=folds, components=components, seed=seed
        )
        predictions, shuffled_predictions = both.split(width, dim=1)
        wrong[label] = (wanted - predictions).square().sum(0)
        whole[label] = (wanted - wanted.mean(0)).square().sum(0)
        mixed[label] = (shuffled - shuffled_predictions).square().sum(0)
        strength[label] = chosen[:, :width].median(0).values
    level = within_classes(targets, labels)
    together = torch.full_like(level, torch.nan)
    if shared and features.shape[1] <= WIDEST:
        centred = within_classes(features, labels)
        together, _ = ridge_predictions(centred, level, folds=folds, components=components, seed=seed)
    return ReadOut(
        min(components or features.shape[1], features.shape[1]),
        1 - wrong.nansum(0) / whole.nansum(0),
        1 - wrong / whole,
        1 - (level - together).square().sum(0) / level.square().sum(0),
        1 - mixed.nansum(0) / whole.nansum(0),
        strength,
    )


@dataclass(frozen=True)
class LayerReadOut:
    """The read-out from one layer."""

    layer: str
    kind: str
    """ "pooled": the mean over the positions; "whole": all positions, or all class capsules; "true class" and
    "predicted class": one class capsule."""
    features: int
    """The number of features before the random projection, which reduces more than 1,024 to 1,024."""
    read_out: ReadOut

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        numbers = self.read_out.as_dict()
        kept = {name: numbers[name] for name in ("dim", "r2", "shuffled")}
        return {"layer": self.layer, "kind": self.kind, "features": self.features, **kept}


@dataclass(frozen=True)
class Pose:
    """The read-outs from the features of a model, and from the pixels."""

    model: str
    data: str
    """The images, and how they were transformed."""
    count: int
    folds: int
    class_names: tuple[str, ...]
    features: str
    """The read-out that is the model's own: "class capsule" or "last layer"."""
    read_outs: dict[str, ReadOut]
    layers: tuple["LayerReadOut", ...] = ()
    """The read-outs layer by layer, the first layer first."""
    parameters: tuple[str, ...] = PARAMETERS

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "model": self.model,
            "data": self.data,
            "count": self.count,
            "folds": self.folds,
            "class_names": list(self.class_names),
            "features": self.features,
            "read_outs": {name: one.as_dict() for name, one in self.read_outs.items()},
            "layers": [one.as_dict() for one in self.layers],
        }


def transformed(dataset: Dataset, seed: int = 0) -> Dataset:
    """Images with known transformations: those of affNIST (regenerated), or images transformed here, in their frame."""
    if dataset.transforms is not None:
        return dataset
    generator = torch.Generator().manual_seed(seed)
    transforms = sample_transforms(RANGES, len(dataset), dataset.image_size, generator)
    images = torch.empty_like(dataset.images)
    for start in range(0, len(dataset), 1000):
        part = slice(start, start + 1000)
        images[part] = warp(dataset.images[part].float(), transforms.take(part)).round().clamp(0, 255).to(torch.uint8)
    height, width = dataset.image_size
    about = f"rotation within 20 degrees, shear 0.2, scales 0.8 to 1.2, shifts of {width / 7:.1f} and {height / 7:.1f}"
    return replace(dataset, name=f"{dataset.name}, transformed ({about} pixels)", images=images, transforms=transforms)


def targets_of(transforms: Transform) -> Float[Tensor, "count 6"]:
    """The parameters to read out."""
    return torch.stack([getattr(transforms, name) for name in PARAMETERS], dim=-1).double()


def collect_features(
    model: Classifier, dataset: Dataset, batch_size: int, *, layers: bool
) -> tuple[Float[Tensor, "count features"], dict[tuple[str, str], tuple[int, Float[Tensor, "count width"]]]]:
    """The features that the scores are read from, and with `layers` those of each layer and kind, with their number.

    For a capsule network the first are the capsules of the true classes.
    """
    last: list[Tensor] = []
    found: dict[tuple[str, str], list[Tensor]] = {}
    numbers: dict[tuple[str, str], int] = {}
    for images, labels in batches(model, dataset, batch_size, "pose: features"):
        by_layer = model.features(images)
        name, final = list(by_layer.items())[-1]
        last.append((of_class(final, labels) if final.ndim == 3 else final.flatten(1)).cpu())
        if not layers:
            continue
        kinds = {(name, kind): values for name, maps in by_layer.items() for kind, values in layer_kinds(maps).items()}
        if final.ndim == 3:
            kinds[name, "true class"] = of_class(final, labels)
            kinds[name, "predicted class"] = of_class(final, model(images).scores.argmax(-1))
        for key, values in kinds.items():
            numbers[key] = values.shape[1]
            found.setdefault(key, []).append(sketch(values, WIDEST).cpu())
    return torch.cat(last), {key: (numbers[key], torch.cat(parts)) for key, parts in found.items()}


def layer_kinds(maps: Float[Tensor, "batch ..."]) -> dict[str, Float[Tensor, "batch features"]]:
    """What is read from a layer: the mean over its positions, if it has any, and all its features."""
    pooled = pool(maps)
    return {"whole": maps.flatten(1)} if pooled is None else {"pooled": pooled, "whole": maps.flatten(1)}


def pose(
    model: Classifier,
    dataset: Dataset,
    *,
    count: int | None = None,
    components: int | None = None,
    pixels: bool = True,
    layers: bool = False,
    folds: int = 5,
    batch_size: int = 250,
    seed: int = 0,
) -> Pose:
    """Read the true transformation from the class capsule, or from the last layer of a CNN, and from the pixels.

    `dataset` is affNIST (regenerated), whose transformations are known; images of any other data set are transformed
    here by the same ranges, in the size they have. Of images with known transformations 10,000 at most are used, spread
    evenly: of the 320,000 test images one version of each digit, so that no digit is on both sides of a fold.
    Features wider than `components` (by default the width of the class capsule, or 32) are tested whole and reduced to
    that width by their principal components. `layers` adds the read-out from every layer.
    """
    most = 10_000 if dataset.transforms is not None else None
    chosen = transformed(choose_images(model, dataset, most if count is None else min(count, most or count)), seed)
    assert chosen.transforms is not None
    fewest = int(chosen.labels.unique(return_counts=True)[1].min())
    if fewest < 2 * folds:
        needed = f"pose needs {2 * folds} images of each class or more, to fit on some and test on others"
        raise DoesNotApplyError(f"{needed}: the smallest class has {fewest} of the {len(chosen):,}")
    targets, labels, classes = targets_of(chosen.transforms), chosen.labels, len(chosen.class_names)
    with eval_mode(model):
        features, by_layer = collect_features(model, chosen, batch_size, layers=layers)
    is_capsule = isinstance(model, CapsuleClassifier)
    own = "class capsule" if is_capsule else "last layer"
    width = components or (features.shape[1] if is_capsule else 32)
    kinds = {own: features, "pixels": chosen.images.flatten(1).double() / 255} if pixels else {own: features}
    jobs = [
        (name if limit is None else f"{name}, {limit} components", values, limit)
        for name, values in kinds.items()
        for limit in ((None, width) if values.shape[1] > width else (None,))
    ]
    read_outs = {
        name: read_out(values, targets, labels, classes, components=limit, folds=folds, seed=seed)
        for name, values, limit in track(jobs, "pose: regression", len(jobs))
    }
    rows = tuple(
        LayerReadOut(
            layer, kind, size, read_out(values, targets, labels, classes, folds=folds, seed=seed, shared=False)
        )
        for (layer, kind), (size, values) in track(by_layer.items(), "pose: layers", len(by_layer))
    )
    return Pose(model.name, chosen.name, len(chosen), folds, chosen.class_names, own, read_outs, rows)


class PoseExperiment(Experiment, name="pose"):
    """Pose: can the true transformation be read from the class capsule, and from which layer? Compares runs."""

    def run(self, subject: Subject, settings: Settings) -> Measurement:
        """Read the transformation from the features of all runs, and from the pixels."""
        dataset = subject.transformed or subject.dataset
        dims = [m.class_caps.routing.dim for m in subject.models.values() if isinstance(m, CapsuleClassifier)]
        width = min(dims, default=None)
        found = {
            name: pose(
                model,
                dataset,
                count=settings.count,
                components=width,
                pixels=model is subject.model,
                layers=settings.layers,
            )
            for name, model in subject.models.items()
        }
        return Measurement({"runs": {name: one.as_dict() for name, one in found.items()}})

    def section(self, record: Record) -> Section:
        """R2 of each parameter for each kind of features, and by layer."""
        run, first = next(iter(record["runs"].items()))
        named = list(labelled(record))
        own = first["read_outs"][first["features"]]
        heading = ["features", "number", *(name.replace("_", " ") for name in own["r2"])]

        def rows(key: str) -> list[list[str]]:
            return [[name, str(one["dim"]), *map(number, one[key].values())] for name, one in named]

        classes = zip(first["class_names"], own["per_class"], strict=True)
        return Section(
            "Pose: can the true transformation be read from the features?",
            (
                Text(
                    "n = {count:,} images: {data}. Ridge regression within each class from the features to the "
                    "transformation; R\u00b2 on held-out images ({folds} folds); the strength of the ridge is chosen "
                    "by leave-one-out on the other folds. 1 is perfect, 0 is no information.",
                    first,
                ),
                Picture("pose", "R2 of each parameter"),
                Table(heading, rows("r2")),
                *layer_blocks(record),
                Text("One regression for all classes together, with a mean for each class:"),
                Table(heading, rows("shared")),
                Text("Control, the transformations shuffled within each class:"),
                Table(heading, rows("shuffled")),
                Text("By class, {run}, {features}:", {"run": run, "features": first["features"]}),
                Table(["class", *heading[2:]], [[name, *map(number, values)] for name, values in classes]),
                Text(
                    "Even a perfect observer would not reach 1: an image has a slant, a size and a position of its own "
                    "before it is transformed. The row of the pixels shows what a linear read-out gets from the image "
                    "itself."
                ),
            ),
        )


def labelled(record: Record) -> Iterator[tuple[str, Record]]:
    """The read-outs of all runs, each with its label; the pixels once."""
    pixels = set()
    for run, one in record["runs"].items():
        for name, found in one["read_outs"].items():
            if not name.startswith("pixels"):
                yield f"{run}: {name}", found
            elif name not in pixels:
                pixels.add(name)
                yield name, found


def r2_cells(one: Record) -> list[str]:
    """R2 of each parameter, for a table."""
    return [number(value) for value in one["r2"].values()]


def layer_blocks(record: Record) -> list[Block]:
    """The table of the read-out by layer, for the runs that have one."""
    runs = {run: one["layers"] for run, one in record["runs"].items() if one.get("layers")}
    if not runs:
        return []
    parameters = next(iter(runs.values()))[0]["r2"]
    heading = ["run", "layer", "read from", "features", "used", *(name.replace("_", " ") for name in parameters)]
    rows = [
        [run, code(one["layer"]), one["kind"], *(f"{one[k]:,}" for k in ("features", "dim")), *r2_cells(one)]
        for run, layers in runs.items()
        for one in layers
    ]
    return [
        Text(
            "By layer, the first layer first. *pooled*: the mean over the positions. *whole*: all positions, for the "
            "class layer all class capsules; more than 1,024 features are reduced to 1,024 by a random projection. "
            "*true class*, *predicted class*: the capsule of that class only."
        ),
        Picture("pose-layers", "R2 of each parameter by layer"),
        Table(heading, rows, words=3),
    ]
