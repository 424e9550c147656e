"""A user's own images: one sub-folder per class, or a CSV of paths and labels."""

import csv
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from arcaps.data.dataset import Data, Dataset
from arcaps.errors import ArcapsError
from arcaps.image_files import ImageError, list_images, read_header
from arcaps.preprocessing import Fit, Preprocessing, check_size
from arcaps.progress import track

PARTS = {"train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation"}
PARTS |= {"test": "test", "testing": "test"}


@dataclass(frozen=True)
class Example:
    """One image file, its class, and the part that it was put in, if any."""

    path: Path
    label: str
    part: str | None


def load_folder(
    path: str | os.PathLike[str],
    *,
    image_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    fit: Fit = "scale",
    invert: bool = False,
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    skip_broken: bool = False,
) -> Data:
    """The images of a folder, or of a CSV file, as one tensor each for training, validation and test.

    A folder has a sub-folder per class, below `train`, `validation` and `test` where it is divided already; a CSV has
    a line `path,label` or `path,label,part` per image, with paths from the CSV's own folder. Images are anything
    Pillow reads, in any size: they are scaled to fit `image_size` with their aspect ratio kept, on black. Unless told,
    the size is that of the images if all have one, else 64x64, and `channels` is 1 if all are grey, else 3. What is
    not divided is split at random by `seed`, class by class. Broken files are listed in one error, or left out with
    `skip_broken`.
    """
    path = Path(path)
    examples = from_csv(path) if path.is_file() else from_folders(path)
    sizes, colours = look_at(examples)
    broken = {example.path: str(size) for example, size in zip(examples, sizes, strict=True) if isinstance(size, str)}
    known = [size for size in sizes if not isinstance(size, str)]
    if image_size is None:
        image_size = known[0] if len(set(known)) == 1 else (64, 64)
    channels = channels or (3 if any(colours) else 1)
    if channels not in (1, 3):
        raise ArcapsError(f"channels is {channels}: give 1 for grey or 3 for colour")

    preprocessing = Preprocessing(check_size("image_size", image_size), channels, fit, invert=invert)
    pixels = torch.zeros(len(examples), channels, *check_size("image_size", image_size), dtype=torch.uint8)
    numbers = range(len(examples))
    for number in track(numbers, f"reading {path.name}"):
        if examples[number].path not in broken:
            try:
                pixels[number] = preprocessing.pixels(examples[number].path)
            except ImageError as error:
                broken[examples[number].path] = error.reason
    if broken and not skip_broken:
        lines = "\n  ".join(f"{file} {reason}" for file, reason in sorted(broken.items()))
        raise ArcapsError(
            f"{len(broken)} of {len(examples)} files cannot be read (--skip-broken leaves them out):\n  {lines}"
        )

    good = [number for number in numbers if examples[number].path not in broken]
    classes = tuple(sorted({example.label for example in examples}))
    check_counts(classes, [examples[number] for number in good])
    whole = Dataset(
        path.name,
        pixels[good],
        torch.tensor([classes.index(examples[number].label) for number in good]),
        classes,
        preprocessing=preprocessing,
    )
    return divide(whole, [examples[number].part for number in good], validation, test, seed)


def from_folders(path: Path) -> list[Example]:
    """The images below the sub-folders, which are classes, or parts with classes below them."""
    if not path.is_dir():
        raise ArcapsError(f"{path} is neither a folder nor a CSV file")
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if any(PARTS.get(folder.name.lower()) == "train" for folder in folders):
        classes: list[tuple[str | None, Path]] = []
        divided = [(PARTS.get(folder.name.lower()), folder) for folder in folders]
        classes = [
            (part, below) for part, folder in divided if part for below in sorted(folder.iterdir()) if below.is_dir()
        ]
    else:
        classes = [(None, folder) for folder in folders]
    examples = []
    empty = []
    for part, folder in classes:
        files = list_images(folder)
        examples += [Example(file, folder.name, part) for file in files]
        empty += [] if files else [folder.name]
    if not examples or empty:
        what = f"no images in {', '.join(empty)}" if empty else "no sub-folders with images"
        raise ArcapsError(f"{path} has {what}: put the images of each class into a sub-folder of its own")
    return examples


def from_csv(path: Path) -> list[Example]:
    """The images that a CSV file names."""
    with path.open(newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    if rows and [cell.strip().lower() for cell in rows[0][:2]] == ["path", "label"]:
        rows = rows[1:]
    examples = []
    for number, row in enumerate(rows, start=1):
        cells = [cell.strip() for cell in row]
        part = PARTS.get(cells[2].lower()) if len(cells) > 2 and cells[2] else None
        if len(cells) not in (2, 3) or (len(cells) == 3 and cells[2] and part is None):
            raise ArcapsError(f"{path}, image {number}: {','.join(row)!r} is not path,label or path,label,part")
        examples.append(Example(path.parent / cells[0], cells[1], part))
    if not examples:
        raise ArcapsError(f"{path} names no images: give a line path,label for each")
    return examples


def look_at(examples: list[Example]) -> tuple[list[tuple[int, int] | str], list[bool]]:
    """Height and width of each image, or what is wrong with the file; and whether it has colour."""
    sizes: list[tuple[int, int] | str] = []
    colours = []
    for example in examples:
        try:
            header = read_header(example.path)
            sizes.append(header.size)
            colours.append(not header.grey)
        except ImageError as error:
            sizes.append(error.reason)
            colours.append(False)
    return sizes, colours


def check_counts(classes: tuple[str, ...], examples: list[Example]) -> None:
    """Every class needs images enough for each part."""
    counts = Counter(example.label for example in examples)
    needed = 1 if any(example.part for example in examples) else 3
    few = [f"{name} ({counts[name]})" for name in classes if counts[name] < needed]
    if few:
        raise ArcapsError(f"too few images to divide: {', '.join(few)}; give each class at least {needed}")


def divide(whole: Dataset, parts: list[str | None], validation: float, test: float, seed: int) -> Data:
    """The parts as they are given; what is not, is split off at random."""

    def part(*names: str | None) -> Dataset | None:
        chosen = [number for number, name in enumerate(parts) if name in names]
        return whole.take(torch.tensor(chosen)) if chosen else None

    train, held_back, final = part("train", None), part("validation"), part("test")
    if train is None:
        raise ArcapsError(f"{whole.name} has no images to train on")
    if final is None:
        train, final = train.split(test, seed=seed)
    if held_back is None:
        train, held_back = train.split(validation / (1 - test), seed=seed + 1)
    return Data(train, held_back, final)
