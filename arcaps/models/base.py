"""What every model is: one call, one output object, one loss, one file."""

import copy
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.metadata import version
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from arcaps.activation import CapsuleActivation
from arcaps.capsules import Capsules
from arcaps.compat import can_be_stored, is_tracing, is_transformed
from arcaps.errors import ArcapsError, listed
from arcaps.models.blocks import ConvBlock
from arcaps.models.evaluation import Classification, Evaluation
from arcaps.models.prediction import Prediction, Predictor
from arcaps.preprocessing import Picture, Preprocessing
from arcaps.registry import Named, check_options, option_defaults
from arcaps.schedule import set_progress
from arcaps.settings import ModelConfig
from arcaps.storage import read_file, write_file
from arcaps.weights import is_pretrained, weight_file

log = logging.getLogger("arcaps")
M = TypeVar("M", bound="Model")

Labels = Int[Tensor, " batch"] | Float[Tensor, "batch classes"]
"""Class numbers, or a 1 for every class that is there."""


OWN_NETWORK = "own_network"
"""The name of a user's own module in recipes and files; it cannot be built by name."""


class Output(NamedTuple):
    """What a classifier answers."""

    scores: Float[Tensor, "batch classes"]
    """For each class a number in 0..1: a capsule's normalised length, or a softmax probability."""
    capsules: Float[Tensor, "batch classes dim"] | None = None
    """The class capsules; None for a CNN."""
    reconstruction: Float[Tensor, "batch channels height width"] | None = None
    """The decoder's image; None without a decoder."""
    logits: Float[Tensor, "batch classes"] | None = None
    """What goes into the softmax; None where there is none."""
    coefficients: dict[str, Tensor] = {}  # noqa: RUF012 (nobody writes into it)
    """The coefficients `(..., out_caps, in_caps)` of every routing layer, by its name; empty for a CNN."""


can_be_stored(Output)


def traceable(output: Output) -> Output:
    """For torch.jit.trace, which follows tensors alone: those of an output, by the same names, without coefficients."""
    if not is_tracing():
        return output
    there = [name for name in output._fields if isinstance(getattr(output, name), Tensor)]
    fields: dict[str, Any] = {name: property(itemgetter(number)) for number, name in enumerate(there)}
    missing = {name: default for name, default in output._field_defaults.items() if name not in there}
    traced = type("TracedOutput", (Output,), {**missing, **fields})
    return tuple.__new__(traced, (getattr(output, name) for name in there))


@runtime_checkable
class BatchLike(Protocol):
    """What a loss looks at: `arcaps.data.Batch`, or anything with images and labels."""

    @property
    def images(self) -> Tensor:
        """What the model is called with."""

    @property
    def labels(self) -> Tensor:
        """The true classes."""


def blocks(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers a person would name: containers are opened, layers without parameters passed over."""
    for name, child in module.named_children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            yield from blocks(child, f"{prefix}{name}.")
        elif any(True for _ in child.parameters()):
            yield f"{prefix}{name}", child


class Model(nn.Module, Named, ABC, kind="model"):
    """A network for one task, with its loss, its evaluation and its file.

    A subclass defines `forward(images, labels=None)`, `losses` and `new_evaluation`. Its options are the keyword-only
    arguments of its constructor, `image_size` and `channels` among them, or the fields of its `config_class`; they are
    kept in `config`, and are what a file of the model says. A model of your own is known by its name:

        class Segmenter(Model, name="segmenter"):
            def __init__(self, *, image_size=(28, 28), channels=1, width=8):
                super().__init__()
    """

    config_class: ClassVar[type[ModelConfig] | None] = None
    """The settings of the architecture; without it the keyword-only arguments of the constructor."""
    channels_last: ClassVar[bool] = False
    """Whether convolutions get the channels side by side in memory: on CPUs good for 3x3 kernels, bad for large."""
    renamed: ClassVar[dict[str, str]] = {}
    """How the names of weights began in files of earlier versions, and how they begin now."""
    config: dict[str, Any]
    image_size: tuple[int, int]
    channels: int

    def __init__(self, settings: ModelConfig | None = None) -> None:
        super().__init__()
        self.config = option_defaults(type(self)) | self.options if settings is None else settings.as_options()
        for needed in ("image_size", "channels"):
            if needed not in self.config:
                raise ArcapsError(f"{type(self).__name__} has no option {needed}: give its constructor {needed}=")
        size = self.config["image_size"]
        self.image_size = (size, size) if isinstance(size, int) else tuple(size)
        self.config["image_size"] = self.image_size
        self.channels = self.config["channels"]
        self.class_names: list[str] = [str(n) for n in range(self.config.get("classes", 0))]
        self.preprocessing = Preprocessing(self.image_size, self.channels)
        self.folded = False

    def __repr__(self) -> str:
        return nn.Module.__repr__(self)

    @classmethod
    def find(cls: type[M], name: str) -> type[M]:
        """The model class of that name. A network of your own has none: only its weights are in files."""
        if name == OWN_NETWORK:
            way = "in Python, train(model=network), train(resume=run, model=network) or load(file, module=network)"
            raise ArcapsError(f"the model is a network of your own, which arcaps cannot build by name: give it {way}")
        return super().find(name)

    @abstractmethod
    def forward(self, images: Float[Tensor, "batch channels height width"], labels: Any = None) -> Any:
        """Answer for `images`. With `labels` the answer may use what is right, for the loss alone."""

    @abstractmethod
    def losses(self, output: Any, batch: BatchLike, progress: float = 1.0) -> dict[str, Tensor]:
        """The parts of the training loss by name, weighted: their sum is the loss.

        `output` is what the model answered for the batch; `progress` goes from 0 to 1 in the course of a training.
        """

    @abstractmethod
    def new_evaluation(self, data: str) -> Evaluation:
        """An empty evaluation on the data set of that name."""

    def loss(self, batch: BatchLike, progress: float | None = None) -> dict[str, Tensor]:
        """Answer for a batch; return the parts of the loss by name, weighted: their sum is the loss.

        `progress` says to every scheduled part how far the training is. Without it they stay as they are, and the loss
        is that of the end of a training.
        """
        if progress is not None:
            set_progress(self, progress)
        return self.losses(self(batch.images, batch.labels), batch, 1.0 if progress is None else progress)

    def feature_layers(self) -> Iterator[tuple[str, nn.Module]]:
        """The layers whose outputs are the features, by name, in order of depth."""
        return blocks(self)

    def features(self, images: Float[Tensor, "batch channels height width"]) -> dict[str, Tensor]:
        """What each layer makes of the images, by its name, in order of depth; the scores are read from the last."""
        found: dict[str, Tensor] = {}

        def note(name: str) -> Any:
            def hook(_: nn.Module, __: Any, output: Any) -> None:
                found[name] = output.poses if isinstance(output, Capsules) else output

            return hook

        handles = [layer.register_forward_hook(note(name)) for name, layer in self.feature_layers()]
        try:
            self(images)
        finally:
            for handle in handles:
                handle.remove()
        return found

    def require_size(self, smallest: int, reason: str) -> None:
        """Refuse an image size below `smallest`."""
        if min(self.image_size) < smallest:
            size = "x".join(map(str, self.image_size))
            raise ArcapsError(f"image_size {size} is too small for {reason}: give at least {smallest}x{smallest}")

    def accept(self, images: Any) -> Tensor:
        """The images in the order in memory that suits the model; refuses another shape than its, and stored bytes."""
        if not isinstance(images, Tensor):
            kind = type(images).__name__
            raise ArcapsError(f"{self.name} takes a tensor of images, got {kind}: give model.preprocessing.prepare(it)")
        if not images.is_floating_point():
            raise ArcapsError(
                f"{self.name} takes images as floats, got {images.dtype}: give model.preprocessing(images)"
            )
        own = next((one.dtype for one in self.parameters() if one.is_floating_point()), images.dtype)
        if images.dtype != own and not torch.is_autocast_enabled(images.device.type):
            both = f"{self.name} has weights of {own}, got images of {images.dtype}"
            raise ArcapsError(f"{both}: give images.to({own}), or model.to({images.dtype})")
        expected = (self.channels, *self.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            wanted = ", ".join(map(str, expected))
            raise ArcapsError(f"{self.name} takes images (batch, {wanted}), got {tuple(images.shape)}")
        if self.channels_last and not is_transformed():  # torch.func knows one order only
            return images.clone(memory_format=torch.channels_last)
        return images

    def parameter_count(self, *, statistics: bool = False) -> int:
        """Trainable parameters; with `statistics` also BatchNorm's running means and variances, as Keras counts."""
        count = sum(p.numel() for p in self.parameters())
        if statistics:
            count += sum(b.numel() for b in self.buffers() if b.is_floating_point())
        return count

    def for_inference(self: M) -> M:
        """A copy that only answers, faster: in evaluation mode, with each BatchNorm folded into the layer before it.

        Its answers are those of the model up to rounding. It is also what to export; to save, save the model itself.
        """
        twin = copy.deepcopy(self).eval().requires_grad_(False)
        twin.folded = True
        for module in twin.modules():
            if isinstance(module, ConvBlock | CapsuleActivation):
                module.fold()
        return twin

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one safetensors file, with all that is needed to use it."""
        for name, tensor in self.state_dict().items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise ArcapsError(f"{path}: {name} has values that are not finite: a file with them cannot be loaded")
        if self.folded:
            raise ArcapsError("a copy made by for_inference cannot be saved: save the model that it was made from")
        write_file(
            path,
            self.state_dict(),
            {
                "architecture": self.name,
                "config": self.config,
                "class_names": self.class_names,
                "input_shape": (self.channels, *self.image_size),
                "preprocessing": self.preprocessing.as_dict(),
                "arcaps_version": version("arcaps"),
            },
        )

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Take over weights; those of earlier versions get their present names."""
        return super().load_state_dict(self.with_present_names(state_dict), strict, assign)

    def with_present_names(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights by their present names."""
        for before, now in self.renamed.items():
            tensors = {now + k.removeprefix(before) if k.startswith(before) else k: v for k, v in tensors.items()}
        return tensors

    @classmethod
    def load(cls: type[M], path: str | os.PathLike[str]) -> M:
        """The model in a file, in evaluation mode; or a pretrained one by its name: `arcaps.load("digits")`.

        `ARCapsNet.load` refuses a file that holds another architecture.
        """
        tensors, metadata = read_file(weight_file(str(path)) if is_pretrained(path) else path)
        check_metadata(path, metadata)
        tensors = {key: value.float() if value.dtype == torch.float16 else value for key, value in tensors.items()}
        name = metadata["architecture"]
        config = {key: tuple(value) if isinstance(value, list) else value for key, value in metadata["config"].items()}
        try:
            with torch.device("meta"):
                model = create_model(name, **config)
        except ArcapsError as error:
            raise ArcapsError(f"{path} was written by arcaps {metadata['arcaps_version']}: {error}") from None
        if not isinstance(model, cls):
            raise ArcapsError(f"{path} holds the architecture {name}, not {cls.__name__}: open it with arcaps.load")
        return fill_model(path, model, tensors, metadata)


class Classifier(Model):
    """A model that names the class of an image of one size, or several classes.

    It answers with an `Output`.
    """

    def __init__(self, settings: ModelConfig | None = None) -> None:
        super().__init__(settings)
        if "classes" not in self.config:
            raise ArcapsError(f"{type(self).__name__} has no option classes: give its constructor classes=")
        self.classes = int(self.config["classes"])

    def new_evaluation(self, data: str) -> Classification:
        """An empty confusion matrix."""
        return Classification(data, tuple(self.class_names))

    def predictor(self, *, invert: bool = False) -> Predictor:
        """The model ready to predict on the device where it is; with `invert`, black and white change places."""
        fast, first = self.for_inference(), next(self.parameters())
        preprocessing = replace(self.preprocessing, invert=self.preprocessing.invert != invert)

        def answer(images: Tensor) -> Tensor:
            return fast(images.to(first.device, first.dtype)).scores.float().cpu()

        return Predictor(answer, preprocessing, tuple(self.class_names))

    def predict(
        self, images: Picture | Iterable[Picture], *, invert: bool = False, batch_size: int = 64
    ) -> list[Prediction]:
        """Predict the class of images: files, folders, Pillow images, arrays or tensors of bytes, of any size.

        `invert` turns black into white and white into black, for images that are not as those of the training. An
        image that cannot be read has a `problem` and no label.
        """
        return list(self.predictor(invert=invert).each(images, batch_size))


def fill_model(path: str | os.PathLike[str], model: M, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> M:
    """A model with the weights, class names and preprocessing of its file, in evaluation mode."""
    tensors = model.with_present_names(tensors)
    check_weights(path, model, tensors)
    model.load_state_dict(tensors, assign=True)
    model.class_names = metadata["class_names"]
    try:
        model.preprocessing = Preprocessing.from_dict(metadata["preprocessing"], model.image_size, model.channels)
    except ArcapsError as error:
        raise ArcapsError(f"{path} was written by arcaps {metadata['arcaps_version']}: {error}") from None
    return model.eval()


def check_weights(path: str | os.PathLike[str], model: Model, tensors: dict[str, Tensor]) -> None:
    """Refuse weights that are not those of the architecture which the file names."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            what = f"{name} should be {expected.get(name, 'absent')} and is {found.get(name, 'absent')}"
            raise ArcapsError(f"{path} does not hold the weights of the {model.name} that it describes: {what}")
    own = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() != own[name].is_floating_point or (len(kinds) > 1 and own[name] != tensor.dtype):
            raise ArcapsError(f"{path}: {name} should hold {own[name]} and holds {tensor.dtype}: save the model again")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ArcapsError(f"{path}: {name} holds values that are not finite: the training went wrong; train again")


def check_metadata(path: str | os.PathLike[str], metadata: dict[str, Any]) -> None:
    """Refuse a description that is no model's."""
    kinds = {"architecture": str, "config": dict, "class_names": list}
    for key, kind in kinds.items():
        if not isinstance(metadata.get(key), kind):
            raise ArcapsError(f"{path} does not describe a model: {key} is {metadata.get(key)!r}: save the model again")
    names, classes = metadata["class_names"], metadata["config"].get("classes")
    unique = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    if not unique or (isinstance(classes, int) and len(names) != classes):
        raise ArcapsError(f"{path} has the class names {names}, which do not fit {classes} classes")
    metadata.setdefault("arcaps_version", "of an unknown version")
    metadata.setdefault("preprocessing", {})


def create_model(name: str, **overrides: Any) -> Any:
    """Make a model by name: `create_model("ar_capsnet", image_size=(32, 32), channels=3, layers=4)`.

    With `pretrained`, the name of weights that come with arcaps, the architecture and the weights are theirs, but for
    what is overridden: `create_model("ar_capsnet", pretrained="digits", classes=5)` has a new class layer.
    """
    found = Model.find(name)
    pretrained = overrides.pop("pretrained", None)
    check_options("model", name, found, overrides)
    if pretrained is None:
        return found(**overrides)
    return start_from(found.load(weight_file(pretrained)), overrides)


def start_from(model: M, overrides: dict[str, Any]) -> M:
    """A model with another architecture, and the weights of this one where their shapes are equal."""
    if not overrides:
        return model
    new = type(model)(**{**model.config, **overrides})
    copy_weights(model, new)
    new.preprocessing = replace(model.preprocessing, size=new.image_size, channels=new.channels)
    if len(new.class_names) == len(model.class_names):
        new.class_names = list(model.class_names)
    return new


def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Let the target start from the weights of the source, where names and shapes are equal; log what is not copied."""
    wanted, found = target.state_dict(), source.state_dict()
    same = {name: value for name, value in found.items() if name in wanted and wanted[name].shape == value.shape}
    if not same:
        kinds = f"a {type(source).__name__} and this {type(target).__name__}"
        raise ArcapsError(f"{kinds} have no layer of the same name and shape: start from another model")
    target.load_state_dict(same, strict=False)
    other = [name for name in wanted if name not in same]
    if other:
        examples = listed(other)
        log.info("%d of %d tensors are not copied, because their shapes differ: %s", len(other), len(wanted), examples)


def list_models() -> list[str]:
    """The names of all models, those of your own too."""
    return sorted(Model.known)
