"""What a user adds without a change in arcaps."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import arcaps
from arcaps import Routing, testing
from arcaps.training import Stopped

SMALL = {"caps": 2, "dim": 4, "primary_dim": 4, "stem_channels": 4, "dropout": 0.1}


@pytest.fixture
def em() -> Iterator[None]:
    module = "tests.plugins.em_routing"
    importlib.import_module(module)
    yield
    del Routing.known["toy_em"], sys.modules[module]


@pytest.mark.usefixtures("em")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_plug_in_obeys_the_law_of_presence(dtype: torch.dtype) -> None:
    routing = Routing.build("toy_em", 5, 3, 4).to(dtype)
    testing.assert_absent_inputs_are_ignored(routing, torch.randn(2, 3, 5, 4, dtype=dtype))
    assert "toy_em" in arcaps.list_routings()


@pytest.mark.slow
@pytest.mark.usefixtures("em")
def test_em_routing_of_a_user_trains_saves_loads_and_resumes(tmp_path: Path) -> None:
    options = {
        **SMALL,
        "routing": "toy_em(iterations=2)",
        "votes": "window",
        "competition": "overlap",
        "activation": "identity",
        "presence": True,
        "score": "presence",
        "loss": "spread",
        "decoder": False,
        "epochs": 1,
        "limit": 400,
        "batch_size": 25,
        "learning_rate": 3e-3,
    }
    whole = arcaps.train("digits", run=tmp_path / "whole", silent=True, **options)  # type: ignore[arg-type]
    with pytest.raises(Stopped):
        arcaps.train("digits", run=tmp_path / "parts", silent=True, max_minutes=0.001, **options)  # type: ignore[arg-type]
    parts = arcaps.train(resume=tmp_path / "parts", silent=True)
    first, second = (arcaps.load(run.model_file()) for run in (whole, parts))
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    assert repr(first.conv_caps[0]).startswith("ConvCaps(2x4 -> 2x4, 3x3/2, window, toy_em, overlap, identity")
    images = arcaps.load_data("digits").test.images[:50]
    assert first(first.preprocessing(images)).scores.isfinite().all()
    assert whole.result is not None
    assert whole.result.test["accuracy"] > 0.12
