"""What an experiment gets, and what its package may import."""

import ast
from pathlib import Path

import pytest
import torch

import arcaps
from arcaps import Dataset
from arcaps.analysis import Experiment, Settings, Subject
from tests.analysis.conftest import small_model

PACKAGE = Path(arcaps.__file__).parent


def imported(folder: str) -> dict[str, set[str]]:
    """The modules that each file of a package imports, also inside functions."""
    found = {}
    for file in (PACKAGE / folder).glob("*.py"):
        names = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        found[file.name] = names
    return found


@pytest.mark.parametrize(
    ("folder", "refused"),
    [
        ("analysis", ("arcaps.training", "arcaps.figures", "arcaps.reports", "arcaps.cli", "matplotlib", "rich")),
        ("figures", ("arcaps.training", "arcaps.analysis", "arcaps.reports", "arcaps.models", "torch")),
        ("reports", ("arcaps.cli", "matplotlib", "rich")),
    ],
)
def test_the_direction_of_imports(folder: str, refused: tuple[str, ...]) -> None:
    for file, names in imported(folder).items():
        for name in names:
            assert not any(name == one or name.startswith(f"{one}.") for one in refused), f"{folder}/{file}: {name}"


def test_what_two_experiments_share_is_measured_once(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("ar_capsnet")
    subject, settings = Subject("mine", model, digits.take(torch.arange(4))), Settings()
    Experiment.build("align").run(subject, settings)
    monkeypatch.setattr(model, "forward", None)  # the model is not run again
    found = Experiment.build("cosine").run(subject, settings)
    assert found.record["count"] == 4


def test_the_models_of_a_subject_are_named(digits: Dataset) -> None:
    one, other = small_model("ar_capsnet"), small_model("strong_conv_net")
    assert list(Subject("mine", one, digits, {"cnn": other}).models) == ["mine", "cnn"]


@pytest.mark.parametrize("name", sorted(Experiment.known))
def test_every_experiment_has_a_help_text(name: str) -> None:
    first = (Experiment.find(name).__doc__ or "").splitlines()[0]
    assert len(first) > 20
