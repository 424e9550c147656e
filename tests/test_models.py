"""Every model, at every size it should take."""

import dataclasses
from itertools import product
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import arcaps
from arcaps import ArcapsError, ARCapsNet, Classifier, Model, Output, create_model, testing
from arcaps.data import Batch
from arcaps.fields import field_docs

NAMES = sorted(Classifier.known)
SIZES = [(28, 28, 1), (32, 32, 3), (40, 40, 1), (17, 23, 2), (64, 48, 3), (8, 8, 1)]
SMALL: dict[str, dict[str, Any]] = {
    "ar_capsnet": {"caps": 2, "dim": 8, "primary_dim": 4, "stem_channels": 4},
    "capsule_net": {"caps": 2, "dim": 4, "primary_dim": 4, "stem_channels": 4},
    "strong_conv_net": {"widths": (4, 8, 8, 8)},
    "conv_net": {},
    "dense_head": {"caps": 2, "dim": 8, "primary_dim": 4, "stem_channels": 4},
    "efficient_capsnet": {"caps": 2, "dim": 4, "primary_dim": 4, "stem_widths": (4, 4, 4), "decoder": True},
    "matrix_capsules": {"caps": 3, "primary_caps": 2, "stem_channels": 4},
}
SMALLEST = {"capsule_net": 17, "matrix_capsules": 17, "efficient_capsnet": 11}
"""The shortest side that a model takes, where it is more than 8."""

every_model = pytest.mark.parametrize("name", NAMES)


def check(model: Classifier, batch: int) -> None:
    """Forward, loss and gradients: right shapes, finite values."""
    images = torch.rand(batch, model.channels, *model.image_size)
    labels = torch.randint(model.classes, (batch,))
    output = model(images, labels)
    assert output.scores.shape == (batch, model.classes)
    assert ((output.scores >= 0) & (output.scores <= 1)).all()
    if output.capsules is not None:
        assert output.capsules.shape[:2] == (batch, model.classes)
        if model.config.get("decoder"):
            assert output.reconstruction is not None
            assert output.reconstruction.shape == images.shape
    losses = model.losses(output, Batch(images, labels, batch))
    sum(losses.values(), torch.zeros(())).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("classes", [2, 10, 101])
@pytest.mark.parametrize("layers", range(7))
def test_ar_capsnet_takes_any_size(size: tuple[int, int, int], classes: int, layers: int) -> None:
    height, width, channels = size
    model = create_model(
        "ar_capsnet",
        image_size=(height, width),
        channels=channels,
        classes=classes,
        layers=layers,
        **SMALL["ar_capsnet"],
    )
    for batch in (1, 7):
        check(model, batch)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "ar_capsnet"])
def test_the_others_take_every_size_that_their_kernels_allow(name: str, size: tuple[int, int, int]) -> None:
    height, width, channels = size
    options = {"image_size": (height, width), "channels": channels, "classes": 3, **SMALL[name]}
    smallest = SMALLEST.get(name, 8)
    if min(height, width) < smallest:
        with pytest.raises(ArcapsError, match=rf"8x8 is too small for .*: give at least {smallest}x{smallest}"):
            create_model(name, **options)
        return
    on_meta = name == "conv_net" and height * width > 400  # it has no strides: up to 150 million parameters
    with torch.device("meta" if on_meta else "cpu"):
        model = create_model(name, **options)
        assert model.eval()(torch.rand(1, channels, height, width)).scores.shape == (1, 3)
    if not on_meta:
        check(model.train(), 7)


@pytest.mark.parametrize(
    ("name", "options", "smallest"),
    [
        ("ar_capsnet", {}, 8),
        ("ar_capsnet", {"layers": 0}, 8),
        ("ar_capsnet", {"layers": 2, "strides": (2, 2)}, 16),
        ("ar_capsnet", {"stages": (4, 4), "layers": 1, "strides": (2,)}, 32),
        ("capsule_net", {}, 17),
        ("strong_conv_net", {}, 8),
        ("matrix_capsules", {}, 17),
        ("efficient_capsnet", {}, 11),
        ("dense_head", {}, 8),
    ],
)
def test_too_small_an_image_is_refused_with_the_smallest_named(
    name: str, options: dict[str, Any], smallest: int
) -> None:
    options = {**SMALL[name], **options}
    with pytest.raises(ArcapsError, match=f"{smallest - 1}x{smallest} is too small.*at least {smallest}x{smallest}"):
        create_model(name, image_size=(smallest - 1, smallest), **options)
    check(create_model(name, image_size=(smallest, smallest), **options), 2)


@pytest.mark.parametrize(
    ("routing", "activation"),
    list(
        product(
            ["attention", "dynamic", "dynamic(iterations=1)", "query_key(heads=2)"],
            ["capsule", "capsule(compression=2)", "squash", "squash_variant"],
        )
    ),
)
def test_ar_capsnet_with_every_routing_and_activation(routing: str, activation: str) -> None:
    model = create_model(
        "ar_capsnet", image_size=12, layers=2, routing=routing, activation=activation, **SMALL["ar_capsnet"]
    )
    check(model, 3)


@pytest.mark.parametrize("name", ["ar_capsnet", "dense_head"])
@pytest.mark.parametrize("size", [(28, 28), (41, 30)])
def test_each_stage_of_the_stem_halves_the_maps(name: str, size: tuple[int, int]) -> None:
    small = {"caps": 2, "dim": 4, "primary_dim": 4, "stem_channels": 4}
    model = create_model(name, image_size=size, stages=(6, 10), strides=(1,), **small)
    twin = model.eval().for_inference()
    images = torch.rand(3, 1, *size)
    features = model.features(images)
    torch.testing.assert_close(twin(images).scores, model(images).scores)
    if name == "ar_capsnet":
        assert features["stem"].shape[1:] == (10, -(-size[0] // 4), -(-size[1] // 4))
        assert features["conv_caps.0"].shape[1:3] == tuple(-(-side // 8) for side in size)
    with pytest.raises(ArcapsError, match="4 strided layers"):
        create_model(name, image_size=(16, 16), stages=(6, 10), strides=(2,), **small)


def test_strides_and_residual() -> None:
    model = ARCapsNet(image_size=(64, 48), layers=3, strides=(2, 1, 2), **SMALL["ar_capsnet"])
    assert model.class_caps.in_size == (8, 6)
    assert [layer.votes.stride for _, layer in model.routing_layers()] == [2, 1, 2, 1]
    assert [layer.residual for _, layer in model.routing_layers()] == [False, True, False, False]
    assert not any(layer.residual for _, layer in ARCapsNet(layers=3, residual=False).routing_layers())
    with pytest.raises(ArcapsError, match="strides \\(2,\\) do not fit 3 conv caps layers"):
        ARCapsNet(layers=3, strides=(2,))


@every_model
def test_images_do_not_see_each_other(name: str) -> None:
    model = create_model(name, image_size=20, **SMALL[name]).double()
    testing.assert_batch_independent(model, torch.rand(4, 1, 20, 20, dtype=torch.float64))


@pytest.mark.parametrize("name", ["ar_capsnet", "capsule_net"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_for_black_images(name: str, dtype: torch.dtype) -> None:
    model = create_model(name, image_size=20, **SMALL[name]).to(dtype)
    testing.assert_finite_gradients(model, torch.zeros(2, 1, 20, 20, dtype=dtype))


def test_class_capsules_depend_on_their_own_channel_only() -> None:
    model = ARCapsNet(image_size=12, **SMALL["ar_capsnet"])
    with torch.no_grad():
        images = torch.rand(2, 1, 12, 12)
        before = model.eval()(images).capsules
        for name, parameter in model.class_caps.named_parameters():
            axis = {"votes.weight": 4, "votes.bias": 1}.get(name, 0)
            parameter.select(axis, 3).add_(1)
        after = model(images).capsules
    changed = (before != after).any(-1).any(0)
    assert changed.tolist() == [n == 3 for n in range(10)]


def test_the_decoder_shows_the_labelled_capsule_in_training_and_the_longest_without_a_label() -> None:
    model = ARCapsNet(image_size=12, **SMALL["ar_capsnet"]).eval()
    images = torch.rand(5, 1, 12, 12)
    free = model(images)
    longest = free.scores.argmax(-1)
    assert torch.equal(free.reconstruction, model(images, longest).reconstruction)
    assert not torch.equal(free.reconstruction, model(images, (longest + 1) % 10).reconstruction)


def test_scores_are_normalised_by_what_the_activation_allows() -> None:
    images = torch.rand(2, 1, 12, 12)
    for activation, longest in {"capsule": 8**0.5, "squash": 1.0}.items():
        output = ARCapsNet(image_size=12, activation=activation, **SMALL["ar_capsnet"])(images)
        torch.testing.assert_close(output.scores, output.capsules.norm(dim=-1) / longest)


def test_losses_are_those_of_the_paper() -> None:
    model = ARCapsNet(image_size=12, **SMALL["ar_capsnet"])
    images, labels = torch.rand(4, 1, 12, 12), torch.tensor([1, 2, 3, 4])
    output = model(images, labels)
    batch = Batch(images, labels, 4)
    losses = model.losses(output, batch)
    assert set(losses) == {"margin", "reconstruction"}
    torch.testing.assert_close(losses["reconstruction"], 0.3 * (output.reconstruction - images).square().mean())
    assert set(ARCapsNet(decoder=False).losses(output._replace(reconstruction=None), batch)) == {"margin"}


def test_coefficients_of_every_routing_layer_come_by_name() -> None:
    model = ARCapsNet(image_size=(16, 20), layers=2, classes=3, **SMALL["ar_capsnet"])
    images = torch.rand(2, 1, 16, 20)
    coefficients = model(images).coefficients
    assert {name: tuple(c.shape) for name, c in coefficients.items()} == {
        "conv_caps.0": (2, 4, 5, 2, 2),
        "conv_caps.1": (2, 4, 5, 2, 2),
        "class_caps": (2, 3, 2),
    }
    cnn = create_model("strong_conv_net")(torch.rand(1, 1, 28, 28))
    assert cnn.coefficients == {}
    assert cnn.capsules is None
    assert cnn.reconstruction is None


@every_model
def test_export_with_a_dynamic_batch_changes_no_answer(name: str) -> None:
    model = create_model(name, image_size=(20, 17), channels=2, **SMALL[name]).eval()
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        program = torch.export.export(
            model, (torch.rand(3, 2, 20, 17),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
        )
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    exported = program.module()
    for batch in (1, 2, 7):
        images = torch.rand(batch, 2, 20, 17)
        for found, expected in zip(exported(images), model(images), strict=True):
            assert (found is None) == (expected is None)
            if expected is not None:
                torch.testing.assert_close(found, expected)


@every_model
def test_mistakes_are_named(name: str) -> None:
    model = create_model(name, **SMALL[name])
    with pytest.raises(ArcapsError, match=rf"{name} takes images \(batch, 1, 28, 28\), got \(2, 3, 32, 32\)"):
        model(torch.rand(2, 3, 32, 32))
    with pytest.raises(ArcapsError, match=r"as floats, got torch\.uint8: give model\.preprocessing"):
        model.accept(torch.zeros(2, 1, 28, 28, dtype=torch.uint8))
    with pytest.raises(ArcapsError, match="classes is 0: give at least 1"):
        create_model(name, classes=0)
    with pytest.raises(ArcapsError, match="has no option 'chanels': did you mean 'channels'"):
        create_model(name, chanels=3)


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ArcapsError, match="unknown model 'ar_capnet': did you mean 'ar_capsnet'"):
        create_model("ar_capnet")


@every_model
def test_features_by_layer_end_with_what_the_scores_are_read_from(name: str) -> None:
    model = create_model(name, image_size=20, **SMALL[name]).eval()
    images = torch.rand(2, 1, 20, 20)
    features = model.features(images)
    last = list(features.values())[-1]
    output = model(images)
    if output.capsules is not None:
        assert list(features)[:2] == ["stem", "primary"]
        assert torch.equal(last, output.capsules)
    else:
        torch.testing.assert_close(model.head[-1](last), output.logits)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": float("nan")}, "dropout is nan: give a number"),
        ({"dropout": -0.1}, "dropout is -0.1: give at least 0"),
        ({"caps": "8"}, "caps is '8': give a whole number"),
        ({"caps": 2.5}, "caps is 2.5: give a whole number"),
        ({"layers": -1}, "layers is -1: give at least 0"),
        ({"residual": 1}, "residual is 1: give True or False"),
        ({"routing": None}, "routing is None: give text"),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcapsError, match=message):
        ARCapsNet(**options)


def test_settings_of_a_routing_that_is_not_there_are_refused() -> None:
    for options, message in (
        ({"iterations": 2}, "iterations belongs to the default routing: leave it out, or leave out routing 'em'"),
        ({"faithful": True}, "faithful belongs to the default routing: leave it out, or leave out routing 'em'"),
    ):
        with pytest.raises(ArcapsError, match=message):
            create_model("capsule_net", routing="em", **options)


def test_the_loss_of_a_batch_leaves_the_schedule_alone() -> None:
    model = ARCapsNet(image_size=12, routing="spectral", score="presence", loss="spread", **SMALL["ar_capsnet"])
    batch = Batch(torch.rand(2, 1, 12, 12), torch.tensor([1, 2]), 2)
    model.loss(batch, progress=0.25)
    assert model.class_caps.routing.progress == 0.25
    at_the_end = model.eval().loss(batch)["spread"]
    assert model.class_caps.routing.progress == 0.25
    assert torch.equal(at_the_end, model.losses(model(batch.images, batch.labels), batch, 1.0)["spread"])


def test_every_setting_of_a_model_has_a_docstring_and_is_written_once() -> None:
    for name in NAMES:
        config = Model.find(name).config_class
        assert config is not None
        assert list(field_docs(config)) == [one.name for one in dataclasses.fields(config)]


def test_a_model_of_ones_own_needs_no_more_than_keyword_arguments(tmp_path: Path) -> None:
    class Tiny(Classifier, name="tiny"):
        def __init__(
            self, *, image_size: int | tuple[int, int] = 4, channels: int = 1, classes: int = 2, width: int = 3
        ):
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(channels * 16, width), nn.Linear(width, classes))

        def forward(self, images: Tensor, labels: Any = None) -> Output:
            logits = self.layers(self.accept(images))
            return Output(logits.softmax(-1), logits=logits)

        def losses(self, output: Output, batch: Any, progress: float = 1.0) -> dict[str, Tensor]:
            assert output.logits is not None
            return {"loss": nn.functional.cross_entropy(output.logits, batch.labels)}

    try:
        model = create_model("tiny", width=5)
        assert model.config == {"image_size": (4, 4), "channels": 1, "classes": 2, "width": 5}
        model.save(tmp_path / "tiny.safetensors")
        images = torch.rand(3, 1, 4, 4)
        assert torch.equal(arcaps.load(tmp_path / "tiny.safetensors")(images).scores, model(images).scores)
        assert arcaps.info(model).trainable_parameters == model.parameter_count()
        with pytest.raises(ArcapsError, match=r"did you mean 'width'[?] it takes image_size, channels, classes, width"):
            create_model("tiny", **{"with": 3})
    finally:
        del Model.known["tiny"]
