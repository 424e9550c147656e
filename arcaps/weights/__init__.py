"""Pretrained weights that come with arcaps: one model file per name, written by scripts/make_weights.py.

    arcaps.load("digits")                                           # arcaps predict digits image.png
    create_model("ar_capsnet", pretrained="digits", classes=5)      # a new class layer on trained layers

Each file says in its metadata how it was made: recipe, seed, accuracy, versions and licence.
"""

import os
from pathlib import Path
from typing import Any

from arcaps.registry import unknown
from arcaps.storage import read_file

FOLDER = Path(__file__).parent


def weight_names() -> list[str]:
    """The names of the pretrained models."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def is_pretrained(path: str | os.PathLike[str]) -> bool:
    """Whether this is the name of a pretrained model, and not a file or folder that is there."""
    return str(path) in weight_names() and not Path(path).exists()


def weight_file(name: str) -> Path:
    """The file of a pretrained model."""
    if name not in weight_names():
        raise unknown("pretrained model", name, weight_names())
    return FOLDER / f"{name}.safetensors"


def how_made(name: str) -> dict[str, Any]:
    """How a pretrained model was made: its recipe, data, seed, accuracy, versions and licence."""
    return dict(read_file(weight_file(name))[1]["pretrained"])
