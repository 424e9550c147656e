"""A data set in memory: one uint8 tensor of images, one of labels."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from arcaps.data.warp import Transform
from arcaps.errors import ArcapsError


@dataclass(frozen=True)
class Dataset:
    """Images with their labels. Batches are made by indexing."""

    name: str
    images: UInt8[Tensor, "count channels height width"]
    labels: Int[Tensor, " count"]
    class_names: tuple[str, ...]
    transforms: Transform | None = None
    """How each image was made from its original, where arcaps made it (affNIST, regenerated)."""
    published_transforms: Float[Tensor, "count 6"] | None = None
    """affNIST's own `human_readable_transform`, as it stands in its files."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return self.images.shape[1]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width."""
        return self.images.shape[2], self.images.shape[3]

    def take(self, indices: Int[Tensor, " some"]) -> "Dataset":
        """The images with these numbers, in this order."""
        transforms = None if self.transforms is None else self.transforms.take(indices)
        published = None if self.published_transforms is None else self.published_transforms[indices]
        return replace(
            self,
            images=self.images[indices],
            labels=self.labels[indices],
            transforms=transforms,
            published_transforms=published,
        )

    def split(self, fraction: float, *, seed: int = 0) -> tuple["Dataset", "Dataset"]:
        """Hold out a `fraction` of the images, class by class: what is left, and what is held out, each in order.

        The whole number is exact, every class gives its part to within one image, and at least one.
        """
        generator = torch.Generator().manual_seed(seed)
        shares = fraction * self.labels.bincount(minlength=len(self.class_names))
        quotas = shares.floor()
        missing = round(fraction * len(self)) - int(quotas.sum())
        quotas[(shares - quotas).argsort(descending=True, stable=True)[:missing]] += 1
        held_out = torch.zeros(len(self), dtype=torch.bool)
        for label, quota in enumerate(quotas.int().tolist()):
            members = (self.labels == label).nonzero().flatten()
            shuffled = members[torch.randperm(len(members), generator=generator)]
            held_out[shuffled[: max(1, quota)]] = True
        return self.take((~held_out).nonzero().flatten()), self.take(held_out.nonzero().flatten())

    def pad(self, size: tuple[int, int]) -> "Dataset":
        """The images in the middle of a larger black frame."""
        height, width = (outer - inner for outer, inner in zip(size, self.image_size, strict=True))
        if min(height, width) < 0:
            raise ArcapsError(f"{self.name} has images of {self.image_size}: give a larger frame than {size}")
        frame = (width // 2, width - width // 2, height // 2, height - height // 2)
        return replace(self, images=F.pad(self.images, frame))


class Data(NamedTuple):
    """The parts of a collection. Where there is no `validation` part, split it off the training images."""

    train: Dataset | None
    validation: Dataset | None
    test: Dataset
