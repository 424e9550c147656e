"""What an experiment is, and what it gets.

A new experiment is one file in this package and one in `arcaps.figures`:

    class Spread(Experiment, name="spread"):
        \"\"\"The first line of the docstring is the help text.\"\"\"

        def run(self, subject, settings): return Measurement({"data": subject.dataset.name, ...})

        def section(self, record): return Section("Spread", (Text("..."),))
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from arcaps.analysis.section import Section
from arcaps.data import Dataset
from arcaps.models import Classifier
from arcaps.registry import Named

T = TypeVar("T")
Record: TypeAlias = dict[str, Any]
"""Plain values, as JSON has them."""


@dataclass(frozen=True)
class Subject:
    """What is examined: a model and its test images, and other models to compare it with."""

    name: str
    """The name of the run."""
    model: Classifier
    dataset: Dataset
    others: Mapping[str, Classifier] = field(default_factory=dict)
    """Further models by the name of their run."""
    transformed: Dataset | None = None
    """Images whose transformation is known, for the pose experiment."""
    shared: dict[str, Any] = field(default_factory=dict, repr=False)
    """What one experiment measured and another can use."""

    @property
    def models(self) -> dict[str, Classifier]:
        """All models by the name of their run, this one first."""
        return {self.name: self.model, **self.others}

    def measure_once(self, key: str, measure: Callable[[], T]) -> T:
        """The result of `measure`, which is called the first time only."""
        if key not in self.shared:
            self.shared[key] = measure()
        found: T = self.shared[key]
        return found


@dataclass(frozen=True)
class Settings:
    """What a user can choose."""

    count: int | None = None
    """The number of test images; None: the experiment's default."""
    classes: tuple[str, ...] | None = None
    """Classes for perturb, by name; None: the first ten that have images."""
    dims: tuple[int, ...] | None = None
    """Dimensions for perturb; None: all."""
    layers: bool = True
    """Whether pose also measures layer by layer."""


@dataclass(frozen=True)
class Measurement:
    """The result of an experiment."""

    record: Record
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    """What figures need and JSON cannot hold well, such as images (bytes)."""


class Experiment(Named, ABC, kind="experiment"):
    """An experiment on a trained model, known by name."""

    @abstractmethod
    def run(self, subject: Subject, settings: Settings) -> Measurement:
        """Do the experiment. Raises DoesNotApplyError where the model lacks what is examined."""

    @abstractmethod
    def section(self, record: Record) -> Section:
        """The section of a report, from the record alone."""
