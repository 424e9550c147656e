"""A run folder: everything about one training, in plain files.

config.json         all settings, versions, seed, git commit, machine
data.json           the data: split, classes, fingerprints, file names
metrics.jsonl       a line per epoch
model.safetensors   the model of the epoch with the lowest validation error
state-*.safetensors checkpoints, to resume from: the last two
result.json         the test, when the run is finished
report.md, figures/ the report
analysis/           what `arcaps analyze` found
.lock               held by the process that trains
"""

import json
import logging
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from arcaps.errors import ArcapsError
from arcaps.models import load
from arcaps.settings import Recipe
from arcaps.storage import as_path, digest, read_file, read_json, require_form, write_file, write_whole
from arcaps.training.recipes import read_recipe

logger = logging.getLogger("arcaps")

FORMAT = 1
"""The layout of a run folder; version 0.1 wrote none. Raised when an older arcaps could not read a new folder."""

RESULT_FORM = {"epoch": int, "validation_error": float, "test": {}}
ACCURACY_FORM = {"accuracy": float, "interval_95": [float], "count": int, "data": str}
EPOCH_FORM = {"epoch": int, "validation_error": float}
PART_FORM = {
    "count": int,
    "class_names": [str],
    "image_size": [int],
    "channels": int,
    "fingerprint": str,
    "files": ({str: str}, type(None)),
}
DATA_FORM = {"data": {"train": (PART_FORM, type(None)), "validation": (PART_FORM, type(None)), "test": PART_FORM}}


class RunHeldError(ArcapsError):
    """Another process trains in the run folder."""


@dataclass(frozen=True)
class Result:
    """The result of a run: the test of the model that was kept."""

    epoch: int
    """The epoch of the model that was kept."""
    validation_error: float
    """The validation error of that epoch, the lowest of all."""
    test: dict[str, Any]
    """The evaluation on the test images, as plain values."""
    summary: str = ""
    """The test in one line."""
    chosen_as_in_the_paper: dict[str, Any] | None = None
    """The same, for the epoch chosen by validation images of the test's own kind."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def read(cls, path: Path) -> "Result":
        """The result that a file holds."""
        found = read_json(path)
        try:
            result = cls(**found)
        except TypeError as error:
            raise ArcapsError(f"{path} is not a result of this arcaps: {str(error).split('() ')[-1]}") from None
        require_form(path, found, RESULT_FORM)
        if "accuracy" in result.test:
            require_form(path, result.test, ACCURACY_FORM)
            if len(result.test["interval_95"]) != 2:
                raise ArcapsError(f"{path} is damaged: interval_95 is {result.test['interval_95']}: bring a copy back")
        return result


@dataclass(frozen=True)
class Run:
    """A run folder on the disk."""

    path: Path

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Run":
        """Open an existing run folder."""
        run = cls(as_path("the run folder", path))
        if not (run.path / "config.json").exists():
            missing = "it has no config.json" if run.path.exists() else "there is no such file or folder"
            raise ArcapsError(f"{path} is not a run folder: {missing}: 'arcaps runs' lists the run folders below runs/")
        return run

    @classmethod
    def reserve(cls, path: str | os.PathLike[str] | None, name: str) -> "Run":
        """A folder for a new run: the one asked for, or a new one below `runs/` that no other process gets."""
        try:
            if path is not None:
                as_path("run", path).mkdir(parents=True, exist_ok=True)
                return cls(Path(path))
            stem = f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"
            Path("runs").mkdir(exist_ok=True)
            for number in range(1, 1000):
                folder = Path(stem if number == 1 else f"{stem}-{number}")
                try:
                    folder.mkdir()
                except FileExistsError:
                    continue
                return cls(folder)
        except OSError as error:
            raise ArcapsError(f"{path or 'runs'} cannot be written: {error.strerror}: give another --run") from None
        raise ArcapsError(f"there are a thousand folders called {stem}: give --run")

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        recipe: Recipe,
        settings: dict[str, Any],
        data: dict[str, Any] | None = None,
    ) -> "Run":
        """A new run folder, with its settings and its data written down."""
        run = cls.reserve(path, recipe.name)
        run.start(recipe, settings, data)
        return run

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process; refused while another process does. A killed process holds nothing."""
        try:
            with FileLock(self.path / ".lock", timeout=0):
                yield
        except Timeout:
            raise RunHeldError(
                f"another process trains in {self.path}: wait until it has ended, or give another --run"
            ) from None

    @property
    def held(self) -> bool | None:
        """Whether another process trains in the folder; None where this user may not lock it, which would tell."""
        if not self.path.exists():
            return False
        try:
            with self.lock():
                return False
        except RunHeldError:
            return True
        except OSError:
            return None

    def require_new(self) -> None:
        """Refuse a folder that holds a run already."""
        if (self.path / "config.json").exists():
            held = self.config["recipe"]["name"]
            raise ArcapsError(
                f"{self.path} holds a run of {held} already: resume it with --resume {self.path}, or give another --run"
            )

    def start(self, recipe: Recipe, settings: dict[str, Any], data: dict[str, Any] | None) -> None:
        """Write down the settings and the data of a new run."""
        self.require_new()
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        if data is not None:
            self.write_json("data.json", data)
        self.write_config(
            {"format": FORMAT, "recipe": recipe.as_dict(), "settings": settings, "command": command, **surroundings()}
        )

    def write_config(self, config: dict[str, Any]) -> None:
        """Write `config.json`."""
        self.write_json("config.json", config)

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
        for part in ("recipe", "settings"):
            if not isinstance(found.get(part), dict):
                raise ArcapsError(f"{path} is damaged: its {part} is {found.get(part)!r}")
        return found

    @property
    def recipe(self) -> Recipe:
        """The recipe that was run, with all its overrides."""
        try:
            return read_recipe(self.config.get("recipe"))
        except ArcapsError as error:
            raise ArcapsError(f"{self.path / 'config.json'} cannot be used by this arcaps: {error}") from None

    @property
    def data(self) -> dict[str, Any] | None:
        """What `data.json` says of the data; None for a run of version 0.1."""
        path = self.path / "data.json"
        if not path.exists():
            logger.warning(
                "%s has no data.json: images are split as a new run would do it, and may be in another part", self.path
            )
            return None
        found = read_json(path)
        require_form(path, found, DATA_FORM)
        return found

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A dictionary per epoch."""
        path = self.path / "metrics.jsonl"
        try:
            lines = path.read_bytes().splitlines() if path.exists() else []
        except OSError as error:
            raise ArcapsError(f"{path} cannot be read: {error.strerror}") from None
        found = []
        for number, line in enumerate(lines, start=1):
            try:
                epoch = json.loads(line)
            except (ValueError, RecursionError):
                if number < len(lines):  # the last one may be half written, by a process that was killed
                    raise ArcapsError(f"{path}, line {number}, is damaged: {line[:60]!r} is no JSON") from None
                continue
            require_form(path, epoch, EPOCH_FORM)
            found.append(epoch)
        return found

    @property
    def trained(self) -> bool:
        """Whether all epochs are done, or as many as the recipe's patience allows without a lower validation error."""
        errors, recipe = [line["validation_error"] for line in self.metrics], self.recipe
        waited = len(errors) - 1 - errors.index(min(errors)) if errors else 0
        return len(errors) >= recipe.epochs or (recipe.patience is not None and waited >= recipe.patience)

    @property
    def result(self) -> Result | None:
        """The outcome of the test; None while the run is not finished."""
        path = self.path / "result.json"
        return Result.read(path) if path.exists() else None

    def model_file(self, chosen_by: str = "validation") -> Path:
        """The file of the best model so far."""
        return self.path / ("model.safetensors" if chosen_by == "validation" else f"model-by-{chosen_by}.safetensors")

    def model(self, chosen_by: str = "validation", *, module: nn.Module | None = None) -> Any:
        """The best model so far, in evaluation mode. For a network of your own, give a `module` of its class."""
        if not self.model_file(chosen_by).exists():
            name = self.model_file(chosen_by).name
            raise ArcapsError(f"{self.path} has no {name}: its first epoch is not over, or the file was removed")
        model = load(self.model_file(chosen_by), module=module)
        trained = None if not (self.path / "data.json").exists() else (self.data or {})["data"]["test"]["class_names"]
        if trained is not None and list(model.class_names) != trained:
            other = f"classes {', '.join(model.class_names)}, and the run {', '.join(trained)}"
            raise ArcapsError(
                f"{self.model_file(chosen_by)} is not of this run: it has the {other}: bring its own back"
            )
        return model

    def states(self) -> list[Path]:
        """The checkpoints, the newest first."""
        return sorted(self.path.glob("state-*.safetensors"), reverse=True)

    def write_state(self, step: int, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
        """Write a checkpoint, then remove all but the last two."""
        write_file(self.path / f"state-{step:09}.safetensors", tensors, {"progress": progress})
        for old in self.states()[2:]:
            old.unlink()

    def read_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest checkpoint that is whole; None where there is none. Refused where all are damaged."""
        for path in self.states():
            try:
                tensors, metadata = read_file(path)
            except ArcapsError as error:
                logger.warning("%s", error)
                continue
            whole = "sha256" not in metadata or metadata["sha256"] == digest(tensors)  # as version 0.1 wrote it
            if whole and isinstance(metadata.get("progress"), dict):
                return tensors, metadata["progress"]
        if self.states():
            names = ", ".join(path.name for path in self.states())
            raise ArcapsError(
                f"all checkpoints of {self.path} are damaged ({names}): bring a copy back; to train again from the "
                "first step, delete them"
            )
        return None


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
