"""What the experiments share."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from arcaps.data import Dataset
from arcaps.data.sources import Report
from arcaps.errors import ArcapsError
from arcaps.models import Classifier
from arcaps.models.capsules import CapsuleClassifier
from arcaps.training.evaluate import require_fit


class DoesNotApplyError(ArcapsError):
    """An experiment was asked of a model that lacks what it looks at."""


def silent(_: str) -> None:
    """Say nothing."""


def require_capsules(model: Classifier, experiment: str) -> CapsuleClassifier:
    """The model as a capsule network; a CNN is refused."""
    if not isinstance(model, CapsuleClassifier):
        raise DoesNotApplyError(f"{experiment} does not apply to {model.name}: it has no capsules")
    return model


def choose_images(model: Classifier, dataset: Dataset, count: int | None) -> Dataset:
    """`count` images spread evenly over a data set that fits the model; all of them without a count."""
    require_fit(model, dataset)
    if len(dataset.class_names) > model.classes:
        raise ArcapsError(f"the model knows {model.classes} classes, {dataset.name} has {len(dataset.class_names)}")
    if count is not None and count < 1:
        raise ArcapsError(f"count is {count}: give at least 1")
    if count is None or count >= len(dataset):
        return dataset
    return dataset.take(torch.arange(count) * len(dataset) // count)


@contextmanager
def at_rest(*models: Classifier) -> Iterator[None]:
    """Models in evaluation mode, without gradients; afterwards as they were."""
    before = [model.training for model in models]
    try:
        with torch.no_grad():
            for model in models:
                model.eval()
            yield
    finally:
        for model, training in zip(models, before, strict=True):
            model.train(training)


def batches(
    model: Classifier, dataset: Dataset, size: int, report: Report, what: str, seconds: float = 10.0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images as the model wants them, with their labels; every few seconds it is told how far it has come."""
    device = next(model.parameters()).device
    told = time.monotonic()
    for start in range(0, len(dataset), size):
        if time.monotonic() - told > seconds:
            report(f"{what}: {start:,} of {len(dataset):,} images")
            told = time.monotonic()
        part = slice(start, start + size)
        yield model.preprocessing(dataset.images[part].to(device)), dataset.labels[part].to(device)


def class_capsules(
    model: CapsuleClassifier, images: Float[Tensor, "batch channels height width"]
) -> tuple[Float[Tensor, "batch classes dim"], Float[Tensor, "batch classes dim"]]:
    """The class capsules before their bound (tanh, or squash) and after it."""
    activation = model.class_caps.activation
    routed: list[Tensor] = []
    with activation.register_forward_pre_hook(lambda _, inputs: routed.append(inputs[0])):
        after = model(images).capsules
    assert after is not None
    return activation.transform(routed[0])[:, 0, 0], after


def of_class(capsules: Float[Tensor, "batch classes dim"], labels: Int[Tensor, " batch"]) -> Float[Tensor, "batch dim"]:
    """Each image's capsule of its own class."""
    return capsules[torch.arange(len(labels), device=labels.device), labels]


def bound_name(model: CapsuleClassifier) -> str:
    """What keeps the class capsules short: "tanh" for the capsule activation."""
    name = model.class_caps.activation.name
    return "tanh" if name == "capsule" else name


def plain(values: Tensor) -> Any:
    """Numbers for JSON, to six digits; what is not a number becomes None."""

    def mend(value: Any) -> Any:
        if isinstance(value, list):
            return [mend(one) for one in value]
        return None if value != value else float(f"{value:.6g}")

    return mend(values.tolist())
