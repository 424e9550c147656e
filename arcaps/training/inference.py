"""Trained models in use: an opened run, evaluation, prediction, ensembles."""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from arcaps.data import Data, Dataset, load_data, match_classes
from arcaps.errors import ArcapsError
from arcaps.models import Classification, Classifier, Prediction, load
from arcaps.models.prediction import Predictor, name_images
from arcaps.preprocessing import Picture, Preprocessing
from arcaps.progress import track
from arcaps.storage import as_path
from arcaps.training.distributed import choose_device
from arcaps.training.evaluate import choose_precision, class_scores, evaluate
from arcaps.training.run import Run
from arcaps.training.splits import WHOLE_FOLDER, Splits, load_splits
from arcaps.weights import how_made, is_pretrained, weight_names

logger = logging.getLogger("arcaps")

Place: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class OpenedRun:
    """A trained model with its device, and the data of its run: made once, and shared by all that is done with it."""

    path: Path
    model: Any
    device: torch.device
    precision: torch.dtype
    run: Run | None
    """None for a model file, which does not know its data."""
    data_dir: Place | None = None

    @cached_property
    def splits(self) -> Splits:
        """The data sets that the run was made with."""
        return self.read_splits()

    def read_splits(self, *, skip_broken: bool = False) -> Splits:
        """The data sets that the run was made with, without files that cannot be read any more if told."""
        if self.run is None:
            raise ArcapsError(f"{self.path} does not say what it was tested on: give --data")
        recipe = self.run.recipe
        return load_splits(replace(recipe, skip_broken=recipe.skip_broken or skip_broken), self.data_dir, self.run.data)

    def data(self, name: Place | None = None, *, skip_broken: bool = False, invert: bool = False) -> Data:
        """Another data set, as the model's preprocessing makes it and with the model's classes; or the run's own.

        `invert` turns black into white and white into black first, for images that are not as those of the training.
        """
        if name is None and is_pretrained(self.path):
            name = str(how_made(str(self.path))["data"])
        if name is None:
            if invert:
                raise ArcapsError(f"the images of {self.path} itself are as the model takes them: give --data, too")
            splits = self.read_splits(skip_broken=True) if skip_broken else self.splits
            return Data(splits.train, splits.validation, splits.test)
        own = self.model.preprocessing
        options: dict[str, Any] = {"preprocessing": inverted(own) if invert else own, "data_dir": self.data_dir}
        found = load_data(name, **options, skip_broken=skip_broken, **WHOLE_FOLDER)
        found = found.map(lambda part: replace(part, preprocessing=own))
        return found.map(lambda part: match_classes(part, self.model.class_names, allow_missing=True))

    def part(self, part: str = "test", data: Place | None = None, **reading: bool) -> Dataset:
        """One part of a data set; `skip_broken` and `invert` are as in `data`."""
        parts = self.data(data, **reading)._asdict()
        if parts.get(part) is None:
            there = ", ".join(name for name, value in parts.items() if value is not None)
            raise ArcapsError(f"{data or self.path} has no {part} part: there are {there}")
        return parts[part]


def inverted(preprocessing: Preprocessing) -> Preprocessing:
    """The same preprocessing for images with black and white the other way round."""
    return replace(preprocessing, invert=not preprocessing.invert)


def open_run(path: Place, *, device: str = "auto", precision: str = "auto", data_dir: Place | None = None) -> OpenedRun:
    """Open the best model of a run folder, a model file, or a pretrained model by its name."""
    path = as_path("the model", path)
    if not path.exists() and not is_pretrained(path):
        way = f"give a run folder, a model file, or a pretrained model: {', '.join(weight_names())}"
        raise ArcapsError(f"{path} is not a run folder: there is no such file or folder: {way}")
    chosen = choose_device(device)
    run = None if path.is_file() or is_pretrained(path) else Run.open(path)
    model = load(path) if run is None else run.model()
    if run is not None and run.recipe.fit == "pad":  # model files of version 0.1 do not say so
        model.preprocessing = replace(model.preprocessing, fit="pad")
    return OpenedRun(path, model.to(chosen), chosen, choose_precision(precision, chosen), run, data_dir)


def open_model(path: Place) -> Any:
    """The model of a run folder, of a file, or a pretrained one by its name."""
    return open_run(path, device="cpu").model


def choose_data(
    path: Place,
    model: Any,
    data: Place | None,
    data_dir: Place | None,
    *,
    skip_broken: bool = True,
    invert: bool = False,
) -> Data:
    """The data set asked for, as the model takes it; or what the run was made with."""
    path = Path(path)
    run = None if path.is_file() or is_pretrained(path) else Run.open(path)
    opened = OpenedRun(path, model, torch.device("cpu"), torch.float32, run, data_dir)
    return opened.data(data, skip_broken=skip_broken, invert=invert)


def calibration_images(path: Place, model: Any, data: Place | None, data_dir: Place | None) -> Dataset:
    """Images to measure the ranges of int8 on: the training images, or what there is, such as a folder's images."""
    found = choose_data(path, model, data, data_dir)
    return found.train or found.validation or found.test


def evaluate_run(
    path: Place,
    *,
    data: Place | None = None,
    part: str = "test",
    device: str = "auto",
    precision: str = "auto",
    skip_broken: bool = False,
    invert: bool = False,
    data_dir: Place | None = None,
    shifts: int = 0,
) -> Any:
    """Evaluate a run's model on a part of a data set. With `shifts`: by its mean scores over shifted images."""
    opened = open_run(path, device=device, precision=precision, data_dir=data_dir)
    dataset = opened.part(part, data, skip_broken=skip_broken, invert=invert)
    if not shifts:
        return evaluate(opened.model, dataset, precision=opened.precision)
    check_shifts(opened.model, shifts)
    return count_scores(dataset, class_scores(opened.model, dataset, precision=opened.precision, shifts=shifts))


def check_shifts(model: Any, shifts: int) -> None:
    """Refuse shifts that move the image out of its frame, and models without scores."""
    most = min(model.preprocessing.size) - 1
    if not 0 <= shifts <= most:
        raise ArcapsError(f"shifts is {shifts}: give a number of pixels from 0 to {most}")
    if shifts and not isinstance(model, Classifier):
        raise ArcapsError(f"{model.name} has no class scores, of which shifts could take the mean: leave --shifts out")


def evaluate_ensemble(
    paths: Sequence[Place],
    *,
    data: Place | None = None,
    device: str = "auto",
    skip_broken: bool = False,
    invert: bool = False,
    data_dir: Place | None = None,
    shifts: int = 0,
) -> tuple[dict[Path, Classification], Classification]:
    """Evaluate classifiers one by one, and all together by the mean of their scores. Classes are matched by name.

    Where models take images of other sizes or channels, each reads `data` as it takes it.
    With `shifts` each model's scores are the mean over images shifted by up to this number of pixels.
    """
    first = open_run(paths[0], device=device, data_dir=data_dir)
    reading: dict[str, bool] = {"skip_broken": skip_broken, "invert": invert}
    dataset = first.part("test", data, **reading)
    names = list(first.model.class_names)
    members, total = {}, torch.zeros(len(dataset), len(names))
    for path in paths:
        opened = first if path is paths[0] else open_run(path, device=device, data_dir=data_dir)
        if sorted(opened.model.class_names) != sorted(names):
            both = f"{path} has the classes {', '.join(opened.model.class_names)}, {paths[0]} has {', '.join(names)}"
            raise ArcapsError(f"{both}: an ensemble is of models with the same classes")
        check_shifts(opened.model, shifts)
        own, preprocessing = dataset, opened.model.preprocessing
        if preprocessing != first.model.preprocessing and data is not None:  # from the originals, which may be larger
            own = opened.part("test", data, **reading)
        elif preprocessing != first.model.preprocessing:
            own = dataset.fit(preprocessing)
            logger.warning("%s gets the images as %s takes them, made to fit; --data reads them anew", path, paths[0])
        scores = class_scores(opened.model, own, shifts=shifts)[
            :, [opened.model.class_names.index(name) for name in names]
        ]
        members[Path(path)] = count_scores(dataset, scores)
        total += scores / len(paths)
    return members, count_scores(dataset, total)


def count_scores(dataset: Dataset, scores: Tensor) -> Classification:
    """Build the confusion matrix of scores."""
    found = Classification(dataset.name, dataset.class_names)
    found.add(scores, dataset.labels)
    return found


def predict(
    model: Any,
    images: "Picture | Iterable[Picture]",
    *,
    invert: bool = False,
    device: str = "auto",
    batch_size: int = 64,
) -> list[Prediction]:
    """Predict the class of images: files, folders, Pillow images, arrays or tensors of bytes.

    `model` is a model, a run folder, a model file, an exported `.onnx` file or the name of pretrained weights. Images
    of any size become what the model takes; `invert` turns black into white and white into black, for images that are
    not as those of the training. An image that cannot be read has a `problem` and no label.
    """
    return list(predictions(model, images, invert=invert, device=device, batch_size=batch_size))


def predictions(
    model: Any,
    images: "Picture | Iterable[Picture]",
    *,
    invert: bool = False,
    device: str = "auto",
    batch_size: int = 64,
) -> Iterator[Prediction]:
    """What `predict` gives, one by one as batches are done."""
    answer = open_for_prediction(model, device)
    if invert:
        answer = replace(answer, preprocessing=inverted(answer.preprocessing))
    yield from answer.each(images, batch_size)


def open_for_prediction(model: Any, device: str) -> Predictor:
    """A model, a run folder, a model file, an exported file or the name of pretrained weights, ready to predict."""
    chosen = choose_device(device)
    if isinstance(model, str | os.PathLike):
        model = open_place(model)
    if isinstance(model, Classifier):
        return model.to(chosen).predictor()
    if not hasattr(model, "input_shape") or not hasattr(model, "metadata"):
        kind = type(model).__name__
        raise ArcapsError(f"{kind} does not predict classes: give a classifier of arcaps, a run folder or a file")
    channels, height, width = model.input_shape  # an exported file
    preprocessing = Preprocessing.from_dict(model.metadata["preprocessing"], (height, width), channels)
    return Predictor(
        lambda images: torch.as_tensor(model(images.numpy()).scores), preprocessing, tuple(model.class_names)
    )


def open_place(place: Place) -> Any:
    """The model that a path or a name means."""
    import arcaps

    path = Path(place)
    if path.suffix == ".onnx":
        return arcaps.Exported.open(path)
    return open_model(path)


def predict_with_progress(
    model: Place, images: Sequence[Path], *, invert: bool = False, device: str = "auto"
) -> Iterator[Prediction]:
    """What `predict` gives for files and folders, one by one, with a progress bar on a terminal."""
    files = [file for _, file in name_images(images)]
    yield from track(predictions(model, files, invert=invert, device=device), "predicting", total=len(files))
