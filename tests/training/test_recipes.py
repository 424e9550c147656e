"""The recipes against the paper's protocol."""

import dataclasses
import logging

import pytest
import torch

from arcaps import ArcapsError, create_model
from arcaps.data import Data, load_data
from arcaps.training import RECIPES, find_recipe
from arcaps.training.api import choose_recipe
from arcaps.training.leaderboard import LEADERBOARDS
from arcaps.training.loop import OPTIMISERS
from arcaps.training.schedules import learning_rate
from arcaps.training.splits import build_model, load_splits

BOARDS = ["mnist-2000", "affnist-10000", "cifar10-small"]
PAPER = ["mnist", "mnist+", "affnist", "cifar10", "cifar10+"]


def test_there_is_a_recipe_for_every_experiment() -> None:
    variants = {f"{name}-{variant}" for name in PAPER for variant in ("authors", "fast")}
    assert set(RECIPES) == {*PAPER, *variants, "fashion", "digits", "folder", *BOARDS}
    assert set(BOARDS) == {board.name for board in LEADERBOARDS}


@pytest.mark.parametrize("name", PAPER)
def test_the_authors_layout_is_all_that_differs(name: str) -> None:
    paper, authors = RECIPES[name], RECIPES[f"{name}-authors"]
    same = dataclasses.replace(authors, name=paper.name, about=paper.about, options=paper.options)
    assert same == paper
    assert authors.options == {**paper.options, "layout": "code"}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_protocol(name: str) -> None:
    recipe = RECIPES[name]
    assert (recipe.optimiser, recipe.learning_rate, recipe.batch_size) == ("rmsprop", 1e-3, 100)
    assert (recipe.schedule, recipe.decay, recipe.validation) == ("inverse", 1e-4, 0.1)
    assert recipe.epochs == (200 if "cifar" in name else 20)
    assert recipe.halve_after == (50 if "cifar" in name else None)
    changes = {"mnist+": (0, 0.1, False), "affnist": (0, 0.2, False), "cifar10+": (20, 0.1, True)}
    augmentation = recipe.augmentation
    assert (augmentation.rotation, augmentation.shift, augmentation.flip) == changes.get(name, (0, 0, False))
    assert augmentation.scale == augmentation.shear == recipe.weight_decay == 0
    count = {"mnist": 5_312_784, "affnist": 3_501_088, "cifar10": 9_566_592}[name.removesuffix("+")]
    size = {"mnist": 28, "affnist": 40, "cifar10": 32}[name.removesuffix("+")]
    with torch.device("meta"):
        model = create_model(recipe.model, image_size=size, channels=3 if "cifar" in name else 1, **recipe.options)
    assert model.parameter_count(statistics=True) == count


def test_the_papers_optimiser() -> None:
    """RMSprop with rho 0.9 and epsilon 1e-8, by hand for two steps."""
    weight = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimiser = OPTIMISERS["rmsprop"]([weight], 0.0)
    optimiser.param_groups[0]["lr"] = 0.1
    value, square = 1.0, 0.0
    for gradient in (0.5, -2.0):
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimiser.step()
        square = 0.9 * square + 0.1 * gradient**2
        value -= 0.1 * gradient / (square**0.5 + 1e-8)
        assert weight.item() == pytest.approx(value, rel=1e-12)


def test_the_papers_learning_rate() -> None:
    recipe = RECIPES["mnist"]
    for step in (0, 1, 540, 10_799):
        assert learning_rate(recipe, step, 540) == pytest.approx(1e-3 / (1 + 1e-4 * step))
    cifar = RECIPES["cifar10"]
    assert learning_rate(cifar, 50 * 450 - 1, 450) == pytest.approx(1e-3 / (1 + 1e-4 * (50 * 450 - 1)))
    assert learning_rate(cifar, 50 * 450, 450) == pytest.approx(0.5e-3 / (1 + 1e-4 * 50 * 450))


def test_the_other_schedules() -> None:
    cycle = find_recipe("digits", epochs=10, learning_rate=1.0)
    rates = [learning_rate(cycle, step, 10) for step in range(100)]
    assert rates[0] == 0
    assert max(rates) == rates[20] == 1
    assert rates[99] < 0.01
    assert rates[:21] == sorted(rates[:21])
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert learning_rate(
        find_recipe("digits", schedule="cosine", learning_rate=1.0, epochs=2), 10, 10
    ) == pytest.approx(0.5)
    assert learning_rate(find_recipe("digits", schedule="constant", learning_rate=0.3), 77, 10) == 0.3


def test_overrides() -> None:
    recipe = find_recipe("digits", epochs=3, dim=8, routing="dynamic")
    assert recipe.epochs == 3
    assert recipe.options == {**RECIPES["digits"].options, "dim": 8, "routing": "dynamic"}
    assert find_recipe("digits", model="conv_net").options == {}
    with pytest.raises(ArcapsError, match="unknown recipe 'minst': did you mean 'mnist'"):
        find_recipe("minst")
    with pytest.raises(ArcapsError, match="unknown setting 'epoch': did you mean 'epochs'"):
        find_recipe("digits", epoch=3)
    with pytest.raises(ArcapsError, match="unknown setting 'layers'"):
        find_recipe("digits", model="conv_net", layers=3)
    with pytest.raises(ArcapsError, match="classes comes from the data"):
        find_recipe("digits", classes=3)
    with pytest.raises(ArcapsError, match="epochs is 0: give at least 1"):
        find_recipe("digits", epochs=0)


def test_images_of_a_run() -> None:
    images = load_splits(find_recipe("digits", image_size=32, fit="pad"))
    assert len(images.train) == 4500
    assert len(images.validation) == 500
    assert len(images.test) == 1000
    assert images.test.image_size == (32, 32)
    model = build_model(find_recipe("digits", dim=4), images)
    assert model.image_size == (32, 32)
    again = build_model(find_recipe("digits", dim=4), images)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))
    with pytest.raises(ArcapsError, match="give --data FOLDER"):
        load_splits(RECIPES["folder"])


def test_images_from_memory_come_to_the_recipes_size() -> None:
    digits = load_data("digits")
    assert digits.train is not None
    recipe = find_recipe("digits", image_size=40, fit="pad", channels=3, invert=True)
    found, expected = load_splits(recipe, given=digits), load_splits(recipe)
    for part in ("train", "validation", "test"):
        assert torch.equal(getattr(found, part).images, getattr(expected, part).images)
    assert found.train.preprocessing == expected.train.preprocessing
    larger = Data(digits.train, None, digits.test.pad((40, 40)))
    with pytest.raises(ArcapsError, match=r"digits, train has images of 1x28x28, .* of 1x40x40: give image_size"):
        load_splits(find_recipe("digits"), given=larger)
    assert load_splits(find_recipe("digits", image_size=40, fit="pad"), given=larger).train.image_size == (40, 40)


def test_options_that_another_model_drops_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="arcaps"):
        choose_recipe("digits", {"model": "conv_net"})
    dropped = "options batch_norm_momentum, dim, stem_channels for ar_capsnet, dropped with model conv_net"
    assert caplog.messages == [f"recipe digits: {dropped}"]
    caplog.clear()
    choose_recipe("digits", {"dim": 8})
    assert not caplog.messages
