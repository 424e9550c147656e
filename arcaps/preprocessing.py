"""Preprocessing: how an image of any size and kind becomes what a model takes.

There are two steps. `pixels` gives an image the model's size and channels; the result is bytes, and is what a data set
stores. `__call__` turns these bytes into floats. Training, evaluation, prediction and export use the same object, which
is stored in the model file, so that all of them see the same picture.
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, TypeGuard, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from arcaps.errors import ArcapsError
from arcaps.image_files import image_to_bytes, read_image
from arcaps.memory import require_memory

Fit = Literal["pad", "scale"]
Picture: TypeAlias = str | os.PathLike[str] | Image.Image | NDArray[Any] | Tensor
"""An image file, a Pillow image, an array (height, width) or (height, width, channels), or a tensor with the channels
first; arrays and tensors hold bytes. An array whose first axis alone can be the channels, 1 or 3, has them first."""
ONE_IMAGE = (str, os.PathLike, Image.Image, np.ndarray, Tensor)


@dataclass(frozen=True)
class Preprocessing:
    """How images become the input of a model: `preprocessing.prepare(["cat.png", array])`."""

    size: tuple[int, int] | None = None
    """Height and width of the model's images; None: each image keeps its own."""
    channels: int | None = None
    """1 for grey, 3 for colour; None: each image keeps its own."""
    fit: Fit = "scale"
    """How an image comes to the size, its aspect ratio kept, in the middle of black: `scale` makes it as large as
    fits; `pad` keeps the pixels of a smaller image, and scales a larger one down."""
    divide_by: float = 255.0
    """What bytes are divided by."""
    invert: bool = False
    """Turn black into white and white into black, before black is put around the image."""

    def __post_init__(self) -> None:
        check_fields(**vars(self))
        if self.size is not None:
            object.__setattr__(self, "size", check_size("size", self.size))
        if self.channels is not None:
            object.__setattr__(self, "channels", int(self.channels))

    def __call__(self, pixels: UInt8[Tensor, "*pixels"]) -> Float[Tensor, "*pixels"]:
        """The model's pixels as floats. They have its size and channels, and are inverted, already: see `pixels`."""
        return pixels.float() / self.divide_by

    def prepare(self, images: Picture | Iterable[Picture]) -> Float[Tensor, "batch channels height width"]:
        """One image or several, files or arrays of any size, as the batch of floats that the model takes."""
        if isinstance(images, Tensor) and images.ndim == 4:
            return self(self.batch_pixels(images))
        pixels = [self.pixels(image) for image in each_image(images)]
        if not pixels:
            raise ArcapsError("there are no images to prepare: give at least one")
        return self(torch.stack(pixels))

    def pixels(self, image: Picture) -> UInt8[Tensor, "channels height width"]:
        """An image, in a file or in memory, with the model's size and channels, as bytes."""
        array = to_array(image)
        return torch.from_numpy(self.place(self.recolour(array))).permute(2, 0, 1).contiguous()

    def mask_pixels(self, mask: UInt8[Tensor, "height width"]) -> UInt8[Tensor, "new_height new_width"]:
        """The classes of an image's pixels, moved as `pixels` moves the image: nearest pixels, and class 0 around."""
        return torch.from_numpy(self.place(mask.numpy()[:, :, None], Image.Resampling.NEAREST)[:, :, 0])

    def batch_pixels(
        self, images: UInt8[Tensor, "count channels height width"]
    ) -> UInt8[Tensor, "count new_channels new_height new_width"]:
        """What `pixels` gives for each image of a batch, faster where images need not be scaled or recoloured."""
        if images.dtype != torch.uint8:
            raise ArcapsError(f"images are {images.dtype}: give bytes from 0 to 255, torch.uint8")
        height, width = images.shape[2:]
        inner, top, left = self.placement(height, width)
        if self.size is not None:
            needed = len(images) * (self.channels or images.shape[1]) * self.size[0] * self.size[1]
            require_memory(needed, f"{len(images):,} images of {self.size[0]}x{self.size[1]}", "give a smaller size")
        if inner != (height, width) or self.channels not in (None, images.shape[1]):
            return torch.stack([self.pixels(image) for image in images])
        images = 255 - images if self.invert else images
        new_height, new_width = self.size or inner
        frame = (left, new_width - width - left, top, new_height - height - top)
        return F.pad(images, frame) if any(frame) else images

    def placement(self, height: int, width: int) -> tuple[tuple[int, int], int, int]:
        """The height and width that an image is scaled to, and the rows above and columns left of it."""
        if self.size is None:
            return (height, width), 0, 0
        factor = min(self.size[0] / height, self.size[1] / width)
        if self.fit == "pad":
            factor = min(factor, 1.0)
        inner = [max(1, min(new, round(factor * old))) for new, old in zip(self.size, (height, width), strict=True)]
        return (inner[0], inner[1]), (self.size[0] - inner[0]) // 2, (self.size[1] - inner[1]) // 2

    def place(
        self, pixels: NDArray[np.uint8], method: Image.Resampling = Image.Resampling.BILINEAR
    ) -> NDArray[np.uint8]:
        """Scale (height, width, channels) to the size, in the middle of zeros."""
        (height, width), top, left = self.placement(*pixels.shape[:2])
        if (height, width) != pixels.shape[:2]:
            bands = [Image.fromarray(band).resize((width, height), method) for band in np.moveaxis(pixels, 2, 0)]
            pixels = np.dstack([np.asarray(band) for band in bands])
        if self.size is None or self.size == (height, width):
            return pixels.copy()
        placed = np.zeros((*self.size, pixels.shape[2]), np.uint8)
        placed[top : top + height, left : left + width] = pixels
        return placed

    def recolour(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Grey or colour as the model takes it, inverted if it wants that."""
        if self.channels not in (None, pixels.shape[2]):
            if self.channels not in (1, 3) or pixels.shape[2] not in (1, 3):
                given = f"the image has {pixels.shape[2]} channels and the model takes {self.channels}"
                raise ArcapsError(f"{given}: only grey (1) and colour (3) can be converted into each other")
            image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
            pixels = np.asarray(image.convert("L" if self.channels == 1 else "RGB")).reshape(*pixels.shape[:2], -1)
        return 255 - pixels if self.invert else pixels

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a model file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: object, size: tuple[int, int] | None, channels: int | None) -> "Preprocessing":
        """What a model file says. Files of version 0.1 give `divide_by` only; size and channels are the model's."""
        if not isinstance(stored, Mapping) or not stored.keys() <= asdict(cls()).keys():
            known = ", ".join(asdict(cls()))
            raise ArcapsError(f"the preprocessing {stored!r} is not one that this arcaps knows: its fields are {known}")
        values: dict[str, Any] = {**asdict(cls()), "size": size, "channels": channels, **stored}
        check_fields(**values)
        if values["size"] is not None:
            values["size"] = check_size("size", values["size"])
        if (values["size"], values["channels"]) != (size, channels):
            found = f"size {values['size']} and {values['channels']} channels"
            raise ArcapsError(f"the preprocessing gives {found}, and the model has size {size} and {channels} channels")
        return cls(**values)


def each_image(images: Any) -> Any:
    """The images one by one: of a single one a list, of an array or a tensor with four axes its parts."""
    if isinstance(images, Tensor | np.ndarray) and images.ndim == 4:
        return list(images)
    return [images] if isinstance(images, ONE_IMAGE) else images


def check_fields(size: object, channels: object, fit: object, divide_by: object, invert: object) -> None:
    """Refuse values that are not those of a preprocessing."""
    if size is not None:
        check_size("size", size)
    if fit not in get_args(Fit):
        raise ArcapsError(f"fit is {fit!r}: give {' or '.join(get_args(Fit))}")
    if channels is not None and not (is_whole(channels) and channels >= 1):
        raise ArcapsError(f"channels is {channels!r}: give 1 for grey or 3 for colour")
    if isinstance(divide_by, bool) or not isinstance(divide_by, int | float) or not 0 < divide_by < math.inf:
        raise ArcapsError(f"divide_by is {divide_by!r}: give a number above 0, such as 255")
    if not isinstance(invert, bool):
        raise ArcapsError(f"invert is {invert!r}: give True or False")


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number, whole or not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_size(name: str, size: object) -> tuple[int, int]:
    """Height and width from one whole number or two; refuses anything else."""
    pair = (size, size) if is_whole(size) else size.tolist() if isinstance(size, np.ndarray) else size
    if isinstance(pair, list | tuple) and len(pair) == 2 and all(is_whole(side) and side >= 1 for side in pair):
        return int(pair[0]), int(pair[1])
    raise ArcapsError(f"{name} is {size!r}: give height and width, whole numbers of at least 1, such as (28, 28)")


def to_array(image: object) -> NDArray[np.uint8]:
    """An image as bytes (height, width, channels), from a file, Pillow, numpy or torch."""
    if isinstance(image, str | os.PathLike):
        return read_image(image)
    if isinstance(image, Image.Image):
        return image_to_bytes(image)
    if isinstance(image, tuple):
        raise ArcapsError("a tuple is not an image: of a data set give the images alone, such as dataset.images")
    if not isinstance(image, np.ndarray | Tensor):
        raise ArcapsError(f"{type(image).__name__} is not an image: give a file, a Pillow image, an array or a tensor")
    if image.dtype not in (torch.uint8, np.uint8):
        way = "give bytes from 0 to 255; for floats from 0 to 1, (255 * image).round() as uint8"
        raise ArcapsError(f"an image has values of {image.dtype}: {way}")
    array = image.detach().cpu().movedim(0, -1).numpy() if isinstance(image, Tensor) and image.ndim == 3 else image
    array = np.asarray(array)
    if array.ndim == 2:
        array = array[:, :, None]
    if isinstance(image, np.ndarray) and array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = np.moveaxis(array, 0, 2)  # as Dataset.from_arrays takes them, too
    if array.ndim != 3 or 0 in array.shape:
        wanted = "(channels, height, width)" if isinstance(image, Tensor) else "(height, width, channels)"
        raise ArcapsError(f"an image has the shape {tuple(image.shape)}: give (height, width) or {wanted}")
    return array
