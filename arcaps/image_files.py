"""Image files: the one place where they are opened, and where every kind of pixel becomes bytes.

What is not a readable image is refused with an `ImageError` before anything large is read or decoded: folders, named
pipes and devices by the file system, decompression bombs by the number of pixels in the header.

How pixels become bytes:

- 1 bit, grey, colour, palette, CMYK and other colour spaces are converted by Pillow;
- whole numbers of more than 8 bits are divided by the range that they use: 8, 12 or 16 bits, whichever holds the
  greatest value of the image. Floats from 0 to 1 are multiplied by 255, floats up to 65535 are read as whole numbers.
  Any other range, and negative values, are stretched from the least value to the greatest;
- behind transparent parts lies black if the visible parts are bright on average, and white if they are dark, so that
  black ink and white ink can both be seen.
"""

import os
import stat
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from arcaps.errors import ArcapsError

MAX_PIXELS = 64_000_000
"""Pixels of the largest image that is decoded: 64 megapixels."""
MAX_BYTES = 2**30
"""Bytes of the largest file that is read: 1 GiB."""
GREY = {"1", "L", "LA", "La", "I", "F"}
ORIENTATION = 0x0112
"""The EXIF field that says how a photograph is turned."""
NEEDS_A_PROGRAM = {"EPS", "WMF"}
"""Formats for which Pillow would start another program."""
DEEP_COLOUR: dict[object, str] = {"RGB;16B": "RGB;16L", "RGBA;16B": "RGBA;16L"}
"""How Pillow names the bytes of PNG files with 16 bits a channel, and the same with the low byte first."""

Bytes: TypeAlias = NDArray[np.uint8]


class ImageError(ArcapsError):
    """A file that cannot be read as an image."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.reason = reason


@dataclass(frozen=True)
class Header:
    """What a file says about its image, before it is decoded."""

    size: tuple[int, int]
    """Height and width of the upright image."""
    grey: bool


def is_image_name(path: Path) -> bool:
    """Whether Pillow knows the extension."""
    return path.suffix.lower() in Image.registered_extensions()


def list_images(folder: Path) -> list[Path]:
    """The image files below a folder, by their extensions, in order; hidden files and folders are left out."""
    found = (path for path in folder.rglob("*") if is_image_name(path) and not path.is_dir())
    return sorted(path for path in found if not any(p.startswith(".") for p in path.relative_to(folder).parts))


def read_header(path: str | os.PathLike[str]) -> Header:
    """Size and colour of an image file. Its pixels are not decoded."""
    check_file(Path(path))
    with opened(path, path) as image:
        width, height = image.size
        return Header((width, height) if orientation(image) >= 5 else (height, width), is_grey(image))


def read_image(path: str | os.PathLike[str]) -> Bytes:
    """The pixels of an image file, upright: (height, width, channels) with 1 channel if it is grey, else 3."""
    return decode_image(read_content(path), path)


def read_content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of an image file, after a look at what kind of file it is."""
    check_file(Path(path))
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ImageError(path, f"cannot be read: {error.strerror}") from None


def decode_image(
    content: bytes, name: object, *, max_pixels: int | None = None, formats: Collection[str] | None = None
) -> Bytes:
    """The pixels in the bytes of an image file, as `read_image` gives them; `name` is for error messages.

    `max_pixels` is by default `MAX_PIXELS`. `formats` are Pillow's names of what may be opened, such as PNG; by default
    nearly all that it knows.
    """
    with opened(BytesIO(content), name, max_pixels, formats) as image:
        deep = any(tile.args in DEEP_COLOUR for tile in image.tile)
        turn = TURNS.get(orientation(image))
        image.load()
        whole = with_low_bytes(image, content) if deep else image
        return image_to_bytes(whole if turn is None else whole.transpose(turn))


def check_file(path: Path) -> None:
    """Refuse what is not a file, or is empty or too large, without opening it."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be opened: {error}"
        raise ImageError(path, f"{reason}: check the path") from None
    if stat.S_ISDIR(status.st_mode):
        raise ImageError(path, "is a folder: give image files")
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(path, "is a pipe or a device, not a file: save the image to a file first")
    if status.st_size == 0:
        raise ImageError(path, "is empty: the file has no bytes; replace it or leave it out")
    if status.st_size > MAX_BYTES:
        size = f"{status.st_size / 2**30:.1f} GiB"
        raise ImageError(
            path, f"has {size}, more than the {MAX_BYTES / 2**30:.0f} GiB that arcaps reads: scale it down"
        )


@contextmanager
def opened(
    source: str | os.PathLike[str] | BytesIO,
    name: object,
    max_pixels: int | None = None,
    formats: Collection[str] | None = None,
) -> Iterator[ImageFile]:
    """An image with its header read and its number of pixels checked. Whatever goes wrong is an `ImageError`."""
    Image.init()
    allowed = [known for known in formats or Image.OPEN if known not in NEEDS_A_PROGRAM]
    limit = MAX_PIXELS if max_pixels is None else max_pixels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's warnings of odd metadata; bombs are refused below
            with Image.open(source, formats=allowed) as image:
                check_pixels(image, name, limit)
                yield image
    except ArcapsError:
        raise
    except Image.DecompressionBombError:
        raise ImageError(name, f"has more than {limit / 1e6:g} megapixels: scale it down first") from None
    except UnidentifiedImageError:
        raise ImageError(name, "is not an image that Pillow can read: convert it to PNG or JPEG") from None
    except Exception as error:  # a damaged file can make its decoder fail in any way
        reason = str(error) or type(error).__name__
        raise ImageError(name, f"is a damaged image ({reason}): replace it or leave it out") from None


def check_pixels(image: Image.Image, name: object, max_pixels: int) -> None:
    """Refuse an image with too many pixels, or with none."""
    width, height = image.size
    if width * height > max_pixels:
        size = f"{width}x{height} pixels, {width * height / 1e6:,.0f} megapixels"
        raise ImageError(name, f"has {size}, more than the {max_pixels / 1e6:g} that arcaps decodes: scale it down")
    if width * height == 0:
        raise ImageError(name, f"has {width}x{height} pixels: replace it or leave it out")


def orientation(image: Image.Image) -> int:
    """How a photograph is turned, from 1 to 8 as EXIF counts; 1 where the file does not say so or is unclear."""
    try:
        value = image.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged metadata do not make the image unreadable
        return 1
    return value if value in TURNS else 1


TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def is_grey(image: Image.Image) -> bool:
    """Whether the image has no colour, by its mode or by its palette."""
    if image.mode in ("P", "PA") and image.palette is not None:
        colours = np.frombuffer(image.palette.tobytes(), np.uint8)
        bands = len(image.palette.mode)
        whole = colours[: len(colours) // bands * bands].reshape(-1, bands)[:, :3]
        return bool((whole == whole[:, :1]).all())
    return image.mode in GREY or image.mode.startswith("I;16")


def image_to_bytes(image: Image.Image) -> Bytes:
    """The pixels of a Pillow image of any mode as bytes, (height, width, channels) with 1 channel or 3."""
    if image.mode[0] in "IF":
        return numbers_to_bytes(np.asarray(image))[:, :, None]
    grey = is_grey(image)
    if image.has_transparency_data:
        if image.mode in ("La", "RGBa"):
            image = image.convert(image.mode.upper())
        image = put_on_background(image.convert("RGBA"))
    pixels = np.asarray(image.convert("L" if grey else "RGB"))
    return pixels[:, :, None] if grey else pixels


def put_on_background(image: Image.Image) -> Image.Image:
    """An image with transparency in front of black if what is visible is bright on average, else of white."""
    light, opacity = np.asarray(image.convert("L")), np.asarray(image.getchannel("A"))
    weight = int(opacity.sum(dtype=np.int64))
    total = sum(int(row.astype(np.int64) @ alpha) for row, alpha in zip(light, opacity, strict=True))
    dark = total < 128 * weight
    return Image.alpha_composite(Image.new("RGBA", image.size, "white" if dark else "black"), image)


def with_low_bytes(image: Image.Image, content: bytes) -> Image.Image:
    """A colour image of 16 bits a channel, of which Pillow keeps the high bytes only, with a range that it uses.

    Where all high bytes are small, the low bytes are read as well: by the same decoder, told that they come first.
    """
    high = np.asarray(image)
    if high[:, :, :3].max() > 4095 >> 8:
        return image
    with Image.open(BytesIO(content), formats=["PNG"]) as again:
        again.tile = [again.tile[0]._replace(args=DEEP_COLOUR[again.tile[0].args])]
        values = (high.astype(np.uint16) << 8) | np.asarray(again)
    colour, opacity = numbers_to_bytes(values[:, :, :3]), numbers_to_bytes(values[:, :, 3:])
    return Image.fromarray(np.concatenate([colour, opacity], axis=2))


def numbers_to_bytes(values: NDArray[Any]) -> Bytes:
    """Whole numbers of more than 8 bits, or floats, as bytes; the module says how. What is not finite becomes 0."""
    finite = np.isfinite(values)
    numbers = np.where(finite, values, 0).astype(np.float64)
    low, high = (float(numbers[finite].min()), float(numbers[finite].max())) if finite.any() else (0.0, 0.0)
    if low < 0 or high > 65535:
        numbers, top = numbers - low, high - low
    elif high <= 1 and values.dtype.kind == "f":
        top = 1.0
    else:
        top = next(limit for limit in (255.0, 4095.0, 65535.0) if high <= limit)
    scaled = np.rint(numbers * (255 / top)) if top else np.zeros_like(numbers)
    return np.where(finite, scaled, 0).astype(np.uint8)


def is_single_colour(pixels: Bytes) -> bool:
    """Whether all pixels of (height, width, channels) are the same: most often a mistake."""
    return bool((pixels == pixels[:1, :1]).all())
