"""What can be chosen for the class layer: the authors' layout, attention heads, an affine map, a norm, dropout."""

from typing import Any

import pytest
import torch

from arcaps import ArcapsError, ClassCaps, create_model
from arcaps.activation import CapsuleActivation
from arcaps.data import Batch
from arcaps.functional import normalised_entropy
from arcaps.routing.attention import attention_routing, multi_head_attention_routing
from arcaps.votes import ConvVotes


def test_the_authors_layout_deals_the_elements_over_the_classes() -> None:
    text = ClassCaps(4, 6, 5, 3, in_size=(2, 2))
    code = ClassCaps(4, 6, 5, 3, in_size=(2, 2), layout="code")
    code.load_state_dict(text.state_dict())
    capsules = torch.randn(2, 2, 2, 4, 6)
    with torch.no_grad():
        expected, found = text(capsules).poses, code(capsules).poses
    for image in range(2):
        elements = [float(element) for channel in expected[image] for element in channel]
        for label in range(5):
            assert found[image, label].tolist() == [elements[label + 5 * step] for step in range(3)]


def test_one_head_is_the_papers_attention() -> None:
    votes, weight = torch.randn(2, 3, 4, 6), torch.randn(3, 4, 4, 6)
    one, several = attention_routing(votes, weight), multi_head_attention_routing(votes, weight[None])
    for expected, found in zip(one[:2], several[:2], strict=True):
        torch.testing.assert_close(found, expected)


def test_each_head_weighs_its_own_slice_of_the_vote() -> None:
    votes, weight = torch.randn(3, 4, 6, dtype=torch.float64), torch.randn(2, 3, 4, 4, 6, dtype=torch.float64)
    mixed, coefficients, _ = multi_head_attention_routing(votes, weight, scale=0.5)
    shares = [attention_routing(votes, 0.5 * weight[head])[1] for head in range(2)]
    for head, share in enumerate(shares):
        own = slice(3 * head, 3 * head + 3)
        expected = torch.stack([(share[n, :, None] * votes[n, :, own]).sum(0) for n in range(3)])
        torch.testing.assert_close(mixed[:, own], expected)
    torch.testing.assert_close(coefficients, (shares[0] + shares[1]) / 2)


def test_an_affine_map_across_channels_sees_every_channel() -> None:
    activation = CapsuleActivation(3, 4, across=True)
    capsules = torch.randn(2, 3, 4, requires_grad=True)
    activation(capsules)[:, 0].sum().backward()
    assert capsules.grad is not None
    assert (capsules.grad.abs().sum((0, 2)) > 0).all()
    weight, bias = (parameter[0] for parameter in activation.affine.parameters())
    torch.testing.assert_close(activation(capsules), (capsules.flatten(1) @ weight + bias).tanh().view(2, 3, 4))


@pytest.mark.parametrize("options", [{}, {"across": True}, {"compression": 2}], ids=str)
def test_the_norm_of_the_capsule_activation_is_over_images_and_positions(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    activation = CapsuleActivation(3, 4, norm=True, **options).train()
    capsules = 5 + 3 * torch.randn(20, 6, 5, 3, 4)
    expected = activation.map(capsules)
    expected = (expected - expected.mean((0, 1, 2))) / (expected.var((0, 1, 2), correction=0) + 1e-3).sqrt()
    torch.testing.assert_close(activation(capsules), expected.tanh(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"across": True}, {"compression": 2}], ids=str)
def test_the_norm_folds_into_the_affine_map(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    activation = CapsuleActivation(3, 4, norm=True, **options)
    with torch.no_grad():
        for parameter in activation.parameters():
            parameter.uniform_(0.5, 1.5)
    for _ in range(3):
        activation(2 + torch.randn(20, 6, 5, 3, 4))
    capsules = torch.randn(7, 3, 4)
    expected = activation.eval()(capsules)
    activation.fold()
    assert activation.norm is None
    torch.testing.assert_close(activation(capsules), expected)


def test_channel_dropout_drops_whole_channels() -> None:
    layer = ClassCaps(8, 4, 2, 4, in_size=(2, 2), channel_dropout=0.5).train()
    capsules = torch.ones(50, 2, 2, 8, 4, requires_grad=True)
    layer(capsules).poses.sum().backward()
    assert capsules.grad is not None
    dropped = capsules.grad == 0
    whole = dropped.all(4).all(2).all(1)  # (image, channel)
    assert (dropped == whole[:, None, None, :, None]).all()
    assert 0.35 < whole.float().mean() < 0.65


def test_the_entropy_term_is_zero_for_equal_coefficients() -> None:
    torch.manual_seed(0)
    small = {"dim": 4, "caps": 4, "stem_channels": 4, "decoder": False}
    model = create_model("ar_capsnet", entropy=0.5, **small)
    batch = Batch(torch.rand(8, 1, 28, 28), torch.arange(8), 8)
    output = model(batch.images)
    losses = model.losses(output, batch)
    entropy = normalised_entropy(output.coefficients["class_caps"])
    torch.testing.assert_close(losses["entropy"], 0.5 * (1 - entropy.mean()))
    uniform = output._replace(coefficients={"class_caps": torch.full((8, 10, 4), 0.25)})
    assert model.losses(uniform, batch)["entropy"] == pytest.approx(0, abs=1e-6)
    assert "entropy" not in create_model("ar_capsnet", **small).losses(output, batch)


def test_the_entropy_of_one_hot_coefficients_has_finite_gradients() -> None:
    coefficients = torch.tensor([1.0, 0.0, 0.0], requires_grad=True)
    normalised_entropy(coefficients).backward()
    assert coefficients.grad is not None
    assert coefficients.grad.isfinite().all()


def test_fused_kernels_start_smaller() -> None:
    plain, fused = (float(ConvVotes(8, 16, 8, 32, fused=fused).weight.detach().abs().max()) for fused in (False, True))
    assert plain == pytest.approx((6 / (9 * 16 + 9 * 8 * 32)) ** 0.5, rel=0.01)
    assert fused == pytest.approx((6 / (9 * 16 + 9 * 8 * 8 * 32)) ** 0.5, rel=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "keras"}, "unknown layout 'keras'"),
        ({"class_routing": "attention(heads=5)"}, "5 heads do not divide capsules of dimension 32"),
        ({"channel_dropout": 1.5}, "channel_dropout is 1.5: give at most 0.99"),
    ],
)
def test_mistakes_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArcapsError, match=message):
        create_model("ar_capsnet", **options)
