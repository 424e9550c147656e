"""A user's own images: one sub-folder per class, or a CSV of paths and labels."""

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import UInt8
from torch import Tensor

from arcaps.data.dataset import Data, Dataset, differences, hold_out
from arcaps.data.examples import Example, check_classes, from_folders, remove_duplicates
from arcaps.data.tables import from_csv
from arcaps.errors import ArcapsError, listed
from arcaps.image_files import Header, ImageError, decode_image, is_single_colour, read_content, read_header, read_image
from arcaps.memory import require_memory
from arcaps.preprocessing import Fit, Preprocessing, check_size
from arcaps.progress import track
from arcaps.storage import as_path

logger = logging.getLogger("arcaps")

OnChange = Literal["warn", "error"]
"""What to do about files that changed since their split was stored."""
LONGEST_SIDE = 64
"""Pixels of the longer side, unless told, of images that are larger or of several sizes."""


@dataclass
class Reading:
    """What reading the files gave, row by row."""

    pixels: UInt8[Tensor, "count channels height width"]
    digests: list[str] = field(default_factory=list)
    """The SHA-256 of each file."""
    broken: dict[str, str] = field(default_factory=dict)
    """What is wrong with a file, by its name."""
    single_colour: list[str] = field(default_factory=list)


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
    split: dict[str, Any] | None = None,
    on_change: OnChange = "warn",
) -> Data:
    """The images of a folder, or of a CSV file, as one tensor each for training, validation and test.

    A folder has a sub-folder per class, below `train`, `validation` and `test` where it is divided already; a CSV has
    a line `path,label` or `path,label,part` per image, with paths from the CSV's own folder. Images are anything
    Pillow reads, in any size. `image_size`, `channels`, `fit` and `invert` are as in `Preprocessing`. Unless told, the
    size is that of the images if all have one that is not longer than 64 pixels; larger images of one size are scaled
    until their longer side has 64; images of several sizes become 64x64. `channels` is 1 if all are grey, else 3.

    What is not divided is split at random by `seed`, class by class; with `test=1.0` all images are for the test.
    Broken files are listed in one error, or left out with `skip_broken`. `split` is what `Data.describe` gave: then the
    parts, the classes and the size are those of then, and files that were added, removed or altered since are named,
    in a warning or, with `on_change="error"`, in an error.
    """
    path = as_path("the folder", path)
    if split is not None:
        image_size = image_size or check_size("image_size", first_part(split)["image_size"])
        channels = channels or int(first_part(split)["channels"])
    check_fractions(validation, test)
    examples = remove_duplicates(path, from_csv(path) if path.is_file() else from_folders(path))
    headers, broken = read_headers(examples)
    if broken and not skip_broken:
        broken |= find_damaged(example for example in examples if example.name not in broken)
    require_whole(path, broken, len(examples), skip_broken)
    preprocessing = choose_preprocessing(path, headers, image_size, channels, fit, invert)

    def choose_parts() -> dict[str, list[Example]]:
        whole = [example for example in examples if example.name not in broken]
        if split is not None:
            return recall_parts(path, whole, split, on_change)
        if test < 1:
            check_classes(path, whole)
        return divide(whole, validation, test, seed)

    parts = choose_parts()
    rows = [example for part in parts.values() for example in part]
    reading = read_images(path, rows, preprocessing)
    if reading.broken:
        broken |= reading.broken
        require_whole(path, broken, len(examples), skip_broken)
        parts = choose_parts()  # each class gives its part of what can be read
    classes = tuple(first_part(split)["class_names"]) if split else tuple(sorted({row.label for row in rows}))
    data = assemble(path, parts, rows, reading, classes, preprocessing)
    warn_of_content(path, data, reading)
    if split is not None:
        name_changes(path, data, split, on_change)
    return data


def check_fractions(validation: float, test: float) -> None:
    """Refuse parts that leave nothing to train on; `test=1` is for a test of all images."""
    if test != 1 and not (0 < validation < 1 and 0 < test < 1 and validation + test < 1):
        found = f"validation is {validation} and test is {test}"
        raise ArcapsError(f"{found}: give parts above 0 that leave images to train on, such as 0.1 and 0.1, or test=1")


def read_headers(examples: list[Example]) -> tuple[list[Header], dict[str, str]]:
    """Size and colour of every image that can be opened, and what is wrong with each of the others."""
    headers, broken = [], {}
    for example in examples:
        try:
            headers.append(read_header(example.path))
        except ImageError as error:
            broken[example.name] = error.reason
    return headers, broken


def find_damaged(examples: Iterable[Example]) -> dict[str, str]:
    """What is wrong with each file that cannot be decoded, so that one error can name all of them."""
    broken = {}
    for example in examples:
        try:
            read_image(example.path)
        except ImageError as error:
            broken[example.name] = error.reason
    return broken


def require_whole(path: Path, broken: dict[str, str], count: int, skip_broken: bool) -> None:
    """Refuse files that cannot be read, or leave them out with a warning."""
    if broken and (not skip_broken or len(broken) == count):
        lines = [f"{name} {reason}" for name, reason in sorted(broken.items())]
        more = [f"and {len(lines) - 20:,} more"] if len(lines) > 20 else []
        way = "--skip-broken leaves them out" if len(broken) < count else "no images are left"
        raise ArcapsError(
            f"{path}: {len(broken)} of {count} files cannot be read ({way}):\n  " + "\n  ".join(lines[:20] + more)
        )
    if broken:
        logger.warning(
            "%s: %d of %d files cannot be read and are left out: %s", path, len(broken), count, listed(broken)
        )


def choose_preprocessing(
    path: Path,
    headers: list[Header],
    image_size: int | tuple[int, int] | None,
    channels: int | None,
    fit: Fit,
    invert: bool,
) -> Preprocessing:
    """The size and channels asked for, else those that suit the images."""
    sizes = Counter(header.size for header in headers)
    if image_size is None:
        largest = max(map(max, sizes))
        image_size = (LONGEST_SIDE, LONGEST_SIDE)
        if len(sizes) == 1:
            (height, width), factor = next(iter(sizes)), min(1.0, LONGEST_SIDE / largest)
            image_size = (max(1, round(factor * height)), max(1, round(factor * width)))
        if largest > LONGEST_SIDE:
            what = f"images of up to {largest} pixels become {image_size[0]}x{image_size[1]} (height x width)"
            logger.info("%s: %s; --image-size gives another size", path, what)
    if channels not in (None, 1, 3):
        raise ArcapsError(f"channels is {channels}: give 1 for grey or 3 for colour")
    channels = channels or (1 if all(header.grey for header in headers) else 3)
    return Preprocessing(check_size("image_size", image_size), channels, fit, invert=invert)


def divide(examples: list[Example], validation: float, test: float, seed: int) -> dict[str, list[Example]]:
    """The parts as they are given; what is not given is split off at random, class by class."""
    given = {example.part for example in examples}
    parts = {name: [example for example in examples if example.part == name] for name in ("validation", "test")}
    train = [example for example in examples if example.part in ("train", None)]
    if test == 1:
        return {"test": examples} if given == {None} else {"train": train, **parts}
    if "test" not in given:
        train, parts["test"] = hold_out_examples(train, test, seed)
    if "validation" not in given:
        train, parts["validation"] = hold_out_examples(train, validation / (1 - test), seed + 1)
    return {"train": train, **parts}


def hold_out_examples(examples: list[Example], fraction: float, seed: int) -> tuple[list[Example], list[Example]]:
    """What is left and what is held out, each in order."""
    classes = sorted({example.label for example in examples})
    groups = torch.tensor([classes.index(example.label) for example in examples])
    chosen = hold_out(groups, fraction, seed).tolist()
    both = list(zip(examples, chosen, strict=True))
    return [example for example, held in both if not held], [example for example, held in both if held]


def read_images(path: Path, rows: Sequence[Example], preprocessing: Preprocessing) -> Reading:
    """The pixels of every file, one file after another: no more than one original is in memory at a time."""
    assert preprocessing.size is not None
    shape = (len(rows), preprocessing.channels or 1, *preprocessing.size)
    size = f"{shape[0]:,} images of {shape[2]}x{shape[3]} with {shape[1]} channels"
    needed = shape[0] * shape[1] * shape[2] * shape[3]
    require_memory(needed, f"{path}: {size}", "give a smaller --image-size, or --channels 1")
    reading = Reading(torch.zeros(shape, dtype=torch.uint8))
    for number, example in enumerate(track(rows, f"reading {path.name}", len(rows))):
        try:
            content = read_content(example.path)
            image = decode_image(content, example.path)
        except ImageError as error:
            reading.broken[example.name] = error.reason
            reading.digests.append("")
            continue
        reading.digests.append(hashlib.sha256(content).hexdigest())
        if is_single_colour(image):
            reading.single_colour.append(example.name)
        reading.pixels[number] = preprocessing.pixels(image)
    return reading


def assemble(
    path: Path,
    parts: dict[str, list[Example]],
    rows: list[Example],
    reading: Reading,
    classes: tuple[str, ...],
    preprocessing: Preprocessing,
) -> Data:
    """The parts as data sets; where nothing was left out, they share the memory of what was read."""
    place = {example.name: number for number, example in enumerate(rows)}
    numbers = {name: number for number, name in enumerate(classes)}

    def dataset(members: list[Example]) -> Dataset | None:
        if not members:
            return None
        taken = [place[example.name] for example in members]
        in_a_row = taken == list(range(taken[0], taken[0] + len(taken)))
        return Dataset(
            path.resolve().name,
            reading.pixels[taken[0] : taken[0] + len(taken)] if in_a_row else reading.pixels[taken],
            torch.tensor([numbers[example.label] for example in members]),
            classes,
            files=tuple(example.name for example in members),
            digests=tuple(reading.digests[number] for number in taken),
            preprocessing=preprocessing,
        )

    test = dataset(parts["test"])
    if test is None:
        raise ArcapsError(f"{path} has no test images that can be read: add some")
    return Data(dataset(parts.get("train", [])), dataset(parts.get("validation", [])), test)


def warn_of_content(path: Path, data: Data, reading: Reading) -> None:
    """Warn of images of one colour, and of images that are in two parts or under two labels."""
    if reading.single_colour:
        names = listed(reading.single_colour)
        logger.warning("%s: images of a single colour (%d): %s", path, len(reading.single_colour), names)
    ignored = set(reading.single_colour)
    seen: dict[bytes, tuple[str, str, int]] = {}
    leaks, labels = [], []
    for part, dataset in data._asdict().items():
        for number in range(0 if dataset is None else len(dataset)):
            name, label = dataset.files[number], int(dataset.labels[number])
            if name in ignored:
                continue
            content = hashlib.blake2b(dataset.images[number].numpy().data, digest_size=16).digest()
            first, first_part, first_label = seen.setdefault(content, (name, part, label))
            if first_part != part:
                leaks.append(f"{name} ({part}) and {first} ({first_part})")
            if first_label != label:
                labels.append(f"{name} and {first}")
    if leaks:
        logger.warning("%s: %d images are in two parts: %s: results would be too good", path, len(leaks), listed(leaks))
    if labels:
        logger.warning("%s: %d images are in two classes: %s", path, len(labels), listed(labels))


def first_part(split: dict[str, Any]) -> dict[str, Any]:
    """What a split says of its test part, which every split has; refuses what `Data.describe` did not write."""
    parts = [split.get("test"), *(split[name] for name in ("train", "validation") if split.get(name))]
    if not all(isinstance(part, dict) and isinstance(part.get("files"), dict) for part in parts):
        raise ArcapsError(
            "the stored split does not name files: give what Data.describe wrote for a folder or CSV file"
        )
    return split["test"]


def recall_parts(
    path: Path, examples: list[Example], split: dict[str, Any], on_change: str
) -> dict[str, list[Example]]:
    """The parts as they were stored. Files that were removed are left out, files that were added are not used."""
    there = {example.name: example for example in examples}
    stored = {name: list(split[name]["files"]) for name in ("train", "validation", "test") if split.get(name)}
    known = {name for names in stored.values() for name in names}
    changes = {
        "removed": sorted(known - there.keys()),
        "added, and not used,": [example.name for example in examples if example.name not in known],
    }
    say_changes(path, changes, on_change)
    classes = set(first_part(split)["class_names"])
    wrong = [
        f"{name} ({there[name].label})" for name in sorted(known & there.keys()) if there[name].label not in classes
    ]
    if wrong:
        raise ArcapsError(f"{path}: classes that were not there when the data were split: {listed(wrong)}")
    return {part: [there[name] for name in names if name in there] for part, names in stored.items()}


def name_changes(path: Path, data: Data, split: dict[str, Any], on_change: str) -> None:
    """Name the files whose content is another than when the split was stored; and any other difference."""
    altered, removed = [], False
    for part, dataset in data._asdict().items():
        before = {} if not split.get(part) else split[part]["files"]
        now = {} if dataset is None else dict(zip(dataset.files, dataset.digests, strict=True))
        altered += [name for name, digest in now.items() if before.get(name) not in ("", digest)]
        removed |= now.keys() != before.keys()
    say_changes(path, {"altered": altered}, on_change)
    if not altered and not removed and (other := differences(split, data)):
        say_changes(path, {"read in another way or under other labels": other}, on_change)


def say_changes(path: Path, changes: dict[str, list[str]], on_change: str) -> None:
    """One line, or one error, about files that changed."""
    said = [f"{len(names)} {what} ({listed(names)})" for what, names in changes.items() if names]
    if said:
        line = f"{path} has changed since its split was stored: files {'; '.join(said)}"
        if on_change == "error":
            raise ArcapsError(f"{line}: bring the files back, or start a new run")
        logger.warning("%s", line)
