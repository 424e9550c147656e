"""A run folder: everything about one training, in plain files.

config.json         all settings, versions, seed, git commit, machine
metrics.jsonl       a line per epoch
model.safetensors   the model of the epoch with the lowest validation error
state-*.safetensors what is needed to go on: the last two
result.json         the test, when the run is finished
report.md, figures/ for people
analysis/           what `arcaps analyze` found
"""

import hashlib
import json
import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcaps.errors import ArcapsError
from arcaps.models import Classifier, load
from arcaps.settings import Recipe
from arcaps.storage import read_file, read_json, write_file, write_whole
from arcaps.training.recipes import read_recipe

FORMAT = 1
"""The layout of a run folder; version 0.1 wrote none. Raised when an older arcaps could not read a new folder."""


@dataclass(frozen=True)
class Run:
    """A run folder on the disk."""

    path: Path

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Run":
        """A run that is there."""
        run = cls(Path(path))
        if not (run.path / "config.json").exists():
            raise ArcapsError(f"{path} is not a run folder: it has no config.json")
        return run

    @classmethod
    def create(cls, path: str | os.PathLike[str], recipe: Recipe, settings: dict[str, Any]) -> "Run":
        """A new run, with its settings written down."""
        run = cls(Path(path))
        if (run.path / "config.json").exists():
            held = run.config["recipe"]["name"]
            raise ArcapsError(
                f"{path} holds a run of {held} already: go on with --resume {path}, or give another --run"
            )
        run.path.mkdir(parents=True, exist_ok=True)
        config = {"format": FORMAT, "recipe": recipe.as_dict(), "settings": settings, **surroundings()}
        run.write_json("config.json", config)
        return run

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a file of plain values."""
        write_whole(self.path / name, (json.dumps(content, indent=2) + "\n").encode())

    @property
    def config(self) -> dict[str, Any]:
        """What `config.json` says."""
        path = self.path / "config.json"
        found = read_json(path)
        written = found.get("format", 0)
        if not isinstance(written, int) or written > FORMAT:
            raise ArcapsError(f"{path} has format {written!r}, this one reads up to {FORMAT}: install a newer arcaps")
        return found

    @property
    def recipe(self) -> Recipe:
        """The recipe that was run, with all its overrides."""
        try:
            return read_recipe(self.config.get("recipe"))
        except ArcapsError as error:
            raise ArcapsError(f"{self.path / 'config.json'} cannot be used by this arcaps: {error}") from None

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A dictionary per epoch."""
        path = self.path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def result(self) -> dict[str, Any] | None:
        """The outcome of the test; None while the run is not finished."""
        path = self.path / "result.json"
        return json.loads(path.read_text()) if path.exists() else None

    def model_file(self, chosen_by: str = "validation") -> Path:
        """The file of the best model so far."""
        return self.path / ("model.safetensors" if chosen_by == "validation" else f"model-by-{chosen_by}.safetensors")

    def model(self, chosen_by: str = "validation") -> Classifier:
        """The best model so far, in evaluation mode."""
        if not self.model_file(chosen_by).exists():
            raise ArcapsError(f"{self.path} has no model yet: its first epoch is not over")
        return load(self.model_file(chosen_by))

    def states(self) -> list[Path]:
        """The states to go on from, the newest first."""
        return sorted(self.path.glob("state-*.safetensors"), reverse=True)

    def write_state(self, step: int, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
        """Write down a state, then forget all but the last two."""
        content = {"progress": progress, "sha256": digest(tensors)}
        write_file(self.path / f"state-{step:09}.safetensors", tensors, content)
        for old in self.states()[2:]:
            old.unlink()

    def read_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest state that is whole; None where there is none."""
        for path in self.states():
            try:
                tensors, metadata = read_file(path)
            except ArcapsError:
                continue
            if metadata["sha256"] == digest(tensors):
                return tensors, metadata["progress"]
        return None


def digest(tensors: dict[str, Tensor]) -> str:
    """A fingerprint of names and values."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def surroundings() -> dict[str, Any]:
    """Versions, commit and machine, to reproduce a run by."""
    packages = {name: version(name) for name in ("arcaps", "torch", "numpy")}
    git = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "versions": {"python": platform.python_version(), **packages},
        "commit": git.stdout.strip() or None,
        "machine": {
            "platform": platform.platform(),
            "processor": str(torch.cpu.get_capabilities().get("cpu_name", platform.processor())),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        },
    }
