"""One safetensors file holds a model: the weights, and in its metadata all that is needed to use them. Never pickle."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from arcaps.errors import ArcapsError

FORMAT = 1
"""The layout of the metadata. Raised when an older arcaps could not read what this one writes."""


def write_whole(path: Path, content: bytes) -> None:
    """Write all of it or nothing: a temporary file beside `path`, flushed to the disk, takes its name at the end."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object in a JSON file; a file that holds anything else is refused with the reason."""
    try:
        found = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise ArcapsError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # also text that is not UTF-8
        raise ArcapsError(f"{path} is damaged, or no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ArcapsError(f"{path} holds {type(found).__name__} and not an object: it is not a file of arcaps")
    return found


def write_file(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors, and metadata of plain values, whole or not at all."""
    described = {"arcaps_format": FORMAT, **metadata}
    content = save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        metadata={key: json.dumps(value) for key, value in described.items()},
    )
    write_whole(Path(path), content)


def read_file(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and metadata of a file that `write_file` wrote; any other file is refused with the reason."""
    path = Path(path)
    with path.open("rb") as file:
        start = file.read(9)
    if len(start) < 9 or start[8:] != b"{":
        pickled = start[:1] == b"\x80" or start[:2] == b"PK"
        hint = (
            " (it is empty)" if not start else " but looks like a pickle, which arcaps never opens" if pickled else ""
        )
        raise ArcapsError(f"{path} is not a safetensors file{hint}")
    try:
        with safe_open(path, framework="pt") as opened:
            raw = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise ArcapsError(f"{path} is truncated or damaged: {error}") from None
    if "arcaps_format" not in raw:
        raise ArcapsError(
            f"{path} is a safetensors file, but not one that arcaps wrote: it does not say how to build the model"
        )
    metadata = {key: json.loads(value) for key, value in raw.items()}
    if metadata["arcaps_format"] > FORMAT:
        raise ArcapsError(
            f"{path} was written by arcaps {metadata.get('arcaps_version')} in format {metadata['arcaps_format']}; "
            f"this one reads up to format {FORMAT}: install a newer arcaps"
        )
    return tensors, metadata
