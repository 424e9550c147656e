"""Second derivatives of the hand-written passes."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def plain_gradients(
    plain: Callable[..., Tensor | tuple[Tensor, ...]], inputs: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradients of `inputs` through the plain twin, such that they can be differentiated again.

    A backward pass calls it where a graph of it is wanted (`create_graph=True`); it is slower than the pass itself.
    """
    with torch.enable_grad():
        outputs = plain(*inputs)
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        found = torch.autograd.grad(outputs, wanted, gradients, create_graph=True, allow_unused=True)
    by_input = iter(found)
    return tuple(next(by_input) if tensor.requires_grad else None for tensor in inputs)
