"""Experiments on a run folder: records, figures, and sections of its report."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arcaps import figures
from arcaps.analysis import DoesNotApplyError, Experiment, Measurement, Record, Settings, Subject
from arcaps.analysis.base import choose_images
from arcaps.data import load_data, match_classes
from arcaps.errors import ArcapsError
from arcaps.registry import unknown
from arcaps.reports.markdown import put_section, render_section
from arcaps.storage import write_file, write_whole
from arcaps.training.distributed import choose_device
from arcaps.training.inference import choose_data, open_model
from arcaps.training.run import Run
from arcaps.weights import is_pretrained

logger = logging.getLogger("arcaps")


def choose_experiments(asked: Sequence[str]) -> tuple[str, ...]:
    """The names of the experiments asked for, in alphabetical order; "all" and nothing are all."""
    known = sorted(Experiment.known)
    for name in asked:
        if name not in (*known, "all"):
            raise unknown("experiment", name, [*known, "all"])
    return tuple(name for name in known if not asked or "all" in asked or name in asked)


def record_json(record: Mapping[str, Any]) -> str:
    """A record as JSON: nested by one space, and every list of plain values on one line."""

    def write(value: Any, depth: int) -> str:
        inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
        if isinstance(value, Mapping) and value:
            parts = [f"{json.dumps(str(key))}: {write(one, depth + 1)}" for key, one in value.items()]
            return "{" + inner + f",{inner}".join(parts) + outer + "}"
        if isinstance(value, list | tuple) and any(isinstance(one, list | tuple | Mapping) for one in value):
            return "[" + inner + f",{inner}".join(write(one, depth + 1) for one in value) + outer + "]"
        return json.dumps(value, allow_nan=False, ensure_ascii=False)

    return write(record, 0) + "\n"


def section_of(record: Record, folder: str = "analysis", *, title: bool = True) -> str:
    """The Markdown section of a record; `folder` is where its figures are."""
    return render_section(Experiment.build(record["experiment"]).section(record), folder, title=title)


def write_experiment(path: Path, name: str, subject: Subject, found: Measurement) -> Record:
    """Write the record, the arrays, the figures and the section of an experiment into a run folder."""
    folder = path / "analysis"
    folder.mkdir(exist_ok=True)
    record = {"experiment": name, "run": subject.name, **found.record}
    write_whole(folder / f"{name}.json", record_json(record).encode())
    if found.arrays:
        write_file(folder / f"{name}.safetensors", dict(found.arrays), {"experiment": name, "run": subject.name})
    if name in figures.FIGURES:
        about = f"Run: {subject.name} ({subject.model.name}). Data: {record.get('data', subject.dataset.name)}."
        arrays = {key: values.numpy() for key, values in found.arrays.items()}
        for file, figure in figures.FIGURES[name](record, arrays, about).items():
            figures.save_both(figure, folder / file)
    report = report_file(path)
    start = f"# Analysis of {subject.name}, whose training is not finished\n"
    text = report.read_text(encoding="utf-8") if report.exists() else start
    write_whole(report, put_section(text, name, section_of(record)).encode())
    return record


def report_file(path: Path) -> Path:
    """The file for the sections: the report of the run, or `analysis.md` where there is none yet."""
    return path / ("report.md" if (path / "report.md").exists() else "analysis.md")


def open_subject(
    path: Path,
    chosen: Sequence[str],
    data: str | None,
    others: Sequence[Path],
    data_dir: str | None,
    *,
    skip_broken: bool = False,
    invert: bool = False,
) -> Subject:
    """The model and the test images of a run, and the models of the other runs."""
    if path.is_file() or is_pretrained(path):
        raise ArcapsError(f"{path} is a model without a run folder for the records: give the folder of a run")
    run = Run.open(path)
    device = choose_device("auto")
    model = run.model().to(device).for_inference()
    name, further = path.resolve().name, {}
    for other in others:
        called = other.resolve().stem if other.is_file() else other.resolve().name
        if called in further or called == name:
            raise ArcapsError(f"two runs are called {called}: rename one of the folders, so that figures can name both")
        further[called] = open_model(other).to(device).for_inference()
        if list(further[called].class_names) != list(model.class_names):
            raise ArcapsError(f"{other} has other classes than {path}: give runs with the same classes, in one order")
    parts = choose_data(path, model, data, data_dir, skip_broken=skip_broken, invert=invert)
    dataset = match_classes(parts.test, model.class_names, allow_missing=True)
    known = None
    if "pose" in chosen and data is None and (run.recipe.test_data or "").startswith("affnist"):
        known = dataset
        if dataset.transforms is None:
            known = load_data("affnist-regenerated", data_dir=data_dir).test
    return Subject(name, model, dataset, further, known)


def analyze_run(
    path: Path,
    experiments: Sequence[str] = (),
    *,
    data: str | None = None,
    others: Sequence[Path] = (),
    skip_broken: bool = False,
    invert: bool = False,
    data_dir: str | None = None,
    settings: Settings | None = None,
) -> dict[str, Record]:
    """Run experiments on a run: files in `RUN/analysis`, sections in its report; returns the records by name.

    An experiment that does not apply to the model is skipped with a warning, unless it was asked for by name. `others`
    are runs to compare with in align, pose and robustness. `skip_broken` leaves out files of `data` that cannot be
    read; `invert` turns black into white and white into black in it.
    """
    chosen = choose_experiments(experiments)
    settings = settings or Settings()
    subject = open_subject(path, chosen, data, others, data_dir, skip_broken=skip_broken, invert=invert)
    choose_images(subject.model, subject.dataset, settings.count)
    records = {}
    for name in chosen:
        logger.info("%s on %s", name, subject.dataset.name)
        try:
            found = Experiment.build(name).run(subject, settings)
        except DoesNotApplyError as error:
            if name in experiments:
                raise
            logger.warning("%s", error)
            continue
        records[name] = write_experiment(path, name, subject, found)
    if records and report_file(path).name != "report.md":
        logger.warning(
            "%s has no report.md: the sections are in %s",
            path,
            report_file(path),
        )
    return records
