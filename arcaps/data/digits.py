"""The digits that come with arcaps: 5,000 for training and 1,000 for tests, of the real MNIST."""

from importlib.resources import as_file, files

import torch
from jaxtyping import Int
from torch import Tensor

from arcaps.data.dataset import Data, Dataset
from arcaps.data.formats import idx_folder


def load() -> Data:
    """The embedded digits: 500 of each class to train on, 100 of each to test on."""
    with as_file(files("arcaps.data") / "digits_of_mnist") as folder:
        arrays = {name: torch.from_numpy(array.copy()) for name, array in idx_folder(folder).items()}
    train, test = (
        Dataset(f"digits, {part}", arrays[f"{part}_images"], arrays[f"{part}_labels"].long(), tuple("0123456789"))
        for part in ("train", "test")
    )
    return Data(train, None, test)


def first_of_each(labels: Int[Tensor, " count"], number: int) -> Int[Tensor, " chosen"]:
    """The first `number` images of each class, in their order: how the digits were chosen from MNIST."""
    chosen = [(labels == label).nonzero().flatten()[:number] for label in labels.unique()]
    return torch.cat(chosen).sort().values
