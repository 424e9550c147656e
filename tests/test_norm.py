"""BatchNorm over several processes is BatchNorm over all their images."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from arcaps import ClassCaps, ConvCaps
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


def test_a_single_value_becomes_the_bias_and_leaves_the_statistics() -> None:
    norm = BatchNorm(4).train()
    torch.nn.init.uniform_(norm.bias)
    before = {name: value.clone() for name, value in norm.named_buffers()}
    value = torch.randn(1, 4, 1, 1, requires_grad=True)
    assert torch.equal(norm(value).flatten(), norm.bias)
    (gradient,) = torch.autograd.grad(norm(value).sum(), value)
    assert gradient.isfinite().all()
    assert all(torch.equal(value, before[name]) for name, value in norm.named_buffers())
    layer = ClassCaps(2, 4, 3, 4, in_size=5, activation="capsule(norm=True)").train()
    assert layer(torch.randn(1, 5, 5, 2, 4)).poses.isfinite().all()  # a last batch of one image


def test_shares_by_themselves_would_differ() -> None:
    images, weights = make_images()
    own = normalise(images[SHARES[0]], weights[SHARES[0]])["output"]
    assert (own - normalise(images, weights)["output"][SHARES[0]]).abs().max() > 1e-3


def work_in_sixteen_bits(rank: int, folder: str) -> None:
    """One process of two: normalise images in bfloat16, and a batch with one value for each channel."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    images = make_images()[0].float()
    norm, other = BatchNorm(4, momentum=0.3).train(), BatchNorm(4).train()
    with torch.autocast("cpu", torch.bfloat16):
        output = norm(images[SHARES[rank]].bfloat16())
    other(images[rank : 1 + rank, :, :1, :1] if rank else images[:0, :, :1, :1])
    torch.save({"output": output, "mean": norm.running_mean, "variance": other.running_var}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_sixteen_bits_are_summed_in_more(tmp_path: Path) -> None:
    mp.spawn(work_in_sixteen_bits, args=(str(tmp_path),), nprocs=2)  # type: ignore[attr-defined]
    whole = BatchNorm(4, momentum=0.3).train()
    expected = whole(make_images()[0].float().bfloat16().float())
    shares = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    output = torch.cat([share["output"] for share in shares])
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0, atol=0.02)
    for share in shares:
        torch.testing.assert_close(share["mean"], whole.running_mean)
        assert share["variance"].isfinite().all(), "of a single value"


def statistics_after_a_step(routing: str, activation: str, images_at_once: int | None) -> dict[str, Tensor]:
    """The running statistics of a layer after a forward and a backward pass."""
    torch.manual_seed(0)
    layer = ConvCaps(2, 4, 3, 4, routing=routing, activation=activation, images_at_once=images_at_once).train()
    layer(torch.randn(8, 5, 5, 2, 4).requires_grad_()).poses.sum().backward()
    return {name: value for name, value in layer.named_buffers() if name != "progress"}


@pytest.mark.parametrize("parts", [("attention", "capsule(norm=True)"), ("variational", "capsule")])
def test_votes_made_again_do_not_count_twice(parts: tuple[str, str]) -> None:
    whole, one_part = (statistics_after_a_step(*parts, count) for count in (None, 8))
    for name, value in whole.items():
        torch.testing.assert_close(one_part[name], value, msg=name)
    two_parts = statistics_after_a_step(*parts, 4)
    counts = [value for name, value in two_parts.items() if "batches" in name]
    assert counts
    assert all(count == 2 for count in counts)
