"""CPU time of exported models in onnxruntime against eager torch, one thread each.

    python benchmarks/export.py [RUN ...] [--rounds 20] [--precision float32 int8]

Without RUN: the network of the recipe `digits`, and the paper's for MNIST and CIFAR-10, with the weights of their
initialisation. Both sides compute every output of the same model. They take turns within one process, and processor
time is counted, so that what else the machine does affects both alike. A ratio below 1 is faster than torch.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import arcaps
from arcaps import Classifier, Dataset
from arcaps.training.inference import open_model
from arcaps.training.recipes import RECIPES

BATCHES = (1, 100)
LEAST_SECONDS = 0.05
"""A measurement repeats the call until this much processor time has passed: its clock is coarse."""


class Ratio(NamedTuple):
    """One model at one batch size."""

    torch_ms: float
    onnx_ms: float
    ratio: float
    """The median over the rounds of the ratio within a round."""


def paper_models() -> dict[str, Classifier]:
    """Models of the sizes that matter."""
    options: dict[str, dict[str, Any]] = {
        "digits": dict(RECIPES["digits"].options),
        "MNIST": {},
        "CIFAR-10, 4 layers": {"image_size": 32, "channels": 3, "layers": 4},
    }
    return {name: arcaps.create_model("ar_capsnet", **one).eval() for name, one in options.items()}


def noise(model: Classifier) -> Dataset:
    """Images for the calibration of int8: time does not depend on what is on them."""
    images = torch.randint(256, (100, model.channels, *model.image_size), dtype=torch.uint8)
    return Dataset("noise", images, torch.arange(100) % model.classes, tuple(model.class_names))


def cpu_ms(call: Callable[[], object]) -> float:
    """Processor time of one call."""
    start, count = time.process_time(), 0
    while (took := time.process_time() - start) < LEAST_SECONDS:
        call()
        count += 1
    return 1000 * took / count


def compare(model: Classifier, exported: arcaps.Exported, batch: int, rounds: int) -> Ratio:
    """Time both in turns."""
    images = torch.rand(batch, model.channels, *model.image_size)
    array, answering = images.numpy(), model.for_inference()
    pairs = []
    with torch.inference_mode():
        for _ in range(rounds + 1):
            pairs.append((cpu_ms(lambda: answering(images)), cpu_ms(lambda: exported.run(array))))
    theirs, ours = zip(*pairs[1:], strict=True)  # the first round pays for memory
    ratio = statistics.median(own / other for own, other in zip(ours, theirs, strict=True))
    return Ratio(statistics.median(theirs), statistics.median(ours), ratio)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", help="run folders or .safetensors files")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--precision", nargs="+", default=["float32", "int8"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    models = {Path(run).name: open_model(Path(run)) for run in given.runs} or paper_models()
    print("| model | precision | batch | torch, CPU ms | onnxruntime, CPU ms | ratio |\n|---|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for name, model in models.items():
            for precision in given.precision:
                arcaps.export_onnx(model, path, precision=precision, calibration=noise(model))
                exported = arcaps.Exported.open(path, threads=1)
                for batch in BATCHES:
                    found = compare(model, exported, batch, given.rounds)
                    times = f"{found.torch_ms:.1f} | {found.onnx_ms:.1f} | {found.ratio:.2f}"
                    print(f"| {name} | {precision} | {batch} | {times} |", flush=True)


if __name__ == "__main__":
    main()
