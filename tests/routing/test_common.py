"""What holds for every routing."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arcaps import ARCapsNet, ConvCaps, Routing, info, load, testing
from arcaps.capsules import Routed
from arcaps.routing import DynamicRouting
from arcaps.routing.base import Compete

BUILT_IN = [name for name, one in Routing.known.items() if one.__module__.startswith("arcaps.")]
ROUTINGS = [
    *(name for name in BUILT_IN if name != "query_key"),  # whose 4 heads do not divide 6
    "attention(heads=2, scale=True)",
    "dynamic(bias=True)",
    "kl(keep=True)",
    "query_key(heads=2)",
    "em(mass='paper', variance='paper', iterations=3)",
    "em(damping=0.9, floor=0.0005)",
    "heinsen(normalise=False)",
    "spectral(eta=3.0)",
    "score(score='dot', query='learned')",
    "score(score='general', over='outputs')",
    "uniform(over='inputs')",
    "random(over='outputs')",
]
IN_DIM = 3

every_routing = pytest.mark.parametrize("spec", ROUTINGS)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def made(spec: str, inputs: int, outputs: int, dim: int, dtype: torch.dtype = torch.float32) -> Routing:
    """A routing whose parameters are not those of its start."""
    routing = Routing.build(spec, inputs, outputs, dim, in_dim=IN_DIM)
    for parameter in routing.parameters():
        nn.init.normal_(parameter, std=0.5)
    return routing.to(dtype)


def route(routing: Routing, votes: Tensor, presence: Tensor | None = None, inputs: Tensor | None = None) -> Routed:
    """Route, with inputs where they are needed."""
    needed: dict[str, Any] = {}
    if "inputs" in routing.needs:
        needed["inputs"] = votes.new_zeros(*votes.shape[:-3], votes.shape[-2], IN_DIM) if inputs is None else inputs
    return Routed(*routing(votes, presence=presence, **needed))


@every_routing
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_a_layer_in_sixteen_bits_answers_in_sixteen_bits(spec: str, dtype: torch.dtype) -> None:
    layer = ConvCaps(3, 6, 4, 6, routing=spec).to(dtype)
    found = layer(torch.randn(2, 5, 5, 3, 6, dtype=dtype))
    assert found.poses.dtype == dtype
    found.poses.sum().backward()
    assert all(one.grad is None or one.grad.isfinite().all() for one in layer.parameters())


@every_routing
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.1), (torch.float16, 0.02)])
def test_in_sixteen_bits_a_small_presence_is_not_none(spec: str, dtype: torch.dtype, tolerance: float) -> None:
    routing = made(spec, 5, 10, 6).eval()
    votes, inputs = torch.randn(50, 10, 5, 6).to(dtype), torch.randn(50, 5, IN_DIM).to(dtype)
    for scale in (1.0, 0.05, 0.001):
        presence = (scale * (0.1 + torch.rand(50, 5))).to(dtype)
        expected = route(routing.double(), votes.double(), presence.double(), inputs.double())
        found = route(routing.to(dtype), votes, presence, inputs)
        for one, other in zip(found, expected, strict=True):
            if one is not None and other is not None:
                assert (one - other).abs().max() <= tolerance * other.abs().max(), scale


@pytest.mark.parametrize("spec", ["em", "spectral", "variational"])
def test_what_needs_float32_has_it_under_autocast(spec: str) -> None:
    routing = made(spec, 5, 4, 6).eval()
    votes = torch.randn(3, 4, 5, 6).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = route(routing, votes)
    for one, other in zip(found, route(routing, votes), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


class DemandingRouting(Routing):
    """Takes what it needs without a default."""

    needs = frozenset({"presence", "compete"})
    divides = "outputs"

    def forward(self, votes: Tensor, *, presence: Tensor | None, compete: Compete) -> Routed:
        return DynamicRouting(self.in_caps, self.out_caps, self.dim)(votes, presence=presence, compete=compete)


@pytest.mark.parametrize("votes", ["conv", "window"])
def test_a_routing_gets_what_it_names(votes: str) -> None:
    layer = ConvCaps(3, 4, 2, 5, routing=DemandingRouting, votes=votes)
    plain = ConvCaps(3, 4, 2, 5, routing="dynamic", votes=votes)
    plain.load_state_dict(layer.state_dict())
    capsules = torch.randn(2, 6, 6, 3, 4)
    torch.testing.assert_close(layer(capsules).poses, plain(capsules).poses)


@every_routing
@pytest.mark.parametrize("votes", ["conv", "window"])
def test_no_images_are_no_capsules(spec: str, votes: str) -> None:
    layer = ConvCaps(2, 6, 4, 6, routing=spec, votes=votes).eval()
    assert layer(torch.zeros(0, 5, 5, 2, 6)).poses.shape == (0, 5, 5, 4, 6)


every_count = pytest.mark.parametrize("counts", [(1, 1), (1, 4), (5, 1), (5, 4)])


@every_dtype
@every_routing
@every_count
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_the_law_of_presence(spec: str, dtype: torch.dtype, counts: tuple[int, int], scale: float) -> None:
    inputs, outputs = counts
    routing = made(spec, inputs, outputs, 6, dtype)
    if spec == "dynamic(bias=True)":
        nn.init.zeros_(routing.bias)  # type: ignore[arg-type]
    votes, capsules = torch.randn(3, outputs, inputs, 6, dtype=dtype), torch.randn(3, inputs, IN_DIM, dtype=dtype)
    testing.assert_absent_inputs_are_ignored(routing, scale * votes, capsules)


def test_with_a_bias_the_capsule_of_absent_inputs_is_the_bias() -> None:
    routing = DynamicRouting(5, 4, 6, bias=True)
    nothing = route(routing, torch.randn(3, 4, 5, 6), torch.zeros(3, 5))
    torch.testing.assert_close(nothing.capsules, torch.full((3, 4, 6), 0.1))
    assert (nothing.coefficients == 0).all()


@every_dtype
@every_routing
@every_count
def test_values_and_gradients_are_finite(spec: str, dtype: torch.dtype, counts: tuple[int, int]) -> None:
    inputs, outputs = counts
    routing = made(spec, inputs, outputs, 6, dtype)
    for scale in (0.0, 1e-30, 1.0, 1e3):
        votes = (scale * torch.randn(3, outputs, inputs, 6, dtype=dtype)).requires_grad_()
        presence = torch.rand(3, inputs, dtype=dtype)
        presence[0] = 0
        presence.requires_grad_()
        capsules = torch.randn(3, inputs, IN_DIM, dtype=dtype).requires_grad_()
        found = route(routing, votes, presence, capsules)
        assert found.capsules.shape == (3, outputs, 6)
        assert found.coefficients.shape == (3, outputs, inputs)
        values = [tensor for tensor in found if tensor is not None]
        assert all(value.isfinite().all() and value.dtype == dtype for value in values), scale
        leaves = [votes, presence, capsules, *routing.parameters()]
        gradients = torch.autograd.grad([value.sum() for value in values], leaves, allow_unused=True)
        assert all(gradient is None or gradient.isfinite().all() for gradient in gradients), scale


@every_dtype
@every_routing
def test_second_derivatives_are_finite(spec: str, dtype: torch.dtype) -> None:
    routing = made(spec, 1, 4, 6, dtype)
    for scale, presence in product((0.0, 1e-20, 1.0, 1e4), (0.0, 1e-20, 0.7, None)):
        leaves = [(scale * torch.randn(3, 4, 1, 6, dtype=dtype)).requires_grad_()]
        leaves += [] if presence is None else [torch.full((3, 1), presence, dtype=dtype).requires_grad_()]
        values = [tensor for tensor in route(routing, *leaves) if tensor is not None]
        total = torch.stack([(value * torch.randn_like(value)).sum() for value in values]).sum()
        (first,) = torch.autograd.grad(total, leaves[:1], create_graph=True)
        second = torch.autograd.grad(first.square().sum() + total, leaves, allow_unused=True)
        finite = (gradient is None or gradient.isfinite().all() for gradient in (first, *second))
        assert all(finite), (scale, presence)


@every_dtype
@every_routing
@pytest.mark.parametrize("present", [False, True])
def test_the_order_of_the_votes_in_memory_changes_nothing(spec: str, dtype: torch.dtype, present: bool) -> None:
    routing = made(spec, 5, 4, 6, dtype)
    votes, inputs = torch.randn(2, 3, 4, 5, 6, dtype=dtype), torch.randn(2, 3, 5, IN_DIM, dtype=dtype)
    presence = torch.rand(2, 3, 5, dtype=dtype) if present else None
    if presence is not None:
        presence[0, 0] = 0
    positions_last = votes.permute(3, 2, 4, 0, 1).contiguous().permute(3, 4, 1, 0, 2)
    results = []
    for given in (votes, positions_last):
        state = {name: value.clone() for name, value in routing.state_dict().items()}
        leaves = [given.clone().requires_grad_(), inputs.clone().requires_grad_()]
        assert leaves[0].stride() == given.stride()
        found = route(routing, leaves[0], presence, leaves[1])
        outputs = [tensor for tensor in found if tensor is not None]
        value = sum((output * torch.linspace(-1, 1, output[0].numel()).view_as(output[0])).sum() for output in outputs)
        assert isinstance(value, Tensor)
        gradients = torch.autograd.grad(value, [*leaves, *routing.parameters()], allow_unused=True)
        results.append([*outputs, *(gradient for gradient in gradients if gradient is not None)])
        routing.load_state_dict(state)  # some follow running means
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("spec", [spec for spec in ROUTINGS if "spectral" not in spec])  # the direction has another
def test_the_gradient_is_that_of_the_value(spec: str) -> None:
    routing = made(spec, 3, 2, 4, torch.float64)
    votes = torch.randn(2, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    presence = (0.2 + 0.8 * torch.rand(2, 3, dtype=torch.float64)).requires_grad_()
    inputs = torch.randn(2, 3, IN_DIM, dtype=torch.float64, requires_grad=True)

    def of(votes: Tensor, presence: Tensor, inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in route(routing, votes, presence, inputs) if tensor is not None)

    assert torch.autograd.gradcheck(of, (votes, presence, inputs))


@pytest.mark.parametrize(
    "spec", [spec for spec in ROUTINGS if [*Routing.build(spec, 5, 4, 6, in_dim=IN_DIM).parameters()]]
)
def test_every_parameter_is_used(spec: str) -> None:
    routing = made(spec, 5, 4, 6)
    found = route(routing, torch.randn(3, 4, 5, 6), None, torch.randn(3, 5, IN_DIM))
    value = (found.capsules * torch.randn(3, 4, 6)).sum()
    value = value if found.presence is None else value + found.presence.square().sum()
    for gradient in torch.autograd.grad(value, list(routing.parameters())):
        assert (gradient != 0).any()


@every_routing
def test_it_can_be_exported_with_any_batch(spec: str) -> None:
    class WithPresence(nn.Module):
        def __init__(self, routing: Routing) -> None:
            super().__init__()
            self.routing = routing

        def forward(self, votes: Tensor, presence: Tensor, inputs: Tensor) -> tuple[Tensor, ...]:
            return tuple(one for one in route(self.routing, votes, presence, inputs) if one is not None)

    module = WithPresence(made(spec, 5, 4, 6)).eval()

    def arguments(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, 4, 5, 6), torch.rand(batch, 5), torch.randn(batch, 5, IN_DIM)

    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(module, arguments(3), dynamic_shapes=({0: batch}, {0: batch}, {0: batch}))
    for size in (1, 7):
        given = arguments(size)
        for one, other in zip(program.module()(*given), module(*given), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("spec", BUILT_IN)
def test_everything_else_starts_alike_at_the_same_seed(spec: str) -> None:
    def start(routing: str) -> dict[str, Tensor]:
        torch.manual_seed(5)
        model = ARCapsNet(image_size=(12, 12), caps=3, dim=4, primary_dim=4, stem_channels=4, routing=routing)
        return {name: value for name, value in model.state_dict().items() if ".routing." not in name}

    expected, found = start("attention"), start(spec)
    assert found.keys() - expected.keys() <= {"primary.presence.weight", "primary.presence.bias"}
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@every_routing
def test_a_model_with_it_is_saved_and_loaded(spec: str, tmp_path: Path) -> None:
    model = ARCapsNet(image_size=(12, 12), caps=3, dim=4, primary_dim=4, stem_channels=4, routing=spec).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    images = torch.rand(2, 1, 12, 12)
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert again.class_caps.routing.spec == spec.replace('"', "'")
    torch.testing.assert_close(again(images).scores, model(images).scores, rtol=0, atol=0)


@pytest.mark.parametrize("spec", [spec for spec in ROUTINGS if spec.split("(")[0] not in ("self_attention", "heinsen")])
def test_the_coefficients_sum_to_one_over_what_it_divides(spec: str) -> None:
    routing = made(spec, 5, 4, 6, torch.float64)
    over_outputs = routing.divides == "outputs"
    coefficients = route(
        routing, torch.randn(3, 4, 5, 6).double(), None, torch.randn(3, 5, IN_DIM).double()
    ).coefficients
    assert (coefficients >= 0).all()
    torch.testing.assert_close(
        coefficients.sum(-2 if over_outputs else -1), torch.ones(3, 5 if over_outputs else 4).double()
    )


@pytest.mark.parametrize(("over", "axis"), [("inputs", -1), ("outputs", -2)])
def test_random_coefficients_are_the_softmax_of_saved_numbers_that_are_not_trained(over: str, axis: int) -> None:
    routing, votes = Routing.build(f"random(over='{over}')", 5, 4, 6), torch.randn(3, 4, 5, 6)
    assert not [*routing.parameters()]
    expected = routing.state_dict()["frozen"].softmax(axis)
    found = route(routing, votes)
    torch.testing.assert_close(found.coefficients, expected.expand(3, 4, 5))
    torch.testing.assert_close(found.capsules, (expected.unsqueeze(-1) * votes).sum(-2))


@every_routing
def test_it_gives_presence_if_it_says_so(spec: str) -> None:
    routing = made(spec, 5, 4, 6)
    found = route(routing, torch.randn(3, 4, 5, 6), None, torch.randn(3, 5, IN_DIM))
    assert (found.presence is not None) == routing.gives_presence
    if found.presence is not None:
        assert ((found.presence >= 0) & (found.presence <= 1)).all()


@every_routing
def test_its_costs_can_be_counted(spec: str) -> None:
    model = ARCapsNet(image_size=(12, 12), caps=3, dim=4, primary_dim=4, stem_channels=4, routing=spec)
    assert info(model, batch_size=2).trainable_parameters == model.parameter_count()


@pytest.mark.parametrize("spec", ["self", "heinsen"])
def test_the_poses_of_absent_inputs_are_ignored_too(spec: str) -> None:
    routing = made(spec, 5, 4, 6, torch.float64)
    votes, inputs = torch.randn(3, 4, 5, 6).double(), torch.randn(3, 5, IN_DIM).double()
    presence = torch.tensor([1.0, 0.0, 0.3, 0.0, 0.5]).double().expand(3, 5)
    others = torch.where(presence.unsqueeze(-1) > 0, inputs, 7 * inputs - 3)
    for found, expected in zip(
        route(routing, votes, presence, others), route(routing, votes, presence, inputs), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("spec", ["em", "em(mass='paper', iterations=3)", "self", "spectral", "variational"])
def test_without_inputs_there_is_no_output(spec: str) -> None:
    found = route(made(spec, 5, 4, 6), torch.randn(3, 4, 5, 6), torch.tensor([[0.0], [1e-3], [1.0]]).expand(3, 5))
    assert found.presence is not None
    assert (found.presence[0] == 0).all()
    assert (found.presence[1:] > 0).all()
