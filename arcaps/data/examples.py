"""A user's own images: which files there are, with the class and the part of each."""

import logging
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from arcaps.errors import ArcapsError, listed
from arcaps.image_files import list_images
from arcaps.registry import unknown

logger = logging.getLogger("arcaps")

PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
PARTS |= dict.fromkeys(("val", "valid", "validation", "dev"), "validation")
"""What folders and CSV cells may call the parts of a data set."""


@dataclass(frozen=True)
class Example:
    """One image file, its class, and the part that it was put in, if any."""

    path: Path
    name: str
    """The path from the folder that is loaded."""
    label: str
    part: str | None = None


def class_name(name: str) -> str:
    """A name as it is compared: composed characters, no spaces around it."""
    return unicodedata.normalize("NFC", name).strip()


def find_part(name: str) -> str:
    """The part of that name; any other name is refused with a suggestion."""
    if name.lower() not in PARTS:
        raise unknown("part", name, ["train", "validation", "test"])
    return PARTS[name.lower()]


def from_folders(path: Path) -> list[Example]:
    """The images below the sub-folders, which are classes, or parts with classes below them."""
    if not path.is_dir():
        raise ArcapsError(f"{path} is neither a folder nor a CSV file: check the path")
    folders = sub_folders(path)
    parts = {folder: PARTS[folder.name.lower()] for folder in folders if folder.name.lower() in PARTS}
    if is_divided(path, folders, parts):
        classes: list[tuple[str | None, Path]]
        classes = [(part, below) for folder, part in parts.items() for below in sub_folders(folder)]
    else:
        classes = [(None, folder) for folder in folders]
    examples, empty = [], []
    for part, folder in classes:
        files = list_images(folder)
        examples += [Example(f, f.relative_to(path).as_posix(), class_name(folder.name), part) for f in files]
        empty += [] if files else [folder.relative_to(path).as_posix()]
    if not examples or empty:
        what = f"no images in {listed(empty)}" if empty else "no sub-folders with images"
        way = "put the images of each class into a sub-folder of its own"
        raise ArcapsError(f"{path} has {what}: {unread(folder for _, folder in classes) or way}")
    if len(folders) == 1 and len(within := classes_within(folders[0])) > 1 and not parts:
        logger.warning("%s has classes one folder deeper (%s): give %s", path, listed(within), folders[0])
    return examples


def unread(folders: Iterable[Path]) -> str:
    """What to do where class folders hold files, but none with the extension of an image that Pillow reads."""
    kinds: Counter[str] = Counter()
    for folder in folders:
        if not list_images(folder):
            kinds.update(file.suffix or "no extension" for file in folder.iterdir() if is_visible_file(file))
    found = listed(f"{kind} ({count})" for kind, count in kinds.most_common())
    return found and f"their files have extensions that are not read, {found}: convert them to PNG or JPEG"


def is_visible_file(path: Path) -> bool:
    """Whether a path is a file that is not hidden."""
    return path.is_file() and not path.name.startswith(".")


def classes_within(folder: Path) -> list[str]:
    """The sub-folders with images of a folder that has no images beside them."""
    if any(file.parent == folder for file in list_images(folder)):
        return []
    return [below.name for below in sub_folders(folder) if list_images(below)]


def sub_folders(path: Path) -> list[Path]:
    """The folders in a folder, in order; hidden ones are left out."""
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def is_divided(path: Path, folders: list[Path], parts: dict[Path, str]) -> bool:
    """Whether the folders are parts, such as train and test, and not classes; refused where it is not clear."""
    if not parts:
        return False
    nested = {folder for folder in folders if any(list_images(below) for below in sub_folders(folder))}
    explicit = "a CSV file with the columns path, label and part leaves no doubt"
    if not nested & parts.keys():
        if len(parts) < len(folders):
            return False  # a class that happens to be called train, among others
        names = listed(folder.name for folder in parts)
        raise ArcapsError(
            f"{path}: {names} have no sub-folders with images: put each class into a sub-folder of each part; "
            f"if {names} are classes, {explicit}"
        )
    others = [folder for folder in folders if folder not in parts and list_images(folder)]
    if others:
        known = "the parts are train, validation and test"
        raise ArcapsError(
            f"{path} has the parts {listed(f.name for f in parts)} beside {listed(f.name for f in others)}: {known}; "
            f"rename or move the others, or give {explicit}"
        )
    for folder, part in parts.items():
        if folder not in nested:
            raise ArcapsError(
                f"{path}: the {part} part, {folder.name}, has no sub-folders with images: fill or remove it"
            )
        loose = [file.name for file in list_images(folder) if file.parent == folder]
        if loose:
            raise ArcapsError(
                f"{folder} has images beside its class folders: {listed(loose)}: move each into its class"
            )
    return True


def remove_duplicates(path: Path, examples: list[Example]) -> list[Example]:
    """Each file once. A file with two labels, or in two parts, is refused."""
    by_file: dict[Path, list[Example]] = defaultdict(list)
    for example in examples:
        by_file[example.path.resolve()].append(example)
    labels = {same[0].name: sorted({e.label for e in same}) for same in by_file.values()}
    parts = {same[0].name: sorted({e.part or "no part" for e in same}) for same in by_file.values()}
    for found, what in ((labels, "more than one label"), (parts, "more than one part")):
        wrong = [f"{name} ({', '.join(values)})" for name, values in found.items() if len(values) > 1]
        if wrong:
            raise ArcapsError(f"{path} gives {what} to {len(wrong)} files: {listed(wrong)}: keep one row for each file")
    twice = [same[0].name for same in by_file.values() if len(same) > 1]
    if twice:
        logger.warning("%s names %d files more than once: %s: each is used once", path, len(twice), listed(twice))
    return [same[0] for same in by_file.values()]


def check_classes(path: Path, examples: list[Example]) -> None:
    """Every class needs enough images, in the training part if there are parts."""
    divided = any(example.part for example in examples)
    counts: dict[str, int] = defaultdict(int)
    for example in examples:
        counts[example.label] += example.part in ("train", None)
    only_held_out = sorted(name for name, count in counts.items() if divided and count == 0)
    if len(only_held_out) == len(counts):
        raise ArcapsError(f"{path} has no images to train on: put images into the part train")
    if only_held_out:
        way = "add images of them to the part train, or check how the names are spelt"
        raise ArcapsError(f"{path}: no training images of {listed(only_held_out)}, only others: {way}")
    few = [f"{name} ({count})" for name, count in sorted(counts.items()) if count < 3 and not divided]
    if few:
        raise ArcapsError(f"{path}: too few images to divide: {listed(few)}; give each class at least 3")
    alike = [name for name in sorted(counts) if sum(name.casefold() == other.casefold() for other in counts) > 1]
    if alike:
        logger.warning(
            "%s has classes that differ in capital letters only: %s: are they the same?", path, listed(alike)
        )
    if len(counts) == 1:
        logger.warning("%s has one class only, %s: a model cannot learn to tell it from others", path, *counts)
