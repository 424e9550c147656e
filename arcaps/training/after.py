"""What is done with a trained model: evaluate it, predict with it, join several."""

from pathlib import Path
from typing import Any

import torch
from PIL import Image

from arcaps.data import Data, Dataset, load_data
from arcaps.data.folder import read_image
from arcaps.data.sources import Report
from arcaps.errors import ArcapsError
from arcaps.models import Classifier, load
from arcaps.training.distributed import choose_device
from arcaps.training.evaluate import Evaluation, choose_precision, class_scores, tally
from arcaps.training.images import prepare_images
from arcaps.training.run import Run


def open_model(path: Path) -> Classifier:
    """The model of a run folder, or of a file."""
    return load(path) if path.is_file() else Run.open(path).model()


def choose_data(path: Path, model: Classifier, data: str | None, data_dir: str | None, report: Report) -> Data:
    """The data set asked for, in a frame that fits the model; or what the run was made with."""
    if data is None:
        if path.is_file():
            raise ArcapsError(f"{path} does not say what it was tested on: give --data")
        images = prepare_images(Run.open(path).recipe, data_dir, report)
        return Data(images.train, images.validation, images.test)
    found = load_data(data, data_dir=data_dir, report=report)
    return Data(*(fit(part, model) for part in found))  # type: ignore[arg-type]


def fit(dataset: Dataset | None, model: Classifier) -> Dataset | None:
    """Put images that are smaller than the model's into its frame."""
    smaller = dataset is not None and all(a <= b for a, b in zip(dataset.image_size, model.image_size, strict=True))
    return dataset.pad(model.image_size) if smaller and dataset is not None else dataset


def evaluate_run(
    path: Path,
    *,
    data: str | None = None,
    part: str = "test",
    precision: str = "auto",
    data_dir: str | None = None,
    report: Report = print,
) -> Evaluation:
    """Test a run's model on a part of a data set."""
    device = choose_device("auto")
    model = open_model(path).to(device)
    parts = choose_data(path, model, data, data_dir, report)
    dataset = parts._asdict()[part]
    if dataset is None:
        raise ArcapsError(f"{data} has no {part} part")
    return tally(dataset, class_scores(model, dataset, precision=choose_precision(precision, device)).argmax(-1))


def evaluate_ensemble(
    paths: list[Path], *, data: str | None = None, data_dir: str | None = None, report: Report = print
) -> tuple[dict[Path, Evaluation], Evaluation]:
    """Test models one by one, and all together by the mean of their scores."""
    device = choose_device("auto")
    dataset = None
    members = {}
    total = torch.zeros(())
    for path in paths:
        model = open_model(path).to(device)
        if dataset is None:
            dataset = choose_data(path, model, data, data_dir, report).test
        scores = class_scores(model, dataset)
        members[path] = tally(dataset, scores.argmax(-1))
        total = total + scores / len(paths)
    assert dataset is not None
    return members, tally(dataset, total.argmax(-1))


@torch.no_grad()
def predict_files(path: Path, images: list[Path]) -> list[dict[str, Any]]:
    """The class of each image file, or of each in a folder, with the score of every class."""
    model = open_model(path).for_inference()
    readable = Image.registered_extensions()
    files = []
    for image in images:
        if image.is_dir():
            files += sorted(file for file in image.rglob("*") if file.suffix.lower() in readable)
        else:
            files.append(image)
    if not files:
        raise ArcapsError(f"there are no image files in {', '.join(map(str, images))}")
    predictions = []
    for file in files:
        try:
            pixels = torch.from_numpy(read_image(file, model.image_size, model.channels).copy())
        except (OSError, ValueError, SyntaxError) as error:
            raise ArcapsError(f"{file} cannot be read: {error}") from None
        scores = model(model.preprocessing(pixels.permute(2, 0, 1)[None])).scores[0].tolist()
        best = max(range(len(scores)), key=scores.__getitem__)
        named = dict(zip(model.class_names, scores, strict=True))
        predictions.append({"file": str(file), "class": model.class_names[best], "scores": named})
    return predictions
