"""What every test starts from."""

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("arcaps", deadline=None, derandomize=True, max_examples=10)
hypothesis.settings.load_profile("arcaps")
torch.set_num_threads(1)  # the tests run side by side


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
