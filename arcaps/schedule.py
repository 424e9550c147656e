"""Parts of a network that change in the course of a training, besides what is learned."""

import torch
from torch import Tensor, nn


class Scheduled(nn.Module):
    """A part that knows how far the training is: `progress`, from 0 to 1.

    It is saved with the weights, so a model answers as it did when it was kept. A part that was never trained is at
    the end of its schedule.
    """

    progress: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("progress", torch.ones(()))


def set_progress(model: nn.Module, progress: float) -> None:
    """Say to every scheduled part of a model how far the training is, from 0 to 1."""
    for module in model.modules():
        if isinstance(module, Scheduled):
            module.progress.fill_(progress)
