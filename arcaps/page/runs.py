"""What a run folder adds to its model's page: examples, accuracy, augmentation."""

from pathlib import Path
from typing import Any

from arcaps.models import Classifier
from arcaps.page.card import Facts
from arcaps.settings import Recipe
from arcaps.training.inference import choose_data
from arcaps.training.run import Run
from arcaps.weights import how_made, is_pretrained


def page_options(
    path: Path, model: Classifier, *, data: str | None = None, data_dir: str | None = None
) -> dict[str, Any]:
    """The options `examples` and `facts` of `page_files`, for a run folder, a pretrained model, or a file with data.

    A model file alone gives neither: its page has no examples.
    """
    if path.is_file() and data is None:
        return {}
    if data is not None:
        return {"examples": choose_data(path, model, data, data_dir).test, "facts": Facts(data=data)}
    examples_from = None
    if is_pretrained(path):
        made = how_made(str(path))
        recipe, accuracy, tested = Recipe.from_dict(made["recipe"]), made["accuracy"], made["tested"]
        if recipe.data.strip("+") == "mnist":  # some of its test images are in the package: nothing has to be fetched
            examples_from = "arcaps:digits"
    else:
        run = Run.open(path)
        test = run.result.test if run.result is not None else {}
        recipe, accuracy, tested = run.recipe, test.get("accuracy"), test.get("count", 0)
    facts = Facts(
        data=recipe.test_data or recipe.data,
        accuracy=accuracy,
        tested=tested,
        rotation=recipe.augmentation.rotation,
        shift=recipe.augmentation.shift,
    )
    return {"examples": choose_data(path, model, examples_from, data_dir).test, "facts": facts}
