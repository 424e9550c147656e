"""How weights start: Glorot uniform, biases zero, as in the authors' framework."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """Draw what is made inside from random numbers of its own.

    However many it draws, what is made after it starts with the same weights. So two networks that differ in this part
    alone start equal everywhere else.
    """
    seed = int(torch.randint(2**62, (), device="cpu"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def glorot_uniform_(weight: Tensor, fan_in: int, fan_out: int) -> None:
    """Fill `weight` uniformly within +/- sqrt(6 / (fan_in + fan_out))."""
    bound = (6 / (fan_in + fan_out)) ** 0.5
    nn.init.uniform_(weight, -bound, bound)


def start_plain_layers(module: nn.Module) -> None:
    """Start every convolution and dense layer inside `module`; capsule layers start themselves."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
