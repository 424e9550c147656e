"""Do the capsules move along one line as the image moves? The paper's alignment ratio and cosine histogram.

An image x is moved a little more each time, T_1 to T_5. The capsule u of its class moves too:
`v_i = u(T_i x) - u(x)`. The align vector of the image is the direction that the five v_i share best, the first
right-singular vector of the matrix V of the v_i, no mean subtracted. The alignment ratio
`r_i = |cos(v_i, align vector)|` is 1 on a line.
"""

from dataclasses import dataclass
from typing import Any

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from arcaps.analysis.base import (
    at_rest,
    batches,
    bound_name,
    choose_images,
    class_capsules,
    of_class,
    plain,
    require_capsules,
    silent,
)
from arcaps.data import Dataset
from arcaps.data.sources import Report
from arcaps.data.warp import Transform, warp
from arcaps.errors import ArcapsError
from arcaps.functional import lengths
from arcaps.models import Classifier

DEGREES, PIXELS = (5.0, 10.0, 15.0, 20.0, 25.0), (1.0, 2.0, 3.0, 4.0, 5.0)
TRANSFORMATIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "rotation+": ("angle", DEGREES),
    "x+": ("shift_x", PIXELS),
    "y+": ("shift_y", PIXELS),
    "rotation-": ("angle", tuple(-step for step in DEGREES)),
    "x-": ("shift_x", tuple(-step for step in PIXELS)),
    "y-": ("shift_y", tuple(-step for step in PIXELS)),
}
"""The paper's six, in the order of its table: + is counter-clockwise, to the right, down."""

PAPER = {
    "8": (0.89, 0.89, 0.91, 0.86, 0.87, 0.86),
    "5": (0.89, 0.78, 0.73, 0.84, 0.88, 0.86),
    "all": (0.88, 0.86, 0.84, 0.83, 0.83, 0.84),
    "all, trained on MNIST+": (0.89, 0.88, 0.80, 0.81, 0.84, 0.84),
}
"""The paper's table 3, in the same order. It does not say which way + is."""
PAPER_REFERENCE = (0.311, 0.262)


def align_vectors(
    differences: Float[Tensor, "*where steps dim"],
) -> tuple[Float[Tensor, "*where steps"], Float[Tensor, "*where dim"]]:
    """The alignment ratios of each set of difference vectors, and its align vector, its sign as the SVD gives it.

    A difference of length zero has no direction: its ratio is NaN, to be left out of means.
    """
    exact = differences.double()
    vectors = torch.linalg.svd(exact, full_matrices=False).Vh[..., 0, :]
    along = einsum(exact, vectors, "... steps dim, ... dim -> ... steps")
    return (along.abs() / lengths(exact)).clamp_max(1.0), vectors


def fix_signs(
    vectors: Float[Tensor, "*where dim"], differences: Float[Tensor, "*where steps dim"]
) -> tuple[Float[Tensor, "*where dim"], Bool[Tensor, "*where"]]:
    """Turn each align vector so that `sum_i v_i . v > 0`, and say where every single `v_i . v > 0` (the footnote).

    The footnote asks for `v_i . v > 0` for each i, which no sign gives where the differences point both ways; the sum
    decides there.
    """
    along = einsum(differences.double(), vectors, "... steps dim, ... dim -> ... steps")
    sign = torch.where(along.sum(-1) < 0, -1.0, 1.0).double()
    return vectors * sign.unsqueeze(-1), (along * sign.unsqueeze(-1) > 0).all(-1)


@dataclass(frozen=True)
class Reference:
    """The alignment ratio of isotropic random vectors, by the same protocol."""

    dim: int
    sets: int
    mean: float
    deviation: float
    """Over all ratios, as the paper prints it."""
    error: float
    """The standard error of the mean."""


def random_reference(dim: int, *, steps: int = 5, sets: int = 10_000, seed: int = 0) -> Reference:
    """Sets of standard normal vectors in place of capsules that moved."""
    generator = torch.Generator().manual_seed(seed)
    ratios, _ = align_vectors(torch.randn(sets, steps, dim, dtype=torch.float64, generator=generator))
    error = float(ratios.mean(-1).std() / sets**0.5)
    return Reference(dim, sets, float(ratios.mean()), float(ratios.std()), error)


def spread(ratios: Float[Tensor, "*shape"]) -> tuple[float, float]:
    """Mean and standard deviation of the numbers that are numbers."""
    numbers = ratios[~ratios.isnan()]
    return (float(numbers.mean()), float(numbers.std(correction=0))) if len(numbers) else (float("nan"), float("nan"))


@dataclass(frozen=True)
class Stage:
    """What was seen at one place of the class layer, for each transformation and image."""

    ratios: Float[Tensor, "kinds count steps"]
    """The alignment ratios; NaN where the capsule did not move."""
    vectors: Float[Tensor, "kinds count dim"]
    """The align vectors, each sign as the SVD gives it."""
    fixed: Float[Tensor, "kinds count dim"]
    """The align vectors, signs fixed."""
    one_sided: Bool[Tensor, "kinds count"]
    """Whether all differences point to the side of the align vector."""


@dataclass(frozen=True)
class Alignment:
    """The alignment ratios of a data set."""

    model: str
    data: str
    class_names: tuple[str, ...]
    labels: Int[Tensor, " count"]
    bound: str
    """What the class layer ends with."""
    after: Stage
    before: Stage
    reference: Reference
    transformations: tuple[str, ...] = tuple(TRANSFORMATIONS)

    def table(
        self, stage: Stage
    ) -> tuple[Float[Tensor, "classes_and_all kinds"], Float[Tensor, "classes_and_all kinds"]]:
        """Mean and deviation of the ratios by class, and of all images in the last row."""
        groups = [self.labels == label for label in range(len(self.class_names))] + [self.labels >= 0]
        pairs = torch.tensor([[spread(ratios[group]) for ratios in stage.ratios] for group in groups])
        return pairs[..., 0], pairs[..., 1]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found: dict[str, Any] = {
            "model": self.model,
            "data": self.data,
            "count": len(self.labels),
            "bound": self.bound,
            "transformations": {name: list(TRANSFORMATIONS[name][1]) for name in self.transformations},
        }
        for name, stage in (("after", self.after), ("before", self.before)):
            mean, deviation = self.table(stage)
            rows = [*self.class_names, "all"]
            found[f"{name}_the_bound"] = {
                "mean": dict(zip(rows, plain(mean), strict=True)),
                "deviation": dict(zip(rows, plain(deviation), strict=True)),
                "one_sided": stage.one_sided.double().mean(1).tolist(),
                "did_not_move": stage.ratios.isnan().double().mean((1, 2)).tolist(),
            }
        found["random_reference"] = dict(vars(self.reference))
        found["paper"] = {
            "mean": {name: list(values) for name, values in PAPER.items()},
            "random_reference": list(PAPER_REFERENCE),
            "note": "the paper's protocol does not give the random reference that it prints",
        }
        return found


def align(
    model: Classifier,
    dataset: Dataset,
    *,
    count: int | None = None,
    batch_size: int = 250,
    seed: int = 0,
    report: Report = silent,
) -> Alignment:
    """Measure the alignment ratio (the paper's table 3) on all images of a data set, or on `count` of them.

    Transformed images are bilinear, with a black border; the capsule is that of the true class.
    """
    capsule_net = require_capsules(model, "align")
    chosen = choose_images(model, dataset, count)
    found: dict[str, list[tuple[Tensor, ...]]] = {"after": [], "before": []}
    with at_rest(model):
        for images, labels in batches(model, chosen, batch_size, report, "align"):
            start = [of_class(capsules, labels) for capsules in class_capsules(capsule_net, images)]
            moved: list[list[Tensor]] = [[], []]
            for parameter, steps in TRANSFORMATIONS.values():
                for step in steps:
                    amount: dict[str, Any] = {parameter: step}
                    changed = warp(images, Transform.make(len(images), **amount))
                    for place, capsules in enumerate(class_capsules(capsule_net, changed)):
                        moved[place].append(of_class(capsules, labels) - start[place])
            for name, place in (("before", 0), ("after", 1)):
                differences = torch.stack(moved[place]).unflatten(0, (len(TRANSFORMATIONS), -1)).transpose(1, 2).cpu()
                ratios, vectors = align_vectors(differences)
                found[name].append((ratios, vectors, *fix_signs(vectors, differences)))
    stages = {
        name: Stage(*(torch.cat(parts, dim=1) for parts in zip(*pieces, strict=True))) for name, pieces in found.items()
    }
    return Alignment(
        model.name,
        chosen.name,
        chosen.class_names,
        chosen.labels,
        bound_name(capsule_net),
        stages["after"],
        stages["before"],
        random_reference(stages["after"].vectors.shape[-1], seed=seed),
    )


PAIRS = ("rotation", "x", "y")
EDGES = 0.1


@dataclass(frozen=True)
class Cosine:
    """The cosine between the align vectors of a transformation and of its opposite, for each image."""

    model: str
    data: str
    bound: str
    fixed: Float[Tensor, "pairs count"]
    """Signs fixed by the paper's footnote; NaN where a capsule did not move."""
    free: Float[Tensor, "pairs count"]
    """Signs as the SVD gives them."""
    arbitrary: Float[Tensor, "pairs count"]
    """Signs drawn at random: all that is known of a singular vector's sign."""
    fixed_before: Float[Tensor, "pairs count"]
    """As `fixed`, before the bound."""
    pairs: tuple[str, ...] = PAIRS

    def shares(self, cosines: Float[Tensor, " count"]) -> dict[str, float]:
        """The parts of the images near each end, and on each side."""
        numbers = cosines[~cosines.isnan()]
        if not len(numbers):
            raise ArcapsError(f"no capsule moved on {self.data}: there is no direction to compare")
        near = {
            "below_-0.9": numbers < -0.9,
            "-0.9_to_-0.8": (numbers >= -0.9) & (numbers < -0.8),
            "below_-0.5": numbers < -0.5,
            "-0.5_to_0.5": numbers.abs() <= 0.5,
            "above_0.5": numbers > 0.5,
            "0.8_to_0.9": (numbers > 0.8) & (numbers <= 0.9),
            "above_0.9": numbers > 0.9,
        }
        return {name: float(where.double().mean()) for name, where in near.items()}

    def differ(self) -> list[float]:
        """For each pair the part of the images whose cosine changes its sign when the signs are fixed."""
        both = zip(self.fixed, self.free, strict=True)
        return [float((fixed * free < 0).double().sum() / (~fixed.isnan()).sum()) for fixed, free in both]

    def peaks(self, cosines: Float[Tensor, " count"]) -> tuple[bool, bool]:
        """Whether there is a peak at -1, and one at +1.

        A peak is an outermost bin, 0.1 wide, that holds more than the one before it, and more than its part of a
        uniform distribution.
        """
        shares = self.shares(cosines)
        at_minus = shares["below_-0.9"] > max(EDGES / 2, shares["-0.9_to_-0.8"])
        at_plus = shares["above_0.9"] > max(EDGES / 2, shares["0.8_to_0.9"])
        return at_minus, at_plus

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found: dict[str, Any] = {
            "model": self.model,
            "data": self.data,
            "bound": self.bound,
            "count": self.fixed.shape[1],
            "bins": torch.linspace(-1, 1, 41).tolist(),
        }
        kinds = (
            ("signs_fixed", self.fixed),
            ("signs_of_the_svd", self.free),
            ("signs_at_random", self.arbitrary),
            ("before_signs_fixed", self.fixed_before),
        )
        for name, cosines in kinds:
            found[name] = {}
            for pair, values in zip(self.pairs, cosines, strict=True):
                numbers = values[~values.isnan()]
                at_minus, at_plus = self.peaks(values)
                found[name][pair] = {
                    "histogram": torch.histc(numbers, 40, -1.0, 1.0).long().tolist(),
                    "mean": float(numbers.mean()),
                    "shares": self.shares(values),
                    "peak_at_-1": at_minus,
                    "peak_at_+1": at_plus,
                }
        found["svd_signs_differ"] = dict(zip(self.pairs, self.differ(), strict=True))
        fixed = [self.peaks(values) for values in self.fixed]
        found["observations"] = {
            "peaks_at_-1_and_+1": {pair: all(peaks) for pair, peaks in zip(self.pairs, fixed, strict=True)},
            "does_not_tell_+_from_-": {pair: peaks[1] for pair, peaks in zip(self.pairs, fixed, strict=True)},
        }
        return found


def cosine(
    model: Classifier,
    dataset: Dataset,
    *,
    alignment: Alignment | None = None,
    count: int | None = None,
    seed: int = 0,
    report: Report = silent,
) -> Cosine:
    """Compare the align vectors of positive and negative transformations.

    It needs what `align` measures: give that as `alignment`, and the model is not run again.
    """
    require_capsules(model, "cosine")
    measured = alignment or align(model, dataset, count=count, report=report)
    half = len(PAIRS)

    def compare(stage: Stage, vectors: Tensor) -> Tensor:
        cosines = (vectors[:half] * vectors[half:]).sum(-1).clamp(-1, 1)
        still = stage.ratios.isnan().all(-1)
        return cosines.masked_fill(still[:half] | still[half:], torch.nan)

    after, before = measured.after, measured.before
    fixed = compare(after, after.fixed)
    coin = torch.randint(2, fixed.shape, generator=torch.Generator().manual_seed(seed))
    return Cosine(
        measured.model,
        measured.data,
        measured.bound,
        fixed,
        compare(after, after.vectors),
        fixed * (2 * coin - 1),
        compare(before, before.fixed),
    )
