"""How good a model is on a data set: what the training loop, run folders and reports know of a task."""

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from arcaps.errors import ArcapsError
from arcaps.statistics import wilson

E = TypeVar("E", bound="Evaluation")


class Evaluation(ABC):
    """Sums over the batches of a data set, and the figures made from them.

    A subclass adds to `sums` in `update` and reads them in `error`, `summary` and `as_dict`. The sums of several
    processes are added (`merge`, or `sums` reduced tensor by tensor).
    """

    def __init__(self, data: str) -> None:
        self.data = data
        """The name of the data set."""
        self.sums: dict[str, Tensor] = {}

    @abstractmethod
    def update(self, output: Any, batch: Any) -> None:
        """Add what a model answered for a batch."""

    def merge(self: E, other: E) -> E:
        """Add the sums of another evaluation."""
        for name, value in other.sums.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        return self

    @property
    @abstractmethod
    def error(self) -> float:
        """The number that chooses the best epoch: lower is better."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The result in one line of text."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""


class Classification(Evaluation):
    """The confusion matrix. With several labels per image, an image is right when the classes with the highest
    scores, as many as it has labels, are its labels.
    """

    def __init__(
        self,
        data: str,
        class_names: tuple[str, ...],
        confusion: Int[Tensor, "classes classes"] | None = None,
    ) -> None:
        super().__init__(data)
        self.class_names = class_names
        classes = len(class_names)
        confusion = torch.zeros(classes, classes, dtype=torch.int64) if confusion is None else confusion
        self.sums = {"confusion": confusion, "right": confusion.diagonal().sum(), "count": confusion.sum()}

    def update(self, output: Any, batch: Any) -> None:
        """Add the scores of a batch."""
        self.add(output.scores.detach(), batch.labels)

    def add(
        self, scores: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"] | Float[Tensor, "batch classes"]
    ) -> None:
        """Add scores and the true classes."""
        scores, labels = scores.cpu(), labels.cpu()
        classes = len(self.class_names)
        if labels.ndim == 1:
            expected, found = labels, scores.argmax(-1)
            right = (expected == found).sum()
        else:
            expected, found, right = matched(scores, labels)
        counted = (expected * classes + found).bincount(minlength=classes**2).view(classes, classes)
        more = {"confusion": counted, "right": right, "count": torch.tensor(len(scores))}
        self.sums = {name: value + more[name] for name, value in self.sums.items()}

    @property
    def confusion(self) -> Int[Tensor, "classes classes"]:
        """How many images of each class (row) were classified as each class (column)."""
        return self.sums["confusion"]

    @property
    def count(self) -> int:
        """The number of images."""
        return int(self.sums["count"])

    @property
    def accuracy(self) -> float:
        """The part of the images that was right."""
        if not self.count:
            raise ArcapsError(f"no images of {self.data} were evaluated: there is no accuracy")
        return int(self.sums["right"]) / self.count

    @property
    def error(self) -> float:
        """The part of the images that was wrong."""
        return 1 - self.accuracy

    @property
    def interval(self) -> tuple[float, float]:
        """Where the accuracy lies with 95 % confidence (Wilson)."""
        return wilson(self.accuracy, self.count)

    @property
    def per_class(self) -> dict[str, float]:
        """The part of each class that was right."""
        right = self.confusion.diagonal().double() / self.confusion.sum(1).clamp_min(1)
        return dict(zip(self.class_names, right.tolist(), strict=True))

    @property
    def summary(self) -> str:
        """Error and interval, in per cent."""
        low, high = self.interval
        return (
            f"{100 * self.error:.2f} % error on {self.count:,} images of {self.data} "
            f"(95 % interval {100 * (1 - high):.2f} to {100 * (1 - low):.2f} %)"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "data": self.data,
            "count": self.count,
            "accuracy": self.accuracy,
            "interval_95": self.interval,
            "per_class": self.per_class,
            "confusion": self.confusion.tolist(),
        }


def matched(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Labels paired with answers, and the number of images that are right, with several labels per image.

    An image has as many answers as labels, the classes with the highest scores. A label that was found is paired with
    itself, the others with the wrong answers.
    """
    expected, found, right = [], [], torch.tensor(0)
    for image, present in zip(scores, labels, strict=True):
        wanted = set(present.nonzero().flatten().tolist())
        given = set(image.topk(len(wanted)).indices.tolist())
        both = sorted(wanted & given)
        expected += both + sorted(wanted - given)
        found += both + sorted(given - wanted)
        right = right + int(wanted == given)
    return torch.tensor(expected, dtype=torch.int64), torch.tensor(found, dtype=torch.int64), right
