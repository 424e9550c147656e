"""Are opposite transformations distinguished? The cosine between their align vectors (the paper's histogram)."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from arcaps.analysis.align import Alignment, Stage, align, measure
from arcaps.analysis.base import require_capsules
from arcaps.analysis.experiment import Experiment, Measurement, Record, Settings, Subject
from arcaps.analysis.section import Picture, Section, Table, Text
from arcaps.data import Dataset
from arcaps.errors import ArcapsError
from arcaps.models import Classifier

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
    """Random signs: the sign of a singular vector is arbitrary."""
    fixed_before: Float[Tensor, "pairs count"]
    """As `fixed`, before the bound."""
    pairs: tuple[str, ...] = PAIRS

    def shares(self, cosines: Float[Tensor, " count"]) -> dict[str, float]:
        """The shares of the images near each end, and on each side."""
        numbers = cosines[~cosines.isnan()]
        if not len(numbers):
            raise ArcapsError(f"no capsule moved on {self.data}: there is no direction to compare, give other images")
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
        """For each pair the share of the images whose cosine changes its sign when the signs are fixed."""
        both = zip(self.fixed, self.free, strict=True)
        return [float((fixed * free < 0).double().sum() / (~fixed.isnan()).sum()) for fixed, free in both]

    def has_peaks(self, cosines: Float[Tensor, " count"]) -> tuple[bool, bool]:
        """Whether there is a peak at -1, and one at +1.

        A peak is an outermost bin, 0.1 wide, that holds more than the one before it, and more than its share of
        a uniform distribution.
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
                at_minus, at_plus = self.has_peaks(values)
                found[name][pair] = {
                    "histogram": torch.histc(numbers, 40, -1.0, 1.0).long().tolist(),
                    "mean": float(numbers.mean()),
                    "shares": self.shares(values),
                    "peak_at_-1": at_minus,
                    "peak_at_+1": at_plus,
                }
        found["svd_signs_differ"] = dict(zip(self.pairs, self.differ(), strict=True))
        fixed = [self.has_peaks(values) for values in self.fixed]
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
) -> Cosine:
    """Compare the align vectors of positive and negative transformations.

    It needs what `align` measures: give that as `alignment`, and the model is not run again.
    """
    require_capsules(model, "cosine")
    measured = alignment or align(model, dataset, count=count)
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


KINDS = {"signs_fixed": "fixed", "signs_of_the_svd": "as the SVD gives them", "signs_at_random": "random"}
SHARES = ("below_-0.9", "below_-0.5", "-0.5_to_0.5", "above_0.5", "above_0.9")


class CosineExperiment(Experiment, name="cosine"):
    """Cosine between the align vectors of opposite transformations: are + and - distinguished? (paper, figure 5)"""

    def run(self, subject: Subject, settings: Settings) -> Measurement:
        """Compare the align vectors that `align` measures."""
        require_capsules(subject.model, "cosine")
        found = cosine(subject.model, subject.dataset, alignment=measure(subject, settings))
        return Measurement(found.as_dict())

    def section(self, record: Record) -> Section:
        """The shares near each end, and which of the paper's two observations holds."""
        rows = [
            [pair, word, *(f"{record[kind][pair]['shares'][name]:.1%}" for name in SHARES), peaks(record[kind][pair])]
            for pair in record["signs_fixed"]
            for kind, word in KINDS.items()
        ]
        fixed, random = record["signs_fixed"], record["signs_at_random"]
        sides = [
            f"{pair}: {one['shares']['below_-0.5']:.1%} in opposite directions (below -0.5), "
            f"{one['shares']['above_0.5']:.1%} in the same direction (above 0.5)"
            for pair, one in fixed.items()
        ]
        two = [pair for pair, one in random.items() if one["peak_at_-1"] and one["peak_at_+1"]]
        differ = [f"{share:.1%} ({pair})" for pair, share in record["svd_signs_differ"].items()]
        return Section(
            "Cosine: are positive and negative transformations distinguished?",
            (
                Text(
                    "{model} on {data}, n = {count:,} images, after the {bound}. The cosine between the align vectors "
                    "of a transformation and of its opposite. At -1 the capsule moves in opposite directions.",
                    record,
                ),
                Picture("cosine", "cosine histograms"),
                Table(
                    ["", "signs", "below -0.9", "below -0.5", "-0.5 to 0.5", "above 0.5", "above 0.9", "peaks at"],
                    rows,
                    words=2,
                ),
                Text(
                    "The paper's two observations, with the signs fixed by its footnote (a peak is an outermost bin of "
                    "0.1 that holds more than its neighbour and more than its share of a uniform distribution):"
                ),
                Text("1. *Two peaks, around -1 and 1*: {}.".format(holds(record, "peaks_at_-1_and_+1"))),
                Text(
                    "2. *Positive and negative transformations are not distinguished* (a peak at +1): {holds}. "
                    "{sides}.",
                    {"holds": holds(record, "does_not_tell_+_from_-"), "sides": "; ".join(sides)},
                ),
                Text(
                    "The sign of a singular vector is arbitrary. Without fixing it, the result depends on the SVD "
                    "routine: the signs of our routine change the sign of the cosine for {differ} of the images. With "
                    "random signs every histogram is symmetric, so that one peak becomes two; the same test then finds "
                    "two peaks for {two}.",
                    {"differ": ", ".join(differ), "two": ", ".join(two) or "none of the three"},
                ),
            ),
        )


def peaks(one: Record) -> str:
    """At which ends a histogram has a peak."""
    return " and ".join(end for end in ("-1", "+1") if one[f"peak_at_{end}"]) or "none"


def holds(record: Record, observation: str) -> str:
    """For which transformations an observation of the paper holds."""
    found = record["observations"][observation]
    pairs = [pair for pair, one in found.items() if one]
    if len(pairs) == len(found):
        return "holds"
    return f"holds for {', '.join(pairs)} only" if pairs else "does not hold"
