"""The data sets of a run, and the model that fits them."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from arcaps.costs import training_bytes
from arcaps.data import Data, Dataset, augment, differences, load_data, match_classes
from arcaps.data.catalogue import is_path
from arcaps.data.classes import follow_classes
from arcaps.errors import ArcapsError
from arcaps.memory import require_memory
from arcaps.models import Model, OwnNetwork, create_model
from arcaps.registry import option_names
from arcaps.settings import Recipe

logger = logging.getLogger("arcaps")


@dataclass(frozen=True)
class Splits:
    """The data sets that a run works with."""

    train: Dataset
    validation: Dataset
    """To choose the best epoch by."""
    test: Dataset
    """Used once, at the end."""
    test_validation: Dataset | None = None
    """Where the test images are of another kind: validation images of that kind. The paper chooses by them; we only
    report what that choice would have given."""
    description: dict[str, Any] | None = None
    """Plain values for `data.json`, by which the same images can be found again."""

    @property
    def summary(self) -> str:
        """Number of images, size, classes and split, in one line."""
        height, width = self.train.image_size
        names = self.train.class_names
        shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        counts = f"{len(self.train):,} training, {len(self.validation):,} validation, {len(self.test):,} test images"
        size = f"{height}x{width}x{self.train.channels}"
        return f"{self.train.name}: {counts} of {size}, {len(names)} classes: {shown}"


def load_splits(
    recipe: Recipe,
    data_dir: str | os.PathLike[str] | None = None,
    stored: Mapping[str, Any] | None = None,
    *,
    given: Data | None = None,
    strict: bool = False,
) -> Splits:
    """The recipe's data sets, as large as the model's images.

    `stored` is what a run folder says of its data: the same images are found again, and changes are named, in a
    warning or with `strict` in an error. `given` are data from memory in place of the recipe's.
    """
    loaded = load_parts(recipe, data_dir, stored or {}, strict) if given is None else fit_to_recipe(given, recipe)
    train, validation, test = loaded
    if train is None:
        raise ArcapsError(f"{recipe.data} has no images to train on: give --data another data set")
    if validation is None:
        train, validation = train.split(recipe.validation, seed=recipe.seed)
    if not len(train):
        raise ArcapsError(f"{recipe.data or train.name} has too few images to train on: give more of each class")
    for name, part in (("validation", validation), ("test", test)):
        if not len(part):
            raise ArcapsError(f"the {name} part of {recipe.data or part.name} has no images: give some")
    parts = Data(train, validation, test)
    description: dict[str, Any] = {"data": parts.describe()}
    refuse_changes(recipe.data, (stored or {}).get("data"), parts, strict)
    if recipe.limit is not None:
        train = limit_images(train, recipe.limit)
    if not recipe.test_data:
        return Splits(train, validation, test, description=description)
    other = load_data(
        recipe.test_data, preprocessing=train.preprocessing, data_dir=data_dir, seed=recipe.seed, **WHOLE_FOLDER
    )
    test = match_classes(other.test, train.class_names)
    test_validation = other.validation
    if test_validation is not None:
        versions = 32 if recipe.test_data.startswith("affnist") else 1  # one version of each digit
        test_validation = match_classes(test_validation, train.class_names)
        test_validation = test_validation.take(torch.arange(0, len(test_validation), versions))
    return Splits(train, augment_once(validation, recipe), test, test_validation, description)


def limit_images(dataset: Dataset, most: int) -> Dataset:
    """The first images, at most so many; spread evenly, where the images lie class by class as in folders."""
    groups, count = dataset.groups(), min(most, len(dataset))
    blocks = 1 + int(groups.diff().ne(0).sum())
    in_blocks = blocks == len(groups.unique())
    return dataset.take(torch.arange(count) * len(dataset) // count if in_blocks else torch.arange(count))


WHOLE_FOLDER: dict[str, Any] = {"test": 1.0}
"""A folder to test on is tested as a whole, unless it has a test part."""


def fit_to_recipe(given: Data, recipe: Recipe) -> Data:
    """Data from memory in the size, channels and inversion that the recipe names; all parts must be alike.

    They get the classes of the training images.
    """
    first = given.train or given.test
    given = given.map(lambda part: follow_classes(part, first.class_names))
    if recipe.image_size or recipe.channels or recipe.invert:
        wanted = replace(
            first.preprocessing,
            size=recipe.image_size or first.image_size,
            channels=recipe.channels or first.channels,
            fit=recipe.fit,
            invert=recipe.invert or first.preprocessing.invert,
        )
        return given.map(lambda part: part.fit(wanted))
    for part in (given.validation, given.test):
        if part is not None and (part.channels, *part.image_size) != (first.channels, *first.image_size):
            sizes = ["x".join(map(str, (data.channels, *data.image_size))) for data in (first, part)]
            raise ArcapsError(f"{first.name} has images of {sizes[0]}, {part.name} of {sizes[1]}: give image_size")
    return given


def load_parts(
    recipe: Recipe, data_dir: str | os.PathLike[str] | None, stored: Mapping[str, Any], strict: bool
) -> Data:
    """The recipe's data set; of a folder, the parts that are stored."""
    if not recipe.data:
        raise ArcapsError(f"recipe {recipe.name} needs to know where your images are: give --data FOLDER")
    before = stored.get("data")
    files = before is not None and before["test"].get("files")
    return load_data(
        recipe.data,
        image_size=recipe.image_size,
        channels=recipe.channels,
        fit=recipe.fit,
        invert=recipe.invert,
        data_dir=data_dir,
        seed=recipe.seed,
        validation=recipe.validation,
        skip_broken=recipe.skip_broken,
        split=before if files else None,
        on_change="error" if strict else "warn",
    )


def refuse_changes(name: str, stored: dict[str, Any] | None, parts: Data, strict: bool) -> None:
    """Refuse to resume with other images than before, and warn of them otherwise. Folders name their own changes."""
    changes = differences(stored, parts) if stored is not None else []
    said = f"{name or 'the data'} changed since the run began: {'; '.join(changes)}"
    if changes and strict:
        raise ArcapsError(f"{said}: start a new run")
    if changes and stored is not None and not stored["test"].get("files"):
        logger.warning("%s", said)


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with paths that mean the same from any folder."""
    changed: dict[str, Any] = {
        name: str(Path(value).absolute())
        for name in ("data", "test_data")
        if (value := getattr(recipe, name)) and is_path(value) and Path(value).exists()
    }
    return replace(recipe, **changed)


def augment_once(dataset: Dataset, recipe: Recipe) -> Dataset:
    """The images after the recipe's data augmentation, sampled once."""
    if not recipe.augmentation:
        return dataset
    generator = torch.Generator().manual_seed(recipe.seed)
    changed = augment(dataset.images.float(), recipe.augmentation, generator)
    return replace(dataset, images=changed.round().clamp(0, 255).to(torch.uint8))


def require_training_memory(recipe: Recipe, images: int, options: Mapping[str, Any]) -> None:
    """Refuse a model whose training step does not fit into memory, before any of it is taken."""
    needed = training_bytes(recipe.model, images, **options)
    if needed is not None:
        what = f"{recipe.model}: training steps with {images} images"
        require_memory(needed, what, "give a smaller --batch-size, --micro-batch, --image-size or network")


def build_model(
    recipe: Recipe,
    splits: Splits,
    network: nn.Module | None = None,
    *,
    images_per_step: int | None = None,
) -> Any:
    """The recipe's model, for these images, with weights that depend on the seed alone; or a user's own network.

    With `images_per_step`, a model that would not fit into the memory of this machine is refused.
    """
    from_data: dict[str, Any] = {
        "image_size": splits.train.image_size,
        "channels": splits.train.channels,
        "classes": len(splits.train.class_names),
    }
    if isinstance(network, Model):
        different = {name: value for name, value in from_data.items() if network.config.get(name, value) != value}
        if different:
            raise ArcapsError(f"the {network.name} does not fit {splits.train.name}: give it {different}")
        model = network
    elif network is not None:
        model = OwnNetwork(network, **from_data)
    else:
        known = option_names(Model.find(recipe.model))
        fitting = {name: value for name, value in from_data.items() if name in known}
        if images_per_step is not None:
            images = min(images_per_step, len(splits.train))
            require_training_memory(recipe, images, {**fitting, **recipe.options})
        torch.manual_seed(recipe.seed)
        model = create_model(recipe.model, **fitting, **recipe.options)
    model.class_names = list(splits.train.class_names)
    model.preprocessing = splits.train.preprocessing
    return model
