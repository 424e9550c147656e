"""Write a run's model into the package as pretrained weights: python scripts/make_weights.py RUN NAME

Weights are stored as float16, except small tensors such as biases and BatchNorm statistics. The model with the stored
numbers is tested again, and that accuracy is what the file says. The list of the weights in docs/weights.md is written
again; python scripts/make_weights.py alone does only that.
"""

import sys
from pathlib import Path

import torch

from arcaps.data.catalogue import COLLECTIONS
from arcaps.models import load
from arcaps.page import Facts
from arcaps.storage import read_file, write_file
from arcaps.training.evaluate import evaluate
from arcaps.training.inference import choose_data
from arcaps.training.run import Run
from arcaps.weights import FOLDER, how_made, weight_file, weight_names

SMALL = 1024
"""Tensors with fewer numbers stay as they are."""
MNIST_AUTHORS = "MNIST (Yann LeCun, Corinna Cortes, Christopher J. C. Burges)"
PAGE = Path(__file__).parent.parent / "docs/weights.md"
BEGIN, END = "<!-- weights: made by scripts/make_weights.py -->", "<!-- end -->"


def licence_of(data: str) -> str:
    """The licence of weights that were trained on this data set."""
    if Facts(data=data).is_mnist:
        return f"MIT, as arcaps; trained on digits of {MNIST_AUTHORS}, CC BY-SA 3.0"
    known = COLLECTIONS.get(data.strip("+"))
    return f"MIT, as arcaps; trained on {known.title}: {known.licence}" if known is not None else "MIT, as arcaps"


def table() -> str:
    """All pretrained weights, as their files describe them."""
    lines = [
        "| name | network | parameters | trained on | epochs | accuracy (95 % interval) | test images | MB |",
        "|---|---|---:|---|---:|---|---:|---:|",
    ]
    for name in weight_names():
        made, path = how_made(name), weight_file(name)
        model = load(path)
        low, high = (f"{100 * end:.2f}" for end in made["interval_95"])
        cells = [
            f"`{name}`",
            f"`{model.name}`",
            f"{model.parameter_count():,}",
            f"`{made['data']}`",
            str(made["recipe"]["epochs"]),
            f"{100 * made['accuracy']:.2f} % ({low} to {high})",
            f"{made['tested']:,}",
            f"{path.stat().st_size / 1e6:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def update_page() -> None:
    """Write the table into docs/weights.md."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")


def write_weights(run_folder: str, name: str) -> None:
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
            "licence": licence_of(recipe.data),
        }
    }
    write_file(path, tensors, {**metadata, **written})
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {result.accuracy:.2%} of {result.count:,} test images right")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_weights(*sys.argv[1:])
    update_page()
