"""What is fuzzed: for each kind of input a strategy of hypothesis, and a check that accepts it or sees it refused.

A check passes where arcaps answers or raises an `ArcapsError`; anything else is a mistake of ours. `tests/test_fuzz.py`
runs each target for a moment, `scripts/fuzz.py --minutes 10` for as long as one likes. A new target is one entry more.
"""

import json
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from arcaps import ArcapsError, Preprocessing, Routing, Run, create_model, load, load_folder
from arcaps.cli.training import describe_run, print_result
from arcaps.image_files import decode_image
from arcaps.training.recipes import RECIPES, override, read_recipe
from arcaps.training.sweep import read_grid


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


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
"""Whatever JSON holds."""
NAMES = [
    "attention",
    "dynamic",
    "iterations",
    "squash",
    "capsule",
    "heads",
    "(",
    ")",
    "=",
    ",",
    "3",
    "-1",
    "None",
    "'x'",
]


@st.composite
def specs(draw: st.DrawFn) -> str:
    """Names with options, nearly."""
    if draw(st.booleans()):
        return draw(st.text(max_size=30))
    return "".join(draw(st.lists(st.sampled_from(NAMES), max_size=8)))


def check_spec(spec: str) -> None:
    """A spec becomes a routing or is refused, and a grid of it becomes values or is refused."""
    for use in (
        lambda: Routing.build(spec, 2, 2, 3),
        lambda: read_grid([f"routing={spec}"]),
        lambda: read_grid([spec]),
    ):
        with suppress(ArcapsError):
            use()


@st.composite
def changed_recipes(draw: st.DrawFn) -> Any:
    """The recipe of a run folder with some fields changed, added or left out."""
    stored = RECIPES["digits"].as_dict()
    names = st.sampled_from([*stored, *stored["augmentation"], "frame", "dim", ""])
    for name in draw(st.lists(names, max_size=4)):
        if draw(st.booleans()):
            stored.pop(name, None)
        else:
            stored[name] = draw(PLAIN)
    return stored


def check_recipe(stored: Any) -> None:
    """A stored recipe can be read, hashed and stored again, or is refused; overrides too."""
    try:
        recipe = read_recipe(stored)
    except ArcapsError:
        recipe = RECIPES["digits"]
    hash(recipe.name)
    assert read_recipe(json.loads(json.dumps(recipe.as_dict()))) == recipe
    changes = {name: value for name, value in stored.items() if name not in ("name", "about", "options")}
    with suppress(ArcapsError):
        override(RECIPES["digits"], **changes)


@st.composite
def changed_metadata(draw: st.DrawFn) -> dict[str, str]:
    """The metadata of a model file with some values changed, added or left out."""
    metadata = dict(METADATA)
    for key in draw(st.lists(st.sampled_from([*metadata, "more", "checksum"]), min_size=1, max_size=3)):
        choice = draw(st.integers(0, 3))
        if choice == 0:
            metadata.pop(key, None)
        elif choice == 1:
            metadata[key] = draw(st.text(max_size=20))
        elif choice == 2:
            metadata[key] = json.dumps(draw(PLAIN))
        elif key in ("config", "preprocessing") and key in metadata:
            inner = json.loads(METADATA[key])
            inner[draw(st.sampled_from([*inner, "other"]))] = draw(PLAIN)
            metadata[key] = json.dumps(inner)
    return metadata


def model_file() -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors and the metadata of a small model file, without the checksum, as version 0.1 wrote it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        create_model("strong_conv_net", image_size=16, classes=2, widths=(4, 4, 4, 4)).save(path)
        with safe_open(path, framework="pt") as file:
            metadata = {key: value for key, value in file.metadata().items() if key != "checksum"}
        return load_file(path), metadata


TENSORS, METADATA = model_file()


def check_metadata(metadata: dict[str, str]) -> None:
    """A model file with these metadata is read, or refused by its name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file(TENSORS, path, metadata)
        try:
            load(path)
        except ArcapsError as error:
            if "model.safetensors" not in str(error):
                raise AssertionError(f"the message does not name the file: {error}") from error


RUN_FILES: dict[str, Any] = {
    "result.json": {
        "epoch": 1,
        "validation_error": 0.5,
        "test": {"accuracy": 0.5, "interval_95": [0.1, 0.9], "count": 9, "data": "x"},
        "summary": "x",
    },
    "metrics.jsonl": {"epoch": 1, "validation_error": 0.5, "loss": 1.0},
    "data.json": {
        "data": {
            part: {
                "name": "x",
                "count": 1,
                "class_names": ["a"],
                "class_counts": [1],
                "image_size": [4, 4],
                "channels": 1,
                "fingerprint": "x",
                "files": {"a.png": "x"},
            }
            for part in ("train", "validation", "test")
        }
    },
}
"""The files of a run folder, as arcaps writes them."""


@st.composite
def changed_run_files(draw: st.DrawFn) -> tuple[str, str]:
    """A file of a run folder with one value somewhere in it changed, and what it holds now."""
    name = draw(st.sampled_from(sorted(RUN_FILES)))
    content = json.loads(json.dumps(RUN_FILES[name]))
    place = content
    while isinstance(place, dict) and place:
        key = draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or draw(st.booleans()):
            place[key] = draw(PLAIN)
            break
        place = place[key]
    return name, json.dumps(draw(st.just(content) | PLAIN))


def check_run_file(changed: tuple[str, str]) -> None:
    """A run folder with this file is described and its split is used, or it is refused by the name of the file."""
    name, content = changed
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        for file, held in RUN_FILES.items():
            (run.path / file).write_text(content if file == name else json.dumps(held))
        run.write_config({"recipe": RECIPES["digits"].as_dict(), "settings": {}})
        for shade, part in enumerate(("a", "b", "c")):
            (run.path / "images" / part).mkdir(parents=True)
            Image.new("L", (4, 4), 9 + shade).save(run.path / "images" / part / "a.png")
        try:
            with redirect_stdout(StringIO()):
                describe_run(run)
                print_result(run)
            known = run.data
        except ArcapsError as error:
            if name not in str(error):
                raise AssertionError(f"the message does not name the file: {error}") from error
            return
        assert known is not None
        with suppress(ArcapsError):
            load_folder(run.path / "images", split=known["data"])


TARGETS = {
    "run files": Target(changed_run_files(), check_run_file),
    "image bytes": Target(damaged_files() | st.binary(max_size=200), check_image),
    "tables": Target(tables(), check_table),
    "specs": Target(specs(), check_spec),
    "settings": Target(changed_recipes(), check_recipe),
    "metadata": Target(changed_metadata(), check_metadata),
}
