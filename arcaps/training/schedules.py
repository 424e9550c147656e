"""Learning rate schedules: pure functions of the step, so that a resumed run needs no state of theirs.

Each gives the learning rate of a `step`, counted from 0; `progress` is the part of all steps that is done, from 0 to 1.
"""

from collections.abc import Callable
from math import cos, pi

from arcaps.settings import Recipe


def constant(recipe: Recipe, step: int, progress: float) -> float:
    """The same learning rate throughout."""
    return recipe.learning_rate


def inverse(recipe: Recipe, step: int, progress: float) -> float:
    """learning_rate / (1 + decay * step): the paper's."""
    return recipe.learning_rate / (1 + recipe.decay * step)


def cosine(recipe: Recipe, step: int, progress: float) -> float:
    """From the largest learning rate to 0 along half a cosine."""
    return recipe.learning_rate * ((1 + cos(pi * progress)) / 2)


def one_cycle(recipe: Recipe, step: int, progress: float) -> float:
    """From 0 up in a straight line during the warm-up, then down to 0 along half a cosine."""
    warm = recipe.warm_up
    if progress < warm:
        return recipe.learning_rate * (progress / warm)
    return recipe.learning_rate * ((1 + cos(pi * (progress - warm) / (1 - warm))) / 2)


SCHEDULES: dict[str, Callable[[Recipe, int, float], float]] = {
    "constant": constant,
    "inverse": inverse,
    "cosine": cosine,
    "one_cycle": one_cycle,
}


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """The learning rate of a step by the recipe's schedule, halved from the epoch that the recipe names."""
    rate = SCHEDULES[recipe.schedule](recipe, step, step / (recipe.epochs * steps_per_epoch))
    if recipe.halve_after is not None and step >= recipe.halve_after * steps_per_epoch:
        rate /= 2
    return rate
