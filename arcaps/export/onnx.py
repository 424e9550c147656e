"""One ONNX file from a model: traced, cleaned, checked against the model, and only then kept."""

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.data import Dataset
from arcaps.errors import ArcapsError
from arcaps.export.convolutions import ConvolutionForm, has_convolution_form
from arcaps.export.session import FORMAT, Exported, encode_metadata, missing
from arcaps.models import ARCapsNet, Classifier, Output
from arcaps.models.capsules import CapsuleClassifier
from arcaps.registry import unknown
from arcaps.storage import write_whole

try:
    import onnx
    import onnxscript  # noqa: F401 (torch's exporter needs it, and says so less clearly)

    from arcaps.export.precision import to_float16, to_int8
except ModuleNotFoundError as error:
    raise missing(error) from None

OPSET = 20
PARTS = ("scores", "capsules", "reconstruction", "logits", "coefficients")
ALLOWED = {"float32": 1e-4, "float16": 2e-2, "int8": 0.3}
"""How far a score may be from the model's, in each precision."""
CALIBRATION_IMAGES = 500


class Answer(nn.Module):
    """The chosen parts of a model's answer as a flat tuple: what the exporter takes."""

    def __init__(self, model: nn.Module, parts: Sequence[str]) -> None:
        super().__init__()
        self.model, self.parts = model, tuple(parts)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> tuple[Tensor, ...]:
        return tuple(self.named(images).values())

    def named(self, images: Float[Tensor, "batch channels height width"]) -> dict[str, Tensor]:
        """The parts that the model has, by the names that they have in the file."""
        return flatten(self.model(images), self.parts)


def flatten(output: Output, parts: Sequence[str]) -> dict[str, Tensor]:
    """The tensors of an answer by name: `scores`, ..., `coefficients.class_caps`."""
    found = {part: getattr(output, part) for part in parts if part != "coefficients"}
    if "coefficients" in parts:
        found |= {f"coefficients.{name}": tensor for name, tensor in output.coefficients.items()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


@torch.no_grad()
def export_onnx(
    model: Classifier,
    path: str | os.PathLike[str],
    *,
    precision: str = "float32",
    calibration: Dataset | None = None,
    parts: Sequence[str] = PARTS,
) -> Exported:
    """Write the model to one ONNX file, check the file against the model, and open it.

    | precision | what is stored                                                        | size |
    |-----------|-----------------------------------------------------------------------|------|
    | float32   | the model's own numbers                                               | 1    |
    | float16   | half-precision weights; sums stay float32                             | 1/2  |
    | int8      | integers, calibrated on the images of `calibration` (training images) | 1/4  |

    The input `images` is `(batch, channels, height, width)`, floats as `model.preprocessing` makes them, with any
    number of images. `parts` are those of `Output`; what the model does not have is left out.
    """
    check_request(precision, calibration, parts)
    answering = without_slices(model.for_inference().cpu())
    images = example_images(answering, calibration)
    module: nn.Module = answering
    if isinstance(answering, ARCapsNet) and has_convolution_form(answering):
        module = ConvolutionForm(answering, products=precision != "int8").eval()
    answer = Answer(module, parts).eval()
    names = list(answer.named(images[:2]))
    proto = trace(answer, images[:2], "images", names)
    proto = lower(proto, precision, images)
    describe(proto, {**describe_model(model), "precision": precision})
    content = serialise(proto)
    exported = Exported.from_bytes(content, str(path))
    check_answers(Answer(answering, parts).named(images[:100]), exported, images[:100], precision)
    write_whole(Path(path), content)
    return exported


@torch.no_grad()
def export_decoder(model: Classifier, path: str | os.PathLike[str], *, precision: str = "float32") -> None:
    """Write the decoder alone to an ONNX file: from `capsules` (batch, classes, dim) to `reconstruction`."""
    if not isinstance(model, CapsuleClassifier) or model.decoder is None:
        raise ArcapsError(f"this {model.name} has no decoder to export: train one with decoder=True")
    answering = model.for_inference().cpu()
    assert answering.decoder is not None
    capsules = torch.rand(2, model.classes, answering.class_caps.routing.dim)
    proto = trace(answering.decoder, capsules, "capsules", ["reconstruction"])
    proto = lower(proto, precision, capsules)
    describe(proto, {**describe_model(model), "precision": precision, "part": "decoder"})
    write_whole(Path(path), serialise(proto))


def check_request(precision: str, calibration: Dataset | None, parts: Sequence[str]) -> None:
    """Refuse what cannot be exported."""
    if precision not in ALLOWED:
        raise unknown("precision", precision, list(ALLOWED))
    for part in parts:
        if part not in PARTS:
            raise unknown("part", part, list(PARTS))
    if "scores" not in parts:
        raise ArcapsError(f"the parts {', '.join(parts) or '(none)'} lack scores: every file answers with them")
    if precision == "int8" and calibration is None:
        raise ArcapsError("int8 needs training images to measure ranges on: give calibration=dataset")


def without_slices(model: Classifier) -> Classifier:
    """The model with its layers taking all images at once: a file must take any number of them."""
    for module in model.modules():
        if hasattr(module, "images_at_once"):
            module.images_at_once = None  # type: ignore[assignment]
    return model


def example_images(model: Classifier, calibration: Dataset | None) -> Float[Tensor, "count channels height width"]:
    """Images to trace and check with: the calibration's, evenly spread over them, or smooth noise, half on black."""
    if calibration is None:
        coarse = torch.rand(20, model.channels, 5, 5, generator=torch.Generator().manual_seed(0))
        coarse[10:] *= coarse[10:] > 0.7  # areas of one colour, where all votes of a window are equal
        return nn.functional.interpolate(coarse, model.image_size, mode="bilinear", align_corners=True)
    if (calibration.channels, *calibration.image_size) != (model.channels, *model.image_size):
        wanted = "x".join(map(str, (model.channels, *model.image_size)))
        raise ArcapsError(f"the calibration images of {calibration.name} do not fit the model: give images of {wanted}")
    count = min(CALIBRATION_IMAGES, len(calibration))
    return model.preprocessing(calibration.images[torch.arange(count) * len(calibration) // count])


def trace(module: nn.Module, example: Tensor, input_name: str, output_names: list[str]) -> onnx.ModelProto:
    """The module as an ONNX graph for any number of images. The example must have two: one would be baked in."""
    with quiet():
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            input_names=[input_name],
            output_names=output_names,
            opset_version=OPSET,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    clean(proto)
    return proto


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter: it logs which optional packages it lacks, and warns of its own future."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
            warnings.filterwarnings(
                "ignore", category=DeprecationWarning, module=r"(onnx|onnxscript|torch|copyreg)\b.*"
            )
            yield
    finally:
        logger.setLevel(level)


def clean(proto: onnx.ModelProto) -> None:
    """Remove what says where the file was made (stack traces with paths), and inferred shapes, which confuse tools."""
    graph = proto.graph
    del graph.value_info[:]
    for part in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *proto.functions):
        del part.metadata_props[:]
        part.doc_string = ""
    del proto.metadata_props[:]
    proto.doc_string = ""


def lower(proto: onnx.ModelProto, precision: str, images: Tensor) -> onnx.ModelProto:
    """The graph in another precision."""
    if precision == "float16":
        to_float16(proto)
    elif precision == "int8":
        proto = to_int8(proto, images.numpy())
        clean(proto)
    return proto


def describe_model(model: Classifier) -> dict[str, Any]:
    """What a file says of its model: what `model.save` says."""
    return {
        "arcaps_format": FORMAT,
        "arcaps_version": version("arcaps"),
        "architecture": model.name,
        "config": model.config,
        "class_names": model.class_names,
        "input_shape": (model.channels, *model.image_size),
        "preprocessing": model.preprocessing.as_dict(),
        "parameters": model.parameter_count(),
    }


def describe(proto: onnx.ModelProto, metadata: dict[str, Any]) -> None:
    """Write the metadata into the graph."""
    for key, value in encode_metadata(metadata).items():
        proto.metadata_props.add(key=key, value=value)
    proto.producer_name, proto.producer_version = "arcaps", version("arcaps")


def serialise(proto: onnx.ModelProto) -> bytes:
    """The file's bytes, equal for equal graphs; the graph is checked first."""
    onnx.checker.check_model(proto, full_check=True)
    return proto.SerializeToString(deterministic=True)


def check_answers(expected: dict[str, Tensor], exported: Exported, images: Tensor, precision: str) -> None:
    """Refuse a file whose answers are not the model's: all of them in float32, the scores in a lower precision."""
    answers = exported.run(images.numpy())
    for name, tensor in expected.items():
        if precision != "float32" and name != "scores":
            continue
        difference = (torch.from_numpy(answers[name]) - tensor).abs()
        if name == "reconstruction":  # of the longest capsule: where two are equally long, either is right
            best = expected["scores"].topk(2).values if expected["scores"].shape[-1] > 1 else None
            clear = torch.ones(len(images)).bool() if best is None else best[:, 0] - best[:, 1] > 1e-3
            difference = difference[clear]
        allowed = ALLOWED[precision] * max(1.0, float(tensor.abs().max()))
        worst = float(difference.max()) if difference.numel() else 0.0
        if not worst <= allowed:
            raise ArcapsError(
                f"the exported {name} differ from the model's by {worst:.2g}, more than {allowed:.2g}: "
                f"nothing was written; {'report this' if precision == 'float32' else 'export float32 instead'}"
            )
