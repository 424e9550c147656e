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
    limit: int | None = None
    """Use no more training images than this."""
    average: float = 0.0
    """Validate and keep a moving average of the weights, with this decay per step; 0 is without."""
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

MODERN: dict[str, Any] = {
    "optimiser": "adamw",
    "learning_rate": 3e-3,
    "schedule": "one_cycle",
    "weight_decay": 0.01,
    "average": 0.999,
}
CIFAR_CHANGES: dict[str, Any] = {"shift": 0.1, "rotation": 20.0, "flip": True}
DIGIT_CHANGES: dict[str, Any] = {"shift": 0.1, "rotation": 15.0, "scale": 0.1, "shear": 0.1}
OURS: dict[str, Any] = {"class_activation": "capsule(across=True)", "batch_norm_momentum": 0.1}
AUTHORS: dict[str, Any] = {"layout": "code"}
SMALL: dict[str, Any] = {"batch_size": 50, "options": {**OURS, "dim": 16, "stem_channels": 32}}
PAPER = (
    Recipe("mnist", "the paper's MNIST", "mnist"),
    Recipe("mnist+", "the paper's MNIST, with shifts", "mnist", shift=0.1),
    Recipe(
        "affnist",
        "the paper's affNIST: trained on shifted MNIST, tested on affNIST (regenerated)",
        "mnist",
        test_data="affnist-regenerated",
        frame=40,
        options={"dim": 16},
        shift=0.2,
    ),
    Recipe("cifar10", "the paper's CIFAR-10", "cifar10", options={"layers": 4}, epochs=200, halve_after=50),
    Recipe(
        "cifar10+",
        "the paper's CIFAR-10, augmented",
        "cifar10",
        options={"layers": 4},
        **CIFAR_CHANGES,
        epochs=200,
        halve_after=50,
    ),
)


def as_in_the_code(recipe: Recipe) -> Recipe:
    """The paper's recipe with the class layer of the authors' published code."""
    options = {**recipe.options, **AUTHORS}
    about = f"{recipe.about}, with the class layer of the authors' code"
    return dataclasses.replace(recipe, name=f"{recipe.name}-authors", about=about, options=options)


def our_variant(recipe: Recipe, options: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    """Our variant of the paper's recipe: fewer epochs, another optimiser, a class layer that sees all channels."""
    merged = {**recipe.options, **OURS, **(options or {})}
    about = f"our variant of {recipe.name}: better in fewer epochs"
    return dataclasses.replace(recipe, name=f"{recipe.name}-fast", about=about, options=merged, **MODERN, **changes)


MNIST, MNIST_PLUS, AFFNIST, CIFAR, CIFAR_PLUS = PAPER

RECIPES = {
    recipe.name: recipe
    for recipe in (
        *PAPER,
        *map(as_in_the_code, PAPER),
        our_variant(MNIST, epochs=8),
        our_variant(MNIST_PLUS, **DIGIT_CHANGES, epochs=12),
        our_variant(AFFNIST, {"layers": 3, "strides": (2, 2, 1)}, epochs=12),
        our_variant(CIFAR, epochs=30, halve_after=None),
        our_variant(CIFAR_PLUS, epochs=30, halve_after=None),
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
