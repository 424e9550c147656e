"""The names that torch keeps private, gathered: what to look at when torch changes."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import _register_namedtuple
from torch.utils._pytree import tree_leaves as _tree_leaves


def softmax_gradient(gradient: Tensor, softmax: Tensor, dim: int) -> Tensor:
    """The gradient of the logits, from the gradient of their softmax: one pass instead of three."""
    return torch._softmax_backward_data(gradient, softmax, dim, softmax.dtype)


def convolution_gradients(
    of_maps: Tensor, images: Tensor, weight: Tensor, stride: int, padding: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """The gradients of the images and of the weight of a convolution, in one call."""
    of_images, of_weight, _ = torch.ops.aten.convolution_backward(
        of_maps, images, weight, None, [stride] * 2, padding, [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return of_images, of_weight


def tree_leaves(values: Any) -> list[Any]:
    """All that is in nested tuples, lists and dictionaries."""
    return _tree_leaves(values)


def tensors_in(values: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and dictionaries."""
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


def storage_key(tensor: Tensor) -> int:
    """A number that two tensors share if and only if they share their memory."""
    return tensor.untyped_storage()._cdata


def is_transformed() -> bool:
    """True inside torch.func: grad, vmap and the like."""
    return not torch.compiler.is_compiling() and peek_interpreter_stack() is not None


def is_tracing() -> bool:
    """True inside torch.jit.trace."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined]


def needs_plain_functions() -> bool:
    """True where a hand-written backward pass cannot follow.

    That is in torch.compile, export, jit.trace, torch.func and forward-mode derivatives (`torch.autograd.forward_ad`).
    """
    if torch.compiler.is_compiling() or torch.compiler.is_exporting() or is_tracing():
        return True
    return is_transformed() or forward_ad._current_level >= 0


def can_be_stored(output: type[Any]) -> None:
    """Let torch.export.save write programs that answer with this named tuple."""
    _register_namedtuple(output, serialized_type_name=f"{output.__module__}.{output.__qualname__}")
