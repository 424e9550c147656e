"""What a model costs."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from arcaps import ConvCaps, create_model, info
from arcaps.costs import LiveMemory, ModelInfo
from arcaps.models import OwnNetwork


def test_ar_capsnet_on_mnist_by_hand() -> None:
    found = info(create_model("ar_capsnet"), batch_size=10)
    rows = {row.name: row for row in found.layers}
    assert list(rows) == ["stem.0", "stem.1", "primary", "conv_caps.0", "class_caps", "decoder"]
    assert {name: row.output_shape for name, row in rows.items()} == {
        "stem.0": (10, 64, 28, 28),
        "stem.1": (10, 64, 28, 28),
        "primary": (10, 14, 14, 8, 16),
        "conv_caps.0": (10, 7, 7, 8, 32),
        "class_caps": (10, 10, 32),
        "decoder": (10, 1, 28, 28),
    }
    votes, logits, mixture, activation = 8 * 8 * 9 * 16 * 32, 8 * 8 * 8 * 32, 8 * 8 * 32, 8 * 32 * 32
    assert {name: row.multiply_adds for name, row in rows.items()} == {
        "stem.0": 28 * 28 * 9 * 64,
        "stem.1": 28 * 28 * 9 * 64 * 64,
        "primary": 14 * 14 * (9 * 64 * 128 + 8 * 16 * 16),
        "conv_caps.0": 7 * 7 * (votes + logits + mixture + activation),
        "class_caps": 10 * (8 * 7 * 7 * 32 * 32 + 8 * 8 * 32 + 8 * 32 + 32 * 32),
        "decoder": 320 * 512 + 512 * 512 + 512 * 784,
    }
    assert found.multiply_adds == sum(row.multiply_adds for row in found.layers)
    assert found.trainable_parameters == sum(row.parameters for row in found.layers) == 5_312_528
    assert found.parameters_with_statistics == 5_312_784
    assert found.warnings == []
    # stem.1 keeps the convolution's output for BatchNorm, and the ReLU's output: two maps, besides 2 x 64 statistics
    assert rows["stem.1"].activation_bytes == 2 * 10 * 64 * 28 * 28 * 4 + 2 * 64 * 4


@pytest.mark.parametrize("name", ["ar_capsnet", "capsule_net", "conv_net", "strong_conv_net"])
def test_memory_grows_with_the_batch_and_multiply_adds_do_not(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    small, large = info(model, batch_size=10), info(model, batch_size=30)
    assert small.multiply_adds == large.multiply_adds
    # the attention's weights are kept in another order, and do not grow
    assert large.activation_bytes == pytest.approx(3 * small.activation_bytes, rel=0.01)
    assert small.peak_training_bytes < large.peak_training_bytes < 3 * small.peak_training_bytes
    # weights, their running squares and their gradients are all alive at the end of a step
    assert small.peak_training_bytes > 3 * 4 * small.trainable_parameters


def test_live_memory_counts_what_is_alive() -> None:
    with LiveMemory() as memory:
        first = torch.zeros(1000, device="meta")
        second = first + 1
        view = second[10:]
        del first, second
        third = torch.ones(500, device="meta")
    assert memory.peak == 8000
    assert memory.now == 6000
    del view, third
    assert memory.now == 0


@pytest.mark.parametrize(("votes", "inputs"), [("conv", 8), ("window", 9 * 8)])
def test_a_training_step_of_em_routing_keeps_less_than_eight_times_its_votes(votes: str, inputs: int) -> None:
    """With conv votes that is 0.64 GB; the window's alone are 0.72 GB."""
    with torch.device("meta"):
        layer = ConvCaps(8, 16, 8, 16, routing="em", votes=votes)
        capsules = torch.empty(100, 14, 14, 8, 16, requires_grad=True)
    with LiveMemory() as memory:
        found = layer(capsules)
        assert found.presence is not None
        (found.poses.sum() + found.presence.sum()).backward()
    assert memory.peak < 8 * (100 * 14 * 14 * 8 * inputs * 16 * 4)


def test_a_class_layer_that_dominates_gets_a_warning_that_helps() -> None:
    def found(**options: object) -> ModelInfo:
        with torch.device("meta"):
            return info(create_model("ar_capsnet", **{"image_size": (128, 96), "decoder": False, **options}))

    before = found()
    assert before.warnings == [
        "the class layer holds 99% of the parameters, because it sees 32x24 positions: "
        "stride more layers, layers=3 with strides=(2, 2, 2)"
    ]
    after = found(layers=3, strides=(2, 2, 2))
    assert after.warnings == []
    assert after.trainable_parameters < before.trainable_parameters / 8
    assert "layers=5 with strides=(2, 2, 2, 1, 1)" in found(layers=5).warnings[0]
    assert "layers=2 with strides=(2, 2)" in found(image_size=(17, 300)).warnings[0]
    assert "give smaller images" in found(image_size=(17, 300), layers=2, strides=(2, 2)).warnings[0]


def test_a_decoder_that_dominates_gets_a_warning() -> None:
    with torch.device("meta"):
        model = create_model("ar_capsnet", image_size=128, channels=3, dim=8, layers=3, strides=(2, 2, 2))
    assert "decoder=False" in info(model).warnings[0]


def test_the_model_itself_is_not_touched() -> None:
    model = create_model("ar_capsnet", image_size=12, caps=2, dim=4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    info(model, batch_size=2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_as_dict_is_plain() -> None:
    found = info(create_model("capsule_net"), batch_size=2)
    assert json.loads(json.dumps(found.as_dict()))["layers"][0]["name"] == "stem.0"


REAL_STEP = """
import torch, arcaps
from arcaps.data import Batch

def measured(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))

def train(model, batch):
    optimiser = torch.optim.RMSprop(model.parameters(), foreach=False)
    images, labels = torch.rand(batch, 1, *model.image_size), torch.zeros(batch, dtype=torch.long)
    for _ in range(2):
        optimiser.zero_grad()
        sum(model.loss(Batch(images, labels, len(labels))).values()).backward()
        optimiser.step()

torch.set_num_threads(1)
train(arcaps.create_model("ar_capsnet", image_size=8, caps=2, dim=4), 2)  # loads all code
before = measured("VmRSS")
model = arcaps.create_model("ar_capsnet")
train(model, 60)
print((measured("VmHWM") - before) / arcaps.info(model, batch_size=60).peak_training_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_estimate_is_what_a_training_step_takes() -> None:
    """With an allocator that gives back what is freed, the process grows by what was estimated."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    run = subprocess.run([sys.executable, "-c", REAL_STEP], env=environment, capture_output=True, text=True, check=True)
    assert float(run.stdout) == pytest.approx(1, abs=0.1)


def test_any_model_has_its_costs() -> None:
    """Also a model for masks and a network of a user."""
    from tests.plugins.segmenter import Segmenter  # here, since it registers a model

    assert info(Segmenter(classes=3), batch_size=4).multiply_adds == 28 * 28 * 9 * (8 + 8 * 3)
    own = OwnNetwork(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)))
    assert info(own, batch_size=4).multiply_adds == 7840
    assert next(own.parameters()).device.type == "cpu"
