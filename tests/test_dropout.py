"""Dropout by random bytes."""

import pytest
import torch

from arcaps import ArcapsError
from arcaps.dropout import Dropout
from arcaps.kernels import random_bytes


def test_bytes_are_uniform() -> None:
    counts = random_bytes(1000 * 2561, torch.device("cpu")).bincount(minlength=256)
    expected = 1000 * 2561 / 256
    assert ((counts - expected).abs() < 6 * expected**0.5).all()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_the_right_part_is_dropped_and_the_mean_stays(p: float) -> None:
    values = torch.ones(1000, 1001)
    dropped = Dropout(p)(values)
    assert (dropped == 0).float().mean().item() == pytest.approx(p, abs=0.003)
    assert dropped.mean().item() == pytest.approx(1, abs=0.01)
    assert len(dropped.unique()) == 2


def test_elements_are_dropped_on_their_own() -> None:
    dropped = (Dropout(0.5)(torch.ones(2000, 64)) > 0).float()
    correlation = torch.corrcoef(dropped.T) - torch.eye(64)
    assert correlation.abs().max() < 0.11


def test_nothing_is_dropped_in_evaluation_or_at_zero_and_all_at_one() -> None:
    values = torch.randn(4, 5)
    assert Dropout(0.5).eval()(values) is values
    assert Dropout(0.0)(values) is values
    assert not Dropout(1.0)(values).any()


def test_the_gradient_goes_through_what_is_kept() -> None:
    values = torch.randn(50, 50, requires_grad=True)
    dropped = Dropout(0.5)(values)
    dropped.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, 2.0 * (dropped != 0))


def test_the_seed_decides() -> None:
    values = torch.ones(100)
    torch.manual_seed(3)
    first = Dropout(0.5)(values)
    torch.manual_seed(3)
    assert torch.equal(Dropout(0.5)(values), first)


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(ArcapsError, match=r"dropout is 1\.5: give a probability"):
        Dropout(1.5)
