"""Each hand-written pass equals its plain twin, in value, gradient and second derivative."""

from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from arcaps import ConvCaps, create_model
from arcaps.compat import needs_plain_functions
from arcaps.data import Batch
from arcaps.kernels import (
    Agreements,
    ChannelProduct,
    ConvolvedVotes,
    Distances,
    ElementsLast,
    LayerNorm,
    MixedVotes,
    PatchVotes,
    PositionsLast,
    RoutedVotes,
    Spread,
    SumWithVector,
    Windows,
)
from arcaps.kernels.attention import plain_routed_votes
from arcaps.kernels.channels import plain_channel_product
from arcaps.kernels.mixing import plain_agreements, plain_mixed_votes, plain_sum_with_vector
from arcaps.kernels.norms import plain_layer_norm
from arcaps.kernels.squares import plain_distances, plain_spread
from arcaps.kernels.votes import plain_convolved_votes, plain_patch_votes
from arcaps.kernels.windows import plain_windows
from arcaps.routing.attention import attention_routing, multi_head_attention_routing
from arcaps.votes import ConvVotes

Pair = tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]


def windows(kernel: tuple[int, int], stride: int, padding: tuple[int, int]) -> Pair:
    options = (kernel, stride, padding)
    return lambda x: Windows.apply(x, *options), lambda x: plain_windows(x, *options), [(1, 2, 4, 3, 2)]


def convolved(stride: int, padding: tuple[int, int], *, bias: bool = True) -> Pair:
    shapes = [(2, 2, 4, 3, 2), (2, 3, 3, 2, 2, 3), (2, 2, 3)]
    return (
        lambda capsules, kernels, bias=None: ConvolvedVotes.apply(capsules, kernels, bias, stride, padding),
        lambda capsules, kernels, bias=None: plain_convolved_votes(capsules, kernels, bias, stride, padding),
        shapes if bias else shapes[:2],
    )


PAIRS: dict[str, Pair] = {
    "windows": windows((3, 3), 1, (1, 1)),
    "windows, stride 2": windows((3, 3), 2, (1, 1)),
    "windows, valid": windows((2, 3), 1, (0, 0)),
    "mixed votes": (MixedVotes.apply, plain_mixed_votes, [(5, 2, 3, 4), (5, 2, 3)]),
    "agreements": (Agreements.apply, plain_agreements, [(5, 2, 3, 4), (5, 2, 4)]),
    "sum with vector": (SumWithVector.apply, plain_sum_with_vector, [(5, 2, 3, 4), (5, 2, 4)]),
    "layer norm": (LayerNorm.apply, plain_layer_norm, [(5, 2, 4)]),
    "positions last": (PositionsLast.apply, lambda values: values, [(5, 2, 3, 4)]),
    "elements last": (ElementsLast.apply, lambda values: values, [(5, 2, 3, 4)]),
    "spread": (Spread.apply, plain_spread, [(5, 2, 3, 4), (5, 2, 4), (5, 2, 3)]),
    "distances": (Distances.apply, plain_distances, [(5, 2, 3, 4), (5, 2, 4), (5, 2, 4)]),
    "patch votes": (PatchVotes.apply, plain_patch_votes, [(3, 7, 5), (3, 5, 4), (3, 4)]),
    "channel product": (ChannelProduct.apply, plain_channel_product, [(5, 3, 4), (3, 4, 2), (3, 2)]),
    "convolved votes": convolved(1, (1, 1)),
    "convolved votes, stride 2": convolved(2, (1, 1)),
    "convolved votes, valid": convolved(1, (0, 0)),
    "convolved votes, no bias": convolved(1, (1, 1), bias=False),
    "routed votes": (
        RoutedVotes.apply,
        plain_routed_votes,
        [(3, 2, 4, 7), (3, 2, 4), (1, 2, 3, 3, 4), (2, 1, 3)],
    ),
    "routed votes, two heads": (
        RoutedVotes.apply,
        plain_routed_votes,
        [(3, 2, 4, 7), (3, 2, 4), (2, 2, 3, 3, 4), (2, 2, 3)],
    ),
}


def as_tuple(output: Any) -> tuple[Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)


@pytest.mark.parametrize("name", PAIRS)
def test_a_pass_is_its_plain_twin(name: str) -> None:
    fast, plain, shapes = PAIRS[name]
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    results = []
    for function in (fast, plain):
        torch.manual_seed(1)
        outputs = as_tuple(function(*leaves))
        value = sum(((output**3 * torch.randn(output.shape)).sum() for output in outputs), torch.zeros(()))
        once = torch.autograd.grad(value, leaves, retain_graph=True)
        first = torch.autograd.grad(value, leaves, create_graph=True)
        mixed = sum(((one * torch.randn(one.shape)).sum() for one in first), torch.zeros(()))
        results.append([*outputs, *once, *first, *torch.autograd.grad(mixed, leaves)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", PAIRS)
def test_derivatives_are_those_of_the_function(name: str) -> None:
    fast, _, shapes = PAIRS[name]
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(fast, leaves)
    assert torch.autograd.gradgradcheck(fast, leaves)


@pytest.mark.parametrize("name", ["routed votes", "routed votes, two heads"])
def test_the_plain_twin_of_routed_votes_is_attention(name: str) -> None:
    products, bias, weight, _ = (torch.randn(shape, dtype=torch.float64) for shape in PAIRS[name][2])
    shift = torch.einsum("mnd,hnlmd->nhl", bias, weight)
    mixed, coefficients = plain_routed_votes(products, bias, weight, shift)
    votes = torch.einsum("mndr->rnmd", products + bias.unsqueeze(-1))
    expected = multi_head_attention_routing(votes, weight) if len(weight) > 1 else attention_routing(votes, weight[0])
    torch.testing.assert_close(mixed, expected[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(coefficients.mean(-2), expected[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("stride", "padding"), [(1, "same"), (2, "same"), (1, "valid")])
def test_the_plain_twin_of_convolved_votes_is_the_votes(stride: int, padding: str) -> None:
    votes = ConvVotes(2, 3, 4, 5, 3, stride, padding).double()
    capsules = torch.randn(2, 5, 4, 2, 3, dtype=torch.float64)
    by_channel = capsules.permute(3, 0, 1, 2, 4)
    assert votes.bias is not None
    torch.nn.init.normal_(votes.bias)
    found = plain_convolved_votes(by_channel, votes.weight, votes.bias, stride, votes.padding)
    expected = votes.of_patches(votes.patches(capsules)).flatten(0, 2).permute(2, 1, 3, 0)
    torch.testing.assert_close(votes(capsules).flatten(0, 2).permute(2, 1, 3, 0), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["ar_capsnet", "capsule_net"])
def test_a_gradient_penalty_of_black_images_is_finite(name: str) -> None:
    size = {"image_size": 17, "caps": 2, "dim": 4, "primary_dim": 4, "stem_channels": 2}
    model = create_model(name, **size)
    images = torch.zeros(2, 1, 17, 17, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(images).scores.sum(), images, create_graph=True)
    gradient.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_a_gradient_penalty_can_be_trained() -> None:
    model = create_model("ar_capsnet", image_size=8, caps=2, dim=4, primary_dim=4, stem_channels=2, dropout=0.0)
    images = torch.rand(2, 1, 8, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(images).scores.sum(), images, create_graph=True)
    gradient.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.conv_caps[0].votes.weight.grad.abs().sum() > 0


def test_torch_func_takes_the_plain_functions() -> None:
    layer = ConvCaps(2, 3, 2, 4).double()
    capsules = torch.randn(3, 4, 4, 2, 3, dtype=torch.float64)
    assert not needs_plain_functions()
    each = torch.func.vmap(lambda one: layer(one.unsqueeze(0)).poses[0])(capsules)
    torch.testing.assert_close(each, layer(capsules).poses)
    found = torch.func.grad(lambda x: layer(x).poses.square().sum())(capsules)
    leaf = capsules.clone().requires_grad_()
    layer(leaf).poses.square().sum().backward()
    torch.testing.assert_close(found, leaf.grad)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, in make_dual
@pytest.mark.parametrize("routing", ["attention", "dynamic", "em"])
def test_forward_mode_takes_the_plain_functions(routing: str) -> None:
    layer = ConvCaps(2, 3, 2, 4, routing=routing).double()
    capsules, direction = (torch.randn(3, 4, 4, 2, 3, dtype=torch.float64) for _ in range(2))
    with forward_ad.dual_level():
        dual = layer(forward_ad.make_dual(capsules, direction)).poses
        found = forward_ad.unpack_dual(dual).tangent
    expected = torch.func.jvp(lambda x: layer(x).poses, (capsules,), (direction,))[1]
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
def test_torch_compile_takes_the_plain_functions() -> None:
    layer = ConvCaps(2, 3, 2, 4).double()
    capsules = torch.randn(3, 4, 4, 2, 3, dtype=torch.float64)
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        found = torch.compile(layer, backend="eager", fullgraph=True)(capsules).poses
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    torch.testing.assert_close(found, layer(capsules).poses)


def test_a_training_step_takes_any_batch_with_images_and_labels() -> None:
    model = create_model("ar_capsnet", image_size=8, caps=2, dim=4, primary_dim=4, stem_channels=2)
    parts = model.loss(Batch(torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 2]), 3), 0.5)
    assert set(parts) == {"margin", "reconstruction"}
