"""Every test of a module that imports `dtype` runs in float32 and in float64."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True, params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


def tolerance() -> dict[str, Any]:
    """What counts as rounding in the number format of the test."""
    size = {torch.float32: 1e-5, torch.float64: 1e-10}[torch.get_default_dtype()]
    return {"rtol": size, "atol": size}
