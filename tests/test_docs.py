"""What the documents say is so."""

import ast
import contextlib
import importlib
import io
import re
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

from arcaps import Activation, Model, Routing, create_model, list_models, list_routings
from arcaps.analysis import Experiment
from arcaps.cli import main
from arcaps.competition import Competition
from arcaps.figures import FIGURES
from arcaps.losses import Loss
from arcaps.registry import Named, option_names
from arcaps.scores import Score
from arcaps.votes import Votes

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def python_blocks(name: str) -> list[str]:
    """The Python samples of a document."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)


def test_the_readme_opens_with_a_sample_of_twelve_lines_that_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sample = python_blocks("README.md")[0]
    assert len(sample.splitlines()) == 12
    said = re.findall(r"print.*# ([^:\n]+)", sample)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(sample, {})
    assert len(said) == 5
    assert printed.getvalue().splitlines() == said


@pytest.mark.parametrize(
    "sample",
    [
        *python_blocks("README.md")[1:],
        *python_blocks("CONTRIBUTING.md"),
        *python_blocks("docs/data.md"),
        *python_blocks("docs/equivariance.md"),
        *python_blocks("docs/models.md"),
        *python_blocks("docs/routings.md"),
        *python_blocks("docs/training.md"),
    ],
)
def test_the_other_samples_run(sample: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    families: list[dict[str, Any]] = [Routing.known, Experiment.known, FIGURES]
    before = [dict(known) for known in families]
    try:
        exec(sample, {"__name__": "sample"})
    finally:
        for known, names in zip(families, before, strict=True):
            known.clear()
            known.update(names)


@pytest.mark.slow
def test_the_tutorial_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Routing, "known", dict(Routing.known))
    names: dict[str, Any] = {"__name__": "tutorial"}
    monkeypatch.syspath_prepend(tmp_path)
    for sample in python_blocks("docs/tutorial.md"):
        if (file := re.match(r"# (\w+\.py)\n", sample)) is not None:
            (tmp_path / file[1]).write_text(sample)
            continue
        exec(sample, names)


def test_the_readme_shows_what_info_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = README[README.index("$ arcaps info") :].split("```")[0].strip().splitlines()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.argv", shown[0].removeprefix("$ ").split())
    main()
    assert [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()] == shown[1:]


def test_the_tree_in_the_readme_is_the_tree() -> None:
    tree = README[README.index("## The tree") :].split("```")[1]
    named = {word for line in tree.splitlines() for word in line.split() if word.endswith(("/", ".py"))}
    packages = {f"{path.parent.name}/" for path in (ROOT / "arcaps").glob("*/__init__.py")}
    assert packages <= named, packages - named
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "arcaps" / name).exists() or (ROOT / "tests" / name).exists(), name


def test_every_page_that_is_linked_exists() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links {link}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_anchor_that_is_linked_exists() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link, anchor in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", page.read_text()):
            assert anchor in anchors(page.parent / link if link else page), f"{page.name} links {link}#{anchor}"


def test_the_page_of_models_has_all_models_with_their_parameters() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) \|$", (ROOT / "docs/models.md").read_text(), re.MULTILINE)
    shown = {name: int(count.replace(",", "")) for name, count in rows}
    with torch.device("meta"):
        assert shown == {
            name: create_model(name).parameter_count()
            for name in list_models()
            if Model.find(name).__module__.startswith("arcaps.")
        }


@pytest.mark.parametrize("family", [Activation, Competition, Loss, Score, Votes])
def test_every_part_stands_in_the_page_of_routings_with_its_options(family: type[Named]) -> None:
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", (ROOT / "docs/routings.md").read_text(), re.MULTILINE)
    for name, part in family.known.items():
        if part.__module__.startswith("arcaps."):
            row = " ".join(text for found, text in rows if found == name)
            assert row, name
            assert all(f"`{option}" in row for option in option_names(part)), name


def test_the_names_in_the_readme_are_all_there_are() -> None:
    for family in (Activation, Competition, Loss, Routing, Score, Votes):
        line = next(line for line in README.splitlines() if line.startswith(f"| {family.kind} "))
        assert set(family.known) <= set(re.findall(r"`(\w+)`", line)), family.kind


def test_every_name_in_the_paper_table_exists() -> None:
    names = set(re.findall(r"`(arcaps(?:\.\w+)+)", (ROOT / "docs/paper.md").read_text()))
    assert len(names) > 25
    for name in names:
        found = importlib.import_module("arcaps")
        for part in name.split(".")[1:]:
            if not hasattr(found, part):
                importlib.import_module(f"{found.__name__}.{part}")
            found = getattr(found, part)


def test_every_equation_stands_in_the_paper_table() -> None:
    rows = "\n".join(re.findall(r"^\| eqs?\. .*$", (ROOT / "docs/paper.md").read_text(), re.MULTILINE))
    found = {int(number) for number in re.findall(r"\| eq\. (\d+)", rows)}
    for first, last in re.findall(r"\| eqs\. (\d+) to (\d+)", rows):
        found |= set(range(int(first), int(last) + 1))
    assert found == set(range(1, 16))


ROUTINGS = dict(
    re.findall(r"^### `(\w+)`\n(.*?)(?=^##)", (ROOT / "docs/routings.md").read_text(), re.DOTALL | re.MULTILINE)
)


@pytest.mark.parametrize("name", list_routings())
def test_every_routing_stands_in_its_document_with_an_equation_and_its_options(name: str) -> None:
    assert name in ROUTINGS
    assert re.search(r"^    .*\[", ROUTINGS[name], re.MULTILINE)
    options = ROUTINGS[name].split("Options: ")[1]
    routing = Routing.find(name)
    for option in option_names(routing):
        assert f"`{option}" in options, option
        default, said = signature(routing).parameters[option].default, re.search(rf"`{option}=(.+?)`", options)
        assert (ast.literal_eval(said[1]) if said else None) == default, option
