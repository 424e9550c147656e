"""The paper's own figures."""

from typing import Any

import pytest
import torch

from arcaps import ARCapsNet, ConvCaps, create_model

MNIST = {"image_size": (28, 28), "channels": 1}
AFFNIST = {"image_size": (40, 40), "channels": 1}
CIFAR = {"image_size": (32, 32), "channels": 3}

EXACT = [
    ("ar_capsnet", {**MNIST, "layers": 1, "dim": 32}, 5_312_784),
    ("ar_capsnet", {**AFFNIST, "layers": 1, "dim": 16}, 3_501_088),
    ("ar_capsnet", {**CIFAR, "layers": 4, "dim": 32}, 9_566_592),
    ("capsule_net", MNIST, 8_215_568),
    ("capsule_net", CIFAR, 11_749_120),
    ("conv_net", MNIST, 35_445_522),
]

HYPER_PARAMETERS = {
    (0, 16): 7.29,
    (0, 32): 12.64,
    (1, 16): 3.52,
    (1, 32): 7.72,
    (2, 16): 3.68,
    (2, 32): 8.33,
    (3, 16): 3.84,
    (3, 32): 8.95,
    (4, 16): 4.00,
    (4, 32): 9.57,
}
TABLE = [
    ("ar_capsnet", {**CIFAR, "layers": layers, "dim": dim}, millions)
    for (layers, dim), millions in HYPER_PARAMETERS.items()
]


@pytest.mark.parametrize(("name", "options", "count"), [*EXACT, *TABLE])
def test_parameter_counts(name: str, options: dict[str, Any], count: float) -> None:
    """Exact, where the count is known to the unit; else in millions, to the second decimal."""
    with torch.device("meta"):
        found = create_model(name, **options).parameter_count(statistics=True)
    assert (found if isinstance(count, int) else round(found / 1e6, 2)) == count


def test_weights_start_as_glorot_uniform_and_biases_at_zero() -> None:
    model = ARCapsNet()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
    layer = model.conv_caps[0]
    assert isinstance(layer, ConvCaps)
    bound = (6 / (9 * 16 + 9 * 8 * 32)) ** 0.5
    assert layer.votes.weight.abs().max() <= bound
    assert layer.votes.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.01)


def test_batch_norm_is_that_of_keras() -> None:
    model = create_model("ar_capsnet")
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert [(norm.momentum, norm.eps) for norm in norms] == [(0.01, 1e-3)] * 2
