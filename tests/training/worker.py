"""One of several processes that train together; it writes down what it saw. Started by torchrun, in a test."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

import arcaps
from arcaps.storage import digest


def main(folder: Path, die_at: int, options: str = "{}") -> None:
    """Train for 20 steps, or resume; the last process exits without warning at step `die_at`, if that is not 0."""
    torch.set_num_threads(1)
    curve: list[float] = []
    seen: dict[str, Any] = {"curve": curve}

    def step(trainer: Any) -> None:
        losses = sum(value for name, value in trainer.sums.items() if name != "images")
        totals = torch.tensor([losses, trainer.sums["images"]], dtype=torch.float64)
        totals = trainer.processes.sum(totals)
        curve.append(float(totals[0] / totals[1]))
        seen["rank"] = trainer.processes.rank
        seen["digest"] = digest(dict(trainer.model.state_dict()))
        if die_at == trainer.step and trainer.processes.rank == trainer.processes.world - 1:
            os._exit(1)

    def epoch(trainer: Any, _: Any) -> None:
        seen["kept"] = digest(dict(trainer.kept.state_dict()))

    common: dict[str, Any] = {
        "device": "cpu",
        "save_minutes": 1e-6,
        "silent": True,
        "report": False,
        "on_step": step,
        "on_epoch": epoch,
    }
    if (folder / "run").exists():
        run = arcaps.train(resume=folder / "run", **common)
    else:
        small: dict[str, Any] = {"dim": 4, "caps": 2, "primary_dim": 4, "stem_channels": 4, "dropout": 0.0}
        settings: dict[str, Any] = {"epochs": 1, "batch_size": 225, "precision": "float32"}
        run = arcaps.train("digits", run=folder / "run", **{**settings, **small, **json.loads(options)}, **common)
    seen["metrics"] = run.metrics
    (folder / f"seen-{seen['rank']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
