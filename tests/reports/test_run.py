"""The report of a finished run."""

import csv
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import arcaps
from arcaps import Classifier, Dataset, create_model
from arcaps.reports import run as reports
from arcaps.reports.run import class_measures, confusion_section, score_images, try_report, write_report
from arcaps.training.inference import count_scores

NAMES = ("$10_$20", "\u6c49\u5b57", "a|b", "<b>", "4", "5", "6", "7", "8", "_9_")
CONFIG: dict[str, Any] = {
    "recipe": {"name": "digits", "about": "small", "model": "ar_capsnet", "seed": 0, "options": {"dim": 4}},
    "settings": {"precision": "float32"},
    "command": "arcaps train digits --dim 4",
    "machine": {"processor": "CPU", "cores": 2},
    "versions": {"arcaps": "0.2"},
    "commit": None,
}
METRICS = [
    {"epoch": n, "step": 10 * n, "seconds": 6.0 * n, "losses": {"margin": 1 / n}, "validation_error": 0.5 / n}
    for n in (1, 2)
]


@pytest.fixture(scope="module")
def images() -> Dataset:
    """100 digits under difficult class names, each with a file."""
    digits = arcaps.load_data("digits").test
    some = digits.take(torch.arange(100) * 10)
    return Dataset(
        "digits, test", some.images, some.labels, NAMES, files=tuple(f"folder, {n}/a.png" for n in range(100))
    )


@pytest.fixture(scope="module")
def model() -> Classifier:
    """An untrained model."""
    torch.manual_seed(0)
    return create_model("ar_capsnet", dim=4, caps=2, primary_dim=4, stem_channels=4).eval()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, images: Dataset, model: Classifier) -> Path:
    """A run folder with a report."""
    path = tmp_path_factory.mktemp("run")
    write_report(path, CONFIG, METRICS, result(model, images), model, images, parts={"train": images})
    return path


def result(model: Classifier, images: Dataset) -> dict[str, Any]:
    found = count_scores(images, score_images(model, images)[0])
    return {"epoch": 2, "validation_error": 0.25, "test": found.as_dict()}


def test_the_report_says_what_was_done_and_how_good_it_is(written: Path, model: Classifier, images: Dataset) -> None:
    text = (written / "report.md").read_text()
    accuracy = result(model, images)["test"]["accuracy"]
    assert f"Test accuracy: **{accuracy:.2%}** (95 % confidence interval" in text
    assert "on 100 images of digits, test, by the model of epoch 2" in text
    assert "| command | `arcaps train digits --dim 4` |" in text
    assert "| options | dim=4 |" in text
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    expected = "Settings, Learning curves, Class balance, Classes, Confusion matrix, Mistakes, Reconstructions"
    assert headings == [f"## {name}" for name in expected.split(", ")]
    assert "| class | train | test |" in text
    assert f"| \\$10\\_\\$20 | {int(images.class_counts()[0])} |" in text
    assert r"| a\|b |" in text
    for line in text.splitlines():
        for link in line.split("](")[1:]:
            assert (written / link.split(")")[0]).exists(), link


def test_mistakes_as_csv(written: Path, model: Classifier, images: Dataset) -> None:
    with (written / "mistakes.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    scores = score_images(model, images)[0]
    wrong = (scores.argmax(-1) != images.labels).nonzero().flatten().tolist()
    assert {int(row["index"]) for row in rows} == set(wrong)
    for row in rows:
        index = int(row["index"])
        assert row["file"] == f"folder, {index}/a.png"
        assert row["true_class"] == NAMES[images.labels[index]]
        assert row["predicted_class"] == NAMES[scores[index].argmax()]
        assert float(row["score"]) == pytest.approx(float(scores[index].max()), abs=1e-4)
    values = [float(row["score"]) for row in rows]
    assert values == sorted(values, reverse=True)


def test_precision_recall_and_f1_by_hand() -> None:
    precision, recall, f1 = class_measures(torch.tensor([[8, 2, 0], [1, 4, 0], [0, 0, 0]]))
    assert precision.tolist()[:2] == pytest.approx([8 / 9, 4 / 6])
    assert recall.tolist()[:2] == pytest.approx([0.8, 0.8])
    assert f1.tolist()[:2] == pytest.approx([2 * 8 / 19, 2 * 4 / 11])
    assert all(measure[2].isnan() for measure in (precision, recall, f1))


def test_the_report_says_that_means_leave_out_empty_cells(tmp_path: Path) -> None:
    note = "Means are without it."
    assert note in confusion_section([[8, 2, 0], [1, 4, 0], [0, 3, 0]], "abc", tmp_path)
    assert note not in confusion_section([[8, 2], [1, 4]], "ab", tmp_path)


def test_a_report_without_mistakes_and_without_a_decoder(tmp_path: Path, images: Dataset) -> None:
    model = create_model("strong_conv_net", widths=(4, 4, 4, 4)).eval()
    answers = score_images(model, images)[0].argmax(-1)
    right = Dataset("right", images.images, answers, NAMES)
    write_report(tmp_path, CONFIG, METRICS, result(model, right), model, right)
    text = (tmp_path / "report.md").read_text()
    assert "0 of 100 test images." in text
    assert "Reconstructions" not in text
    assert (tmp_path / "mistakes.csv").read_text().count("\n") == 1
    assert not (tmp_path / "figures" / "mistakes.png").exists()


def test_large_test_sets_are_sampled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Classifier, images: Dataset
) -> None:
    monkeypatch.setattr(reports, "MOST_IMAGES", 30)
    scores, indices = score_images(model, images)
    assert len(scores) == len(indices) <= 30
    write_report(tmp_path, CONFIG, METRICS, result_of(images), model, images)
    assert "of 25 test images, spread evenly." in (tmp_path / "report.md").read_text()


def result_of(images: Dataset) -> dict[str, Any]:
    return {
        "epoch": 1,
        "validation_error": 0.0,
        "test": count_scores(images, torch.eye(len(NAMES))[images.labels]).as_dict(),
    }


def test_a_report_that_fails_is_a_warning(
    tmp_path: Path, model: Classifier, images: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "arcaps"):
        assert not try_report(tmp_path, {}, METRICS, result_of(images), model, images)
    assert "could not be written (KeyError: 'recipe'); the result is in" in caplog.text
    assert try_report(tmp_path, CONFIG, METRICS, result_of(images), model, images)
