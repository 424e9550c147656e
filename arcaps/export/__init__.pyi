"""The public names. They are imported on first use: an exported file is opened without torch."""

from .onnx import export_decoder as export_decoder
from .onnx import export_onnx as export_onnx
from .session import Exported as Exported
from .session import ExportedOutput as ExportedOutput
