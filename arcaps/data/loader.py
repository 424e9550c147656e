"""Batches by indexing, with a state that can be saved and restored exactly."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from arcaps.data.dataset import Dataset
from arcaps.data.warp import sample_transforms, warp, warp_masks
from arcaps.errors import ArcapsError
from arcaps.preprocessing import Preprocessing
from arcaps.settings import Augmentation


class Batch(NamedTuple):
    """What a model trains on."""

    images: Float[Tensor, "batch channels height width"]
    labels: Int[Tensor, " batch"] | Float[Tensor, "batch classes"]
    """Class numbers; or 1 for each class that is there and 0 for the others."""
    total: int
    """Images in the batch of all processes together."""
    masks: UInt8[Tensor, "batch height width"] | None = None
    """The class number of each pixel, where the data set has masks."""


class Loader:
    """One pass over the data per iteration, in a new random order each time, or in order with `shuffle=False`.

    The order and the augmentation depend on the seed alone: of `world` processes, the one with number `rank` gets
    every `world`-th image of the same global batch, augmented as a single process would. A pass that was left by
    `break` is over: the next one starts with all images. Only after `load_state_dict` does the next pass continue with
    the batch that would have come next.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        augmentation: Augmentation | None = None,
        preprocessing: Preprocessing | None = None,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if not 1 <= world <= batch_size:
            raise ArcapsError(f"a batch of {batch_size} does not feed {world} processes: give at least {world}")
        self.dataset, self.batch_size = dataset, batch_size
        self.augmentation, self.shuffle = augmentation, shuffle
        self.preprocessing = preprocessing or dataset.preprocessing
        self.rank, self.world = rank, world
        self.generator = torch.Generator().manual_seed(seed)
        self.position = 0
        self.order = torch.arange(len(dataset))
        self.restored = False

    def __len__(self) -> int:
        """Batches in a whole pass."""
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """A new pass; after `load_state_dict`, first the rest of the pass that was under way."""
        if not self.restored or self.position == 0:
            self.position = 0
            if self.shuffle:
                self.order = torch.randperm(len(self.dataset), generator=self.generator)
        self.restored = False
        position, order = self.position, self.order
        while position < len(self.dataset):
            indices = order[position : position + self.batch_size]
            position += self.batch_size
            self.position, self.order = position, order
            yield self.make_batch(indices)
        self.position = 0

    def make_batch(self, indices: Int[Tensor, " batch"]) -> Batch:
        """The part of the batch of these images that falls to this process."""
        own = slice(self.rank, None, self.world)
        images, masks = self.preprocessing(self.dataset.images[indices[own]]), self.dataset.masks
        masks = None if masks is None else masks[indices[own]]
        if self.augmentation is not None:
            size = self.dataset.image_size
            transform = sample_transforms(self.augmentation, len(indices), size, self.generator).take(own)
            images = warp(images, transform, border=self.augmentation.border)
            masks = None if masks is None else warp_masks(masks, transform, border=self.augmentation.border)
        return Batch(images, self.dataset.labels[indices[own]], len(indices), masks)

    def state_dict(self) -> dict[str, Tensor]:
        """Where the loader is: its position, its order, its random generator. Tensors only."""
        return {
            "position": torch.tensor(self.position),
            "order": self.order.clone(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a saved state."""
        if len(state["order"]) != len(self.dataset):
            raise ArcapsError(
                f"the saved loader had {len(state['order'])} images, {self.dataset.name} has {len(self.dataset)}: "
                "resume with the data set that was used before"
            )
        self.position = int(state["position"])
        self.order = state["order"].clone()
        self.generator.set_state(state["generator"])
        self.restored = True
