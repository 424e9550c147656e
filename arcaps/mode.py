"""Training and evaluation mode."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Put modules into evaluation mode; afterwards each of their parts is in its own mode of before.

    `module.train()` instead would also put parts into training mode that a user keeps in evaluation mode, such as a
    frozen BatchNorm.
    """
    before = {part: part.training for module in modules for part in module.modules()}
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for part, training in before.items():
            part.training = training
