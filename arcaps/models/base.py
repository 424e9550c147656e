"""What every model is: one call, one output object, one file."""

import copy
import os
from abc import ABC, abstractmethod
from importlib.metadata import version
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from arcaps.errors import ArcapsError
from arcaps.models.blocks import ConvBlock
from arcaps.preprocessing import Preprocessing
from arcaps.registry import Named, check_options
from arcaps.storage import read_file, write_file

C = TypeVar("C", bound="Classifier")


class Output(NamedTuple):
    """What a model answers."""

    scores: Float[Tensor, "batch classes"]
    """For each class a number in 0..1: a capsule's normalised length, or a softmax probability."""
    capsules: Float[Tensor, "batch classes dim"] | None = None
    """The class capsules; None for a CNN."""
    reconstruction: Float[Tensor, "batch channels height width"] | None = None
    """The decoder's image; None without a decoder."""
    logits: Float[Tensor, "batch classes"] | None = None
    """What goes into the softmax; None for a capsule network."""
    coefficients: dict[str, Tensor] | None = None
    """On request, the coefficients `(..., out_caps, in_caps)` of every routing layer, by its name; none for a CNN."""


class Classifier(nn.Module, Named, ABC, kind="model"):
    """A model that names the class of an image of one size.

    Its keyword arguments are its architecture: they are kept in `config`, and are what a file of the model says.
    """

    channels_last = False
    """Whether convolutions get the channels side by side in memory: on CPUs good for 3x3 kernels, bad for large."""

    def __init__(self, *, image_size: int | tuple[int, int], channels: int, classes: int, **options: Any) -> None:
        super().__init__()
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        self.image_size = (height, width)
        self.channels, self.classes = channels, classes
        self.config = {"image_size": self.image_size, "channels": channels, "classes": classes, **options}
        for name, value in self.config.items():
            least = 0 if name == "layers" else 1
            if isinstance(value, int) and not isinstance(value, bool) and value < least:
                raise ArcapsError(f"{name} is {value}: give at least {least}")
        self.class_names = [str(n) for n in range(classes)]
        self.preprocessing = Preprocessing(self.image_size, channels)
        self.folded = False

    @abstractmethod
    def forward(
        self,
        images: Float[Tensor, "batch channels height width"],
        labels: Int[Tensor, " batch"] | None = None,
        *,
        return_coefficients: bool = False,
    ) -> Output:
        """Answer for `images`. `labels` say which capsule the decoder shows; without them, the longest."""

    @abstractmethod
    def losses(
        self,
        output: Output,
        images: Float[Tensor, "batch channels height width"],
        labels: Int[Tensor, " batch"],
    ) -> dict[str, Tensor]:
        """The parts of the training loss by name, weighted: their sum is the loss."""

    def require_size(self, smallest: int, reason: str) -> None:
        """Refuse an image size below `smallest`."""
        if min(self.image_size) < smallest:
            size = "x".join(map(str, self.image_size))
            raise ArcapsError(f"image_size {size} is too small for {reason}: give at least {smallest}x{smallest}")

    def accept(self, images: Tensor) -> Tensor:
        """The images in the order in memory that suits the model; refuses another shape than its, and stored bytes."""
        if not images.is_floating_point():
            raise ArcapsError(
                f"{self.name} takes images as floats, got {images.dtype}: give model.preprocessing(images)"
            )
        expected = (self.channels, *self.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            wanted = ", ".join(map(str, expected))
            raise ArcapsError(f"{self.name} takes images (batch, {wanted}), got {tuple(images.shape)}")
        return images.clone(memory_format=torch.channels_last) if self.channels_last else images

    def parameter_count(self, *, statistics: bool = False) -> int:
        """Trainable parameters; with `statistics` also BatchNorm's running means and variances, as Keras counts."""
        count = sum(p.numel() for p in self.parameters())
        if statistics:
            count += sum(b.numel() for b in self.buffers() if b.is_floating_point())
        return count

    def for_inference(self: C) -> C:
        """A copy that only answers, faster: in evaluation mode, with each BatchNorm folded into its convolution.

        Its answers are those of the model up to rounding. It is also what to export; to save, save the model itself.
        """
        twin = copy.deepcopy(self).eval().requires_grad_(False)
        twin.folded = True
        for module in twin.modules():
            if isinstance(module, ConvBlock):
                module.fold()
        return twin

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one safetensors file, with all that is needed to use it."""
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

    @classmethod
    def load(cls: type[C], path: str | os.PathLike[str]) -> C:
        """The model in a file, in evaluation mode. `ARCapsNet.load` refuses a file that holds another architecture."""
        tensors, metadata = read_file(path)
        name = metadata["architecture"]
        config = {key: tuple(value) if isinstance(value, list) else value for key, value in metadata["config"].items()}
        try:
            with torch.device("meta"):
                model = create_model(name, **config)
        except ArcapsError as error:
            raise ArcapsError(f"{path} was written by arcaps {metadata['arcaps_version']}: {error}") from None
        if not isinstance(model, cls):
            raise ArcapsError(f"{path} holds the architecture {name}, not {cls.__name__}: open it with arcaps.load")
        check_weights(path, model, tensors)
        model.load_state_dict(tensors, assign=True)
        model.class_names = metadata["class_names"]
        try:
            model.preprocessing = Preprocessing.from_dict(metadata["preprocessing"], model.image_size, model.channels)
        except ArcapsError as error:
            raise ArcapsError(f"{path} was written by arcaps {metadata['arcaps_version']}: {error}") from None
        return model.eval()


def check_weights(path: str | os.PathLike[str], model: Classifier, tensors: dict[str, Tensor]) -> None:
    """Refuse weights that are not those of the architecture which the file names."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            what = f"{name} should be {expected.get(name, 'absent')} and is {found.get(name, 'absent')}"
            raise ArcapsError(f"{path} does not hold the weights of the {model.name} that it describes: {what}")


def create_model(name: str, **overrides: Any) -> Classifier:
    """Make a model by name: `create_model("ar_capsnet", image_size=(32, 32), channels=3, layers=4)`."""
    found = Classifier.find(name)
    check_options("model", name, found, overrides)
    return found(**overrides)
