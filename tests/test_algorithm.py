"""The vectorised layers equal a plain transcription of the papers, forward and gradients."""

import pytest
import torch
from torch import Tensor

from arcaps import ClassCaps, ConvCaps
from arcaps.functional import squash
from arcaps.routing import AttentionRouting, dynamic_routing
from arcaps.votes import ConvVotes
from tests.reference import algorithm_1, procedure_1


def randomise(layer: torch.nn.Module) -> None:
    """Give every parameter, biases too, a value that matters."""
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)


def assert_same(found: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    """The two agree to 1e-10, and so do the gradients of a random mixture of their elements."""
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    direction = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(found, leaves, direction, retain_graph=True, allow_unused=True),
        torch.autograd.grad(expected, leaves, direction, retain_graph=True, allow_unused=True),
        strict=True,
    ):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("in_caps", "in_dim", "out_caps", "out_dim", "size"),
    [
        (2, 3, 3, 4, (5, 6)),
        (1, 4, 2, 2, (4, 4)),
        (3, 2, 1, 5, (7, 3)),
        (4, 4, 4, 4, (2, 5)),
        (8, 16, 8, 32, (2, 2)),
        (2, 3, 2, 3, (1, 1)),
    ],
)
def test_conv_caps_is_algorithm_1(
    in_caps: int, in_dim: int, out_caps: int, out_dim: int, size: tuple[int, int], stride: int
) -> None:
    layer = ConvCaps(in_caps, in_dim, out_caps, out_dim, stride=stride).double()
    randomise(layer)
    capsules = torch.randn(2, *size, in_caps, in_dim, dtype=torch.float64, requires_grad=True)
    found, _, coefficients = layer(capsules)
    expected, expected_coefficients = algorithm_1(layer, capsules)
    leaves = [capsules, *layer.parameters()]
    assert_same(found, expected, leaves)
    torch.testing.assert_close(coefficients, expected_coefficients, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("heads", [1, 5])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [
        ((3, 4), 3, 1, "same"),
        ((5, 4), 3, 2, "same"),
        ((4, 6), (2, 3), 1, "valid"),
        ((3, 4), 1, 1, "same"),
        ((2, 2), 2, 1, "valid"),
    ],
)
def test_attention_from_capsules_is_attention_on_votes(
    size: tuple[int, int], kernel: int | tuple[int, int], stride: int, padding: str, heads: int, bias: bool
) -> None:
    routing = AttentionRouting(3, 4, 5, heads=heads).double()
    votes = ConvVotes(3, 6, 4, 5, kernel, stride, padding, bias).double()
    randomise(routing)
    randomise(votes)
    capsules = torch.randn(2, *size, 3, 6, dtype=torch.float64, requires_grad=True)
    found, expected = routing.route(votes, capsules), routing(votes(capsules))
    for one, other in zip(found[:2], expected[:2], strict=True):
        assert_same(one, other, [capsules, *votes.parameters(), routing.weight])


@pytest.mark.parametrize("activation", ["capsule", "capsule(compression=2)"])
def test_residual_and_compression(activation: str) -> None:
    layer = ConvCaps(3, 4, 3, 4, activation=activation, residual=True).double()
    randomise(layer)
    capsules = torch.randn(2, 4, 5, 3, 4, dtype=torch.float64, requires_grad=True)
    assert_same(layer(capsules).poses, algorithm_1(layer, capsules)[0], [capsules, *layer.parameters()])


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (2, 5)])
def test_class_caps_is_algorithm_1_with_the_whole_input_as_its_window(size: tuple[int, int]) -> None:
    layer = ClassCaps(3, 4, 5, 6, in_size=size).double()
    randomise(layer)
    capsules = torch.randn(2, *size, 3, 4, dtype=torch.float64, requires_grad=True)
    expected = algorithm_1(layer, capsules)[0]
    assert expected.shape == (2, 1, 1, 5, 6)
    assert_same(layer(capsules).poses, expected[:, 0, 0], [capsules, *layer.parameters()])


@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
def test_dynamic_routing_is_procedure_1(iterations: int) -> None:
    votes = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    capsules, coefficients, _ = dynamic_routing(votes, iterations=iterations)
    expected, expected_coefficients = procedure_1(votes, iterations)
    assert_same(squash(capsules), expected, [votes])
    torch.testing.assert_close(coefficients, expected_coefficients, rtol=1e-10, atol=1e-10)


def test_window_votes_are_one_matrix_per_input_capsule() -> None:
    layer = ClassCaps(2, 3, 4, 5, in_size=(2, 3), votes="window", bias=False, routing="dynamic", activation="squash")
    layer = layer.double()
    capsules = torch.randn(1, 2, 3, 2, 3, dtype=torch.float64)
    matrices = layer.votes.weight.reshape(2, 3, 2, 3, 4, 5)
    votes = [
        [capsules[0, h, w, m] @ matrices[h, w, m, :, n] for h in range(2) for w in range(3) for m in range(2)]
        for n in range(4)
    ]
    expected, _ = procedure_1(torch.stack([torch.stack(row) for row in votes]), 3)
    torch.testing.assert_close(layer(capsules).poses[0], expected, rtol=1e-10, atol=1e-10)
