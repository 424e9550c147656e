"""What the experiments share."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from arcaps.data import Dataset
from arcaps.errors import ArcapsError
from arcaps.mode import evaluation_mode
from arcaps.models import Classifier
from arcaps.models.capsules import CapsuleClassifier
from arcaps.progress import track


class DoesNotApplyError(ArcapsError):
    """The model lacks what the experiment examines."""


def require_capsules(model: Classifier, experiment: str) -> CapsuleClassifier:
    """The model as a capsule network; a CNN is refused."""
    if not isinstance(model, CapsuleClassifier):
        raise DoesNotApplyError(f"{experiment} does not apply to {model.name}: it has no capsules")
    return model


def choose_images(model: Classifier, dataset: Dataset, count: int | None) -> Dataset:
    """`count` images spread evenly over a data set that fits the model; without a count all of them."""
    if (dataset.channels, *dataset.image_size) != (model.channels, *model.image_size):
        wanted = "x".join(map(str, (model.channels, *model.image_size)))
        given = "x".join(map(str, (dataset.channels, *dataset.image_size)))
        raise ArcapsError(f"the model takes images of {wanted}, {dataset.name} has {given}")
    if len(dataset.class_names) > model.classes:
        raise ArcapsError(f"the model knows {model.classes} classes, {dataset.name} has {len(dataset.class_names)}")
    if dataset.several_labels:
        raise ArcapsError(f"{dataset.name} has several labels for an image, and experiments take one: give one each")
    if count is not None and count < 1:
        raise ArcapsError(f"count is {count}: give at least 1")
    if count is None or count >= len(dataset):
        return dataset
    return dataset.take(torch.arange(count) * len(dataset) // count)


@contextmanager
def eval_mode(*models: Classifier) -> Iterator[None]:
    """Put models into evaluation mode, without gradients; afterwards they are as before."""
    with torch.no_grad(), evaluation_mode(*models):
        yield


def batches(model: Classifier, dataset: Dataset, size: int, description: str = "") -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of the images as the model takes them, with their labels; with a description under a progress bar."""
    device = next(model.parameters()).device
    starts: Iterable[int] = range(0, len(dataset), size)
    if description:
        starts = track(starts, description, -(-len(dataset) // size))
    for start in starts:
        part = slice(start, start + size)
        yield model.preprocessing(dataset.images[part].to(device)), dataset.labels[part].to(device)


def class_capsules(
    model: CapsuleClassifier, images: Float[Tensor, "batch channels height width"]
) -> tuple[Float[Tensor, "batch classes dim"], Float[Tensor, "batch classes dim"]]:
    """The class capsules before their bound (tanh, or squash) and after it."""
    layer = model.class_caps
    routed: list[Tensor] = []  # several with `images_at_once`
    with layer.activation.register_forward_pre_hook(lambda _, inputs: routed.append(inputs[0])):
        after = model(images).capsules
    assert after is not None
    return layer.of_channels(layer.activation.transform(torch.cat(routed))[:, 0, 0]), after


def of_class(capsules: Float[Tensor, "batch classes dim"], labels: Int[Tensor, " batch"]) -> Float[Tensor, "batch dim"]:
    """The capsule of each image's class."""
    return capsules[torch.arange(len(labels), device=labels.device), labels]


def bound_name(model: CapsuleClassifier) -> str:
    """The function that bounds the class capsules: "tanh" for the capsule activation."""
    name = model.class_caps.activation.name
    return "tanh" if name == "capsule" else name


def plain(values: Tensor) -> Any:
    """Numbers for JSON, to six digits; NaN becomes None."""

    def convert(value: Any) -> Any:
        if isinstance(value, list):
            return [convert(one) for one in value]
        return None if value != value else float(f"{value:.6g}")

    return convert(values.tolist())
