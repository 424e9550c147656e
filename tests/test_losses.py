"""Losses and scores, for one label and for several."""

import pytest
import torch

from arcaps import ArcapsError, Capsules, Loss, Score, create_model, list_losses, list_scores, margin_loss
from arcaps.data import Batch
from arcaps.losses import SpreadLoss, spread_loss
from arcaps.models import Classification
from tests.dtypes import dtype, tolerance  # noqa: F401

SMALL = {"image_size": 12, "caps": 2, "dim": 4, "primary_dim": 4, "stem_channels": 4, "classes": 3}


def test_the_spread_loss_of_the_paper() -> None:
    scores, target = torch.tensor([[0.7, 0.5, 0.1]]), torch.tensor([0])
    assert spread_loss(scores, target, margin=0.9).item() == pytest.approx(0.58, abs=1e-6)
    assert spread_loss(scores, target, margin=0.2).item() == pytest.approx(0, abs=1e-6)
    loss = Loss.build("spread")  # from 0.2 to 0.9
    assert loss(scores, target, progress=0.0).item() == pytest.approx(0, abs=1e-6)
    assert loss(scores, target, progress=1.0).item() == pytest.approx(0.58, abs=1e-6)
    half = 0.35**2 * 1  # at 0.55 only the second class is too near: 0.55 - 0.2
    assert loss(scores, target, progress=0.5).item() == pytest.approx(half, abs=1e-6)


@pytest.mark.parametrize("name", list_losses())
def test_a_row_with_a_single_one_is_the_class_number(name: str) -> None:
    loss = Loss.build(name)
    logits = torch.randn(5, 4)
    labels = torch.tensor([0, 3, 1, 1, 2])
    rows = torch.nn.functional.one_hot(labels, 4).to(logits.dtype)
    one, other = (loss(logits.softmax(-1), targets, logits=logits, progress=0.3) for targets in (labels, rows))
    torch.testing.assert_close(one, other, **tolerance())


@pytest.mark.parametrize("loss", ["margin", "spread"])
def test_scores_and_losses_are_in_float32_under_autocast(loss: str) -> None:
    model = create_model("ar_capsnet", **SMALL, loss=loss, entropy=0.1).float()
    batch = Batch(torch.rand(4, 1, 12, 12).float(), torch.tensor([0, 1, 2, 0]), 4)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(batch.images)
        losses = model.losses(output, batch)
    assert output.capsules.dtype == torch.bfloat16
    torch.testing.assert_close(output.scores, output.capsules.float().norm(dim=-1) / 2)  # sqrt(4)
    assert {value.dtype for value in losses.values()} == {torch.float32}
    assert margin_loss(output.scores.bfloat16(), batch.labels).dtype == torch.float32


@pytest.mark.parametrize("loss", list_losses())
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_losses_of_a_model_in_sixteen_bits_are_in_float32(loss: str, kind: torch.dtype) -> None:
    score = "linear" if loss == "cross_entropy" else "length"
    model = create_model("ar_capsnet", **SMALL, loss=loss, score=score, entropy=0.1).to(kind)
    images = torch.rand(4, 1, 12, 12).to(kind)
    for labels in (torch.tensor([0, 1, 2, 0]), torch.eye(3)[[0, 1, 2, 0]].float()):
        output = model(images, labels)
        losses = model.losses(output, Batch(images, labels, 4))
        assert {name: value.dtype for name, value in losses.items()} == dict.fromkeys(losses, torch.float32)
        assert output.reconstruction is not None
        difference = output.reconstruction.float() - images.float()
        torch.testing.assert_close(losses["reconstruction"], 0.3 * difference.square().mean())
        sum(losses.values(), torch.zeros(())).backward()
    assert all(one.grad is None or one.grad.isfinite().all() for one in model.parameters())


@pytest.mark.parametrize("kind", ["autocast", torch.bfloat16, torch.float16])
@pytest.mark.parametrize("votes", ["conv", "window"])
@pytest.mark.parametrize("routing", ["em", "spectral", "variational"])
@pytest.mark.parametrize("class_routing", [None, "score", "uniform", "self"])
def test_presence_as_the_score_is_not_rounded(
    kind: torch.dtype | str, votes: str, routing: str, class_routing: str | None
) -> None:
    score = "length" if class_routing in ("score", "uniform") else "presence"
    model = create_model(
        "ar_capsnet", **SMALL, votes=votes, routing=routing, class_routing=class_routing, score=score
    ).float()
    images = torch.rand(4, 1, 12, 12).float()
    if isinstance(kind, torch.dtype):
        model, images = model.to(kind), images.to(kind)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        output = model(images)
    assert output.capsules.dtype == (torch.bfloat16 if kind == "autocast" else kind)
    assert output.scores.dtype == torch.float32
    if class_routing != "self":
        assert (output.scores != output.scores.to(output.capsules.dtype).float()).any()
    output.scores.sum().backward()
    assert all(one.grad is None or one.grad.isfinite().all() for one in model.parameters())


def test_several_labels_by_hand() -> None:
    scores, rows = torch.tensor([[0.95, 0.5, 0.3]]), torch.tensor([[1.0, 1.0, 0.0]])
    assert margin_loss(scores, rows).item() == pytest.approx(0.4**2 + 0.5 * 0.2**2)
    expected = (max(0, 0.9 - 0.65) ** 2 + max(0, 0.9 - 0.2) ** 2) / 2
    assert spread_loss(scores, rows, margin=0.9).item() == pytest.approx(expected)
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    cross = Loss.build("cross_entropy")(scores, rows, logits=logits)
    torch.testing.assert_close(cross, -logits.log_softmax(-1)[0, :2].mean())


@pytest.mark.parametrize("name", list_scores())
def test_scores_are_in_0_to_1(name: str) -> None:
    score = Score.build(name, 5, 4, 2.0)
    scored = score(Capsules(torch.rand(3, 5, 4), torch.rand(3, 5)))
    assert scored.scores.shape == (3, 5)
    assert ((scored.scores >= 0) & (scored.scores <= 1)).all()
    assert (scored.logits is not None) == (name == "linear")


@pytest.mark.parametrize("options", [{}, {"score": "linear", "loss": "cross_entropy"}, {"loss": "spread"}])
def test_a_capsule_model_learns_several_labels_per_image(options: dict[str, str]) -> None:
    model = create_model("ar_capsnet", **{**SMALL, "classes": 4}, **options)
    images, rows = torch.rand(4, 1, 12, 12), torch.tensor([[1.0, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 1, 1]])
    batch = Batch(images, rows, 4)
    parts = model.loss(batch, 0.5)
    assert set(parts) == {options.get("loss", "margin"), "reconstruction"}
    sum(parts.values(), torch.zeros(())).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    output = model.eval()(images, rows)
    shown = output.capsules * rows.unsqueeze(-1)
    torch.testing.assert_close(output.reconstruction, model.decoder(shown), **tolerance())
    evaluation = model.new_evaluation("pairs")
    evaluation.update(output, batch)
    assert evaluation.count == 4
    assert 0 <= evaluation.error <= 1


def test_the_confusion_matrix_with_one_label_and_with_several() -> None:
    one = Classification("x", ("a", "b", "c"))
    one.add(torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.3, 0.9], [0.1, 0.8, 0.1]]), torch.tensor([0, 1, 1]))
    assert one.confusion.tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    assert one.error == pytest.approx(1 / 3)
    several = Classification("x", ("a", "b", "c"))
    several.add(torch.tensor([[0.9, 0.8, 0.1], [0.9, 0.8, 0.1]]), torch.tensor([[1.0, 1, 0], [1, 0, 1]]))
    assert several.confusion.tolist() == [[2, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert several.accuracy == 0.5
    both = Classification("x", ("a", "b", "c")).merge(one).merge(several)
    assert both.count == 5
    assert both.summary.startswith("40.00 % error on 5 images of x")
    assert both.as_dict()["accuracy"] == pytest.approx(0.6)


def test_mistakes_are_named() -> None:
    with pytest.raises(ArcapsError, match=r"low of loss spread is nan: give a number"):
        SpreadLoss(low=float("nan"))
    with pytest.raises(ArcapsError, match="cross_entropy needs logits"):
        create_model("ar_capsnet", **SMALL, loss="cross_entropy").loss(
            Batch(torch.rand(1, 1, 12, 12), torch.tensor([0]), 1)
        )
    with pytest.raises(ArcapsError, match="score length needs an activation that bounds"):
        create_model("ar_capsnet", **SMALL, activation="identity")
    with pytest.raises(ArcapsError, match="score presence needs a routing"):
        create_model("ar_capsnet", **SMALL, score="presence", decoder=False)(torch.rand(1, 1, 12, 12))
