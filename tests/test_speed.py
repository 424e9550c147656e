"""What makes it fast, counted in kernels, copies and page faults: no clock, so no noise."""

import subprocess
import sys
from math import prod

import pytest
import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from arcaps import Classifier, ConvCaps, create_model, info, keep_freed_memory
from arcaps.data import Batch
from arcaps.kernels.votes import as_convolutions

BATCH, POSITIONS = 5, 5 * 7 * 7
VOTES = POSITIONS * 8 * 8 * 32


@pytest.fixture(scope="module")
def model() -> Classifier:
    return create_model("ar_capsnet")


def events(model: Classifier, *, training: bool, batch: int = BATCH) -> list[FunctionEvent]:
    """All that torch does in a training step, or for an answer, after a first one."""
    images, labels = torch.rand(batch, 1, 28, 28), torch.arange(batch)

    def act() -> None:
        if training:
            sum(model.loss(Batch(images, labels, batch)).values(), torch.zeros(())).backward()
        else:
            with torch.inference_mode():
                model(images)

    act()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        act()
    found = profiler.events()
    assert found is not None
    return list(found)


@pytest.fixture(scope="module")
def step(model: Classifier) -> list[FunctionEvent]:
    return events(model, training=True)


def shapes(step: list[FunctionEvent], name: str) -> list[list[list[int]]]:
    """The shapes of the tensors that each call of a kernel was given.

    A product that is added in place names a copy of a tensor onto itself, which copies nothing.
    """
    found = [
        event for event in step if event.name == name and getattr(event.cpu_parent, "name", "") != "aten::baddbmm_"
    ]
    calls = [[list(shape) for shape in event.input_shapes if shape] for event in found]  # type: ignore[call-overload]
    return [call for call in calls if call]


def largest(calls: list[list[list[int]]]) -> int:
    """The number of elements of the largest tensor in any of the calls."""
    return max(prod(shape) for call in calls for shape in call)


def test_the_votes_are_a_convolution_of_each_channel_and_their_gradients_one_call(step: list[FunctionEvent]) -> None:
    image, weight, maps = [BATCH, 16, 14, 14], [8 * 32, 16, 3, 3], [BATCH, 8 * 32, 7, 7]
    forward = [call[:2] for call in shapes(step, "aten::mkldnn_convolution") if call[1] == weight]
    backward = [call[:3] for call in shapes(step, "aten::convolution_backward") if call[2] == weight]
    assert forward == [[image, weight]] * 8
    assert backward == [[maps, image, weight]] * 8


def test_capsules_and_maps_of_the_votes_have_their_channels_last() -> None:
    """So that oneDNN reads and writes them without a copy."""
    capsules, kernels = torch.rand(8, BATCH, 14, 14, 16), torch.rand(8, 3, 3, 16, 8, 32)
    images, weights = as_convolutions(capsules, kernels)
    assert images[0].is_contiguous(memory_format=torch.channels_last)
    maps = torch.nn.functional.conv2d(images[0], weights[0], stride=2, padding=1)
    assert maps.is_contiguous(memory_format=torch.channels_last)


def test_the_votes_are_never_copied_as_a_whole_nor_their_gradients_added(step: list[FunctionEvent]) -> None:
    for name in ("aten::copy_", "aten::add", "aten::sum"):
        assert largest(shapes(step, name)) < VOTES, name
    assert all(prod(shape) != VOTES for call in shapes(step, "aten::add_") for shape in call)


def test_no_windows_are_made_and_the_mask_alone_is_copied_into_floats(step: list[FunctionEvent]) -> None:
    copies = [call[0] for call in shapes(step, "aten::copy_") if BATCH in call[0]]
    large = [shape for shape in copies if prod(shape) >= BATCH * 7 * 7 * 8 * 32]
    mask, mask_of_class_layer = [BATCH, 14, 14, 8, 16], [BATCH, 7, 7, 8, 32]
    assert large == [mask, mask_of_class_layer]


def test_the_gradient_of_the_votes_is_filled_by_one_multiplication_for_each_input(step: list[FunctionEvent]) -> None:
    filled = [call for call in shapes(step, "aten::mul") if len(call) == 3 and call[0] == [8, 1, POSITIONS]]
    assert filled == [[[8, 1, POSITIONS], [8, 32, POSITIONS], [8, 32, POSITIONS]]] * 8


def test_rows_of_votes_begin_cache_lines(model: Classifier) -> None:
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.rand(BATCH, 1, 28, 28), torch.arange(BATCH))
    (votes,) = (tensor for tensor in kept if tensor.shape == (8, 8, 32, POSITIONS))
    assert POSITIONS * 4 % 64 != 0
    assert [stride * 4 % 64 for stride in votes.stride()] == [0, 0, 0, 4]


def test_the_few_rows_of_the_class_layer_come_first_in_its_product(step: list[FunctionEvent]) -> None:
    products = [call for call in shapes(step, "aten::baddbmm") if 7 * 7 * 32 in call[1]]
    assert products == [[[8, 1, 10 * 32], [8, BATCH, 7 * 7 * 32], [8, 7 * 7 * 32, 10 * 32]]]


def test_capsules_lie_channel_by_channel(model: Classifier) -> None:
    capsules = torch.rand(BATCH, 14, 14, 8, 16)
    for layer in model.get_submodule("conv_caps").children():
        assert layer(capsules).poses.permute(3, 0, 1, 2, 4).is_contiguous()


def test_the_stem_writes_over_what_it_rectifies(step: list[FunctionEvent]) -> None:
    assert len(shapes(step, "aten::relu_")) == 3
    maps = [call for call in shapes(step, "aten::relu") if len(call[0]) == 4]
    assert maps == []


def test_dropout_draws_a_byte_an_element(step: list[FunctionEvent]) -> None:
    assert shapes(step, "aten::bernoulli_") == []
    drawn = sum(8 * prod(call[0]) for call in shapes(step, "aten::random_"))
    assert drawn == BATCH * (14 * 14 * 8 * 16 + 7 * 7 * 8 * 32)


def test_no_kernel_is_called_once_an_image_or_a_position(model: Classifier, step: list[FunctionEvent]) -> None:
    assert len(events(model, training=True, batch=BATCH + 3)) == len(step)


def test_a_layer_keeps_votes_and_little_else(model: Classifier) -> None:
    layer = next(row for row in info(model).layers if row.name == "conv_caps.0")
    assert layer.activation_bytes < 1.9 * 100 * 49 * 4 * 8 * 8 * 32


def test_a_folded_model_has_no_batch_norm(model: Classifier) -> None:
    twin = model.for_inference()
    assert [event.name for event in events(twin, training=False) if "batch_norm" in event.name] == []
    images = torch.rand(5, 1, 28, 28)
    torch.testing.assert_close(twin(images).scores, model.eval()(images).scores)
    model.train()


def page_faults(prepare: str) -> int:
    """Pages mapped again by tensors of 64 MB that come and go, in a process of its own."""
    code = f"""
import resource, torch, arcaps
{prepare}
def use():
    for _ in range(10):
        torch.ones(16_000_000)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(not keep_freed_memory(), reason="the C library is not glibc")
def test_freed_memory_is_kept() -> None:
    assert page_faults("arcaps.keep_freed_memory()") < page_faults("") / 10


def test_routing_a_few_images_at_once_changes_nothing_but_memory() -> None:
    whole = ConvCaps(2, 4, 2, 4, residual=True, dropout=0.5).double()
    sliced = ConvCaps(2, 4, 2, 4, residual=True, dropout=0.5, images_at_once=2).double()
    sliced.load_state_dict(whole.state_dict())
    capsules = torch.randn(5, 3, 4, 2, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for layer in (whole, sliced):
        torch.manual_seed(0)
        output, _, coefficients = layer(capsules)
        direction = torch.arange(output.numel(), dtype=torch.float64).view(output.shape)
        gradients = torch.autograd.grad(output, [capsules, *layer.parameters()], direction)
        results.append([output, coefficients, *gradients])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_fewer_images_at_once_need_less_memory_and_say_what_it_costs() -> None:
    plain, thrifty = (info(create_model("ar_capsnet", layers=3, images_at_once=n)) for n in (None, 10))
    assert thrifty.peak_training_bytes < 0.8 * plain.peak_training_bytes
    assert plain.repeated_multiply_adds == 0
    routed = sum(row.multiply_adds for row in plain.layers if "caps" in row.name)
    assert thrifty.repeated_multiply_adds == routed
    assert thrifty.multiply_adds == plain.multiply_adds
