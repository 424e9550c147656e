"""All experiments on a run folder: numbers, figures and sections of its report."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arcaps.analysis import sections
from arcaps.analysis.align import PAPER, PAPER_REFERENCE, Alignment, align, cosine
from arcaps.analysis.attention import attention
from arcaps.analysis.base import DoesNotApplyError, choose_images, require_capsules, silent
from arcaps.analysis.perturb import perturb
from arcaps.analysis.pose import pose
from arcaps.analysis.robustness import robustness
from arcaps.data import Dataset, load_data
from arcaps.data.sources import Report
from arcaps.errors import ArcapsError
from arcaps.figures import analysis as draw
from arcaps.figures import save_both
from arcaps.models import Classifier
from arcaps.models.capsules import CapsuleClassifier
from arcaps.registry import unknown
from arcaps.storage import write_whole
from arcaps.training.after import choose_data, open_model
from arcaps.training.distributed import choose_device
from arcaps.training.run import Run

EXPERIMENTS = ("perturb", "align", "cosine", "pose", "robustness", "attention")


def choose_experiments(asked: Sequence[str]) -> tuple[str, ...]:
    """The experiments asked for, in their order; "all" and nothing are all."""
    for name in asked:
        if name not in (*EXPERIMENTS, "all"):
            raise unknown("experiment", name, [*EXPERIMENTS, "all"])
    return EXPERIMENTS if not asked or "all" in asked else tuple(name for name in EXPERIMENTS if name in asked)


def compact_json(content: dict[str, Any]) -> str:
    """JSON with a line per key, and every list of plain values in one line."""
    text = json.dumps(content, indent=1, allow_nan=False)
    return re.sub(r"\[\n[^\[\]{}]*\n\s*\]", lambda found: re.sub(r"\n\s*", " ", found[0]), text) + "\n"


@dataclass
class Laboratory:
    """A run's model and images, and where the results go."""

    run: Run
    model: Classifier
    dataset: Dataset
    others: dict[str, Classifier]
    """Further runs to compare with, by name."""
    regenerated: Dataset | None
    """Images whose transformation is known, where the run has them."""
    count: int | None = None
    classes: tuple[str, ...] | None = None
    dims: tuple[int, ...] | None = None
    report: Report = silent
    alignment: Alignment | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """What the run is called in draw."""
        return self.run.path.resolve().name

    def models(self) -> dict[str, Classifier]:
        """The run's model and the others."""
        return {self.name: self.model, **self.others}

    def about(self, data: str, count: int) -> str:
        """The end of a caption."""
        return f"Data: {data}, n = {count:,}. Run: {self.name} ({self.model.name})."

    def aligned(self) -> Alignment:
        """What `align` measures, once for align and cosine."""
        if self.alignment is None:
            self.alignment = align(self.model, self.dataset, count=self.count, report=self.report)
        return self.alignment

    def save(self, name: str, numbers: dict[str, Any], drawn: dict[str, Any], section: str) -> dict[str, Any]:
        """Write numbers, figures and a section."""
        folder = self.run.path / "analysis"
        folder.mkdir(exist_ok=True)
        for file, figure in drawn.items():
            save_both(figure, folder / file)
        numbers = {"experiment": name, "run": self.name, **numbers}
        write_whole(folder / f"{name}.json", compact_json(numbers).encode())
        report = self.run.path / "report.md"
        text = report.read_text() if report.exists() else ""
        if not text:
            report = self.run.path / "analysis.md"
            text = report.read_text() if report.exists() else f"# Analysis of {self.name}, whose training is not over\n"
        write_whole(report, sections.put_section(text, name, section).encode())
        return numbers

    def perturb(self) -> dict[str, Any]:
        """Move each dimension."""
        names = self.dataset.class_names
        chosen = self.classes if self.classes is not None else names[:10]
        count = 50 if self.count is None else min(50, self.count)
        found = perturb(self.model, self.dataset, classes=chosen, dims=self.dims, count=count, report=self.report)
        about = self.about(found.data, int(found.counts.sum()))
        drawn = {
            "perturb": draw.perturb_overview(found, about),
            "perturb-ranking": draw.perturb_ranking(found, about),
        }
        for row, label in enumerate(found.labels):
            drawn[f"perturb-{label}"] = draw.perturb_class(found, row, about)
        return self.save("perturb", found.as_dict(), drawn, sections.perturb_section(found))

    def align(self) -> dict[str, Any]:
        """The alignment ratio."""
        found = self.aligned()
        about = self.about(found.data, len(found.labels))
        figure = draw.align(found, about, PAPER, PAPER_REFERENCE)
        return self.save("align", found.as_dict(), {"align": figure}, sections.align_section(found))

    def cosine(self) -> dict[str, Any]:
        """The cosine histogram."""
        require_capsules(self.model, "cosine")
        found = cosine(self.model, self.dataset, alignment=self.aligned())
        about = self.about(found.data, found.fixed.shape[1])
        return self.save(
            "cosine", found.as_dict(), {"cosine": draw.cosine(found, about)}, sections.cosine_section(found)
        )

    def pose(self) -> dict[str, Any]:
        """The linear read-out of the pose, of all runs."""
        dataset = self.regenerated or self.dataset
        dims = [m.class_caps.routing.dim for m in self.models().values() if isinstance(m, CapsuleClassifier)]
        width = min(dims, default=None)
        found = {
            name: pose(
                model, dataset, count=self.count, components=width, pixels=model is self.model, report=self.report
            )
            for name, model in self.models().items()
        }
        first = next(iter(found.values()))
        numbers = {"runs": {name: one.as_dict() for name, one in found.items()}}
        figure = draw.pose(found, self.about(first.data, first.count))
        return self.save("pose", numbers, {"pose": figure}, sections.pose_section(found))

    def robustness(self) -> dict[str, Any]:
        """Accuracy under growing changes, of all runs."""
        found = robustness(
            self.models(), self.dataset, count=2000 if self.count is None else self.count, report=self.report
        )
        figure = draw.robustness(found, self.about(found.data, found.count))
        return self.save("robustness", found.as_dict(), {"robustness": figure}, sections.robustness_section(found))

    def attention(self) -> dict[str, Any]:
        """The routing coefficients."""
        count = 1000 if self.count is None else self.count
        found = attention(self.model, self.dataset, count=count, report=self.report)
        about = self.about(found.data, found.count)
        drawn = {f"attention-{layer.name}": draw.attention_maps(found, layer, about) for layer in found.layers}
        drawn["attention"] = draw.attention_removal(found, about)
        return self.save("attention", found.as_dict(), drawn, sections.attention_section(found))


def analyze_run(
    path: Path,
    experiments: Sequence[str] = (),
    *,
    data: str | None = None,
    others: Sequence[Path] = (),
    count: int | None = None,
    classes: Sequence[str] | None = None,
    dims: Sequence[int] | None = None,
    data_dir: str | None = None,
    report: Report = silent,
) -> dict[str, dict[str, Any]]:
    """Do experiments on a run: files in `RUN/analysis`, a section each in the report; the numbers by experiment.

    An experiment that does not apply to the model is left out with a word to `report`, unless it was asked for by
    name. `others` are runs to compare with in pose and robustness.
    """
    chosen = choose_experiments(experiments)
    run = Run.open(path)
    device = choose_device("auto")
    model = run.model().to(device).for_inference()
    further = {}
    for other in others:
        name = other.resolve().stem if other.is_file() else other.resolve().name
        if name in further or name == path.resolve().name:
            raise ArcapsError(
                f"two runs are called {name}: figures could not tell them apart; rename one of the folders"
            )
        further[name] = open_model(other).to(device).for_inference()
    dataset = choose_data(path, model, data, data_dir).test
    choose_images(model, dataset, count)
    regenerated = None
    if "pose" in chosen and data is None and (run.recipe.test_data or "").startswith("affnist"):
        regenerated = (
            dataset if dataset.transforms is not None else load_data("affnist-regenerated", data_dir=data_dir).test
        )
    lab = Laboratory(
        run,
        model,
        dataset,
        further,
        regenerated,
        count,
        None if classes is None else tuple(classes),
        None if dims is None else tuple(dims),
        report,
    )
    results = {}
    for name in chosen:
        report(f"{name}: on {dataset.name}")
        try:
            results[name] = getattr(lab, name)()
        except DoesNotApplyError as error:
            if name in experiments:
                raise
            report(str(error))
    if results and not (path / "report.md").exists():
        report(f"{path} has no report.md yet, for its training is not over: the sections are in {path / 'analysis.md'}")
    return results
