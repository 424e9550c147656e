"""What a run works with: its images, and the model that fits them."""

import os
from dataclasses import dataclass, replace

import torch

from arcaps.data import Dataset, augment, load_data
from arcaps.errors import ArcapsError
from arcaps.models import Classifier, create_model
from arcaps.settings import Recipe


@dataclass(frozen=True)
class Images:
    """What a run works with."""

    train: Dataset
    validation: Dataset
    """To choose the best epoch by."""
    test: Dataset
    """Met once, at the end."""
    test_validation: Dataset | None = None
    """Where the test images are of another kind: validation images of that kind. The paper chooses by them; we only
    report what that choice would have given."""


def prepare_images(recipe: Recipe, data_dir: str | os.PathLike[str] | None) -> Images:
    """The recipe's images: fetched, split, and as large as the model's."""
    if not recipe.data:
        raise ArcapsError(f"recipe {recipe.name} needs to know where your images are: give --data FOLDER")
    train, validation, test = load_data(
        recipe.data,
        image_size=recipe.image_size,
        channels=recipe.channels,
        fit=recipe.fit,
        invert=recipe.invert,
        data_dir=data_dir,
        seed=recipe.seed,
    )
    if train is None:
        raise ArcapsError(f"{recipe.data} has no images to train on")
    if validation is None:
        train, validation = train.split(recipe.validation, seed=recipe.seed)
    if recipe.limit is not None:
        train = train.take(torch.arange(min(recipe.limit, len(train))))
    if not recipe.test_data:
        return Images(train, validation, test)
    _, test_validation, test = load_data(
        recipe.test_data, preprocessing=train.preprocessing, data_dir=data_dir, seed=recipe.seed
    )
    if test_validation is not None:
        test_validation = test_validation.take(torch.arange(0, len(test_validation), 32))  # one version of each digit
    return Images(train, change(validation, recipe), test, test_validation)


def change(dataset: Dataset, recipe: Recipe) -> Dataset:
    """The images under the random changes of the training images, drawn once."""
    if not recipe.augmentation:
        return dataset
    generator = torch.Generator().manual_seed(recipe.seed)
    changed = augment(dataset.images.float(), recipe.augmentation, generator)
    return replace(dataset, images=changed.round().clamp(0, 255).to(torch.uint8))


def build_model(recipe: Recipe, images: Images) -> Classifier:
    """The recipe's model, for these images, with weights that depend on the seed alone."""
    torch.manual_seed(recipe.seed)
    model = create_model(
        recipe.model,
        image_size=images.train.image_size,
        channels=images.train.channels,
        classes=len(images.train.class_names),
        **recipe.options,
    )
    model.class_names = list(images.train.class_names)
    model.preprocessing = images.train.preprocessing
    return model
