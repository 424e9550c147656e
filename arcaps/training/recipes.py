"""Recipes: every setting of an experiment, in one frozen object."""

import dataclasses
from dataclasses import dataclass, field
from math import cos, pi
from typing import Any, Literal

from arcaps.data import Augmentation
from arcaps.errors import ArcapsError
from arcaps.models import Classifier
from arcaps.registry import option_names, unknown

Optimiser = Literal["rmsprop", "adamw", "sgd"]
Schedule = Literal["inverse", "one_cycle", "cosine", "constant"]


@dataclass(frozen=True)
class Recipe:
    """An experiment: data, model, optimiser and how long. The defaults are the paper's."""

    name: str
    about: str
    data: str
    """A data set's name, or a folder of images."""
    test_data: str | None = None
    """Another data set to test on."""
    frame: int | None = None
    """Put the images into a black frame of this side."""
    model: str = "ar_capsnet"
    options: dict[str, Any] = field(default_factory=dict)
    """The model's own settings, where they are not its defaults."""
    epochs: int = 20
    batch_size: int = 100
    """Of all processes together."""
    optimiser: Optimiser = "rmsprop"
    learning_rate: float = 1e-3
    """The greatest one: a schedule goes down from it."""
    schedule: Schedule = "inverse"
    decay: float = 1e-4
    """Of the inverse schedule: the rate is divided by 1 + decay * step."""
    halve_after: int | None = None
    """From this epoch on the rate is halved."""
    weight_decay: float = 0.0
    rotation: float = 0.0
    """Augmentation: degrees, either way."""
    shift: float = 0.0
    """Augmentation: a part of the image's side, either way."""
    scale: float = 0.0
    """Augmentation: a factor from 1 - scale to 1 + scale."""
    shear: float = 0.0
    """Augmentation: the shear, either way."""
    flip: bool = False
    """Augmentation: mirror every second image, left to right."""
    validation: float = 0.1
    """The part of the training images that is held out, to choose the best epoch."""
    seed: int = 0
    """Of the weights, the split, the order, the augmentation and the dropout."""

    def __post_init__(self) -> None:
        least = {"epochs": 1, "batch_size": 1, "learning_rate": 0.0}
        for name, limit in least.items():
            if getattr(self, name) < limit:
                raise ArcapsError(f"{name} is {getattr(self, name)}: give at least {limit}")

    @property
    def augmentation(self) -> Augmentation | None:
        """The random changes of the training images, if there are any."""
        if not any((self.rotation, self.shift, self.scale, self.shear, self.flip)):
            return None
        return Augmentation(self.rotation, self.shift, self.scale, self.shear, self.flip)

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of a step; steps count from 0."""
        progress = step / (self.epochs * steps_per_epoch)
        rate = self.learning_rate
        if self.schedule == "inverse":
            rate /= 1 + self.decay * step
        elif self.schedule == "cosine":
            rate *= (1 + cos(pi * progress)) / 2
        elif self.schedule == "one_cycle":
            warm = 0.2
            rate *= progress / warm if progress < warm else (1 + cos(pi * (progress - warm) / (1 - warm))) / 2
        if self.halve_after is not None and step >= self.halve_after * steps_per_epoch:
            rate /= 2
        return rate


FROM_THE_DATA = ("image_size", "channels", "classes")
FIELDS = {field.name for field in dataclasses.fields(Recipe)} - {"name", "about", "options"}

MODERN: dict[str, Any] = {"optimiser": "adamw", "learning_rate": 3e-3, "schedule": "one_cycle", "weight_decay": 0.01}
CIFAR: dict[str, Any] = {"data": "cifar10", "options": {"layers": 4}}
CIFAR_CHANGES: dict[str, Any] = {"shift": 0.1, "rotation": 20.0, "flip": True}
DIGIT_CHANGES: dict[str, Any] = {"shift": 0.1, "rotation": 15.0, "scale": 0.1, "shear": 0.1}
SMALL: dict[str, Any] = {"batch_size": 50, "options": {"dim": 16, "stem_channels": 32}}
AFFNIST: dict[str, Any] = {
    "data": "mnist",
    "test_data": "affnist-regenerated",
    "frame": 40,
    "options": {"dim": 16},
    "shift": 0.2,
}

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("mnist", "the paper's MNIST", "mnist"),
        Recipe("mnist+", "the paper's MNIST, with shifts", "mnist", shift=0.1),
        Recipe("affnist", "the paper's affNIST: trained on shifted MNIST, tested on affNIST (regenerated)", **AFFNIST),
        Recipe("cifar10", "the paper's CIFAR-10", **CIFAR, epochs=200, halve_after=50),
        Recipe("cifar10+", "the paper's CIFAR-10, augmented", **CIFAR, **CIFAR_CHANGES, epochs=200, halve_after=50),
        Recipe("mnist-fast", "MNIST in fewer epochs, by today's practice", "mnist", **MODERN, epochs=8),
        Recipe("mnist+-fast", "the same, augmented", "mnist", **MODERN, **DIGIT_CHANGES, epochs=12),
        Recipe("affnist-fast", "affNIST (regenerated) in fewer epochs", **AFFNIST, **MODERN, epochs=12),
        Recipe("cifar10-fast", "CIFAR-10 in fewer epochs, by today's practice", **CIFAR, **MODERN, epochs=40),
        Recipe("cifar10+-fast", "the same, augmented", **CIFAR, **CIFAR_CHANGES, **MODERN, epochs=60),
        Recipe("fashion", "Fashion-MNIST, as the paper does MNIST, with flips", "fashion-mnist", shift=0.05, flip=True),
        Recipe("digits", "the embedded digits, in minutes", "digits", **MODERN, **DIGIT_CHANGES, **SMALL, epochs=8),
        Recipe("folder", "images of your own: give --data", "", **MODERN, **DIGIT_CHANGES, epochs=30),
    )
}


def find_recipe(name: str, **overrides: Any) -> Recipe:
    """A recipe by name, with other values for some of its fields, or for its model's options."""
    if name not in RECIPES:
        raise unknown("recipe", name, list(RECIPES))
    return override(RECIPES[name], **overrides)


def override(recipe: Recipe, **overrides: Any) -> Recipe:
    """A recipe with other values for some of its fields, or for its model's options."""
    fields = {key: value for key, value in overrides.items() if key in FIELDS}
    options = {key: value for key, value in overrides.items() if key not in FIELDS}
    if fields.get("model", recipe.model) != recipe.model:
        recipe = dataclasses.replace(recipe, options={})  # another model has other options
    recipe = dataclasses.replace(recipe, **fields)
    known = [name for name in option_names(Classifier.find(recipe.model)) if name not in FROM_THE_DATA]
    for name in options:
        if name in FROM_THE_DATA:
            raise ArcapsError(f"{name} comes from the data: leave it out")
        if name not in known:
            raise unknown("setting", name, sorted({*FIELDS, *known}))
    return dataclasses.replace(recipe, options={**recipe.options, **options})
