"""Batches by indexing, with a state that can be saved and restored exactly."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from arcaps.data.dataset import Dataset
from arcaps.data.warp import Augmentation, warp
from arcaps.errors import ArcapsError
from arcaps.models import Preprocessing


class Batch(NamedTuple):
    """What a model trains on."""

    images: Float[Tensor, "batch channels height width"]
    labels: Int[Tensor, " batch"]
    total: int
    """Images in the batch of all processes together."""


class Loader:
    """One pass over the data per iteration, in a new random order each time, or in order with `shuffle=False`.

    The order and the augmentation depend on the seed alone: of `world` processes, the one with number `rank` gets
    every `world`-th image of the same global batch, augmented as a single process would. After `load_state_dict` a
    loader goes on with the batch that would have come next.
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
        self.preprocessing = preprocessing or Preprocessing()
        self.rank, self.world = rank, world
        self.generator = torch.Generator().manual_seed(seed)
        self.position = 0
        self.order = torch.arange(len(dataset))

    def __len__(self) -> int:
        """Batches in a whole pass."""
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the pass that is under way, or a new one."""
        if self.position == 0 and self.shuffle:
            self.order = torch.randperm(len(self.dataset), generator=self.generator)
        while self.position < len(self.dataset):
            indices = self.order[self.position : self.position + self.batch_size]
            self.position += self.batch_size
            yield self.make_batch(indices)
        self.position = 0

    def make_batch(self, indices: Int[Tensor, " batch"]) -> Batch:
        """The part of the batch of these images that falls to this process."""
        own = slice(self.rank, None, self.world)
        images = self.preprocessing(self.dataset.images[indices[own]])
        if self.augmentation is not None:
            transform = self.augmentation.sample(len(indices), self.dataset.image_size, self.generator)
            images = warp(images, transform.take(own), border=self.augmentation.border)
        return Batch(images, self.dataset.labels[indices[own]], len(indices))

    def state_dict(self) -> dict[str, Tensor]:
        """Where the loader is: its position, its order, its random generator. Tensors only."""
        return {
            "position": torch.tensor(self.position),
            "order": self.order.clone(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a saved state."""
        if len(state["order"]) != len(self.dataset):
            raise ArcapsError(
                f"the saved loader had {len(state['order'])} images, {self.dataset.name} has {len(self.dataset)}: "
                "resume with the data set that was used before"
            )
        self.position = int(state["position"])
        self.order = state["order"].clone()
        self.generator.set_state(state["generator"])
