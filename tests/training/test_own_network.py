"""A user's own `torch.nn.Module` in `train`: it trains, is saved, resumes, and is refused clearly where it cannot."""

import logging
from collections import OrderedDict
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import arcaps
from arcaps import ArcapsError, Run
from arcaps.models.own import OwnNetwork
from arcaps.training import Stopped

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 50, "limit": 1000, "silent": True, "report": False}


def network(outputs: int = 10, seed: int = 0, *more: nn.Module) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 12 * 12, outputs), *more
    )


def test_a_network_of_your_own_trains_and_is_saved(tmp_path: Path) -> None:
    net = network()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    run = arcaps.train("digits", model=net, run=tmp_path / "run", **QUICK)
    assert run.result is not None
    assert run.result.test["accuracy"] > 0.6
    # the object that was given is trained, as usual in torch
    assert not any(torch.equal(now, then) for now, then in zip(net.parameters(), before, strict=True))
    kept = arcaps.load(run.model_file(), module=network(seed=1))
    test = arcaps.load_data("digits").test
    assert arcaps.evaluate(kept, test).accuracy == run.result.test["accuracy"]
    assert arcaps.predict(kept, test.images[:3])[0].label in kept.class_names
    with pytest.raises(ArcapsError, match="network of your own"):
        arcaps.open_run(run.path)


class Counting(nn.Linear):
    """A linear layer that keeps how many images it saw at once, in training and in evaluation."""

    most: ClassVar[dict[bool, int]] = {}

    def forward(self, input: Tensor) -> Tensor:
        self.most[self.training] = max(self.most.get(self.training, 0), len(input))
        return super().forward(input)


def test_evaluation_takes_few_images_at_once_where_training_does(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), Counting(784, 10))
    arcaps.train("digits", model=net, run=tmp_path / "run", micro_batch=5, **{**QUICK, "epochs": 1})
    assert Counting.most == {True: 5, False: 20}


def test_it_resumes_to_the_bit(tmp_path: Path) -> None:
    whole = arcaps.train("digits", model=network(), run=tmp_path / "whole", **QUICK)
    with pytest.raises(Stopped):
        arcaps.train("digits", model=network(), run=tmp_path / "run", max_minutes=0.0, **QUICK)
    with pytest.raises(ArcapsError, match="network of your own"):
        arcaps.train(resume=tmp_path / "run", silent=True)
    with pytest.raises(ArcapsError, match="another network"):
        arcaps.train(resume=tmp_path / "run", model=nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), silent=True)
    with pytest.raises(ArcapsError, match="trains the model own_network"):
        arcaps.train(resume=tmp_path / "run", model=arcaps.create_model("conv_net"), silent=True)
    resumed = arcaps.train(resume=tmp_path / "run", model=network(seed=5), silent=True, report=False)
    ours, theirs = (Run(run.path).model(module=network()).state_dict() for run in (resumed, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert resumed.result == whole.result


def test_a_model_of_arcaps_can_be_given_too(tmp_path: Path) -> None:
    model = arcaps.create_model("ar_capsnet", dim=4, caps=2, primary_dim=4, stem_channels=4)
    run = arcaps.train("digits", model=model, run=tmp_path / "run", **{**QUICK, "epochs": 1})
    assert run.recipe.options["dim"] == 4
    assert run.model().config == model.config
    with pytest.raises(ArcapsError, match="does not fit"):
        arcaps.train("digits", model=arcaps.create_model("ar_capsnet", classes=3), run=tmp_path / "other")


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.LazyLinear(10)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(images.flatten(1))


def test_lazy_layers_get_their_size_from_the_images(tmp_path: Path) -> None:
    run = arcaps.train("digits", model=Lazy(), run=tmp_path / "run", **{**QUICK, "epochs": 1})
    assert run.model(module=Lazy()).module.out.in_features == 784


class Pair(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return (super().forward(input), None)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (network(5), "10 outputs"),
        (nn.Linear(3, 10), "Linear fails for images"),
        (nn.Sequential(nn.Flatten(), nn.Softmax(-1)), "outputs"),
        (nn.Conv2d(1, 10, 28), "answers with a tensor"),
        (nn.Sequential(OrderedDict(f=nn.Flatten(), p=Pair(784, 10))), "answers with tuple"),
        (network().double(), "weights of torch.float64"),
        (network().requires_grad_(False), "no parameters to train"),
        (network, "model is"),
        (nn.Linear, "model is"),
    ],
)
def test_what_cannot_be_trained_is_refused(net: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ArcapsError, match=said):
        arcaps.train("digits", model=net, run=tmp_path / "run", **QUICK)


def test_options_of_another_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArcapsError, match="dim is no setting of a recipe"):
        arcaps.train("digits", model=network(), dim=8, run=tmp_path / "run", **QUICK)


def test_probabilities_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "arcaps")
    arcaps.train("digits", model=network(10, 0, nn.Softmax(-1)), run=tmp_path / "run", **{**QUICK, "epochs": 1})
    assert "leave its softmax out" in caplog.text


@pytest.mark.slow
def test_its_run_has_a_report(tmp_path: Path) -> None:
    run = arcaps.train("digits", model=network(), run=tmp_path / "run", **{**QUICK, "epochs": 1, "report": True})
    assert "own_network, 11," in (run.path / "report.md").read_text()


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    arcaps.create_model("strong_conv_net", widths=(4, 4, 4, 4)).save(tmp_path / "model.safetensors")
    with pytest.raises(ArcapsError, match="without a module"):
        arcaps.load(tmp_path / "model.safetensors", module=network())


def test_double_precision_and_frozen_parts_stay_as_they_are() -> None:
    module = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(28 * 28, 10)).double().train()
    module[0].eval()
    model = OwnNetwork(module)
    assert [part.training for part in module] == [False, True, True]
    assert model(torch.rand(2, 1, 28, 28, dtype=torch.float64)).scores.dtype == torch.float64
