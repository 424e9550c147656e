"""Training: recipes, the loop, run folders, evaluation."""

from arcaps.models import Evaluation
from arcaps.settings import Recipe
from arcaps.training.api import train
from arcaps.training.evaluate import evaluate
from arcaps.training.loop import Stopped
from arcaps.training.recipes import RECIPES, find_recipe, register_recipe
from arcaps.training.run import Run

__all__ = ["RECIPES", "Evaluation", "Recipe", "Run", "Stopped", "evaluate", "find_recipe", "register_recipe", "train"]
