"""Training: recipes, the loop, run folders, evaluation, prediction."""

from arcaps.models import Evaluation, Prediction
from arcaps.settings import Recipe
from arcaps.training.api import train
from arcaps.training.evaluate import evaluate
from arcaps.training.inference import OpenedRun, open_run, predict
from arcaps.training.loop import Stopped
from arcaps.training.recipes import RECIPES, find_recipe, register_recipe
from arcaps.training.run import Result, Run

__all__ = [
    "RECIPES",
    "Evaluation",
    "OpenedRun",
    "Prediction",
    "Recipe",
    "Result",
    "Run",
    "Stopped",
    "evaluate",
    "find_recipe",
    "open_run",
    "predict",
    "register_recipe",
    "train",
]
