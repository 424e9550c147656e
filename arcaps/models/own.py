"""A network of your own: any module that answers images with a logit for each class."""

import copy
import logging
import os
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.errors import ArcapsError
from arcaps.losses import CrossEntropy
from arcaps.mode import evaluation_mode
from arcaps.models.base import OWN_NETWORK, BatchLike, Classifier, Labels, Output, check_metadata, fill_model, traceable
from arcaps.storage import read_file

log = logging.getLogger("arcaps")


class OwnNetwork(Classifier):
    """A classifier around a module of your own, which trains with cross-entropy and is saved as any model.

    The module is called with images `(batch, channels, height, width)`, floats from 0 to 1, and answers with logits
    `(batch, classes)`, or with an object that has them as `logits`. A file holds its weights, not its code: to load
    the file, give a module of the same class. A new module answers two black images once, so that a wrong shape is
    named before the first step.
    """

    name: ClassVar[str] = OWN_NETWORK

    def __init__(
        self, module: nn.Module, *, image_size: int | tuple[int, int] = (28, 28), channels: int = 1, classes: int = 10
    ) -> None:
        super().__init__()
        self.module = module
        self.cross_entropy = CrossEntropy()
        self.check_answer()

    def forward(self, images: Float[Tensor, "batch channels height width"], labels: Labels | None = None) -> Output:
        images = self.accept(images)
        try:
            answer = self.module(images)
        except (RuntimeError, ValueError, TypeError) as error:
            what = f"{type(self.module).__name__} fails for images {tuple(images.shape)} of {images.dtype}"
            raise ArcapsError(f"{what}: {error}") from error
        logits = answer_scores(answer, type(self.module).__name__)
        if logits.shape != (len(images), self.classes):
            found = f"{type(self.module).__name__} answers {len(images)} images with {tuple(logits.shape)}"
            raise ArcapsError(f"{found}: let its last layer have {self.classes} outputs, one for each class")
        return traceable(Output(logits.softmax(-1), logits=logits))

    def losses(self, output: Output, batch: BatchLike, progress: float = 1.0) -> dict[str, Tensor]:
        return {"cross_entropy": self.cross_entropy(output.scores, batch.labels, logits=output.logits)}

    @torch.no_grad()
    def check_answer(self) -> None:
        """Refuse a module that cannot learn these classes from these images; warn of probabilities."""
        first = next(self.module.parameters(), None)
        like: dict[str, Any] = {} if first is None else {"device": first.device, "dtype": first.dtype}
        with evaluation_mode(self.module):
            logits = self(torch.zeros(2, self.channels, *self.image_size, **like)).logits
        if not any(parameter.requires_grad for parameter in self.module.parameters()):
            raise ArcapsError(f"{type(self.module).__name__} has no parameters to train: give one that has")
        assert logits is not None
        if (logits >= 0).all() and torch.allclose(logits.sum(-1), torch.ones_like(logits[:, 0]), atol=1e-4):
            log.warning(
                "%s seems to answer with probabilities: leave its softmax out, the loss takes logits",
                type(self.module).__name__,
            )

    @classmethod
    def load_into(cls, path: str | os.PathLike[str], module: nn.Module) -> "OwnNetwork":
        """The network in a file, in evaluation mode, as a copy of a `module` of the same class."""
        tensors, metadata = read_file(path)
        check_metadata(path, metadata)
        if metadata["architecture"] != cls.name:
            raise ArcapsError(f"{path} holds the architecture {metadata['architecture']}: load it without a module")
        if not isinstance(module, nn.Module):
            raise ArcapsError(f"{module!r} is not a module: give a torch.nn.Module of the class that was trained")
        size = tuple(metadata["config"]["image_size"])
        model = cls(copy.deepcopy(module), **{**metadata["config"], "image_size": size})
        return fill_model(path, model, tensors, metadata)


def answer_scores(answer: Any, name: str) -> Float[Tensor, "batch classes"]:
    """The logits or scores that a user's own module answered with: a tensor, or an object that has them."""
    scores = answer
    for attribute in ("logits", "scores"):
        scores = getattr(answer, attribute, None) if not isinstance(scores, Tensor) else scores
    if not isinstance(scores, Tensor) or scores.ndim != 2:
        found = f"a tensor {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(answer).__name__
        raise ArcapsError(f"{name} answers with {found}: it must answer with (batch, classes)")
    return scores
