"""The classes of images: files, folders, arrays and tensors of any size."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcaps.errors import ArcapsError, listed
from arcaps.image_files import ImageError, is_single_colour, list_images
from arcaps.preprocessing import Picture, Preprocessing, each_image, is_whole, to_array

logger = logging.getLogger("arcaps")


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image."""

    image: str
    """The file, or the number of the image."""
    label: str
    """The class with the highest score; empty where the image cannot be read."""
    scores: dict[str, float]
    """The score of each class."""
    problem: str = ""
    """Why the image cannot be read."""

    def top(self, count: int) -> list[tuple[str, float]]:
        """The classes with the highest scores."""
        return sorted(self.scores.items(), key=lambda item: -item[1])[:count]


def name_images(images: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Each image with its name: a file by its path, others by their number; folders are opened."""
    for number, image in enumerate(images):
        if isinstance(image, str | os.PathLike):
            path = Path(image)
            files = list_images(path) if path.is_dir() else [path]
            if not files:
                raise ArcapsError(f"{path} has no image files: give another folder, or the files")
            yield from ((str(file), file) for file in files)
        else:
            yield str(number), image


@dataclass(frozen=True)
class Predictor:
    """A model that is ready to predict."""

    answer: Callable[[Tensor], Tensor]
    """Scores `(batch, classes)` of floats as the preprocessing makes them."""
    preprocessing: Preprocessing
    class_names: tuple[str, ...]

    def each(self, images: "Picture | Iterable[Picture]", batch_size: int) -> Iterator[Prediction]:
        """Predict images of any kind, one by one as batches are done."""
        if not is_whole(batch_size) or batch_size < 1:
            raise ArcapsError(f"batch_size is {batch_size!r}: give a whole number, at least 1")
        several = each_image(images)
        if not isinstance(several, Iterable) or isinstance(several, bytes | Mapping):
            kind = type(images).__name__
            raise ArcapsError(f"{kind} is not an image: give a file, a Pillow image, an array or a tensor, or several")
        named = list(name_images(several))
        if not named:
            raise ArcapsError("there are no images to predict: give image files, or a folder with some")
        rest = iter(named)
        while chunk := list(islice(rest, batch_size)):
            yield from self.predict(chunk)

    @torch.no_grad()
    def predict(self, named: Sequence[tuple[str, Any]]) -> Iterator[Prediction]:
        """Predict a batch of named images."""
        pixels: list[Tensor] = []
        problems: list[str] = []
        single_colour: list[str] = []
        for name, image in named:
            try:
                array = to_array(image)
                pixels.append(self.preprocessing.pixels(array))
                problems.append("")
                single_colour += [name] if is_single_colour(array) else []
            except (ImageError, OSError) as error:
                problems.append(str(error))
        if single_colour:
            logger.warning("images of a single colour (%d): %s", len(single_colour), listed(single_colour))
        scores = iter(self.answer(self.preprocessing(torch.stack(pixels))).tolist() if pixels else [])
        for (name, _), problem in zip(named, problems, strict=True):
            row = {} if problem else dict(zip(self.class_names, next(scores), strict=True))
            yield Prediction(name, max(row, key=row.__getitem__, default=""), row, problem)
