"""Small models that have learned a little: the scores of untrained ones are too near zero to be compared."""

from typing import Any

import pytest
import torch
from torch import Tensor

import arcaps
from arcaps import Classifier, Dataset, create_model

SMALL: dict[str, dict[str, Any]] = {
    "ar_capsnet": {"caps": 3, "dim": 8, "primary_dim": 8, "stem_channels": 8, "dropout": 0.0},
    "capsule_net": {"caps": 2, "dim": 4, "primary_dim": 4, "stem_channels": 8},
    "conv_net": {"image_size": (10, 10)},
    "strong_conv_net": {"widths": (4, 8, 8, 8)},
}


def as_taken(model: Classifier, images: Tensor) -> Tensor:
    """The middle of digits, in the size and with the channels that a model takes."""
    height, width = model.image_size
    top, left = (28 - height) // 2, (28 - width) // 2
    return images[:, :, top : top + height, left : left + width].expand(-1, model.channels, -1, -1)


def taught(name: str, steps: int = 20, **options: Any) -> Classifier:
    """A small model after a few steps on real digits."""
    torch.manual_seed(0)
    model = create_model(name, **{**SMALL.get(name, {}), **options}).train()
    data = arcaps.load_data("digits").train
    assert data is not None
    optimiser = torch.optim.AdamW(model.parameters(), 5e-4 if name == "conv_net" else 4e-3)
    for step, batch in enumerate(arcaps.Loader(data, batch_size=25)):
        if step == steps:
            break
        images, labels = as_taken(model, batch.images), batch.labels % model.classes
        losses = model.loss(batch._replace(images=images, labels=labels))
        optimiser.zero_grad()
        sum(losses.values(), torch.zeros(())).backward()
        optimiser.step()
    return model.eval()


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """Real digits."""
    return arcaps.load_data("digits").test


@pytest.fixture(scope="session")
def training_digits() -> Dataset:
    """Real digits to calibrate on."""
    data = arcaps.load_data("digits").train
    assert data is not None
    return data


@pytest.fixture(scope="session")
def trained() -> Classifier:
    """A small AR CapsNet that knows most digits."""
    return taught("ar_capsnet", 200)
