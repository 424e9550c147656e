"""Write a run's model into the package as pretrained weights: python scripts/make_weights.py RUN NAME

Weights are stored as float16, except small tensors such as biases and BatchNorm statistics. The model with the stored
numbers is tested again, and that accuracy is what the file says.
"""

import sys
from pathlib import Path

import torch

from arcaps.models import load
from arcaps.page.card import MNIST_NAMES
from arcaps.storage import read_file, write_file
from arcaps.training.evaluate import evaluate
from arcaps.training.inference import choose_data
from arcaps.training.run import Run
from arcaps.weights import FOLDER

SMALL = 1024
"""Tensors with fewer numbers stay as they are."""
MIT = "MIT, as arcaps"
OF_MNIST = f"{MIT}; trained on digits of MNIST (Yann LeCun, Corinna Cortes, Christopher J. C. Burges), CC BY-SA 3.0"


def main(run_folder: str, name: str) -> None:
    """Shorten the numbers, test, write."""
    run = Run.open(run_folder)
    recipe, config = run.recipe, run.config
    tensors, metadata = read_file(run.model_file())
    tensors = {key: value.half() if value.numel() >= SMALL else value for key, value in tensors.items()}
    path = FOLDER / f"{name}.safetensors"
    metadata.pop("arcaps_format")
    write_file(path, tensors, metadata)
    model = load(path)
    test = choose_data(Path(run_folder), model, None, None).test
    result = evaluate(model, test, precision=torch.float32)
    written = {
        "pretrained": {
            "name": name,
            "recipe": recipe.as_dict(),
            "data": recipe.data,
            "seed": recipe.seed,
            "accuracy": result.accuracy,
            "tested": result.count,
            "interval_95": list(result.interval),
            "versions": config["versions"],
            "commit": config["commit"],
            "licence": OF_MNIST if recipe.data in MNIST_NAMES else MIT,
        }
    }
    write_file(path, tensors, {**metadata, **written})
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {result.accuracy:.2%} of {result.count:,} test images right")


if __name__ == "__main__":
    main(*sys.argv[1:])
