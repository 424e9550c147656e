"""Assertions on the meaning of a capsule layer, for your own layers too.

Each takes a layer and an input for it, in float32 or float64, and raises AssertionError with the figure that is
wrong. An input is capsules `(batch, height, width, caps, dim)`, votes `(..., out_caps, in_caps, dim)` or images
`(batch, channels, height, width)`; an output is `Capsules`, a tensor, or a tuple of them with the capsules first.

    from arcaps import testing
    testing.assert_shift_equivariant(layer, capsules, stride=2)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.capsules import Capsules, Routed
from arcaps.compat import tensors_in
from arcaps.errors import ArcapsError
from arcaps.functional import lengths
from arcaps.mode import evaluation_mode
from arcaps.routing import Routing

Layer = Callable[..., Any]

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
"""The largest error that counts as rounding, as a part of the largest value."""


@contextmanager
def evaluating(layer: Layer) -> Iterator[None]:
    """The layer in evaluation mode, if it is a module, and back in the mode it was."""
    with evaluation_mode(*([layer] if isinstance(layer, nn.Module) else [])):
        yield


def capsules_of(output: Any) -> Tensor:
    """The capsules: the output itself, the first of a tuple, or the `capsules` of a model's output."""
    found = getattr(output, "capsules", None)
    if found is None:
        found = output[0] if isinstance(output, tuple) else output
    assert isinstance(found, Tensor)
    return found


def coefficients_of(output: Any) -> Tensor:
    """The coefficients of what a layer or a routing answers."""
    found = output.coefficients if isinstance(output, Capsules) else output[1]
    assert isinstance(found, Tensor), "there are no coefficients"
    return found


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a part of the largest expected value."""
    assert found.shape == expected.shape, f"shapes differ: {tuple(found.shape)} and {tuple(expected.shape)}"
    found, expected = found.detach(), expected.detach()
    scale = expected.abs().max().clamp_min(torch.finfo(expected.dtype).tiny)
    return float(((found - expected).abs().max() / scale).detach())


def equivariance_error(
    layer: Layer, inputs: Float[Tensor, "..."], *, stride: int, shift: int | None = None, margin: int = 2
) -> float:
    """How far a shift of the input is from a shift of the output by one, away from the border.

    The input moves by `shift` positions (the `stride`, unless told), first down, then to the right. `margin` output
    positions on each side, where the border is seen, are left out.
    """
    shift = stride if shift is None else shift
    axes = (2, 3) if inputs.ndim == 4 else (1, 2)
    with torch.no_grad(), evaluating(layer):
        still = capsules_of(layer(inputs))
        errors = []
        for axis, output_axis in zip(axes, (1, 2), strict=True):
            moved = capsules_of(layer(inputs.roll(shift, axis)))
            inner = still.shape[output_axis] - 2 * margin - 1
            assert inner > 0, (
                f"{still.shape[output_axis]} positions leave none away from the border: give a larger input"
            )
            found = moved.narrow(output_axis, margin + 1, inner)
            expected = still.narrow(output_axis, margin, inner)
            errors.append(relative_error(found, expected))
    return float(torch.tensor(errors).max())  # NaN, if there is one


def assert_shift_equivariant(layer: Layer, inputs: Float[Tensor, "..."], *, stride: int, margin: int = 2) -> None:
    """Shifting the input by the stride shifts the capsules by one."""
    error = equivariance_error(layer, inputs, stride=stride, margin=margin)
    assert error <= TOLERANCE[inputs.dtype], (
        f"a shifted input changes the capsules by {error:.2g} besides shifting them"
    )


def assert_one_pixel(layer: Layer, inputs: Float[Tensor, "..."], *, kernel: int, stride: int) -> None:
    """A capsule is D features at ONE position: it sees the window around that position, all of it, and nothing else."""
    axes = (2, 3) if inputs.ndim == 4 else (1, 2)
    inputs = inputs.detach().requires_grad_()
    with evaluating(layer):
        capsules = capsules_of(layer(inputs))
        row, column = capsules.shape[1] // 2, capsules.shape[2] // 2
        for feature in capsules[:, row, column].flatten(1).sum(0):
            (gradient,) = torch.autograd.grad(feature, inputs, retain_graph=True)
            seen = gradient.abs().sum([axis for axis in range(inputs.ndim) if axis not in axes]) > 0
            expected = torch.zeros_like(seen)
            first_row, first_column = (max(0, place * stride - kernel // 2) for place in (row, column))
            last_row, last_column = (place * stride + kernel // 2 + 1 for place in (row, column))
            expected[first_row:last_row, first_column:last_column] = True
            assert torch.equal(seen, expected), (
                f"a feature at position {row}, {column} sees the input positions {seen.nonzero().tolist()}, "
                f"not the {kernel}x{kernel} window around {row * stride}, {column * stride}"
            )


def assert_coefficients_sum_to_one(layer: Layer, inputs: Float[Tensor, "..."], *, over: str) -> None:
    """Routing coefficients `(..., out_caps, in_caps)` are positive and sum to 1 over the "inputs" or the "outputs".

    The layer answers `Capsules`, `Routed`, or a pair (capsules, coefficients).
    """
    axis = {"inputs": -1, "outputs": -2}[over]
    with torch.no_grad(), evaluating(layer):
        coefficients = coefficients_of(layer(inputs))
    assert (coefficients >= 0).all(), f"a coefficient is negative: {coefficients.min():.3g}"
    error = float((coefficients.sum(axis) - 1).abs().max())
    assert error <= TOLERANCE[inputs.dtype], f"the coefficients' sum over the {over} is off 1 by {error:.2g}"


def assert_absent_inputs_are_ignored(
    routing: Routing,
    votes: Float[Tensor, "batch out inp dim"],
    inputs: Float[Tensor, "batch inp in_dim"] | None = None,
) -> None:
    """The law of presence: an input with presence 0 is as if it were not there.

    Checked: the votes of an absent input change nothing, nor does the input itself, where the routing needs it, and its
    coefficients are 0; presence 1 everywhere is as if none were given; with all inputs absent the capsules and the
    coefficients are 0. Gradients are finite throughout.
    Give votes of two inputs or more; and the inputs themselves, where the routing needs them.
    """
    if "presence" not in routing.needs:
        raise ArcapsError(f"routing {routing} does not need presence: the layer multiplies its votes by it")
    tolerance = TOLERANCE[votes.dtype]
    everywhere = torch.ones_like(votes[:, 0, :, 0])
    some = everywhere * (torch.arange(votes.shape[2], device=votes.device) % 2 == 1)

    assert inputs is not None or "inputs" not in routing.needs, f"routing {routing} needs inputs: give inputs="

    def routed(votes: Tensor, presence: Tensor | None, inputs: Tensor | None = inputs) -> Routed:
        needed = {"inputs": inputs} if "inputs" in routing.needs else {}
        return Routed(*routing(votes, presence=presence, **needed))

    def changed(values: Tensor, there: Tensor) -> Tensor:
        return torch.where(there > 0, values, 3 * values + 1)

    with evaluating(routing):
        cases = [
            ("presence 1 everywhere", routed(votes, everywhere), routed(votes, None)),
            ("a vote of an absent input", routed(votes, some), routed(changed(votes, some[:, None, :, None]), some)),
        ]
        if inputs is not None:
            others = changed(inputs, some.unsqueeze(-1))
            cases.append(("an absent input", routed(votes, some), routed(votes, some, others)))
        for what, one, other in cases:
            for name, found, expected in zip(Routed._fields, one, other, strict=True):
                if found is not None and expected is not None:
                    error = relative_error(found, expected)
                    assert error <= tolerance, f"{what} changes the {name} by {error:.2g}"
        coefficients = routed(votes, some).coefficients.detach()
        largest = float((coefficients * (some == 0).unsqueeze(-2)).abs().max())
        assert largest <= tolerance, f"an absent input has the coefficient {largest:.2g}"
        nothing = routed(votes, torch.zeros_like(everywhere))
        for name, found in (("capsule", nothing.capsules), ("coefficient", nothing.coefficients)):
            largest = float(found.detach().abs().max())
            assert largest <= tolerance, f"with all inputs absent a {name} is {largest:.2g}, not 0"
        for presence in (everywhere, some, torch.zeros_like(everywhere)):
            leaves = [votes.detach().requires_grad_(), presence.clone().requires_grad_()]
            parts = [tensor.sum() for tensor in routed(leaves[0], leaves[1]) if tensor is not None]
            value = torch.stack(parts).sum()
            gradients = torch.autograd.grad(value, [*leaves, *routing.parameters()], allow_unused=True)
            finite = all(gradient is None or bool(gradient.isfinite().all()) for gradient in gradients)
            assert finite, f"a gradient is not finite with presence {presence[0].tolist()}"


def assert_batch_independent(layer: Layer, inputs: Float[Tensor, "batch ..."]) -> None:
    """In evaluation mode one example's output does not depend on the others in its batch."""
    with torch.no_grad(), evaluating(layer):
        together = list(tensors_in(layer(inputs)))
        for index in range(len(inputs)):
            alone = list(tensors_in(layer(inputs[index : index + 1])))
            for one, all_of_them in zip(alone, together, strict=True):
                error = relative_error(one, all_of_them[index : index + 1])
                assert error <= TOLERANCE[inputs.dtype], (
                    f"example {index} alone differs by {error:.2g} from itself in the batch"
                )


def assert_finite_gradients(layer: Layer, inputs: Float[Tensor, "..."]) -> None:
    """The outputs, and the gradients of the capsules and of their lengths, are finite: try it at zero."""
    inputs = inputs.detach().requires_grad_()
    parameters = list(layer.parameters()) if isinstance(layer, nn.Module) else []
    capsules = capsules_of(layer(inputs))
    assert capsules.isfinite().all(), "an output is not finite"
    for what, value in {"capsules": capsules, "lengths": lengths(capsules)}.items():
        gradients = torch.autograd.grad(value.sum(), [inputs, *parameters], retain_graph=True, allow_unused=True)
        for gradient in gradients:
            assert gradient is None or gradient.isfinite().all(), f"a gradient of the {what} is not finite"


def assert_own_parameters(layer: nn.Module, inputs: Float[Tensor, "..."]) -> None:
    """Output channel n depends on its own parameters only: no element serves two channels, and each has as many."""
    with evaluating(layer):
        capsules = capsules_of(layer(inputs))
        channels = capsules.shape[-2]
        parameters = dict(layer.named_parameters())
        serves = {name: torch.zeros(p.shape, dtype=torch.int64) for name, p in parameters.items()}
        sizes: dict[str, list[int]] = {name: [] for name in parameters}
        for channel in range(channels):
            weights = torch.rand_like(capsules.select(-2, channel))
            value = (capsules.select(-2, channel) * weights).sum()
            gradients = torch.autograd.grad(value, list(parameters.values()), retain_graph=True)
            for name, gradient in zip(parameters, gradients, strict=True):
                serves[name] += gradient != 0
                sizes[name].append(int((gradient != 0).sum()))
    for name, count in serves.items():
        assert count.max() <= 1, f"{int((count > 1).sum())} elements of {name} serve several output channels"
        assert len(set(sizes[name])) == 1, f"{name} has elements for each output channel as follows: {sizes[name]}"
