"""The forms in which the collections are published, each read into the same arrays. No pickle is ever loaded."""

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from arcaps.errors import ArcapsError

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""Bytes: `train_images`, `test_images` as (count, channels, height, width) and `train_labels`, `test_labels`."""


def find(folder: Path, name: str) -> Path:
    """The file of that name, gzipped or not, anywhere below the folder."""
    for candidate in (name, f"{name}.gz"):
        for path in sorted(folder.rglob(candidate)):
            return path
    raise FileNotFoundError(f"{name} is not in {folder}")


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An array in the idx format of MNIST: two zeros, the type, the number of axes, the lengths, the bytes."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if content[:3] != b"\0\0\x08":
        raise ValueError(f"{path.name} is not an idx file of bytes")
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], ">u4")
    return np.frombuffer(content[start:], np.uint8).reshape(shape)


def idx_folder(folder: Path) -> Arrays:
    """The four idx files of MNIST and of Fashion-MNIST, under their usual names."""
    arrays = {}
    for part, prefix in {"train": "train", "test": "t10k"}.items():
        arrays[f"{part}_images"] = read_idx(find(folder, f"{prefix}-images-idx3-ubyte"))[:, None]
        arrays[f"{part}_labels"] = read_idx(find(folder, f"{prefix}-labels-idx1-ubyte"))
    return arrays


def mnist_csv(folder: Path) -> Arrays:
    """MNIST as two CSV files with a header: the label, then 784 pixels a line."""
    arrays = {}
    for part in ("train", "test"):
        with find(folder, f"mnist_{part}.csv").open() as file:
            table = np.loadtxt(file, np.uint8, delimiter=",", skiprows=1)
        arrays[f"{part}_images"] = table[:, 1:].reshape(-1, 1, 28, 28)
        arrays[f"{part}_labels"] = table[:, 0]
    return arrays


def cifar_binary(folder: Path) -> Arrays:
    """CIFAR-10's binary batches, unpacked or in their archive: a label byte, then the R, G and B planes."""
    try:
        archive = find(folder, "cifar-10-binary.tar")
    except FileNotFoundError:
        batches = {path.name: path.read_bytes() for path in folder.rglob("*_batch*.bin")}
    else:
        with tarfile.open(archive) as tar:
            batches = {
                Path(member.name).name: file.read()
                for member in tar
                if member.name.endswith(".bin") and (file := tar.extractfile(member)) is not None
            }
    tables = {name: np.frombuffer(content, np.uint8).reshape(-1, 3073) for name, content in batches.items()}
    parts = {"train": [f"data_batch_{n}.bin" for n in range(1, 6)], "test": ["test_batch.bin"]}
    arrays = {}
    for part, names in parts.items():
        missing = [name for name in names if name not in tables]
        if missing:
            raise FileNotFoundError(f"{missing[0]} is not in {folder}")
        table = np.concatenate([tables[name] for name in names])
        arrays[f"{part}_images"] = table[:, 1:].reshape(-1, 3, 32, 32)
        arrays[f"{part}_labels"] = table[:, 0]
    return arrays


def cifar_png(folder: Path) -> Arrays:
    """CIFAR-10 as six PNGs, one image a row, with the labels in JSON."""
    parts = {"train": [f"data_batch_{n}.png" for n in range(1, 6)], "test": ["test_batch.png"]}
    arrays = {}
    for part, names in parts.items():
        rows = [np.asarray(Image.open(find(folder, name))) for name in names]
        arrays[f"{part}_images"] = np.concatenate(rows).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
        arrays[f"{part}_labels"] = np.array(json.loads(find(folder, f"{part}_lables.json").read_text()), np.uint8)
    return arrays


def affnist_mat(folder: Path) -> Arrays:
    """AffNIST's own MATLAB files, zipped or not: an image of 40x40 a column. Needs scipy."""
    arrays: Arrays = {}
    for part in ("validation", "test"):
        try:
            content = find(folder, f"{part}.mat").read_bytes()
        except FileNotFoundError:
            with zipfile.ZipFile(find(folder, f"{part}.mat.zip")) as archive:
                content = archive.read(f"{part}.mat")
        images, labels, transforms = read_affnist(content)
        arrays[f"{part}_images"] = images
        arrays[f"{part}_labels"] = labels
        arrays[f"{part}_transforms"] = transforms
    return arrays


def read_affnist(content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float32]]:
    """Images, labels and `human_readable_transform` (count, 6) of one of affNIST's files."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise ArcapsError(
            "affNIST's files are MATLAB's: pip install 'arcaps[affnist]' brings scipy to read them"
        ) from None
    data = loadmat(io.BytesIO(content))["affNISTdata"][0, 0]
    images = data["image"].T.reshape(-1, 1, 40, 40).astype(np.uint8)
    labels = data["label_int"].ravel().astype(np.uint8)
    return images, labels, data["human_readable_transform"].T.astype(np.float32)
