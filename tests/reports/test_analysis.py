"""Experiments on run folders, from the command line."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from arcaps import ArcapsError, Run, create_model, load_data
from arcaps.analysis import Experiment, Measurement, Record, Settings, Subject
from arcaps.analysis.section import Section, Table, Text
from arcaps.cli import main
from arcaps.cli.analysis import experiment_help
from arcaps.reports.analysis import analyze_run, choose_experiments, record_json, section_of
from arcaps.training.recipes import find_recipe

EXPERIMENTS = ("align", "attention", "cosine", "perturb", "pose", "robustness")
RECORDS = Path(__file__).parent.parent.parent / "docs" / "records" / "equivariance"
SMALL: dict[str, Any] = {"dim": 4, "caps": 2, "primary_dim": 4, "stem_channels": 4}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small run of each kind, as if its training were under way; one has a report already."""
    folder = tmp_path_factory.mktemp("runs")
    models: dict[str, tuple[str, dict[str, Any]]] = {
        "attention": ("ar_capsnet", SMALL),
        "dynamic": ("capsule_net", SMALL),
        "cnn": ("strong_conv_net", {"widths": (4, 4, 4, 4)}),
    }
    torch.manual_seed(0)
    for name, (model, options) in models.items():
        Run.create(folder / name, find_recipe("digits", model=model, **options), {})
        create_model(model, **options).save(folder / name / "model.safetensors")
    (folder / "attention" / "report.md").write_text("# A report\n\nWhat was there before.\n")
    return {name: folder / name for name in models}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command, return stdout and stderr."""

    def run(*arguments: object) -> tuple[str, str]:
        monkeypatch.setattr("sys.argv", ["arcaps", "analyze", *map(str, arguments)])
        main()
        printed = capsys.readouterr()
        return printed.out, printed.err

    return run


@pytest.mark.slow
def test_all_experiments_on_an_ar_capsnet(runs: dict[str, Path], command: Any) -> None:
    run = runs["attention"]
    printed, _ = command(run, "--count", 180, "--classes", 0, 7, "--dims", 0, 2, "--with", runs["dynamic"], runs["cnn"])
    assert f"report: {run / 'report.md'}" in printed
    text = (run / "report.md").read_text()
    assert text.startswith("# A report\n\nWhat was there before.\n")
    for name in EXPERIMENTS:
        assert text.count(f"<!-- analysis: {name} -->") == 1
        numbers = json.loads((run / "analysis" / f"{name}.json").read_text())
        assert numbers["experiment"] == name
        assert numbers["run"] == "attention"
        for kind in ("png", "svg"):
            assert (run / "analysis" / f"{name}.{kind}").stat().st_size > 5000
        with Image.open(run / "analysis" / f"{name}.png") as image:
            assert image.size[0] > 400
        assert "NaN" not in (run / "analysis" / f"{name}.json").read_text()
    for line in text.splitlines():
        for link in line.split("](")[1:]:
            assert (run / link.split(")")[0]).exists(), link
    assert "of its own before it is transformed" in text
    assert "does not give" in text
    assert "0.311" in text
    numbers = json.loads((run / "analysis" / "robustness.json").read_text())
    assert numbers["models"] == ["attention", "dynamic", "cnn"]
    found = json.loads((run / "analysis" / "pose.json").read_text())["runs"]
    assert list(found) == ["attention", "dynamic", "cnn"]
    rows = {(row["layer"], row["kind"]): row for row in found["attention"]["layers"]}
    assert rows["class_caps", "true class"]["r2"] == found["attention"]["read_outs"]["class capsule"]["r2"]
    assert rows["class_caps", "whole"]["dim"] == 10 * SMALL["dim"]
    assert "| attention | `conv_caps.0` | pooled |" in text
    assert "| cnn | `" in text


@pytest.mark.slow
def test_an_experiment_done_again_replaces_its_section(runs: dict[str, Path], command: Any) -> None:
    run = runs["dynamic"]
    _, said = command(run, "align", "--count", 10)
    assert "has no report.md: the sections" in said
    printed, _ = command(run, "cosine", "align", "--count", 12, "--json")
    assert list(json.loads(printed)) == ["align", "cosine"]
    text = (run / "analysis.md").read_text()
    assert text.count("## Alignment ratio") == 1
    assert "n = 12 images" in text
    assert "n = 10 images" not in text
    before = (run / "analysis" / "align.svg").read_bytes()
    command(run, "align", "--count", 12)
    assert (run / "analysis" / "align.svg").read_bytes() == before
    command(run, "perturb", "--classes", 3, 5, "--dims", 1, "--count", 5)
    assert (run / "analysis" / "perturb-5.png").exists()
    assert not (run / "analysis" / "perturb-4.png").exists()
    command(run, "attention", "--count", 20)
    assert "over the 10 outputs" in (run / "analysis.md").read_text()


@pytest.mark.slow
def test_a_cnn_says_what_does_not_apply(runs: dict[str, Path], command: Any) -> None:
    printed, said = command(runs["cnn"], "--count", 180)
    for name in ("perturb", "align", "cosine", "attention"):
        assert f"{name} does not apply to strong_conv_net: it has no capsules\n" in said
        assert not (runs["cnn"] / "analysis" / f"{name}.json").exists()
    assert [line.split(":")[0] for line in printed.splitlines()] == ["pose", "robustness", "report"]
    with pytest.raises(SystemExit, match="perturb does not apply to strong_conv_net: it has no capsules"):
        command(runs["cnn"], "perturb")


def test_mistakes_end_with_one_line(runs: dict[str, Path], command: Any, tmp_path: Path) -> None:
    run = runs["attention"]
    cases: list[tuple[list[object], str]] = [
        ([run, "aling"], "unknown experiment 'aling': did you mean 'align'"),
        ([tmp_path, "align"], "is not a run folder"),
        ([run, "align", "--count", -3], "count is -3: give at least 1"),
        ([run, "perturb", "--classes", "eleven"], "unknown class 'eleven'"),
        ([run, "perturb", "--dims", 4], "the capsules have dimensions 0 to 3"),
        ([run, "align", "--data", "digit"], "unknown data set 'digit': did you mean 'digits'"),
        ([run, "robustness", "--with", run], "two runs are called attention"),
        ([run, "pose", "--count", 30], "pose needs 10 images of each class"),
    ]
    for arguments, message in cases:
        with pytest.raises(SystemExit) as caught:
            command(*arguments)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_broken_files_are_left_out_where_asked(runs: dict[str, Path], command: Any, tmp_path: Path) -> None:
    """Version 0.1 named --skip-broken in the message and did not have it."""
    test = load_data("digits").test
    for number in range(12):
        file = tmp_path / "images" / test.class_names[test.labels[number]] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(test.images[number, 0].numpy()).save(file)
    (file.parent / "broken.png").write_bytes(b"no image")
    arguments = (runs["dynamic"], "attention", "--data", tmp_path / "images", "--json")
    with pytest.raises(SystemExit, match="--skip-broken leaves them out"):
        command(*arguments)
    assert json.loads(command(*arguments, "--skip-broken")[0])["attention"]["count"] == 12


def test_choice() -> None:
    assert choose_experiments(()) == EXPERIMENTS == choose_experiments(("align", "all"))
    assert choose_experiments(("perturb", "cosine")) == ("cosine", "perturb")
    with pytest.raises(ArcapsError, match="unknown experiment"):
        analyze_run(Path("nowhere"), ["poses"])
    with pytest.raises(ArcapsError, match="digits is a model without a run folder for the records"):
        analyze_run(Path("digits"), ["cosine"])


def test_the_help_lists_the_registered_experiments_without_torch() -> None:
    listed = experiment_help()
    assert tuple(listed) == EXPERIMENTS
    for name, about in listed.items():
        assert (Experiment.find(name).__doc__ or "").splitlines()[0] == about
    code = "import sys, arcaps.cli.analysis; assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_sections_come_from_stored_records_alone(name: str) -> None:
    """Also from the records of version 0.1."""
    record = json.loads((RECORDS / f"{name}.json").read_text())
    text = section_of(record, "figures")
    assert text.startswith("## ")
    assert re.search(r"^\| --- \|", text, re.MULTILINE)
    assert "](figures/" in text
    assert not re.search(r"\bnan\b|None|\{|\}", text)
    assert json.loads(record_json(record)) == record


def test_an_experiment_of_a_user_is_one_class(runs: dict[str, Path]) -> None:
    class Count(Experiment, name="count_images"):
        """Count the images."""

        def run(self, subject: Subject, settings: Settings) -> Measurement:
            return Measurement({"images": len(subject.dataset), "what": "a|b <$1_$2>"})

        def section(self, record: Record) -> Section:
            return Section("Count", (Text("{images:,} of {what}", record), Table(["what"], [[record["what"]]])))

    try:
        records = analyze_run(runs["cnn"], ["count_images"])
        text = (runs["cnn"] / "analysis.md").read_text()
    finally:
        del Experiment.known["count_images"]
    assert records["count_images"]["images"] == 1000
    assert r"1,000 of a\|b \<\$1\_\$2\>" in text
    assert r"| a\|b \<\$1\_\$2\> |" in text


def test_runs_with_other_classes_are_not_compared(runs: dict[str, Path], tmp_path: Path) -> None:
    Run.create(tmp_path / "other", find_recipe("digits", model="ar_capsnet", **SMALL), {})
    model = create_model("ar_capsnet", **SMALL)
    model.class_names = list("abcdefghij")
    model.save(tmp_path / "other" / "model.safetensors")
    with pytest.raises(ArcapsError, match="has other classes than"):
        analyze_run(runs["attention"], ["robustness"], others=[tmp_path / "other"])


def test_the_equivariance_page_shows_its_records() -> None:
    """The sections of docs/equivariance.md are those of docs/records/equivariance."""
    page = (RECORDS.parent.parent / "equivariance.md").read_text()
    records = sorted(RECORDS.rglob("*.json"))
    assert {file.stem for file in records} == set(EXPERIMENTS)
    for file in records:
        name = file.relative_to(RECORDS).with_suffix("")
        figures = Path("figures/equivariance", name.parent).as_posix()
        section = section_of(json.loads(file.read_text()), figures, title=False)
        marked = f"<!-- analysis: {name.as_posix()} -->\n{section}\n<!-- end"
        assert marked in page, f"run scripts/equivariance_doc.py: {name}"
    for link in re.findall(r"\]\((figures/[^)]+)\)", page):
        assert (RECORDS.parent.parent / link).exists(), link
