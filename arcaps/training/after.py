"""What is done with a trained model: evaluate it, predict with it, join several."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from arcaps.data import Data, load_data
from arcaps.errors import ArcapsError
from arcaps.image_files import list_images
from arcaps.models import Classification, Classifier, load
from arcaps.training.distributed import choose_device
from arcaps.training.evaluate import choose_precision, class_scores, tally
from arcaps.training.images import prepare_images
from arcaps.training.run import Run


def open_model(path: Path) -> Classifier:
    """The model of a run folder, or of a file."""
    if path.is_file():
        return load(path)
    run = Run.open(path)
    model = run.model()
    if run.recipe.fit == "pad":  # model files of version 0.1 do not say so
        model.preprocessing = replace(model.preprocessing, fit="pad")
    return model


def choose_data(path: Path, model: Classifier, data: str | None, data_dir: str | None) -> Data:
    """The data set asked for, as the model's preprocessing makes it; or what the run was made with."""
    if data is None:
        if path.is_file():
            raise ArcapsError(f"{path} does not say what it was tested on: give --data")
        images = prepare_images(Run.open(path).recipe, data_dir)
        return Data(images.train, images.validation, images.test)
    return load_data(data, preprocessing=model.preprocessing, data_dir=data_dir)


def evaluate_run(
    path: Path,
    *,
    data: str | None = None,
    part: str = "test",
    precision: str = "auto",
    data_dir: str | None = None,
) -> Classification:
    """Test a run's model on a part of a data set."""
    device = choose_device("auto")
    model = open_model(path).to(device)
    parts = choose_data(path, model, data, data_dir)
    dataset = parts._asdict()[part]
    if dataset is None:
        raise ArcapsError(f"{data} has no {part} part")
    return tally(dataset, class_scores(model, dataset, precision=choose_precision(precision, device)).argmax(-1))


def evaluate_ensemble(
    paths: list[Path], *, data: str | None = None, data_dir: str | None = None
) -> tuple[dict[Path, Classification], Classification]:
    """Test models one by one, and all together by the mean of their scores."""
    device = choose_device("auto")
    dataset = None
    members = {}
    total = torch.zeros(())
    for path in paths:
        model = open_model(path).to(device)
        if dataset is None:
            dataset = choose_data(path, model, data, data_dir).test
        scores = class_scores(model, dataset)
        members[path] = tally(dataset, scores.argmax(-1))
        total = total + scores / len(paths)
    assert dataset is not None
    return members, tally(dataset, total.argmax(-1))


@torch.no_grad()
def predict_files(path: Path, images: list[Path]) -> list[dict[str, Any]]:
    """The class of each image file, or of each in a folder, with the score of every class."""
    model = open_model(path).for_inference()
    files = [file for image in images for file in (list_images(image) if image.is_dir() else [image])]
    if not files:
        raise ArcapsError(f"there are no image files in {', '.join(map(str, images))}")
    predictions = []
    for file in files:
        scores = model(model.preprocessing.prepare(file)).scores[0].tolist()
        best = max(range(len(scores)), key=scores.__getitem__)
        named = dict(zip(model.class_names, scores, strict=True))
        predictions.append({"file": str(file), "class": model.class_names[best], "scores": named})
    return predictions
