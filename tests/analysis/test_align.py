"""The alignment ratio on cases that are known, and its protocol."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from arcaps import ArcapsError, Classifier, Dataset
from arcaps.analysis import (
    Settings,
    Subject,
    align,
    align_vectors,
    class_capsules,
    cosine,
    fix_signs,
    random_reference,
    robustness,
)
from arcaps.analysis.align import AlignExperiment, spread
from arcaps.analysis.base import choose_images, of_class
from arcaps.analysis.cosine import Cosine
from arcaps.analysis.section import Table
from arcaps.data.warp import Transform, warp
from arcaps.models.capsules import CapsuleClassifier
from tests.analysis.conftest import SHAPES, noise_images, small_model


def test_capsules_on_one_line_give_exactly_one() -> None:
    direction = torch.randn(7, 1, 16)
    amounts = torch.tensor([-3.0, 0.1, 1.0, 2.0, 50.0]).view(1, 5, 1)
    ratios, vectors = align_vectors(amounts * direction)
    torch.testing.assert_close(ratios, torch.ones(7, 5, dtype=torch.float64), rtol=0, atol=1e-6)
    unit = (direction / direction.norm(dim=-1, keepdim=True))[:, 0].double()
    torch.testing.assert_close((unit * vectors).sum(-1).abs(), torch.ones(7, dtype=torch.float64), rtol=0, atol=1e-6)


def test_the_ratio_by_hand() -> None:
    ratios, vectors = align_vectors(torch.tensor([[3.0, 0.0], [0.0, 1.0], [-3.0, 0.0]]))
    assert vectors.abs().tolist() == pytest.approx([1, 0])
    assert ratios.tolist() == pytest.approx([1, 0, 1])
    # no mean is subtracted: two equal vectors have a direction
    ratios, vectors = align_vectors(torch.tensor([[1.0, 1.0], [1.0, 1.0]]))
    assert vectors.abs().tolist() == pytest.approx([0.5**0.5, 0.5**0.5])
    assert ratios.tolist() == pytest.approx([1, 1])


def test_a_capsule_that_does_not_move_is_left_out() -> None:
    differences = torch.zeros(2, 5, 4)
    differences[0, 1:] = torch.tensor([1.0, 0, 0, 0])
    ratios, _ = align_vectors(differences)
    assert ratios[0].isnan().tolist() == [True, False, False, False, False]
    assert ratios[1].isnan().all()
    assert spread(ratios) == pytest.approx((1.0, 0.0))
    assert np.isnan(spread(ratios[1])).all()


@pytest.mark.parametrize(("dim", "mean", "deviation"), [(32, 0.463, 0.269), (16, 0.497, 0.277), (1, 1.0, 0.0)])
def test_random_vectors_give_the_reference(dim: int, mean: float, deviation: float) -> None:
    """Also against numpy's random vectors and SVD, one set at a time: the protocol in plain loops."""
    found = random_reference(dim, sets=4000)
    assert found.mean == pytest.approx(mean, abs=0.001 + 3 * found.error)
    assert found.deviation == pytest.approx(deviation, abs=0.005)
    random = np.random.default_rng(1)
    ratios = []
    for _ in range(1000):
        vectors = random.standard_normal((5, dim))
        main = np.linalg.svd(vectors)[2][0]
        ratios.append(np.abs(vectors @ main) / np.linalg.norm(vectors, axis=1))
    error = np.std(np.mean(ratios, axis=1)) / 1000**0.5
    assert abs(found.mean - np.mean(ratios)) <= 4 * np.hypot(error, found.error) + 1e-12


def test_the_sign_rule() -> None:
    differences = torch.tensor([[[1.0, 0], [2, 0]], [[-1.0, 0], [-2, 0]], [[-1.0, 0], [3, 0]], [[0.0, 0], [0, 0]]])
    for sign in (1.0, -1.0):
        vectors = torch.tensor([[sign, 0.0]], dtype=torch.float64).expand(4, 2)
        fixed, one_sided = fix_signs(vectors, differences)
        assert fixed[:, 0].tolist() == [1, -1, 1, sign]
        assert one_sided.tolist() == [True, True, False, False]


def test_the_protocol_in_plain_loops(trained: Classifier, digits: Dataset) -> None:
    """One image, one transformation, by hand: the true class's capsule, five copies, numpy's SVD."""
    assert isinstance(trained, CapsuleClassifier)
    found = align(trained, digits, count=6, batch_size=4)
    assert found.transformations == ("rotation+", "x+", "y+", "rotation-", "x-", "y-")
    chosen = choose_images(trained, digits, 6)
    assert found.labels.tolist() == chosen.labels.tolist()
    image, label = chosen.images[3:4].float() / 255, int(chosen.labels[3])
    cases: list[tuple[int, dict[str, Any], list[float]]] = [
        (0, {"name": "angle"}, [5.0, 10.0, 15.0, 20.0, 25.0]),
        (4, {"name": "shift_x"}, [-1.0, -2.0, -3.0, -4.0, -5.0]),
        (2, {"name": "shift_y"}, [1.0, 2.0, 3.0, 4.0, 5.0]),
    ]
    for kind, parameter, steps in cases:
        rows = []
        for step in steps:
            amount: dict[str, Any] = {parameter["name"]: step}
            moved = trained(warp(image, Transform.make(1, **amount))).capsules
            rows.append((moved - trained(image).capsules)[0, label].detach().double().numpy())
        matrix = np.stack(rows)
        main = np.linalg.svd(matrix)[2][0]
        expected = np.abs(matrix @ main) / np.linalg.norm(matrix, axis=1)
        assert found.after.ratios[kind, 3].tolist() == pytest.approx(expected, abs=1e-4)
        fixed = main * np.sign((matrix @ main).sum())
        assert found.after.fixed[kind, 3].tolist() == pytest.approx(fixed, abs=1e-3)


def test_before_and_after_the_bound(digits: Dataset) -> None:
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        ("ar_capsnet", torch.tanh, {}),
        ("ar_capsnet", torch.tanh, {"layout": "code"}),
        ("ar_capsnet", torch.tanh, {"images_at_once": 2}),
        ("capsule_net", None, {}),
    ]
    for name, bound, options in cases:
        model = small_model(name, **options)
        assert isinstance(model, CapsuleClassifier)
        before, after = class_capsules(model, digits.images[:3].float() / 255)
        assert torch.equal(after, model(digits.images[:3].float() / 255).capsules)
        assert torch.allclose(model.class_caps.activation.bound(before), after)
        if bound is not None:
            assert torch.allclose(bound(before), after)
    labels = torch.tensor([2, 0, 1])
    assert torch.equal(of_class(after, labels), torch.stack([after[0, 2], after[1, 0], after[2, 1]]))


def test_a_trained_model_is_above_the_reference(trained: Classifier, digits: Dataset) -> None:
    found = align(trained, digits, count=60)
    mean, deviation = found.table(found.after)
    assert mean.shape == (11, 6)
    assert (mean[-1] > found.reference.mean + 0.05).all()
    assert (deviation >= 0).all()
    written = found.as_dict()
    assert written["after_the_bound"]["mean"]["all"] == pytest.approx(mean[-1].tolist())
    assert written["paper"]["random_reference"] == [0.311, 0.262]
    compared = cosine(trained, digits, alignment=found)
    expected = (found.after.fixed[1] * found.after.fixed[4]).sum(-1)
    torch.testing.assert_close(compared.fixed[1], expected)
    torch.testing.assert_close(compared.free.abs(), compared.fixed.abs())
    assert torch.equal(compared.fixed, cosine(trained, digits, count=60).fixed)
    assert sum(compared.as_dict()["signs_fixed"]["x"]["histogram"]) == 60


def test_other_capsule_networks_have_a_row_each(trained: Classifier, digits: Dataset) -> None:
    others = {"capsules": small_model("capsule_net"), "cnn": small_model("strong_conv_net")}
    subject = Subject("own", trained, digits, others)
    record = AlignExperiment().run(subject, Settings(count=20)).record
    alone = align(others["capsules"], digits, count=20)
    assert list(record["others"]) == ["capsules"]
    assert record["others"]["capsules"]["mean"] == pytest.approx(alone.table(alone.after)[0][-1].tolist())
    (table, _) = (part for part in AlignExperiment().section(record).blocks if isinstance(part, Table))
    names = [row[0] for row in table.rows]
    assert names.index("all, capsules") == names.index("**all**") + 1


def test_peaks() -> None:
    def of(values: Tensor) -> Cosine:
        many = values.double().expand(3, -1)
        return Cosine("m", "d", "tanh", many, many, many, many)

    ends = torch.cat([torch.full((30,), -0.97), torch.full((30,), 0.97), torch.zeros(40)])
    assert of(ends).has_peaks(ends.double()) == (True, True)
    low = torch.cat([torch.full((60,), -0.97), torch.linspace(-0.5, 0.5, 40)])
    assert of(low).has_peaks(low.double()) == (True, False)
    sloping = torch.cat([torch.full((30,), -0.85), torch.full((20,), -0.95), torch.zeros(50)])
    assert of(sloping).has_peaks(sloping.double()) == (False, False)
    assert of(low).as_dict()["observations"]["does_not_tell_+_from_-"] == dict.fromkeys(("rotation", "x", "y"), False)
    with pytest.raises(ArcapsError, match="no capsule moved"):
        of(torch.full((3,), torch.nan)).shares(torch.full((3,), torch.nan, dtype=torch.float64))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", ["ar_capsnet", "capsule_net"])
def test_every_capsule_network(name: str, shape: tuple[int, int, int]) -> None:
    found = align(small_model(name, shape), noise_images(shape, 10))
    assert found.after.ratios.shape == (6, 10, 5)
    assert ((found.after.ratios >= 0) & (found.after.ratios <= 1)).all()


def test_what_does_not_fit_is_refused(digits: Dataset) -> None:
    with pytest.raises(ArcapsError, match="align does not apply to strong_conv_net: it has no capsules"):
        align(small_model("strong_conv_net"), digits)
    with pytest.raises(ArcapsError, match="cosine does not apply to strong_conv_net: it has no capsules"):
        cosine(small_model("strong_conv_net"), digits)
    with pytest.raises(ArcapsError, match="the model takes images of 3x32x32"):
        align(small_model("ar_capsnet", SHAPES["cifar10"]), digits)
    with pytest.raises(ArcapsError, match="the model knows 3 classes, digits, test has 10"):
        align(small_model("ar_capsnet", classes=3), digits)
    with pytest.raises(ArcapsError, match="count is 0"):
        align(small_model("ar_capsnet"), digits, count=0)


def test_images_with_several_labels_are_refused(digits: Dataset) -> None:
    """Scores (10,) and labels (10, 10) of ten images would be compared without an error."""
    ten = digits.take(torch.arange(10))
    several = replace(ten, labels=torch.eye(10)[ten.labels])
    with pytest.raises(ArcapsError, match="digits, test has several labels for an image"):
        robustness(small_model("ar_capsnet"), several)
