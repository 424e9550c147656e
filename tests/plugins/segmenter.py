"""A model for another task, as a user would write it: each pixel gets a class. Nothing in arcaps knows it."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.models import Evaluation, Model


class PixelAccuracy(Evaluation):
    """The part of the pixels that got their class."""

    def update(self, output: Any, batch: Any) -> None:
        """Count the pixels of a batch."""
        known = batch.masks != 255
        right = (output.argmax(1) == batch.masks) & known
        found = {"right": right.sum().cpu(), "count": known.sum().cpu()}
        self.sums = {name: self.sums.get(name, torch.tensor(0)) + value for name, value in found.items()}

    @property
    def error(self) -> float:
        """The part of the pixels with another class."""
        return 1 - int(self.sums["right"]) / int(self.sums["count"])

    @property
    def summary(self) -> str:
        """One line."""
        return f"{self.error:.2%} of {int(self.sums['count']):,} pixels wrong: {self.data}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"data": self.data, "pixel_error": self.error, "pixels": int(self.sums["count"])}


class Segmenter(Model, name="toy_segmenter"):
    """Two convolutions, and a class for each pixel."""

    def __init__(
        self, *, image_size: int | tuple[int, int] = (28, 28), channels: int = 1, classes: int = 2, width: int = 8
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, classes, 3, padding=1)
        )

    def forward(self, images: Float[Tensor, "batch channels height width"], labels: Any = None) -> Tensor:
        """Logits of each pixel."""
        return self.layers(self.accept(images))

    def losses(self, output: Any, batch: Any, progress: float = 0.0) -> dict[str, Tensor]:
        """Cross entropy over the pixels."""
        return {"cross_entropy": F.cross_entropy(output, batch.masks.long(), ignore_index=255)}

    def new_evaluation(self, data: str) -> PixelAccuracy:
        """An empty count of pixels."""
        return PixelAccuracy(data)
