"""The recipes, by name, and how to change them."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from arcaps.errors import ArcapsError
from arcaps.fields import Options, field_types
from arcaps.models import Model
from arcaps.registry import option_names, unknown
from arcaps.settings import FROM_THE_DATA, Augmentation, Recipe

NOT_FOR_OVERRIDES = ("name", "about", "options")
FIELDS = [name for name in field_types(Recipe) if name not in (*NOT_FOR_OVERRIDES, "augmentation")]
CHANGES = list(field_types(Augmentation))

MODERN: dict[str, Any] = {
    "optimiser": "adamw",
    "learning_rate": 3e-3,
    "schedule": "one_cycle",
    "weight_decay": 0.01,
    "average": 0.999,
}
CIFAR_CHANGES = Augmentation(shift=0.1, rotation=20.0, flip=True)
DIGIT_CHANGES = Augmentation(shift=0.1, rotation=15.0, scale=0.1, shear=0.1)
OURS: dict[str, Any] = {"layout": "code", "batch_norm_momentum": 0.1}
HALF: dict[str, Any] = {"dim": 16, "stem_channels": 32}
STAGED: dict[str, Any] = {
    **HALF,
    "stages": (64,),
    "strides": (1,),
    "activation": "capsule(norm=True)",
    "class_activation": "capsule",
}
"""A residual stage before the capsules, and BatchNorm in all capsule layers but the last."""
POOLED: dict[str, Any] = {**STAGED, "stages": (64, 128), "head": "pooled", "layout": "text"}
"""Two stages, and a class layer whose votes all positions share."""
DEEPLY_STAGED: dict[str, Any] = {**STAGED, "stages": (96, 192), "strides": (1, 1, 1, 1), "dropout": 0.1}
AUTHORS: dict[str, Any] = {"layout": "code"}
SMALL: dict[str, Any] = {"batch_size": 50, "options": Options(HALF, batch_norm_momentum=0.1)}
LITTLE: dict[str, Any] = {
    **MODERN,
    "batch_size": 50,
    "options": Options(batch_norm_momentum=0.1, dim=8, primary_dim=8, stem_channels=16, decoder=False),
}
"""A network so small that many routings can be compared in it."""
PAPER = (
    Recipe("mnist", "the paper's MNIST", "mnist"),
    Recipe("mnist+", "the paper's MNIST, with shifts", "mnist", augmentation=Augmentation(shift=0.1)),
    Recipe(
        "affnist",
        "the paper's affNIST: trained on shifted MNIST, tested on affNIST (regenerated)",
        "mnist",
        test_data="affnist-regenerated",
        image_size=(40, 40),
        fit="pad",
        options=Options(dim=16),
        augmentation=Augmentation(shift=0.2),
    ),
    Recipe("cifar10", "the paper's CIFAR-10", "cifar10", options=Options(layers=4), epochs=200, halve_after=50),
    Recipe(
        "cifar10+",
        "the paper's CIFAR-10, augmented",
        "cifar10",
        options=Options(layers=4),
        augmentation=CIFAR_CHANGES,
        epochs=200,
        halve_after=50,
    ),
)


def as_in_the_code(recipe: Recipe) -> Recipe:
    """The paper's recipe with the class layer of the authors' published code."""
    options = Options(recipe.options, **AUTHORS)
    about = f"{recipe.about}, with the class layer of the authors' code"
    return dataclasses.replace(recipe, name=f"{recipe.name}-authors", about=about, options=options)


def our_variant(recipe: Recipe, options: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    """Our variant of the paper's recipe: fewer epochs, another optimiser, the class layer of the authors' code."""
    merged = Options({**recipe.options, **OURS, **(options or {})})
    about = f"our variant of {recipe.name}, in fewer epochs"
    fields: dict[str, Any] = {**MODERN, **changes, "options": merged}
    return dataclasses.replace(recipe, name=f"{recipe.name}-fast", about=about, **fields)


MNIST, MNIST_PLUS, AFFNIST, CIFAR, CIFAR_PLUS = PAPER

RECIPES = {
    recipe.name: recipe
    for recipe in (
        *PAPER,
        *map(as_in_the_code, PAPER),
        our_variant(MNIST, STAGED, epochs=14),
        our_variant(
            MNIST_PLUS,
            {**STAGED, "stages": (64, 128), "dropout": 0.25},
            augmentation=dataclasses.replace(DIGIT_CHANGES, elastic=0.05, augmented=0.5),
            epochs=20,
        ),
        our_variant(AFFNIST, POOLED, epochs=12),
        our_variant(CIFAR, DEEPLY_STAGED, weight_decay=0.05, epochs=30, halve_after=None),
        our_variant(
            CIFAR_PLUS,
            DEEPLY_STAGED,
            augmentation=Augmentation(shift=0.1, flip=True),
            weight_decay=0.05,
            epochs=36,
            halve_after=None,
        ),
        Recipe(
            "fashion",
            "Fashion-MNIST, as the paper does MNIST, with flips",
            "fashion-mnist",
            augmentation=Augmentation(shift=0.05, flip=True),
        ),
        Recipe(
            "digits",
            "the embedded digits, in minutes",
            "digits",
            **MODERN,
            **SMALL,
            augmentation=DIGIT_CHANGES,
            epochs=8,
        ),
        Recipe(
            "mnist-2000",
            "a small network, 2,000 training digits: a leaderboard of routings",
            "mnist",
            **LITTLE,
            validation=1 / 30,
            limit=2000,
            epochs=10,
        ),
        Recipe(
            "affnist-10000",
            "a small network, 10,000 shifted digits, tested on affNIST (regenerated): a leaderboard of routings",
            "mnist",
            test_data="affnist-small",
            image_size=(40, 40),
            fit="pad",
            **LITTLE,
            augmentation=Augmentation(shift=0.2),
            validation=1 / 30,
            limit=10000,
            epochs=4,
        ),
        Recipe(
            "cifar10-small",
            "a small network, 10,000 images of CIFAR-10 with flips and shifts: a leaderboard of routings",
            "cifar10",
            **LITTLE,
            augmentation=Augmentation(shift=0.1, flip=True),
            validation=0.04,
            limit=10000,
            epochs=3,
        ),
        Recipe(
            "folder",
            "images of your own, with --data FOLDER",
            "",
            **MODERN,
            batch_size=20,  # small folders need steps
            options=Options(batch_norm_momentum=0.1),
            augmentation=DIGIT_CHANGES,
            epochs=30,
        ),
    )
}


def register_recipe(recipe: Recipe) -> Recipe:
    """Make a recipe of your own known by its name, also to the command line (`--import your_module`)."""
    if RECIPES.get(recipe.name, recipe) != recipe:
        raise ArcapsError(f"there is a recipe {recipe.name!r} already: give yours another name")
    RECIPES[recipe.name] = recipe
    return recipe


def find_recipe(name: str, **overrides: Any) -> Recipe:
    """A recipe by name, with other values for some of its fields, or for its model's options."""
    if name not in RECIPES:
        if os.path.exists(name):  # noqa: PTH110 (Path.exists raises an error for a very long name)
            ways = f"for images of your own give  arcaps train folder --data {name};  to resume a run, --resume {name}"
            raise ArcapsError(f"{name} is not a recipe: {ways}")
        raise unknown("recipe", name, list(RECIPES))
    return override(RECIPES[name], **overrides)


def override(recipe: Recipe, **overrides: Any) -> Recipe:
    """A recipe with other values for some of its fields, those of its augmentation, or its model's options."""
    fields = {key: value for key, value in overrides.items() if key in (*FIELDS, "augmentation")}
    changes = {key: value for key, value in overrides.items() if key in CHANGES}
    options = {key: value for key, value in overrides.items() if key not in fields and key not in changes}
    if fields.get("model", recipe.model) != recipe.model:
        recipe = dataclasses.replace(recipe, options=Options())  # another model has other options
    recipe = dataclasses.replace(recipe, **fields)
    check_options(recipe.model, {**recipe.options, **options})
    augmentation = dataclasses.replace(recipe.augmentation, **changes)
    return dataclasses.replace(recipe, augmentation=augmentation, options=Options(recipe.options, **options))


def check_options(model: str, options: Mapping[str, Any]) -> None:
    """Refuse options that the model does not have."""
    known = [name for name in option_names(Model.find(model)) if name not in FROM_THE_DATA]
    for name in options:
        if name in FROM_THE_DATA:
            raise ArcapsError(f"{name} comes from the data: leave it out")
        if name not in known:
            raise unknown("setting", name, sorted({*FIELDS, *CHANGES, *known}))
    config = Model.find(model).config_class
    if config is not None:
        config(**options)  # refuses wrong values


def read_recipe(stored: object) -> Recipe:
    """The recipe that a run folder holds. Version 0.1 had no nested augmentation, and a frame in place of a size."""
    if isinstance(stored, Mapping) and "augmentation" not in stored:
        new = {key: value for key, value in stored.items() if key not in (*CHANGES, "frame")}
        new["augmentation"] = {key: value for key, value in stored.items() if key in CHANGES}
        if stored.get("frame"):
            new |= {"image_size": stored["frame"], "fit": "pad"}
        stored = new
    return Recipe.from_dict(stored)
