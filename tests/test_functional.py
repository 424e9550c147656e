"""The functions against their formulas, and at the points where formulas break."""

from collections.abc import Callable

import jaxtyping
import pytest
import torch
from torch import Tensor

from arcaps import functional, margin_loss, reconstruction_loss, testing
from arcaps.functional import lengths, squash, squash_variant, unit

SQUASHES = [functional.squash, functional.squash_variant]


def test_lengths() -> None:
    capsules = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    torch.testing.assert_close(functional.lengths(capsules), torch.tensor([5.0, 0.0]))
    torch.testing.assert_close(functional.normalised_lengths(torch.ones(2, 3, 7)), torch.ones(2, 3))


def test_squash_is_equation_1() -> None:
    s = torch.randn(5, 4, dtype=torch.float64)
    norm = s.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(functional.squash(s), norm**2 / (1 + norm**2) * s / norm, rtol=1e-12, atol=0)


def test_squash_variant_is_equation_2() -> None:
    s = torch.randn(5, 4, dtype=torch.float64)
    norm = s.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(functional.squash_variant(s), (1 - 1 / norm.exp()) * s / norm, rtol=1e-12, atol=0)


@pytest.mark.parametrize("squash", SQUASHES)
@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-30, 1e-12, 1e-4, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_squashes_are_finite_and_shorter_than_one(squash: testing.Layer, size: float, dtype: torch.dtype) -> None:
    capsules = size * torch.randn(6, 4, dtype=dtype)
    assert (functional.lengths(squash(capsules)) <= 1 + 1e-6).all()
    testing.assert_finite_gradients(squash, capsules)


def test_derivatives_at_zero_are_the_limits() -> None:
    zero = torch.zeros(3, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian
    torch.testing.assert_close(jacobian(functional.squash, zero), torch.zeros(3, 3, dtype=torch.float64))
    torch.testing.assert_close(jacobian(functional.squash_variant, zero), torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize("squash", SQUASHES)
def test_squash_gradients(squash: testing.Layer) -> None:
    assert torch.autograd.gradcheck(squash, torch.randn(3, 4, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("function", [lengths, squash, squash_variant, unit])
@pytest.mark.parametrize("size", [1e-40, 1e-25, 1e-18, 1e-14, 1e-12])
@pytest.mark.parametrize("positions_last", [False, True])
def test_second_derivatives_of_short_capsules_are_finite(
    function: Callable[[Tensor], Tensor], size: float, positions_last: bool
) -> None:
    capsules = size * torch.randn(4, 6)
    capsules = (capsules.mT.contiguous().mT if positions_last else capsules).requires_grad_()
    (gradient,) = torch.autograd.grad(function(capsules).sum(), capsules, create_graph=True)
    (second,) = torch.autograd.grad((gradient * torch.randn(4, 6)).sum(), capsules)
    assert second.isfinite().all()


@pytest.mark.parametrize("function", [lengths, squash, squash_variant, unit])
def test_second_derivatives_at_zero_are_finite(function: Callable[[Tensor], Tensor]) -> None:
    capsules = torch.zeros(2, 3, dtype=torch.float64)
    capsules[1] = 0.5
    capsules.requires_grad_()
    (gradient,) = torch.autograd.grad(function(capsules).sum(), capsules, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum() + gradient.sum(), capsules)
    assert second.isfinite().all()
    assert torch.autograd.gradgradcheck(function, (capsules.detach()[1:].clone().requires_grad_(),))


@pytest.mark.parametrize("function", [lengths, squash, squash_variant, unit])
@pytest.mark.parametrize("size", [0.0, 0.02])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_second_derivatives_in_sixteen_bits_are_those_of_float32(
    function: Callable[[Tensor], Tensor], size: float, dtype: torch.dtype
) -> None:
    rounded, direction = (size * torch.randn(4, 6)).to(dtype), torch.randn(4, 6).to(dtype)
    found = []
    for number in (dtype, torch.float32):
        capsules = rounded.to(number).requires_grad_()
        (gradient,) = torch.autograd.grad(function(capsules).sum(), capsules, create_graph=True)
        (second,) = torch.autograd.grad((gradient * direction.to(number)).sum(), capsules)
        found.append(second.float())
    one, other = found
    assert one.isfinite().all()
    assert (one - other).abs().max() <= 0.05 * other.abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_long_capsule_in_sixteen_bits_is_squashed_to_one(dtype: torch.dtype) -> None:
    capsules = torch.tensor([[300.0, 400.0]], dtype=dtype)  # the square of its length is no number of float16
    torch.testing.assert_close(squash(capsules), torch.tensor([[0.6, 0.8]], dtype=dtype))


def test_a_capsule_without_a_number_has_no_length() -> None:
    capsules = torch.tensor([[torch.nan, 0.0], [1.0, 0.0]])
    for laid in (capsules, capsules.mT.contiguous().mT):
        assert lengths(laid).isnan().tolist() == [True, False]


def test_a_direction_does_not_depend_on_the_scale() -> None:
    capsules = torch.randn(4, 5)
    for scale in (1e-12, 1e12):
        torch.testing.assert_close(unit(scale * capsules), unit(capsules))
    assert (unit(torch.zeros(4, 5)) == 0).all()


def test_keep_one() -> None:
    capsules = torch.randn(3, 4, 2)
    kept = functional.keep_one(capsules, torch.tensor([2, 0, 3]))
    for image, which in enumerate([2, 0, 3]):
        for n in range(4):
            assert torch.equal(kept[image, n], capsules[image, n] if n == which else torch.zeros(2))


def test_margin_loss_is_equation_11() -> None:
    scores = torch.tensor([[0.95, 0.05, 0.30], [0.50, 0.20, 0.10]])
    first = 0.5 * (0.30 - 0.1) ** 2
    second = 0.5 * (0.50 - 0.1) ** 2 + (0.9 - 0.20) ** 2
    expected = torch.tensor((first + second) / 2)
    torch.testing.assert_close(margin_loss(scores, torch.tensor([0, 1])), expected)
    torch.testing.assert_close(margin_loss(scores, torch.eye(3)[:2]), expected)


def test_margin_loss_takes_several_objects_in_one_image() -> None:
    scores = torch.tensor([[0.9, 0.9, 0.1]])
    assert margin_loss(scores, torch.tensor([[1.0, 1.0, 0.0]])) == 0
    assert margin_loss(scores, torch.tensor([[1.0, 0.0, 0.0]])) > 0.3


def test_reconstruction_loss_is_a_mean_over_pixels_and_images() -> None:
    images = torch.zeros(2, 1, 2, 2)
    reconstruction = images.clone()
    reconstruction[0, 0, 0, 0] = 1
    assert reconstruction_loss(reconstruction, images) == 1 / 8


def test_shapes_are_checked_in_the_tests() -> None:
    def call(votes: Tensor, coefficients: Tensor) -> Tensor:
        return functional.mix_votes(votes, coefficients)

    call(torch.randn(2, 3, 4), torch.randn(2, 3))
    with pytest.raises(jaxtyping.TypeCheckError):
        call(torch.randn(2, 3, 4), torch.randn(3, 2))
