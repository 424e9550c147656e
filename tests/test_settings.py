"""Settings: one place, checked where they are made, and everything else made from them."""

import math
from typing import Any

import pytest

from arcaps import ArcapsError, Recipe
from arcaps.cli.options import AugmentationFlags, RecipeFlags
from arcaps.fields import Options, field_docs, field_types
from arcaps.settings import Augmentation
from arcaps.training.recipes import RECIPES, override, read_recipe

NOT_FLAGS = {"name", "about", "options", "augmentation"}


@pytest.mark.parametrize(("flags", "settings"), [(RecipeFlags, Recipe), (AugmentationFlags, Augmentation)])
def test_every_field_is_a_flag_and_every_flag_a_field(flags: Any, settings: type) -> None:
    assert set(flags.__annotations__) == set(field_types(settings)) - NOT_FLAGS
    for name, flag in flags.__annotations__.items():
        assert flag.__metadata__[0].help == field_docs(settings)[name]


@pytest.mark.parametrize("settings", [Recipe, Augmentation])
def test_every_field_has_a_docstring(settings: type) -> None:
    assert field_docs(settings).keys() == field_types(settings).keys()
    assert all(text.endswith(".") for text in field_docs(settings).values())


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_a_recipe_can_be_hashed_and_stored(recipe: Recipe) -> None:
    assert Recipe.from_dict(recipe.as_dict()) == recipe
    assert hash(Recipe.from_dict(recipe.as_dict())) == hash(recipe)


def test_options_are_a_mapping_that_stays_as_it_is() -> None:
    options = Options({"strides": [2, 2]}, dim=16)
    assert options == {"strides": (2, 2), "dim": 16}
    assert hash(options) == hash(Options(dim=16, strides=(2, 2)))
    with pytest.raises(TypeError):
        options["dim"] = 8  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("schedule", "cosin", "unknown schedule 'cosin': did you mean 'cosine'"),
        ("optimiser", "adam", "unknown optimiser 'adam': did you mean 'adamw'"),
        ("border", "black", "unknown border 'black'"),
        ("epochs", 0, "epochs is 0: give at least 1"),
        ("epochs", 2.5, "epochs is 2.5: give a whole number"),
        ("epochs", True, "epochs is True: give a whole number"),
        ("epochs", "3", "epochs is '3': give a whole number"),
        ("epochs", 10**9, "epochs is 1000000000: give at most 1e"),
        ("batch_size", -1, "batch_size is -1: give at least 1"),
        ("learning_rate", math.nan, "learning_rate is nan: give a number"),
        ("learning_rate", math.inf, "learning_rate is inf: give a number"),
        ("learning_rate", -1e-3, "learning_rate is -0.001: give at least 0"),
        ("learning_rate", 1e30, "learning_rate is 1e.30: give at most 1000"),
        ("weight_decay", None, "weight_decay is None: give a number"),
        ("decay", "much", "decay is 'much': give a number"),
        ("rotation", 720, "rotation is 720.0: give at most 180"),
        ("scale", 1.5, "scale is 1.5: give at most 0.95"),
        ("flip", 1, "flip is 1: give True or False"),
        ("validation", 1.0, "validation is 1.0: give at most 0.9"),
        ("validation", 0, "validation is 0.0: give at least"),
        ("average", 1.0, "average is 1.0: give at most"),
        ("seed", -1, "seed is -1: give at least 0"),
        ("image_size", (28, 28, 3), "image_size has 3 values"),
        ("image_size", "large", "image_size is 'large': give two whole numbers"),
        ("image_size", (0, 28), "image_size is 0: give at least 1"),
        ("data", 3, "data is 3: give text"),
        ("patience", 0, "patience is 0: give at least 1"),
        ("fit", "crop", "unknown fit 'crop'"),
        ("augmentation", {"turn": 3}, "unknown field of the augmentation 'turn'"),
        ("augmentation", 3, "augmentation is 3"),
    ],
)
def test_wrong_values_are_refused_where_they_are_made(name: str, value: Any, message: str) -> None:
    with pytest.raises(ArcapsError, match=message):
        override(RECIPES["digits"], **{name: value})


def test_values_are_converted_where_it_is_clear() -> None:
    recipe = override(RECIPES["digits"], learning_rate=1, image_size=32, data="x")
    assert (recipe.learning_rate, recipe.image_size) == (1.0, (32, 32))
    assert isinstance(recipe.learning_rate, float)


def test_a_recipe_of_version_0_1() -> None:
    stored = {
        "name": "affnist",
        "about": "",
        "data": "mnist",
        "frame": 40,
        "options": {"strides": [2, 1]},
        "shift": 0.2,
        "rotation": 0.0,
        "scale": 0.0,
        "shear": 0.0,
        "flip": False,
        "epochs": 3,
    }
    recipe = read_recipe(stored)
    assert (recipe.image_size, recipe.fit) == ((40, 40), "pad")
    assert recipe.augmentation == Augmentation(shift=0.2)
    assert recipe.options == {"strides": (2, 1)}
    with pytest.raises(ArcapsError, match="unknown field of the recipe 'epoch': did you mean 'epochs'"):
        read_recipe({**stored, "epoch": 3})
    with pytest.raises(ArcapsError, match="the recipe is None"):
        read_recipe(None)
    with pytest.raises(ArcapsError, match="the recipe has no data"):
        read_recipe({"name": "x", "about": ""})
