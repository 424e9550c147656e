"""BatchNorm over several processes is BatchNorm over all their images."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from arcaps.norm import BatchNorm

SHARES = [slice(0, 3), slice(3, 8)]
"""The images of each process: unequal, as in the last batch of an epoch."""


def normalise(images: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """The output of BatchNorm, the gradients of a weighted sum of it, and the running statistics."""
    norm = BatchNorm(4, momentum=0.3).double().train()
    torch.nn.init.uniform_(norm.weight, generator=torch.Generator().manual_seed(1))
    images = images.clone().requires_grad_()
    output = norm(images)
    (output * weights).sum().backward()
    assert images.grad is not None
    assert norm.weight.grad is not None
    assert norm.bias.grad is not None
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return {
        "output": output.detach(),
        "gradient": images.grad,
        "of weight": norm.weight.grad,
        "of bias": norm.bias.grad,
        "mean": norm.running_mean,
        "variance": norm.running_var,
    }


def make_images() -> tuple[Tensor, Tensor]:
    """Images, and weights for a loss that depends on every element differently."""
    generator = torch.Generator().manual_seed(0)
    images = 3 + 2 * torch.randn(8, 4, 5, 6, dtype=torch.float64, generator=generator)
    return images, torch.randn(images.shape, dtype=torch.float64, generator=generator)


def work(rank: int, folder: str) -> None:
    """One process: normalise its share, and write down what came out."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=len(SHARES))
    images, weights = (values[SHARES[rank]] for values in make_images())
    torch.save(normalise(images, weights), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_unequal_shares_give_the_values_and_gradients_of_the_whole_batch(tmp_path: Path) -> None:
    mp.spawn(work, args=(str(tmp_path),), nprocs=len(SHARES))  # type: ignore[attr-defined]
    whole = normalise(*make_images())
    shares = [torch.load(tmp_path / f"{rank}.pt") for rank in range(len(SHARES))]
    for name in ("output", "gradient"):
        torch.testing.assert_close(torch.cat([share[name] for share in shares]), whole[name])
    for name in ("of weight", "of bias"):
        torch.testing.assert_close(shares[0][name] + shares[1][name], whole[name])
    for share in shares:
        torch.testing.assert_close(share["mean"], whole["mean"])
        torch.testing.assert_close(share["variance"], whole["variance"])


def test_shares_by_themselves_would_differ() -> None:
    images, weights = make_images()
    own = normalise(images[SHARES[0]], weights[SHARES[0]])["output"]
    assert (own - normalise(images, weights)["output"][SHARES[0]]).abs().max() > 1e-3
