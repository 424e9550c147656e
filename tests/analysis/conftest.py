"""Small models and images for the laboratory."""

from typing import Any

import pytest
import torch

import arcaps
from arcaps import Classifier, Dataset, create_model

SMALL: dict[str, dict[str, Any]] = {
    "ar_capsnet": {"caps": 3, "dim": 8, "primary_dim": 4, "stem_channels": 4},
    "capsule_net": {"caps": 2, "dim": 4, "primary_dim": 4, "stem_channels": 4},
    "strong_conv_net": {"widths": (4, 8, 8, 8)},
}
SHAPES = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}


def small_model(name: str, shape: tuple[int, int, int] = (28, 28, 1), **options: Any) -> Classifier:
    """An untrained model in evaluation mode."""
    height, width, channels = shape
    return create_model(name, image_size=(height, width), channels=channels, **{**SMALL[name], **options}).eval()


def noise_images(shape: tuple[int, int, int], count: int = 20) -> Dataset:
    """Random images of ten classes, in turn."""
    height, width, channels = shape
    images = torch.randint(256, (count, channels, height, width), dtype=torch.uint8)
    return Dataset("noise", images, torch.arange(count) % 10, tuple("abcdefghij"))


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """Real digits."""
    return arcaps.load_data("digits").test


@pytest.fixture(scope="session")
def trained(digits: Dataset) -> Classifier:
    """A small AR CapsNet that knows most digits."""
    torch.manual_seed(0)
    model = small_model("ar_capsnet", stem_channels=8, primary_dim=8, dropout=0.0)
    data = arcaps.load_data("digits").train
    assert data is not None
    optimiser = torch.optim.AdamW(model.parameters(), 4e-3)
    model.train()
    for batch in arcaps.Loader(data, batch_size=25):
        losses = model.loss(batch)
        optimiser.zero_grad()
        sum(losses.values(), torch.zeros(())).backward()
        optimiser.step()
    return model.eval()
