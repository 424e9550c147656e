"""The head of AR CapsNet as a choice, any routing by one option, and the control without capsules."""

from typing import Any

import pytest
import torch

from arcaps import ARCapsNet, DenseHead, Routing, create_model
from arcaps.data import Batch

SMALL: dict[str, Any] = {"image_size": (16, 16), "caps": 3, "dim": 4, "primary_dim": 4, "stem_channels": 4}


@pytest.mark.parametrize("head", ["full", "pooled"])
@pytest.mark.parametrize("routing", sorted(Routing.known))
def test_any_routing_by_one_option(routing: str, head: str) -> None:
    model = ARCapsNet(**SMALL, routing=routing, head=head)
    batch = Batch(torch.rand(3, 1, 16, 16), torch.tensor([0, 1, 2]), 3)
    losses = model.loss(batch)
    assert list(losses) == ["margin", "reconstruction"]
    sum(losses.values()).backward()  # type: ignore[union-attr]
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    scores = model.eval()(batch.images).scores
    assert ((scores >= 0) & (scores <= 1)).all()


@pytest.mark.parametrize("routing", sorted(Routing.known))
def test_capsules_have_presence_where_the_routing_gives_it(routing: str) -> None:
    model = ARCapsNet(**SMALL, routing=routing)
    gives = Routing.find(routing).gives_presence
    assert (model.primary.presence is not None) == gives
    capsules = model.conv_caps[0](model.primary(model.stem(torch.rand(2, 1, 16, 16))))
    assert (capsules.presence is not None) == gives
    asked = ARCapsNet(**SMALL, routing=routing, presence=not gives)
    assert (asked.primary.presence is None) == gives
    if gives:
        output = ARCapsNet(**SMALL, routing=routing, score="presence")(torch.rand(2, 1, 16, 16))
        assert ((output.scores >= 0) & (output.scores <= 1)).all()


def test_a_pooled_head_has_no_parameters_of_a_position() -> None:
    small, large = (
        ARCapsNet(**{**SMALL, "image_size": size}, head="pooled", decoder=False).parameter_count()
        for size in ((16, 16), (40, 24))
    )
    assert small == large
    full = (
        ARCapsNet(**{**SMALL, "image_size": size}, decoder=False).parameter_count() for size in ((16, 16), (40, 24))
    )
    assert len(set(full)) == 2


def test_a_pooled_head_is_exported_with_any_batch() -> None:
    model = ARCapsNet(**SMALL, head="pooled").eval()
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(model, (torch.rand(3, 1, 16, 16),), dynamic_shapes=({0: batch},))
    images = torch.rand(5, 1, 16, 16)
    torch.testing.assert_close(program.module()(images).scores, model(images).scores)


def test_the_dense_head_has_the_layers_of_ar_capsnet() -> None:
    sizes: dict[str, Any] = {"layers": 2, "strides": (2, 1), "dim": 16, "stem_channels": 32}
    capsules, dense = ARCapsNet(**sizes), DenseHead(**sizes)
    one, other = (model.features(torch.rand(2, 1, 28, 28)) for model in (capsules, dense))
    for layer, stage in (("primary", "stages.2"), ("conv_caps.0", "stages.3"), ("conv_caps.1", "stages.4")):
        batch, height, width, caps, dim = one[layer].shape
        assert other[stage].shape == (batch, caps * dim, height, width)
    for index in range(2):
        before, after = capsules.stem[index].state_dict(), dense.stages[index].state_dict()
        assert {name: value.shape for name, value in before.items()} == {n: v.shape for n, v in after.items()}
    assert create_model("dense_head", **SMALL)(torch.rand(2, 1, 16, 16)).scores.shape == (2, 10)
