"""Does a capsule know the pose? A linear read-out of the true transformation of an image.

Ridge regression from the class capsule to the angle, shear, scales and shifts that an image was made with. It is fitted
within each class: a pose is read off the capsule of one class, by weights of that class. Each prediction is made for
images that the fit has not met.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from arcaps.analysis.base import DoesNotApplyError, at_rest, batches, choose_images, of_class, plain, silent
from arcaps.data import Augmentation, Dataset
from arcaps.data.sources import Report
from arcaps.data.warp import Transform, sample_transforms, warp
from arcaps.errors import ArcapsError
from arcaps.models import Classifier
from arcaps.models.capsules import CapsuleClassifier

PARAMETERS = ("angle", "shear", "scale_x", "scale_y", "shift_x", "shift_y")
RANGES = Augmentation(rotation=20.0, shift=1 / 7, scale=0.2, shear=0.2)
"""affNIST's ranges; the shift is 4 pixels of 28."""
STRENGTHS = torch.logspace(-4, 3, 22, dtype=torch.float64)
"""Of the ridge, in units of the mean square of the singular values. Weaker ones fit directions in which the features
hardly ever move, and a held-out image that does move there gets a wild prediction."""

WIDEST = 1024
"""Wider features, such as colour pixels, get no read-out shared by all classes: it would take long."""


def ridge_predictions(
    features: Float[Tensor, "count features"],
    targets: Float[Tensor, "count targets"],
    *,
    folds: int = 5,
    components: int | None = None,
    seed: int = 0,
) -> tuple[Float[Tensor, "count targets"], Float[Tensor, "folds targets"]]:
    """Predict each target from the features by ridge regression, for images that the fit has not met.

    The images are dealt into `folds`; each fold is predicted from the others. The strength of the ridge is chosen on
    those others alone, for each target by itself, by the leave-one-out error, which has a closed form. With
    `components`, the features are first reduced to so many principal components, also of the others alone. Returns
    the predictions and the strengths.
    """
    exact, wanted = features.double(), targets.double()
    if len(exact) < 2 * folds:
        raise ArcapsError(
            f"a class has {len(exact)} images: give at least {2 * folds} of each, to read a pose off in {folds} folds"
        )
    order = torch.randperm(len(exact), generator=torch.Generator().manual_seed(seed))
    predictions = torch.empty_like(wanted)
    chosen = []
    for fold in range(folds):
        held_out = order[fold::folds]
        others = torch.ones(len(exact), dtype=torch.bool)
        others[held_out] = False
        prediction, strength = ridge(exact[others], wanted[others], exact[held_out], components)
        predictions[held_out] = prediction
        chosen.append(strength)
    return predictions, torch.stack(chosen)


def ridge(
    features: Float[Tensor, "count features"],
    targets: Float[Tensor, "count targets"],
    new: Float[Tensor, "new features"],
    components: int | None = None,
) -> tuple[Float[Tensor, "new targets"], Float[Tensor, " targets"]]:
    """Fit on `features`, predict for `new`; the strength by the leave-one-out error of the fit."""
    middle, level = features.mean(0), targets.mean(0)
    left, scales, right = decompose(features - middle, components)
    if not len(scales):
        return level.expand(len(new), -1), STRENGTHS[-1].expand(targets.shape[1])
    rotated = left.T @ (targets - level)
    squares = scales.square()
    shrink = squares / (squares + STRENGTHS.unsqueeze(-1) * squares.mean())
    fitted = left @ (shrink.unsqueeze(-1) * rotated)
    leverage = 1 / len(features) + shrink @ left.square().T
    errors = ((targets - level - fitted) / (1 - leverage).clamp_min(1e-9).unsqueeze(-1)).square().mean(1)
    best = errors.argmin(0)
    weights = right @ (shrink[best].T / scales.unsqueeze(-1) * rotated)
    return level + (new - middle) @ weights, STRENGTHS[best]


def decompose(
    matrix: Float[Tensor, "rows columns"], components: int | None = None
) -> tuple[Float[Tensor, "rows kept"], Float[Tensor, " kept"], Float[Tensor, "columns kept"]]:
    """The singular value decomposition, the greatest values first, without those that are zero.

    By the eigenvalues of the smaller of the two Gram matrices, which is faster than an SVD; values below a millionth
    of the greatest are lost in that, and no ridge would keep them.
    """
    wide = matrix.shape[1] > matrix.shape[0]
    values, vectors = torch.linalg.eigh(matrix @ matrix.T if wide else matrix.T @ matrix)
    values, vectors = values.flip(0), vectors.flip(1)
    kept = min(components or len(values), int((values > 1e-12 * values[0].clamp_min(1e-300)).sum()))
    scales, vectors = values[:kept].sqrt(), vectors[:, :kept]
    other = (matrix.T if wide else matrix) @ vectors / scales
    return (vectors, scales, other) if wide else (other, scales, vectors)


def within_classes(values: Float[Tensor, "count width"], labels: Int[Tensor, " count"]) -> Float[Tensor, "count width"]:
    """The values less the mean of their class."""
    centred = values.double().clone()
    for label in labels.unique():
        centred[labels == label] -= centred[labels == label].mean(0)
    return centred


@dataclass(frozen=True)
class ReadOut:
    """How well one kind of features gives the pose. R2 is 1 for a perfect read-out, 0 for one that knows nothing."""

    dim: int
    r2: Float[Tensor, " parameters"]
    """One regression per class, all classes' errors taken together: the main number."""
    per_class: Float[Tensor, "classes parameters"]
    shared: Float[Tensor, " parameters"]
    """One regression for all classes, with a level per class: whether the classes share their directions. NaN where
    the features are too wide."""
    shuffled: Float[Tensor, " parameters"]
    """The same as `r2` with the transformations dealt out anew within each class: a control, about zero."""
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
) -> ReadOut:
    """Fit and judge a read-out, within each class and for all together."""
    width = targets.shape[1]
    wrong, whole, mixed = (torch.full((classes, width), torch.nan, dtype=torch.float64) for _ in range(3))
    strength = wrong.clone()
    generator = torch.Generator().manual_seed(seed)
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten()
        own, wanted = features[members], targets[members].double()
        dealt = wanted[torch.randperm(len(members), generator=generator)]
        both, chosen = ridge_predictions(
            own, torch.cat([wanted, dealt], dim=1), folds=folds, components=components, seed=seed
        )
        predictions, by_chance = both.split(width, dim=1)
        wrong[label] = (wanted - predictions).square().sum(0)
        whole[label] = (wanted - wanted.mean(0)).square().sum(0)
        mixed[label] = (dealt - by_chance).square().sum(0)
        strength[label] = chosen[:, :width].median(0).values
    level = within_classes(targets, labels)
    together = torch.full_like(level, torch.nan)
    if features.shape[1] <= WIDEST:
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
class Pose:
    """What can be read off the features of a model, and off the pixels themselves."""

    model: str
    data: str
    """Which images, and how they were transformed."""
    count: int
    folds: int
    class_names: tuple[str, ...]
    features: str
    """The read-out that is the model's own: "class capsule" or "last layer"."""
    read_outs: dict[str, ReadOut]
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
    """The numbers to be read out."""
    return torch.stack([getattr(transforms, name) for name in PARAMETERS], dim=-1).double()


def last_features(model: Classifier, images: Tensor, labels: Tensor) -> Tensor:
    """The capsule of the true class; for a CNN what goes into its last dense layer."""
    if isinstance(model, CapsuleClassifier):
        capsules = model(images).capsules
        assert capsules is not None
        return of_class(capsules, labels)
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    seen: list[Tensor] = []
    with last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
        model(images)
    return seen[0]


def pose(
    model: Classifier,
    dataset: Dataset,
    *,
    count: int | None = None,
    components: int | None = None,
    pixels: bool = True,
    folds: int = 5,
    batch_size: int = 250,
    seed: int = 0,
    report: Report = silent,
) -> Pose:
    """Read the true transformation off the class capsule, or off a CNN's last layer, and off the pixels to compare.

    `dataset` is affNIST (regenerated), whose transformations are known; images of any other data set are transformed
    here by the same ranges, in the size they have. Of versions of one digit side by side only one is taken (10,000
    images at most, spread evenly), so that no digit is on both sides of a fold. Features wider than `components`
    (by default the width of the class capsule, or 32) are judged whole and reduced to that width by their principal
    components.
    """
    most = 10_000 if dataset.transforms is not None else None
    chosen = transformed(choose_images(model, dataset, most if count is None else min(count, most or count)), seed)
    assert chosen.transforms is not None
    fewest = int(chosen.labels.unique(return_counts=True)[1].min())
    if fewest < 2 * folds:
        needed = f"pose needs {2 * folds} images of each class or more, to fit on some and judge on others"
        raise DoesNotApplyError(f"{needed}: {fewest} of {len(chosen):,} are of one class")
    targets = targets_of(chosen.transforms)
    with at_rest(model):
        features = torch.cat(
            [
                last_features(model, images, labels).cpu()
                for images, labels in batches(model, chosen, batch_size, report, "pose")
            ]
        )
    is_capsule = isinstance(model, CapsuleClassifier)
    own = "class capsule" if is_capsule else "last layer"
    width = components or (features.shape[1] if is_capsule else 32)
    read_outs = {}
    kinds = {own: features, "pixels": chosen.images.flatten(1).double() / 255} if pixels else {own: features}
    for name, values in kinds.items():
        for limit in (None, width) if values.shape[1] > width else (None,):
            full = name if limit is None else f"{name}, {limit} components"
            report(f"pose: reading it off {full} ({values.shape[1]} numbers)")
            read_outs[full] = read_out(
                values, targets, chosen.labels, len(chosen.class_names), components=limit, folds=folds, seed=seed
            )
    return Pose(model.name, chosen.name, len(chosen), folds, chosen.class_names, own, read_outs)
