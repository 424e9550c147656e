"""What is fuzzed: for each kind of input a strategy of hypothesis, and a check that accepts it or sees it refused.

A check passes where arcaps answers or raises an `ArcapsError`; anything else is a mistake of ours. `tests/test_fuzz.py`
runs each target for a moment, `scripts/fuzz.py --minutes 10` for as long as one likes. A new target is one entry more.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from arcaps import ArcapsError, Preprocessing, load_folder
from arcaps.image_files import decode_image


@dataclass(frozen=True)
class Target:
    """A kind of input."""

    strategy: st.SearchStrategy[Any]
    check: Callable[[Any], None]


def sample_files() -> list[bytes]:
    """Small image files of many formats and modes, to be damaged."""
    ramp = np.arange(144).reshape(12, 12).astype(np.uint8)
    colour = Image.fromarray(np.stack([ramp, ramp.T, 255 - ramp], axis=-1))
    kinds = [
        (colour, kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO", "TGA", "PCX", "SGI")
    ]
    kinds += [(colour.convert(mode), "TIFF") for mode in ("1", "L", "CMYK", "LAB", "YCbCr")]
    kinds += [(colour.convert(mode), "PNG") for mode in ("1", "P", "LA", "RGBA")]
    kinds += [(Image.fromarray(ramp.astype(np.uint16) * 200), kind) for kind in ("PNG", "TIFF")]
    kinds += [(Image.fromarray(ramp.astype(kind)), "TIFF") for kind in (np.int32, np.float32)]
    files = []
    for image, kind in kinds:
        buffer = BytesIO()
        image.save(buffer, kind)
        files.append(buffer.getvalue())
    return files


@st.composite
def damaged_files(draw: st.DrawFn) -> bytes:
    """Image files with some bytes changed, and some cut off the end."""
    content = bytearray(draw(st.sampled_from(FILES)))
    del content[draw(st.integers(len(content) // 2, 2 * len(content))) :]
    for _ in range(draw(st.integers(0, 8))):
        # the header, where sizes and modes are, more often than the rest
        place = draw(st.one_of(st.integers(0, min(63, len(content) - 1)), st.integers(0, len(content) - 1)))
        content[place] = draw(st.integers(0, 255))
    return bytes(content)


FILES = sample_files()


def check_image(content: bytes) -> None:
    """Bytes become a picture or are refused."""
    try:
        pixels = decode_image(content, "fuzzed")
    except ArcapsError:
        return
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] in (1, 3)
    if pixels.size < 1_000_000:
        assert Preprocessing((9, 7), 1, "pad", invert=True).pixels(pixels).shape == (1, 9, 7)


CELLS = st.sampled_from(
    [
        *("a.png", "b.png", "c.png", "./a.png", "a\\b.png", "missing.png", "path", "label", "part", "file", "split"),
        *("cat", "dog", "", " ", "train", "test", "trian", "validation", '"', '""', '"a', "sep=;", "\ufeff", "\0", "é"),
    ]
) | st.text(max_size=5)


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """CSV files: mostly rows of cells that nearly make sense, in several delimiters and encodings."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=80))
    delimiter = draw(st.sampled_from(",;\t|"))
    rows = draw(st.lists(st.lists(CELLS, max_size=4), max_size=8))
    encoding = draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1", "utf-32"]))
    ending = draw(st.sampled_from(["\n", "\r\n", "\r", "\n\n"]))
    return ending.join(delimiter.join(row) for row in rows).encode(encoding, "replace")


def check_table(content: bytes) -> None:
    """A table becomes a data set of the three images beside it, or is refused by its name."""
    with tempfile.TemporaryDirectory() as folder:
        for shade, name in enumerate(("a.png", "b.png", "c.png")):
            Image.new("L", (4, 4), 9 + shade).save(Path(folder) / name)
        (Path(folder) / "table.csv").write_bytes(content)
        try:
            data = load_folder(Path(folder) / "table.csv")
        except ArcapsError as error:
            if "table.csv" not in str(error):
                raise AssertionError(f"the message does not name the file: {error}") from error
        else:
            assert sum(len(part) for part in data if part is not None) <= 3


TARGETS = {
    "image bytes": Target(damaged_files() | st.binary(max_size=200), check_image),
    "tables": Target(tables(), check_table),
}
