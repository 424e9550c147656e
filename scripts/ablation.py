"""What each choice in AR CapsNet gives, on validation images alone: python scripts/ablation.py [--only NAME ...]

Every variant is trained on the same 10,000 training digits of MNIST and evaluated on 40,000 others; the test digits
take no part. The network is small (dim 16, stem of 32 channels), so that a variant takes minutes. The figures go to
docs/records/ablation.json and the table to docs/results.md; variants that are there already are not trained again.
"""

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import tyro

from arcaps import train
from arcaps.data import Data, Loader, load_data
from arcaps.functional import normalised_entropy
from arcaps.training.run import Run

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs/records/ablation.json"
PAGE = ROOT / "docs/results.md"
MARKS = "<!-- ablation: made by scripts/ablation.py -->\n", "<!-- end of ablation -->"
DEEP = {"layers": 3, "strides": (2, 2, 1)}
CODE = {"layout": "code"}
ACROSS = {"class_activation": "capsule(across=True)"}
HEADS = {"routing": "attention(heads=4)"}
STAGE = {"stages": (64,), "strides": (1,)}
FUSED = {"votes": "conv(fused=True)"}
LITTLE = {"limit": 2000, "batch_size": 50, "epochs": 20, "dim": 8, "primary_dim": 8, "stem_channels": 16}
"""A smaller network on 2,000 digits, so that three seeds of 20 epochs take minutes."""
SEEDS = (0, 1, 2)
NORM = {"activation": "capsule(norm=True)", "class_activation": "capsule"}
COMMON: dict[str, Any] = {
    "epochs": 12,
    "validation": 0.05,
    "average": 0.99,
    "dim": 16,
    "stem_channels": 32,
    "layout": "text",
    "stages": (),
    "strides": None,
    "activation": "capsule",
    "class_activation": None,
    "elastic": 0.0,
    "report": False,
    "silent": True,
}


@dataclass(frozen=True)
class Variant:
    """What differs from the text's reading with our optimiser."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    recipe: str = "mnist-fast"
    seeds: tuple[int, ...] = (0,)


VARIANTS = (
    Variant("text's reading"),
    Variant("layout of the authors' code", CODE),
    Variant("affine map across the class layer", ACROSS),
    Variant("4 heads in the class layer", {"class_routing": "attention(heads=4)"}),
    Variant("scaled logits in the class layer", {"class_routing": "attention(scale=True)"}),
    Variant("4 heads and scaled logits in the class layer", {"class_routing": "attention(heads=4, scale=True)"}),
    Variant("a quarter of the channels dropped", {"channel_dropout": 0.25}),
    Variant("entropy term, weight 0.1", {"entropy": 0.1}),
    Variant("three conv caps layers", DEEP),
    Variant("three layers, layout of the code", {**DEEP, **CODE}),
    Variant("three layers, affine map", {**DEEP, **ACROSS}),
    Variant("three layers, code, element dropout 0.25", {**DEEP, **CODE, "dropout": 0.25}),
    Variant("three layers, code, a quarter of the channels dropped", {**DEEP, **CODE, "channel_dropout": 0.25}),
    Variant("three layers, code, 4 heads everywhere", {**DEEP, **CODE, **HEADS}),
    Variant("three layers, code, weight decay 0.1", {**DEEP, **CODE, "weight_decay": 0.1}),
    Variant("three layers, code, no decoder", {**DEEP, **CODE, "decoder": False}),
    Variant("code, 4 heads everywhere", {**CODE, **HEADS}),
    Variant("code, weight decay 0.1", {**CODE, "weight_decay": 0.1}),
    Variant("code, 4 heads everywhere, weight decay 0.1", {**CODE, **HEADS, "weight_decay": 0.1}),
    Variant("code, a quarter of the channels dropped", {**CODE, "channel_dropout": 0.25}),
    Variant("code, element dropout 0.25", {**CODE, "dropout": 0.25}),
    Variant("code, a residual stage before the capsules", {**CODE, **STAGE}),
    Variant("code, BatchNorm in the capsule layers", {**CODE, **NORM}),
    Variant("code, residual stage and BatchNorm", {**CODE, **STAGE, **NORM}),
    Variant("text, residual stage and BatchNorm", {**STAGE, **NORM}),
    Variant(
        "text, residual stage and BatchNorm, scaled logits in the class layer",
        {**STAGE, **NORM, "class_routing": "attention(scale=True)"},
    ),
    Variant("affine map, 4 heads", {**ACROSS, "class_routing": "attention(heads=4)"}),
    Variant("text, small, our initialisation", LITTLE, seeds=SEEDS),
    Variant("text, small, initialisation of the authors' code", {**LITTLE, **FUSED}, seeds=SEEDS),
    Variant("code, small, our initialisation", {**LITTLE, **CODE}, seeds=SEEDS),
    Variant("code, small, initialisation of the authors' code", {**LITTLE, **CODE, **FUSED}, seeds=SEEDS),
    Variant("element dropout 0.25 in place of 0.5", {"dropout": 0.25}),
    Variant("augmented", recipe="mnist+-fast"),
    Variant("augmented, layout of the code", CODE, "mnist+-fast"),
    Variant("augmented, code, element dropout 0.25", {**CODE, "dropout": 0.25}, "mnist+-fast"),
    Variant("augmented, affine map", ACROSS, "mnist+-fast"),
    Variant("augmented, three layers", DEEP, "mnist+-fast"),
    Variant("augmented, three layers, affine map", {**DEEP, **ACROSS}, "mnist+-fast"),
)


def digits() -> Data:
    """10,000 training digits, and 40,000 others to evaluate on."""
    whole = load_data("mnist").train
    assert whole is not None
    rest, chosen = whole.split(10_000 / len(whole))
    return Data(chosen, None, rest.split(0.8)[1])


def measure(variant: Variant, data: Data, seed: int, precision: str) -> dict[str, Any]:
    """Train, and the figures."""
    with tempfile.TemporaryDirectory() as folder:
        options = {**COMMON, **variant.options, "data": data, "seed": seed, "precision": precision}
        run: Run = train(variant.recipe, run=Path(folder) / "run", **options)
        model, metrics, result = run.model().eval(), run.metrics, run.result
        assert result is not None
        batch = next(iter(Loader(data.test, 1000)))
        with torch.inference_mode():
            coefficients = model(batch.images).coefficients["class_caps"]
        return {
            "name": variant.name,
            "recipe": variant.recipe,
            "options": run.recipe.as_dict()["options"],
            "seed": seed,
            "precision": run.config["settings"]["precision"],
            "error": 1 - result.test["accuracy"],
            "count": len(data.test),
            "reconstruction": metrics[-1]["losses"].get("reconstruction"),
            "entropy": float(normalised_entropy(coefficients).mean()),
            "parameters": model.parameter_count(),
            "epochs": len(metrics),
            "seconds": metrics[-1]["seconds"],
            "machine": run.config["machine"],
            "versions": run.config["versions"],
        }


def read_records() -> list[dict[str, Any]]:
    """The figures so far."""
    return json.loads(RECORDS.read_text()) if RECORDS.exists() else []


def table(records: list[dict[str, Any]]) -> str:
    """The records as Markdown."""
    lines = [
        "| variant | error | n | epochs | parameters | entropy of the class layer | reconstruction loss |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for variant in VARIANTS:
        rows = [row for row in records if row["name"] == variant.name]
        if rows:
            errors = [row["error"] for row in rows]
            spread = f" ± {stdev(errors):.2%}" if len(errors) > 1 else ""
            drawn = [row["reconstruction"] for row in rows if row["reconstruction"] is not None]
            cells = [
                variant.name,
                f"{mean(errors):.2%}{spread}",
                len(rows),
                rows[0]["epochs"],
                f"{rows[0]['parameters']:,}",
                f"{mean(row['entropy'] for row in rows):.2f}",
                f"{mean(drawn):.4f}" if drawn else "",
            ]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def write_page(records: list[dict[str, Any]]) -> None:
    """Put the table between its marks."""
    before, rest = PAGE.read_text().split(MARKS[0])
    PAGE.write_text(before + MARKS[0] + table(records) + MARKS[1] + rest.split(MARKS[1])[1])


def main(only: tuple[str, ...] = (), precision: str = "auto") -> None:
    """Train what is missing, and make the table.

    Args:
        only: Names of variants; by default all.
        precision: auto (float32 on CPUs), float32 or bfloat16.
    """
    data = digits()
    chosen = [(variant, seed) for variant in VARIANTS for seed in variant.seeds if not only or variant.name in only]
    for variant, seed in chosen:
        if any((row["name"], row["seed"]) == (variant.name, seed) for row in read_records()):
            continue
        found = measure(variant, data, seed, precision)
        RECORDS.write_text(json.dumps([*read_records(), found], indent=1) + "\n")  # another process may have added some
        print(f"{variant.name}, seed {seed}: {found['error']:.2%} error", flush=True)
    write_page(read_records())


if __name__ == "__main__":
    tyro.cli(main)
