"""A moment of fuzzing for every target; `scripts/fuzz.py` goes on for longer."""

import pytest
from hypothesis import given, settings

from tests.fuzzing import TARGETS


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_no_input_does_more_than_be_refused(name: str) -> None:
    target = TARGETS[name]
    settings(max_examples=80, print_blob=True)(given(target.strategy)(target.check))()
