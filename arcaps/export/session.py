"""An exported file, answering like the model with onnxruntime alone: torch is needed only to read images."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from arcaps.errors import ArcapsError

FORMAT = 1
"""The layout of the metadata. Raised when an older arcaps could not read what this one writes."""
Array = NDArray[np.float32]


class ExportedOutput(NamedTuple):
    """What an exported model answers: the fields of `arcaps.Output`, as arrays."""

    scores: Array
    """(batch, classes), each in 0..1."""
    capsules: Array | None = None
    """(batch, classes, dim)"""
    reconstruction: Array | None = None
    """(batch, channels, height, width)"""
    logits: Array | None = None
    """(batch, classes)"""
    coefficients: Mapping[str, Array] = {}
    """(batch, ..., out_caps, in_caps) of every routing layer, by its name."""


def missing(error: ModuleNotFoundError) -> ArcapsError:
    """The error for a package of the extra `onnx` that is not installed."""
    return ArcapsError(f"this needs the package {error.name}: pip install 'arcaps[onnx]'")


def encode_metadata(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Plain values as the strings that an ONNX file holds."""
    return {key: json.dumps(value) for key, value in metadata.items()}


class Exported:
    """A model in an ONNX file that arcaps wrote.

    exported = Exported.open("model.onnx")
    exported.predict(["seven.png"])      # [{"class": "7", "scores": {"0": 0.03, ...}}]
    exported(images).scores              # images: floats (batch, channels, height, width)
    """

    def __init__(self, session: Any, metadata: dict[str, Any], name: str) -> None:
        self.session, self.metadata, self.name = session, metadata, name
        self.outputs = [output.name for output in session.get_outputs()]

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, threads: int | None = None) -> "Exported":
        """Open a file; with `threads`, compute on that many instead of all cores."""
        return cls.from_bytes(Path(path).read_bytes(), str(path), threads=threads)

    @classmethod
    def from_bytes(cls, content: bytes, name: str, *, threads: int | None = None) -> "Exported":
        """Open the content of a file; `name` is for messages."""
        try:
            import onnxruntime
        except ModuleNotFoundError as error:
            raise missing(error) from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = options.inter_op_num_threads = threads
        try:
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no common class but this
            reason = str(error).strip().splitlines()[0][:200]
            raise ArcapsError(f"{name} is not an ONNX file that onnxruntime can open: {reason}") from None
        return cls(session, read_metadata(session.get_modelmeta().custom_metadata_map, name), name)

    @property
    def class_names(self) -> list[str]:
        """The name of each class."""
        return list(self.metadata["class_names"])

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.metadata["input_shape"]
        return channels, height, width

    @property
    def precision(self) -> str:
        """float32, float16 or int8."""
        return str(self.metadata["precision"])

    def run(self, images: NDArray[Any]) -> dict[str, Array]:
        """Every output by its name in the file."""
        expected = self.input_shape
        if images.dtype != np.float32:
            raise ArcapsError(f"{self.name} takes images as float32, got {images.dtype}: give exported.prepare(images)")
        if images.ndim != 4 or images.shape[1:] != expected:
            wanted = ", ".join(map(str, expected))
            raise ArcapsError(f"{self.name} takes images (batch, {wanted}), got {images.shape}")
        return dict(zip(self.outputs, self.session.run(None, {"images": images}), strict=True))

    def __call__(self, images: NDArray[Any]) -> ExportedOutput:
        """Answer for images (batch, channels, height, width), floats as `prepare` makes them."""
        found = self.run(images)
        prefix = "coefficients."
        coefficients = {name.removeprefix(prefix): found.pop(name) for name in self.outputs if name.startswith(prefix)}
        return ExportedOutput(**found, coefficients=coefficients)

    def prepare(self, images: Any) -> Array:
        """One image or several, files or arrays, as the batch that the model takes: `Preprocessing.prepare`.

        The preprocessing is the model's own, and the only part that imports torch.
        """
        from arcaps.preprocessing import Preprocessing

        channels, height, width = self.input_shape
        preprocessing = Preprocessing.from_dict(self.metadata["preprocessing"], (height, width), channels)
        return preprocessing.prepare(images).numpy()

    def predict(self, images: Any) -> list[dict[str, Any]]:
        """The class of each image, with the score of every class: what `arcaps predict` says of a run."""
        names = self.class_names
        return [
            {"class": names[int(row.argmax())], "scores": dict(zip(names, map(float, row), strict=True))}
            for row in self(self.prepare(images)).scores
        ]

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.input_shape))
        architecture = self.metadata["architecture"]
        return f"Exported({self.name}: {architecture}, {shape}, {len(self.class_names)} classes, {self.precision})"


def read_metadata(raw: Mapping[str, str], name: str) -> dict[str, Any]:
    """What the file says of its model; a file that arcaps did not write is refused."""
    if "arcaps_format" not in raw:
        raise ArcapsError(
            f"{name} is an ONNX file, but not one that arcaps wrote: it does not say its classes and its "
            "preprocessing; make one with arcaps export RUN"
        )
    metadata = {key: json.loads(value) for key, value in raw.items()}
    if metadata["arcaps_format"] > FORMAT:
        raise ArcapsError(
            f"{name} was written by arcaps {metadata.get('arcaps_version')} in format {metadata['arcaps_format']}; "
            f"this one reads up to format {FORMAT}: install a newer arcaps"
        )
    if metadata.get("part") == "decoder":
        raise ArcapsError(f"{name} holds a decoder alone, which takes capsules: open the whole model's file")
    return metadata
