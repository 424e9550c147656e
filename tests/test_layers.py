"""What the axes of every capsule layer mean, over every routing, activation and number format."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from arcaps import (
    Activation,
    ArcapsError,
    ARCapsNet,
    CapsuleActivation,
    ClassCaps,
    ConvCaps,
    ConvVotes,
    Decoder,
    DynamicRouting,
    PrimaryCaps,
    Routed,
    Routing,
    testing,
)
from tests.dtypes import dtype, tolerance  # noqa: F401

ROUTINGS = [*Routing.known, "dynamic(iterations=1)", "query_key(heads=1)", "attention(heads=2)"]
ACTIVATIONS = [*Activation.known, "capsule(compression=2)"]

every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)
every_pair = pytest.mark.parametrize(
    ("routing", "activation"),
    [(routing, "capsule") for routing in ROUTINGS] + [("attention", activation) for activation in ACTIVATIONS[1:]],
)
every_stride = pytest.mark.parametrize("stride", [1, 2])

sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))
counts = st.integers(1, 4)
dims = st.sampled_from([4, 8])


def capsules_like(layer: ConvCaps, *size: int, batch: int = 3) -> Tensor:
    """Random input capsules for a layer, in its number format."""
    votes = layer.votes
    return torch.randn(batch, *size, votes.in_caps, votes.in_dim)


@every_pair
@given(size=sizes, in_caps=counts, out_caps=counts, in_dim=dims, out_dim=dims, stride=st.integers(1, 3))
def test_conv_caps_shapes_batches_and_gradients(
    routing: str,
    activation: str,
    size: tuple[int, int],
    in_caps: int,
    out_caps: int,
    in_dim: int,
    out_dim: int,
    stride: int,
) -> None:
    layer = ConvCaps(in_caps, in_dim, out_caps, out_dim, stride=stride, routing=routing, activation=activation)
    capsules = capsules_like(layer, *size)
    height, width = (-(-side // stride) for side in size)
    assert layer(capsules).poses.shape == (3, height, width, out_caps, out_dim)
    testing.assert_batch_independent(layer, capsules)
    testing.assert_finite_gradients(layer, capsules)
    testing.assert_finite_gradients(layer, torch.zeros_like(capsules))


@every_pair
@every_stride
def test_conv_caps_is_local_and_shifts_with_its_input(routing: str, activation: str, stride: int) -> None:
    layer = ConvCaps(2, 3, 2, 4, stride=stride, routing=routing, activation=activation)
    capsules = capsules_like(layer, 17, 18)
    testing.assert_shift_equivariant(layer, capsules, stride=stride)
    testing.assert_one_pixel(layer, capsules[:, :9, :9], kernel=3, stride=stride)


@every_activation
@every_stride
def test_primary_caps_is_local_and_shifts_with_its_input(activation: str, stride: int) -> None:
    layer = PrimaryCaps(3, 2, 4, stride=stride, activation=activation, relu=False)
    features = torch.randn(3, 3, 17, 18)
    testing.assert_shift_equivariant(layer, features, stride=stride)
    testing.assert_one_pixel(layer, features[..., :9, :9], kernel=3, stride=stride)
    testing.assert_batch_independent(layer, features)
    testing.assert_finite_gradients(layer, torch.zeros_like(features))


def test_the_network_up_to_its_last_conv_caps_shifts_with_its_input() -> None:
    model = ARCapsNet(image_size=64, layers=2, caps=2, dim=4, primary_dim=4)
    stack = nn.Sequential(model.stem, model.primary, *model.conv_caps)
    images = torch.rand(2, 1, 64, 64)
    testing.assert_shift_equivariant(stack, images, stride=4, margin=3)
    assert testing.equivariance_error(stack, images, stride=4, shift=3, margin=3) > 1e-3


@every_pair
@pytest.mark.parametrize("votes", ["conv", "window"])
def test_class_caps(routing: str, activation: str, votes: str) -> None:
    layer = ClassCaps(2, 3, 5, 4, in_size=(3, 4), votes=votes, routing=routing, activation=activation)
    capsules = torch.randn(3, 3, 4, 2, 3)
    output, _, coefficients = layer(capsules)
    assert output.shape == (3, 5, 4)
    assert coefficients.shape == (3, 5, 24 if votes == "window" else 2)
    assert layer.activation.max_length is None or output.norm(dim=-1).max() <= layer.activation.max_length
    testing.assert_batch_independent(layer, capsules)
    testing.assert_finite_gradients(layer, torch.zeros_like(capsules))


@pytest.mark.parametrize(
    ("routing", "over"),
    [("attention", "inputs"), ("query_key", "inputs"), ("query_key(heads=2)", "inputs"), ("dynamic", "outputs")],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda routing: ConvCaps(3, 4, 2, 8, routing=routing),
        lambda routing: ClassCaps(3, 4, 2, 8, in_size=(5, 6), routing=routing),
        lambda routing: Routing.build(routing, 3, 4, 8),
    ],
    ids=["conv", "class", "routing"],
)
def test_coefficients_sum_to_one_over_one_axis(routing: str, over: str, make: Callable[[str], nn.Module]) -> None:
    layer = make(routing)
    inputs = 3 * torch.randn(2, 5, 6, *((4, 3, 8) if isinstance(layer, Routing) else (3, 4)))
    testing.assert_coefficients_sum_to_one(layer, inputs, over=over)
    with pytest.raises(AssertionError, match="is off 1"):
        testing.assert_coefficients_sum_to_one(layer, inputs, over="outputs" if over == "inputs" else "inputs")


@pytest.mark.parametrize("routing", ["attention", "query_key"])
@every_activation
def test_an_output_channel_depends_on_its_own_parameters_only(routing: str, activation: str) -> None:
    options = {"routing": routing, "activation": activation}
    conv = ConvCaps(2, 3, 5, 4, **options)  # type: ignore[arg-type]
    classes = ClassCaps(2, 3, 5, 4, in_size=(3, 3), **options)
    capsules = torch.randn(2, 3, 3, 2, 3)
    testing.assert_own_parameters(conv, capsules)
    testing.assert_own_parameters(classes, capsules)


def test_dynamic_routing_ties_the_output_channels_together() -> None:
    layer = ClassCaps(2, 3, 5, 4, in_size=(3, 3), routing="dynamic")
    with pytest.raises(AssertionError, match="serve several output channels"):
        testing.assert_own_parameters(layer, torch.randn(2, 3, 3, 2, 3))


@pytest.mark.parametrize("routing", ROUTINGS)
@given(lead=st.lists(st.integers(1, 3), max_size=4))
def test_a_routing_works_on_any_leading_axes(routing: str, lead: list[int]) -> None:
    layer = Routing.build(routing, 3, 2, 4, in_dim=5)
    votes, inputs = torch.randn(*lead, 2, 3, 4), torch.randn(*lead, 3, 5)

    def route(votes: Tensor) -> Routed:
        needed = {"inputs": inputs.reshape(*votes.shape[:-3], 3, 5)} if "inputs" in layer.needs else {}
        return Routed(*layer(votes, **needed))

    capsules, coefficients, _ = route(votes)
    assert capsules.shape == (*lead, 2, 4)
    assert coefficients.shape == (*lead, 2, 3)
    flat, *_ = route(votes.reshape(-1, 2, 3, 4))
    torch.testing.assert_close(capsules.reshape(-1, 2, 4), flat, **tolerance())
    testing.assert_finite_gradients(route, torch.zeros_like(votes))


@pytest.mark.parametrize("routing", [*ROUTINGS, "uniform(over='inputs')", "random(over='outputs')"])
def test_an_absent_input_is_as_if_it_were_not_there(routing: str) -> None:
    layer = Routing.build(routing, 5, 3, 4, in_dim=6)
    testing.assert_absent_inputs_are_ignored(layer, 3 * torch.randn(2, 3, 5, 4), torch.randn(2, 5, 6))
    layer = Routing.build(routing, 2, 1, 4, in_dim=6)
    testing.assert_absent_inputs_are_ignored(layer, torch.zeros(2, 1, 2, 4), torch.zeros(2, 2, 6))


@pytest.mark.parametrize(
    "routing",
    [
        *("dynamic", "inverted", "kl", "query_key", "score", "spectral", "uniform", "uniform(over='inputs')"),
        *("variational", "em(mass='paper')"),
    ],
)
def test_an_absent_input_can_be_left_out(routing: str) -> None:
    votes = torch.randn(4, 3, 6, 8)
    there = torch.tensor([True, False, True, True, False, True])
    whole, rest = (Routing.build(routing, count, 3, 8) for count in (6, 4))
    rest.load_state_dict(whole.state_dict())
    found = whole(votes, presence=there.expand(4, 6).to(votes.dtype))
    expected = rest(votes[:, :, there])
    torch.testing.assert_close(found.capsules, expected.capsules, **tolerance())
    torch.testing.assert_close(found.coefficients[..., there], expected.coefficients, **tolerance())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deaf", "a vote of an absent input changes the capsules"),
        ("sum", "presence 1 everywhere changes the capsules"),
        ("nan", "with all inputs absent a capsule is nan"),
    ],
)
def test_a_broken_law_of_presence_is_caught(name: str, message: str) -> None:
    class Broken(Routing):
        needs = frozenset({"presence"})

        def forward(self, votes: Tensor, *, presence: Tensor | None = None) -> tuple[Tensor, Tensor]:
            weights = torch.ones_like(votes[..., 0])
            if presence is not None and name != "deaf":
                weights = weights * presence.unsqueeze(-2)
            if presence is None or name != "sum":
                weights = weights / weights.sum(-1, keepdim=True)
            return (weights.unsqueeze(-1) * votes).sum(-2), weights

    with pytest.raises(AssertionError, match=message):
        testing.assert_absent_inputs_are_ignored(Broken(4, 2, 3), torch.randn(2, 2, 4, 3))


def test_equal_votes_are_their_own_mixture() -> None:
    vote = torch.randn(5, 2, 1, 8)
    for routing in ("attention", "query_key"):
        capsules, *_ = Routing.build(routing, 3, 2, 8)(vote.expand(5, 2, 3, 8))
        torch.testing.assert_close(capsules, vote[:, :, 0])


def test_each_capsule_channel_of_the_primary_layer_is_a_convolution_of_its_own() -> None:
    layer = PrimaryCaps(3, 4, 5, activation="squash")
    features = torch.randn(2, 3, 8, 9)
    for n in range(4):
        own = slice(5 * n, 5 * n + 5)
        maps = nn.functional.conv2d(features, layer.conv.weight[own], layer.conv.bias[own], stride=2, padding=1)  # type: ignore[index]
        expected = layer.activation(maps.relu().permute(0, 2, 3, 1).unsqueeze(3))
        torch.testing.assert_close(layer(features).poses[:, :, :, n], expected[:, :, :, 0], **tolerance())


def test_dropout_falls_on_the_votes_and_not_on_the_residual() -> None:
    layer = ConvCaps(2, 4, 2, 4, activation="squash", residual=True, dropout=0.999999)
    capsules = torch.randn(1, 3, 3, 2, 4)
    torch.testing.assert_close(layer.train()(capsules).poses, layer.activation(capsules))
    assert not torch.allclose(layer.eval()(capsules).poses, layer.activation(capsules))


def test_a_class_layer_can_have_a_residual_where_the_shapes_allow_it() -> None:
    layer = ClassCaps(3, 4, 3, 4, in_size=(1, 1), residual=True)
    capsules = torch.randn(2, 1, 1, 3, 4)
    plain = ClassCaps(3, 4, 3, 4, in_size=(1, 1))
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(capsules).poses.atanh(), plain(capsules).poses.atanh() + capsules[:, 0, 0])


def test_decoder_fills_the_image() -> None:
    decoder = Decoder(3, 4, (2, 5, 7), hidden=(6,))
    image = decoder(torch.randn(2, 3, 4))
    assert image.shape == (2, 2, 5, 7)
    assert ((image > 0) & (image < 1)).all()


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (ConvCaps(8, 16, 8, 32, stride=2), "ConvCaps(8x16 -> 8x32, 3x3/2, attention, capsule)"),
        (
            ConvCaps(8, 32, 8, 32, kernel=5, routing="dynamic", activation="squash", residual=True, dropout=0.5),
            "ConvCaps(8x32 -> 8x32, 5x5/1, dynamic, squash, residual, dropout 0.5)",
        ),
        (
            ClassCaps(8, 32, 10, 32, in_size=(7, 9), routing="query_key", activation="capsule(compression=4)"),
            "ClassCaps(8x32 -> 10x32, 7x9/1, query_key, capsule(compression=4))",
        ),
        (PrimaryCaps(64, 8, 16), "PrimaryCaps(64 -> 8x16, 3x3/2, relu, capsule)"),
        (
            PrimaryCaps(64, 8, 16, relu=False, activation="squash_variant"),
            "PrimaryCaps(64 -> 8x16, 3x3/2, squash_variant)",
        ),
        (Decoder(10, 32, (1, 28, 28)), "Decoder(320 -> 512 -> 512 -> 1x28x28)"),
    ],
)
def test_repr_is_the_signature(layer: nn.Module, text: str) -> None:
    assert repr(layer) == text


def test_mistakes_are_named() -> None:
    with pytest.raises(ArcapsError, match=r"residual needs input and output of one shape.*8x16 -> 8x32"):
        ConvCaps(8, 16, 8, 32, residual=True)
    with pytest.raises(ArcapsError, match=r"expected capsules \(batch, height, width, 8, 16\), got \(1, 4, 4, 8, 32\)"):
        ConvCaps(8, 16, 8, 32)(torch.randn(1, 4, 4, 8, 32))
    with pytest.raises(ArcapsError, match="made for 7x7 positions, got 8x8"):
        ClassCaps(8, 16, 10, 32, in_size=(7, 7))(torch.randn(1, 8, 8, 8, 16))
    with pytest.raises(ArcapsError, match="2x4 positions are fewer than the kernel's 3x3"):
        ConvCaps(8, 16, 8, 32, padding="valid")(torch.randn(1, 2, 4, 8, 16))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"stride": 0}, "stride 0: give one whole number, at least 1"),
        ({"kernel": 0}, "kernel 0: give its side, or height and width, each at least 1"),
        ({"images_at_once": 0}, "0 images at once: give at least 1, or None for all"),
    ]
    for options, message in wrong:
        with pytest.raises(ArcapsError, match=message):
            ConvCaps(8, 16, 8, 32, **options)
    with pytest.raises(ArcapsError, match="leave kernel out, in_size says how large it is"):
        ClassCaps(8, 16, 10, 32, in_size=3, kernel=3)
    assert ClassCaps(8, 16, 10, 32, in_size=3).in_size == (3, 3)
    with pytest.raises(ArcapsError, match="4x4 has no middle"):
        ConvCaps(8, 16, 8, 32, kernel=4)
    with pytest.raises(ArcapsError, match="3 heads do not divide capsules of dimension 32"):
        ConvCaps(8, 16, 8, 32, routing="query_key(heads=3)")
    with pytest.raises(ArcapsError, match="compression 5 does not divide"):
        ConvCaps(8, 16, 8, 32, activation="capsule(compression=5)")
    with pytest.raises(ArcapsError, match="0 iterations: give a whole number from 1 to 1000"):
        ConvCaps(8, 16, 8, 32, routing="dynamic(iterations=0)")


def test_a_part_that_was_made_for_another_layer_is_refused() -> None:
    for part, message in (
        ({"routing": DynamicRouting(7, 7, 7)}, "this routing dynamic has in_caps 7, the layer 8"),
        ({"routing": DynamicRouting(8, 7, 32)}, "this routing dynamic has out_caps 7, the layer 6"),
        ({"votes": ConvVotes(8, 16, 6, 4)}, "this votes conv has out_dim 4, the layer 32: make it with out_dim=32"),
        ({"activation": CapsuleActivation(6, 16)}, "this activation capsule has dim 16, the layer 32"),
    ):
        with pytest.raises(ArcapsError, match=message):
            ConvCaps(8, 16, 6, 32, **part)
