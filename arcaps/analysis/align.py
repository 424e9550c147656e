"""Does the class capsule move along one line as the image moves? The paper's alignment ratio.

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
    batches,
    bound_name,
    choose_images,
    class_capsules,
    eval_mode,
    of_class,
    plain,
    require_capsules,
)
from arcaps.analysis.experiment import Experiment, Measurement, Record, Settings, Subject
from arcaps.analysis.section import Picture, Section, Table, Text, bold
from arcaps.data import Dataset
from arcaps.data.warp import Transform, warp
from arcaps.functional import lengths
from arcaps.models import Classifier
from arcaps.models.capsules import CapsuleClassifier

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
    """The alignment ratios and the align vector of each set of difference vectors; the sign is that of the SVD.

        v_i   = u_n(T_i(x)) - u_n(x)                                        (eq. 12, made by the caller)
        c, v  = argmin over c, v of sum over i of ||v_i - c_i v||^2         (eq. 13)
              = argmin over c, v of ||V - c v^T||_F^2                       (eq. 14)
        r_i   = |v_i . v| / ||v_i||                                         (eq. 15)

    `V` holds the differences as rows; the align vector `v` is its first right-singular vector. The equations are those
    of "Attention routing between capsules" (2019), section 4.

    A difference of length zero has no direction: its ratio is NaN, to be left out of means.
    """
    exact = differences.double()
    vectors = torch.linalg.svd(exact, full_matrices=False).Vh[..., 0, :]
    along = einsum(exact, vectors, "... steps dim, ... dim -> ... steps")
    return (along.abs() / lengths(exact)).clamp_max(1.0), vectors


def fix_signs(
    vectors: Float[Tensor, "*where dim"], differences: Float[Tensor, "*where steps dim"]
) -> tuple[Float[Tensor, "*where dim"], Bool[Tensor, "*where"]]:
    """Fix the sign of each align vector so that `sum_i v_i . v > 0`; also returns where every `v_i . v > 0`.

    The paper's footnote asks for `v_i . v > 0` for each i. No sign gives that where the differences point both ways;
    there the sum decides.
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
    """Measure the alignment ratio of sets of standard normal vectors."""
    generator = torch.Generator().manual_seed(seed)
    ratios, _ = align_vectors(torch.randn(sets, steps, dim, dtype=torch.float64, generator=generator))
    error = float(ratios.mean(-1).std() / sets**0.5)
    return Reference(dim, sets, float(ratios.mean()), float(ratios.std()), error)


def spread(ratios: Float[Tensor, "*shape"]) -> tuple[float, float]:
    """Mean and standard deviation, without NaN."""
    numbers = ratios[~ratios.isnan()]
    return (float(numbers.mean()), float(numbers.std(correction=0))) if len(numbers) else (float("nan"), float("nan"))


@dataclass(frozen=True)
class Stage:
    """The measurement before or after the bound of the class layer, for each transformation and image."""

    ratios: Float[Tensor, "kinds count steps"]
    """The alignment ratios; NaN where the capsule did not move."""
    vectors: Float[Tensor, "kinds count dim"]
    """The align vectors, with the signs of the SVD."""
    fixed: Float[Tensor, "kinds count dim"]
    """The align vectors, signs fixed."""
    one_sided: Bool[Tensor, "kinds count"]
    """Whether all differences are on the side of the align vector."""


@dataclass(frozen=True)
class Alignment:
    """The alignment ratios of a data set."""

    model: str
    data: str
    class_names: tuple[str, ...]
    labels: Int[Tensor, " count"]
    bound: str
    """The function that bounds the class capsules."""
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
) -> Alignment:
    """Measure the alignment ratio (the paper's table 3) on all images of a data set, or on `count` of them.

    Transformed images are bilinear, with a black border; the capsule is that of the true class.
    """
    capsule_net = require_capsules(model, "align")
    chosen = choose_images(model, dataset, count)
    found: dict[str, list[tuple[Tensor, ...]]] = {"after": [], "before": []}
    with eval_mode(model):
        for images, labels in batches(model, chosen, batch_size, "align"):
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


class AlignExperiment(Experiment, name="align"):
    """Alignment ratio: does the class capsule move along one line as the image moves? (paper, table 3)"""

    def run(self, subject: Subject, settings: Settings) -> Measurement:
        """Measure the alignment ratio on the test images; of other capsule networks over all classes together."""
        record = measure(subject, settings).as_dict()
        for name, model in subject.others.items():
            if isinstance(model, CapsuleClassifier):
                found = align(model, subject.dataset, count=settings.count)
                mean, deviation = found.table(found.after)
                record.setdefault("others", {})[name] = {"mean": plain(mean[-1]), "deviation": plain(deviation[-1])}
        return Measurement(record)

    def section(self, record: Record) -> Section:
        """The ratios beside those of the paper and of random vectors."""
        kinds = list(record["transformations"])
        random, printed = record["random_reference"], record["paper"]["random_reference"]
        rows = stage_rows(record["after_the_bound"])
        rows += [[f"all, {name}", *ratio_cells(found)] for name, found in record.get("others", {}).items()]
        rows += [[f"paper, {name}", *(f"{x:.2f}" for x in values)] for name, values in record["paper"]["mean"].items()]
        one_sided, still = (record["after_the_bound"][name] for name in ("one_sided", "did_not_move"))
        return Section(
            "Alignment ratio: does the capsule move along one line?",
            (
                Text(
                    "{model} on {data}, n = {count:,} images. Each image is rotated by 5 to 25 degrees or shifted by 1 "
                    "to 5 pixels in five steps (bilinear, black border; rotation + is counter-clockwise, x + to the "
                    "right, y + down). The table gives the mean \u00b1 standard deviation of the ratio over images and "
                    "steps; 1 is a line.",
                    record,
                ),
                Picture("align", "alignment ratios"),
                Text("After the {bound}:", record),
                Table(["class", *kinds], rows),
                Text("Before the {bound}:", record),
                Table(["class", *kinds], stage_rows(record["before_the_bound"])),
                Text(
                    "Random vectors of {dim} dimensions give {mean:.3f} \u00b1 {deviation:.3f} by the same protocol "
                    "({sets:,} sets of five; standard error {error:.4f}). The paper prints {printed[0]} \u00b1 "
                    "{printed[1]}, which its protocol does not give; our value is the one to compare with. The rows "
                    "of the paper are of its own MNIST models; it does not define the direction of +.",
                    {**random, "printed": printed},
                ),
                Text(
                    "All five differences of an image are on one side of the align vector for {sided} of the images "
                    "({kinds}). {still:.2%} of the differences were zero and are left out.",
                    {
                        "sided": " / ".join(f"{share:.0%}" for share in one_sided),
                        "kinds": ", ".join(kinds),
                        "still": sum(still) / len(still),
                    },
                ),
            ),
        )


def measure(subject: Subject, settings: Settings) -> Alignment:
    """The alignment of a subject, measured once for the experiments that use it."""
    require_capsules(subject.model, "align")
    return subject.measure_once("align", lambda: align(subject.model, subject.dataset, count=settings.count))


def stage_rows(stage: Record) -> list[list[str]]:
    """A row for each class, and one for all images."""
    rows = []
    for name, means in stage["mean"].items():
        cells = ratio_cells({"mean": means, "deviation": stage["deviation"][name]})
        rows.append([bold("all") if name == "all" else name, *cells])
    return rows


def ratio_cells(row: Record) -> list[str]:
    """A cell for each transformation: mean and standard deviation."""
    pairs = zip(row["mean"], row["deviation"], strict=True)
    return ["" if mean is None else f"{mean:.3f} \u00b1 {deviation:.3f}" for mean, deviation in pairs]
