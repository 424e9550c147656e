"""`arcaps info`."""

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from arcaps.cli.options import Flag, ModelFlags
from arcaps.errors import ArcapsError

if TYPE_CHECKING:
    from arcaps.costs import ModelInfo


def info(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    architecture: tyro.conf.OmitArgPrefixes[ModelFlags],
    *,
    batch_size: int | None = None,
    json: Flag = False,
) -> None:
    """Show what a model costs: per layer and in total, its shapes, parameters, multiply-adds and memory.

    Args:
        model: A model by name, such as ar_capsnet or conv_net, one of your own, a run folder, a .safetensors file, or
            the name of a pretrained model: digits or mnist.
        architecture: What is not given is the model's own default.
        batch_size: Images in a training step, for the memory; by default those of the run, or 100.
        json: Print JSON instead of a table.
    """
    import torch

    from arcaps.costs import info as measure
    from arcaps.models import create_model, list_models
    from arcaps.training.inference import open_model
    from arcaps.weights import is_pretrained

    there = Path(model).exists() or model.endswith(".safetensors") or is_pretrained(model)
    if there and model not in list_models():
        if architecture:
            option = next(iter(architecture)).replace("_", "-")
            raise ArcapsError(f"{model} already fixes the architecture: leave out --{option}")
        found = open_model(model)
    else:
        try:
            with torch.device("meta"):
                found = create_model(model, **architecture)
        except RuntimeError as error:  # more bytes than can be counted
            raise ArcapsError(f"{model} is too large with these settings: {error}: give smaller ones") from None
    result = measure(found, batch_size=usual_batch_size(model) if batch_size is None else batch_size)
    if json:
        print(jsonlib.dumps(result.as_dict(), indent=2))
    else:
        print_table(result)


def usual_batch_size(model: str) -> int:
    """The batch size of a run, or the paper's."""
    from arcaps.training import Run

    return Run(Path(model)).recipe.batch_size if (Path(model) / "config.json").exists() else 100


def print_table(result: "ModelInfo") -> None:
    """Print the costs of a model. A narrow terminal shows no signatures of layers."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    wide = console.width >= 140
    table = Table(title=f"{result.model}, batch of {result.batch_size}, float32", title_justify="left")
    for heading in ("layer", "what it is") if wide else ("layer",):
        table.add_column(heading, no_wrap=True)
    for heading in ("output", "parameters", "multiply-adds\nper image", "activations\nkept, MB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result.layers:
        names = (row.name, row.layer) if wide else (row.name,)
        shape = "x".join(map(str, row.output_shape[1:]))
        numbers = (f"{row.parameters:,}", f"{row.multiply_adds:,}", f"{row.activation_bytes / 1e6:,.1f}")
        table.add_row(*names, shape, *numbers)
    console.print(table)
    training = "about three times as many in training"
    if result.repeated_multiply_adds:
        share = result.repeated_multiply_adds / (3 * result.multiply_adds)
        training += f", and {result.repeated_multiply_adds / 1e6:,.1f} M made again to save memory (+{share:.0%})"
    lines = {
        "parameters": f"{result.trainable_parameters:,} trainable, "
        f"{result.parameters_with_statistics:,} with BatchNorm statistics",
        "multiply-adds": f"{result.multiply_adds / 1e6:,.1f} M per image forward, {training}",
        "memory": f"{result.peak_training_bytes / 1e6:,.0f} MB of tensors at the peak of a training step with RMSprop",
        "": "(the process itself takes some 350 MB more, and the allocator may hold a third more than is used)",
    }
    for label, value in lines.items():
        console.print(f"{label:14}{value}", highlight=False, soft_wrap=True)
    for warning in result.warnings:
        console.print(f"[yellow]{'warning':14}[/yellow]{warning}", highlight=False, soft_wrap=True)
