"""Files that are whole or not there, and safetensors files with metadata and a checksum. Never pickle."""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from arcaps.errors import ArcapsError

FORMAT = 1
"""The layout of the metadata. Raised when an older arcaps could not read what this one writes."""
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls the types of numbers."""


def as_path(what: str, value: object) -> Path:
    """A path from text or a path; anything else, an empty one, and a name that no file can have are refused."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value) or "\0" in str(value):
        raise ArcapsError(f"{what} is {value!r}: give a path")
    return Path(value)


def write_whole(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Write all of it or nothing: a temporary file beside `path`, flushed to the disk, takes its name at the end."""
    if path.is_dir():
        raise ArcapsError(f"{path} is a folder: give the name of a file in it")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            for part in [content] if isinstance(content, bytes) else content:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:  # with the name that the user gave
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with suppress(OSError):
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


def require_form(path: Path, value: object, form: Any) -> None:
    """Refuse what a file holds where it is not of a form.

    A form is a type, `[form]` for a list, `{name: form}` for an object with at least these names, `{str: form}` for an
    object with any names, or a tuple of forms of which one fits; numbers are finite.
    """
    wrong = find_wrong(value, form, "")
    if wrong is not None:
        name, found = wrong
        raise ArcapsError(f"{path} is damaged: {name or 'its content'} is {found!r:.60}: bring a copy back")


def find_wrong(value: Any, form: Any, name: str) -> tuple[str, object] | None:
    """The name and the value of the first thing that is not of a form; None where all is."""
    if isinstance(form, tuple):
        return next((None for one in form if find_wrong(value, one, name) is None), (name, value))
    if isinstance(form, list | dict):
        inside: list[tuple[str, Any, Any]] | None = None
        if isinstance(form, list) and isinstance(value, list):
            inside = [(str(number), one, form[0]) for number, one in enumerate(value)]
        elif isinstance(form, dict) and isinstance(value, dict):
            known = dict.fromkeys(value, form[str]) if str in form else form
            inside = [(key, value.get(key), kind) for key, kind in known.items()]
        if inside is None:
            return name, value
        found = (find_wrong(one, kind, f"{name}.{key}".lstrip(".")) for key, one, kind in inside)
        return next(filter(None, found), None)
    kind = (int, float) if form is float else form
    good = isinstance(value, kind) and (form is bool or not isinstance(value, bool))
    good = good and not (isinstance(value, float) and not math.isfinite(value))
    return None if good else (name, value)


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor's values."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """The SHA-256 of names and values, and of the metadata if there are any."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(raw_bytes(tensors[name]))
    for key in sorted(metadata or {}):
        found.update(f"{key}={(metadata or {})[key]}".encode())
    return found.hexdigest()


def serialise(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, part by part. The library's own writer orders the metadata at random."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for name in order:
        start, end = end, end + tensors[name].numel() * tensors[name].element_size()
        shape = list(tensors[name].shape)
        header[name] = {"dtype": DTYPES[tensors[name].dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        yield raw_bytes(tensors[name])


def write_file(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors, and metadata of plain values, whole or not at all. The same content makes the same bytes."""
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise ArcapsError(f"{path}: {name} has values of {tensor.dtype}, which a file cannot hold")
    described = {key: json.dumps(value) for key, value in {"arcaps_format": FORMAT, **metadata}.items()}
    described["checksum"] = json.dumps(digest(tensors, described))
    write_whole(as_path("the file", path), serialise(tensors, described))


def read_file(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and metadata of a file that `write_file` wrote; any other file is refused with the reason."""
    path = as_path("the model file", path)
    refuse_other_files(path)
    try:
        with safe_open(path, framework="pt") as opened:
            raw = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise ArcapsError(f"{path} is truncated or damaged: {error}: copy it again, or save the model again") from None
    if "arcaps_format" not in raw:
        raise ArcapsError(
            f"{path} is a safetensors file, but not one that arcaps wrote: it does not say how to build the model"
        )
    metadata = {key: read_metadata(path, key, value) for key, value in raw.items()}
    written = metadata["arcaps_format"]
    if not isinstance(written, int) or written > FORMAT:
        raise ArcapsError(
            f"{path} was written by arcaps {metadata.get('arcaps_version')} in format {written!r}; "
            f"this one reads up to format {FORMAT}: install a newer arcaps"
        )
    checksum = metadata.pop("checksum", None)  # files of version 0.1 have none
    if checksum is not None and checksum != digest(tensors, {key: raw[key] for key in raw if key != "checksum"}):
        raise ArcapsError(f"{path} is damaged, its checksum is wrong: copy it again, or save the model again")
    return tensors, metadata


def refuse_other_files(path: Path) -> None:
    """Refuse what is no safetensors file, with the reason."""
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise ArcapsError(f"{path} cannot be read: {error.strerror}: give a model file that arcaps saved") from None
    if len(start) < 9 or start[8:] != b"{":
        pickled = start[:1] == b"\x80" or start[:2] == b"PK"
        hint = (
            " (it is empty)" if not start else " but looks like a pickle, which arcaps never opens" if pickled else ""
        )
        raise ArcapsError(
            f"{path} is not a safetensors file{hint}: give a run folder, or a model file that arcaps saved"
        )


def read_metadata(path: Path, key: str, text: str) -> Any:
    """One value of the metadata."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ArcapsError(f"{path} has damaged metadata: {key} is {text[:60]!r}, which is no JSON") from None
