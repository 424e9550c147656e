"""Smaller numbers in an ONNX file: float16 weights, and integers calibrated on training images."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.quant_utils import add_pre_process_metadata

SMALL_WEIGHT = 256
"""Weights with fewer numbers stay float32: a cast would take more room than it saves."""
SMALL_CONVOLUTION = 6000
"""Convolutions with fewer weights stay in floats: they are fast already, and integers cost accuracy there."""


def to_float16(model: onnx.ModelProto) -> None:
    """Store the weights as float16, in place. The runtime casts them to float32 once, when it opens the file."""
    graph = model.graph
    casts = []
    for index, tensor in enumerate(graph.initializer):
        if tensor.data_type != onnx.TensorProto.FLOAT or int(np.prod(tensor.dims)) < SMALL_WEIGHT:
            continue
        largest = np.finfo(np.float16).max
        values = numpy_helper.to_array(tensor).clip(-largest, largest).astype(np.float16)
        stored = f"{tensor.name}.float16"
        casts.append(onnx.helper.make_node("Cast", [stored], [tensor.name], to=onnx.TensorProto.FLOAT))
        graph.initializer[index].CopyFrom(numpy_helper.from_array(values, stored))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


class Calibration(CalibrationDataReader):  # type: ignore[misc] # untyped
    """Batches of images for onnxruntime's calibration."""

    def __init__(self, images: NDArray[np.float32], batch_size: int = 100) -> None:
        self.batches: Iterator[NDArray[np.float32]] = iter(
            np.array_split(images, range(batch_size, len(images), batch_size))
        )

    def get_next(self) -> dict[str, Any] | None:
        """The next batch; None after the last."""
        batch = next(self.batches, None)
        return None if batch is None else {"images": batch}


def to_int8(model: onnx.ModelProto, images: NDArray[np.float32]) -> onnx.ModelProto:
    """Quantise convolutions and dense layers to 8-bit integers, with ranges measured on `images`.

    The ranges are fixed, so that an image's answer does not depend on the other images of its batch.
    """
    sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in model.graph.initializer}
    small = [
        node.name
        for node in model.graph.node
        if node.op_type == "Conv" and sizes.get(node.input[1], 0) < SMALL_CONVOLUTION
    ]
    add_pre_process_metadata(model)  # the weights are plain already; without this mark onnxruntime logs advice
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "int8.onnx"
        quantize_static(
            model,
            str(written),
            Calibration(images),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv", "Gemm"],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=small,
        )
        return onnx.load(written)
