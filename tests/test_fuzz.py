"""Short fuzzing of every target; `scripts/fuzz.py` runs longer."""

import pytest
from hypothesis import given, settings

from tests.fuzzing import TARGETS


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_no_input_does_more_than_be_refused(name: str) -> None:
    target = TARGETS[name]
    settings(max_examples=80, print_blob=True)(given(target.strategy)(target.check))()
