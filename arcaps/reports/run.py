"""The report of a finished training: `report.md`, figures, and the mistakes as CSV."""

import csv
import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from arcaps import figures
from arcaps.analysis.section import bold, code
from arcaps.data import Dataset
from arcaps.models import Classifier, Model
from arcaps.progress import track
from arcaps.reports.markdown import escape, fill, table
from arcaps.storage import write_whole

logger = logging.getLogger("arcaps")
MOST_IMAGES = 10_000
"""Mistakes are looked for among this number of test images, spread evenly over larger test sets."""
SHOWN = 40
"""The number of mistakes in the figure; the CSV has all."""


def try_report(path: Path, *args: Any, **kwargs: Any) -> bool:
    """Write the report of a run; a failure is logged as a warning. Returns whether the report was written."""
    try:
        write_report(path, *args, **kwargs)
    except Exception as error:
        logger.warning(
            "the report of %s could not be written (%s: %s); the result is in %s",
            path,
            type(error).__name__,
            error,
            path / "result.json",
            exc_info=logger.isEnabledFor(logging.DEBUG),
        )
        return False
    return True


def write_report(
    path: Path,
    config: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
    model: Model,
    test: Dataset,
    *,
    parts: Mapping[str, Dataset] | None = None,
    batch_size: int = 250,
) -> None:
    """Write `report.md`, `mistakes.csv` and `figures/` into a run folder.

    `config`, `metrics` and `result` are the contents of `config.json`, `metrics.jsonl` and `result.json`; `test`
    are the test images as the model takes them; `parts` are the data sets whose class balance is shown. The model sees
    at most `batch_size` images at once.
    """
    folder, found = Path(path) / "figures", result["test"]
    sections = [f"# {escape(config['recipe']['name'])}: {escape(config['recipe']['about'])}", headline(result, metrics)]
    sections.append("## Settings\n\n" + settings_table(config, metrics, model))
    if metrics:
        figures.save(figures.learning_curves(metrics, result["epoch"]), folder / "learning_curves.png")
        sections.append("## Learning curves\n\n![loss and validation error by epoch](figures/learning_curves.png)")
    sections.append("## Class balance\n\n" + balance_table({**(parts or {}), "test": test}))
    if "confusion" in found:
        sections.append(confusion_section(found["confusion"], test.class_names, folder))
    if isinstance(model, Classifier) and not test.several_labels:
        scores, indices = score_images(model, test, batch_size)
        sections.append(mistakes_section(scores, indices, test, Path(path)))
    reconstructions = reconstruction_figure(model, test, batch_size) if isinstance(model, Classifier) else None
    if reconstructions is not None:
        figures.save(reconstructions, folder / "reconstructions.png")
        about = "Above: test images. Below: what the decoder makes of the longest class capsule."
        sections.append(f"## Reconstructions\n\n{about}\n\n![reconstructions](figures/reconstructions.png)")
    write_whole(Path(path) / "report.md", ("\n\n".join(sections) + "\n").encode())


def count_epochs(metrics: Sequence[Mapping[str, Any]]) -> str:
    """The number of epochs in words: "1 epoch", "20 epochs"."""
    return f"{len(metrics)} epoch{'' if len(metrics) == 1 else 's'}"


def headline(result: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> str:
    """The test, for a classifier its accuracy with the interval, and which epoch it is of."""
    test = result["test"]
    chosen = {"epoch": result["epoch"], "error": result["validation_error"], "epochs": count_epochs(metrics)}
    if "accuracy" not in test:
        text = (
            "Test: {summary}, by the model of epoch {epoch}, which has the lowest validation error ({error:.4g}) of "
            "{epochs}."
        )
        return fill(text, {**chosen, "summary": result.get("summary", "")})
    low, high = test["interval_95"]
    lines = [
        fill(
            "Test accuracy: **{accuracy:.2%}** (95 % confidence interval {low:.2%} to {high:.2%}) on {count:,} images "
            "of {data}, by the model of epoch {epoch}, which has the lowest validation error ({error:.2%}) of "
            "{epochs}.",
            {**test, **chosen, "low": low, "high": high},
        )
    ]
    other = result.get("chosen_as_in_the_paper")
    if other is not None:
        lines.append(
            "The paper chooses the epoch by validation images of the same kind as the test images. That choice gives "
            f"epoch {other['epoch']}, with a test accuracy of {other['test']['accuracy']:.2%}."
        )
    return "\n\n".join(lines)


def settings_table(config: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]], model: Model) -> str:
    """The command, the recipe, the machine and the versions."""
    recipe, machine = config["recipe"], config.get("machine", {})
    rows: list[list[str]] = []
    if config.get("command"):
        rows.append(["command", code(str(config["command"]))])
    rows.append(["model", f"{model.name}, {model.parameter_count():,} trainable parameters"])
    if metrics:
        last = metrics[-1]
        rows.append(
            ["training", f"{count_epochs(metrics)}, {last['step']:,} steps, {last['seconds'] / 60:.1f} minutes"]
        )
    rows += [
        [name.replace("_", " "), setting(value)]
        for name, value in recipe.items()
        if name not in ("name", "about", "model")
    ]
    rows += [[name, setting(value)] for name, value in config.get("settings", {}).items()]
    if machine:
        rows.append(["machine", f"{machine.get('processor')}, {machine.get('cores')} cores"])
    rows.append(["versions", ", ".join(f"{name} {number}" for name, number in config.get("versions", {}).items())])
    rows.append(["commit", str(config.get("commit") or "unknown")])
    return table(["setting", "value"], rows, words=2)


def setting(value: Any) -> str:
    """A setting as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={setting(one)}" for name, one in value.items()) or "none"
    if isinstance(value, list | tuple):
        return " ".join(map(setting, value)) or "none"
    return "none" if value is None or value == "" else str(value)


def balance_table(parts: Mapping[str, Dataset]) -> str:
    """The number of images of each class in each part."""
    names = next(iter(parts.values())).class_names
    counts = {
        part: dict(zip(data.class_names, data.class_counts().tolist(), strict=True)) for part, data in parts.items()
    }
    rows: list[list[str]] = [[name, *(f"{counts[part].get(name, 0):,}" for part in parts)] for name in names]
    rows.append([bold("images"), *(f"{len(data):,}" for data in parts.values())])
    return table(["class", *parts], rows)


def class_measures(
    confusion: Int[Tensor, "classes classes"],
) -> tuple[Float[Tensor, " classes"], Float[Tensor, " classes"], Float[Tensor, " classes"]]:
    """Precision, recall and F1 of each class, from a confusion matrix with a row for each true class.

        precision = right / predicted,  recall = right / true,  F1 = 2 right / (predicted + true)

    Each is NaN where it divides by zero.
    """
    right, true, predicted = confusion.diagonal().double(), confusion.sum(1), confusion.sum(0)
    return right / predicted, right / true, 2 * right / (predicted + true)


def confusion_section(confusion: Sequence[Sequence[int]], names: Sequence[str], folder: Path) -> str:
    """Precision, recall and F1 of each class, and the confusion matrix (as a table too, for up to 25 classes)."""
    counts = torch.tensor(confusion)
    figures.save(figures.confusion_matrix(counts.numpy(), names), folder / "confusion.png")
    measures = class_measures(counts)
    rows = [
        [name, *("" if value != value else f"{value:.2%}" for value in values), f"{number:,}"]
        for name, *values, number in zip(names, *(m.tolist() for m in measures), counts.sum(1).tolist(), strict=True)
    ]
    means = [f"{float(measure.nanmean()):.2%}" for measure in measures]
    rows.append([bold("mean over classes"), *means, f"{int(counts.sum()):,}"])
    parts = ["## Classes", table(["class", "precision", "recall", "F1", "test images"], rows)]
    if torch.stack(measures).isnan().any():
        why = "the class was never predicted, or has no images"
        parts.append(f"An empty cell is a division by zero: {why}. Means are without it.")
    parts += ["## Confusion matrix", "![confusion matrix](figures/confusion.png)"]
    if len(names) <= 25:
        cells = [
            [name, *(str(count) if count else "" for count in row)] for name, row in zip(names, confusion, strict=True)
        ]
        parts += ["Rows: true class. Columns: predicted class.", table(["", *names], cells)]
    return "\n\n".join(parts)


@torch.no_grad()
def score_images(
    model: Classifier, dataset: Dataset, batch_size: int = 250
) -> tuple[Float[Tensor, "count classes"], Int[Tensor, " count"]]:
    """The scores of at most 10,000 images, spread evenly, and the indices of these images."""
    indices = torch.arange(0, len(dataset), max(1, -(-len(dataset) // MOST_IMAGES)))
    device = next(model.parameters()).device
    twin = model.for_inference()
    scores = []
    for part in track(indices.split(batch_size), "report: mistakes"):
        scores.append(twin(twin.preprocessing(dataset.images[part].to(device))).scores.float().cpu())
    return torch.cat(scores), indices


def mistakes_section(
    scores: Float[Tensor, "count classes"], indices: Int[Tensor, " count"], dataset: Dataset, path: Path
) -> str:
    """Write the mistakes as CSV and the first of them as a figure; the highest scores first."""
    predicted, true = scores.argmax(-1), dataset.labels[indices]
    wrong = (predicted != true).nonzero().flatten()
    wrong = wrong[scores[wrong].amax(-1).argsort(descending=True, stable=True)]
    names = dataset.class_names
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["index", "file", "true_class", "predicted_class", "score", "score_of_true_class"])
    for place in wrong.tolist():
        index, label, answer = int(indices[place]), int(true[place]), int(predicted[place])
        file = dataset.files[index] if dataset.files is not None else ""
        numbers = (f"{float(scores[place, one]):.4f}" for one in (answer, label))
        writer.writerow([index, file, names[label], names[answer], *numbers])
    write_whole(path / "mistakes.csv", lines.getvalue().encode())
    among = f"{len(indices):,} test images" + (", spread evenly" if len(indices) < len(dataset) else "")
    link = "All of them, with index, file and scores: [mistakes.csv](mistakes.csv)."
    text = f"## Mistakes\n\n{len(wrong):,} of {among}. {link}"
    if not len(wrong):
        return text
    shown = wrong[:SHOWN]
    titles = [f"{names[true[place]]} \u2192 {names[predicted[place]]}" for place in shown.tolist()]
    images = dataset.images[indices[shown]].numpy() / np.float64(255)
    figures.save(figures.image_grid([images], titles), path / "figures" / "mistakes.png")
    about = "Above each image: true class \u2192 predicted class; the highest scores first."
    return f"{text} {about}\n\n![mistakes](figures/mistakes.png)"


@torch.no_grad()
def reconstruction_figure(model: Classifier, dataset: Dataset, batch_size: int) -> Any:
    """Two images of each class above their reconstructions; None for a model without a decoder."""
    if dataset.several_labels:
        return None
    classes = min(10, len(dataset.class_names))
    firsts = [(dataset.labels == label).nonzero().flatten()[:2] for label in range(classes)]
    chosen = torch.cat([first[k : k + 1] for k in range(2) for first in firsts])
    images = model.preprocessing(dataset.images[chosen].to(next(model.parameters()).device))
    twin = model.for_inference()
    made = [twin(part).reconstruction for part in images.split(batch_size)]
    if made[0] is None:
        return None
    titles = [dataset.class_names[label] for label in dataset.labels[chosen]]
    rows = [images.cpu().numpy(), torch.cat(made).float().cpu().numpy()]
    return figures.image_grid(rows, titles, ["image", "reconstruction"])
