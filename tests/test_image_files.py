"""Every kind of image file becomes bytes that show what is in it, or is refused at once."""

import os
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import arcaps
from arcaps import ArcapsError
from arcaps.image_files import (
    MAX_PIXELS,
    ImageError,
    decode_image,
    is_single_colour,
    list_images,
    numbers_to_bytes,
    read_header,
    read_image,
)

RAMP = np.arange(0, 256, 5).astype(np.uint8)[None, :].repeat(20, 0)
"""A picture from black to white."""


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(pixels: "np.ndarray[tuple[int, ...], np.dtype[np.uint16]]", colour: int) -> bytes:
    """A PNG file of 16 bits a channel, written by hand: Pillow does not write colour ones."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("kind", ["I;16 png", "I;16 tiff", "I tiff", "F tiff"])
def test_deep_grey_images_use_the_range_of_their_values(bits: int, kind: str, tmp_path: Path) -> None:
    """In version 0.1 all of these but 16 bits in PNG were black."""
    mode, suffix = kind.split()
    values = RAMP.astype(np.float64) * ((2**bits - 1) / 255)
    file = tmp_path / f"ramp.{suffix}"
    dtype = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
    Image.fromarray(np.rint(values).astype(dtype)).save(file)
    assert np.abs(read_image(file)[:, :, 0].astype(int) - RAMP).max() <= 1
    assert read_header(file).grey


@pytest.mark.parametrize(
    "values", [RAMP / 255.0, RAMP * 1000.0 - 5e4, RAMP.astype(np.int64) * 2**20, -RAMP.astype(np.int32)[:, ::-1]]
)
def test_other_ranges_are_stretched(values: "np.ndarray[tuple[int, int], np.dtype[np.float64]]") -> None:
    found = numbers_to_bytes(values)
    assert found.min() == 0
    assert found.max() == 255
    assert (np.diff(found[0].astype(int)) >= 0).all()


def test_numbers_that_are_not_finite_are_black() -> None:
    found = numbers_to_bytes(np.array([[np.nan, 0.5, 1.0, np.inf]]))
    assert found.tolist() == [[0, 128, 255, 0]]
    assert numbers_to_bytes(np.full((2, 2), np.nan)).max() == 0
    assert numbers_to_bytes(np.full((2, 2), -3)).max() == 0


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_deep_colour_images_use_the_range_of_their_values(bits: int) -> None:
    """Pillow keeps the high bytes only, so that 8 bits in 16 were black."""
    colour = np.stack([RAMP, RAMP[:, ::-1], RAMP // 2], axis=-1)
    deep = np.rint(colour * ((2**bits - 1) / 255)).astype(np.uint16)
    assert np.abs(decode_image(png(deep, 2), "x").astype(int) - colour).max() <= 1
    opaque = np.concatenate([deep, np.full((*RAMP.shape, 1), 2**bits - 1, np.uint16)], axis=-1)
    assert np.abs(decode_image(png(opaque, 6), "x").astype(int) - colour).max() <= 1


@pytest.mark.parametrize("ink", [0, 255])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P"])
def test_ink_on_a_transparent_ground_can_be_seen(ink: int, mode: str, tmp_path: Path) -> None:
    """Black ink on transparency was a black square in version 0.1."""
    digit = arcaps.load_data("digits").test.images[0, 0].numpy()
    image = Image.fromarray(np.stack([np.full_like(digit, ink), digit], axis=-1), "LA")
    file = tmp_path / "ink.png"
    if mode == "P":
        indexed = Image.fromarray((digit > 127).astype(np.uint8))
        indexed.putpalette([0, 0, 0, ink, ink, ink])
        indexed.save(file, transparency=0)
        digit = np.where(digit > 127, 255, 0).astype(np.uint8)
    elif mode == "PA":
        file = tmp_path / "ink.gif"
        image.convert("RGBA").save(file)
        digit = np.where(digit > 127, 255, 0).astype(np.uint8)
    else:
        image.convert(mode).save(file)
    found = read_image(file)[:, :, 0]
    expected = digit if ink == 255 else 255 - digit  # white on black, or black on white
    assert np.abs(found.astype(int) - expected).mean() < (1 if mode != "PA" else 40)
    assert not is_single_colour(read_image(file))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "YCbCr", "LAB"])
def test_other_modes_keep_the_picture(mode: str, tmp_path: Path) -> None:
    image = Image.fromarray(RAMP).convert("L" if mode in "1L" else "RGB").convert(mode)
    image.save(tmp_path / "x.tiff")
    found = read_image(tmp_path / "x.tiff")
    assert found.shape[:2] == RAMP.shape
    means = found.mean((0, 2)).reshape(4, 13).mean(1)  # one bit a pixel is right on average
    assert means == pytest.approx(RAMP.mean(0).reshape(4, 13).mean(1), abs=15)


def test_a_grey_palette_is_grey(tmp_path: Path) -> None:
    image = Image.fromarray(RAMP // 5)
    image.putpalette([value for shade in range(256) for value in (shade, shade, shade)])
    image.save(tmp_path / "grey.png")
    assert read_header(tmp_path / "grey.png").grey
    assert read_image(tmp_path / "grey.png").shape == (20, 52, 1)


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(RAMP).save(tmp_path / "x.jpg", exif=exif)
    assert read_header(tmp_path / "x.jpg").size == (52, 20)
    found = read_image(tmp_path / "x.jpg")
    assert found.shape == (52, 20, 1)
    assert found[0].max() < found[-1].min()


def bomb(width: int, height: int) -> bytes:
    """A small PNG file that says it has very many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.write_bytes(bomb(60_000, 60_000)), "megapixels"),
        (lambda path: path.write_bytes(bomb(10_000, 9_000)), "10000x9000 pixels, 90 megapixels, more than the 64"),
        (os.mkfifo, "is a pipe or a device"),
        (lambda path: path.symlink_to("/dev/zero"), "is a pipe or a device"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_text("a,b\n"), "is not an image that Pillow can read"),
        (lambda path: path.write_bytes(bomb(100, 100)), "is a damaged image"),
        (lambda path: path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), "is not an image"),
        (lambda path: path.symlink_to(path), "cannot be opened"),
        (lambda path: None, "does not exist"),
    ],
)
def test_what_is_not_an_image_is_refused_at_once(make: object, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    make(path)  # type: ignore[operator]
    began = time.monotonic()
    with pytest.raises(ImageError, match=reason) as caught:
        read_image(path)
    assert str(caught.value).startswith(f"{path} ")
    assert ":" in caught.value.reason  # the way out
    assert time.monotonic() - began < 2


def test_the_limit_is_a_number_of_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(RAMP).save(tmp_path / "x.png")
    monkeypatch.setattr("arcaps.image_files.MAX_PIXELS", RAMP.size)
    read_image(tmp_path / "x.png")
    monkeypatch.setattr("arcaps.image_files.MAX_PIXELS", RAMP.size - 1)
    with pytest.raises(ArcapsError, match="52x20 pixels"):
        read_header(tmp_path / "x.png")
    assert MAX_PIXELS == 64_000_000


def test_hidden_files_are_not_images(tmp_path: Path) -> None:
    for name in ("b.PNG", "a.jpg", "notes.txt", ".c.png", ".cache/d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [file.name for file in list_images(tmp_path)] == ["a.jpg", "b.PNG"]
