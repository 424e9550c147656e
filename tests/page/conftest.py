"""Pages to look at, and a browser to look with."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import arcaps
from arcaps import Classifier, Dataset
from arcaps.page import page_files, page_options
from arcaps.page.build import one_file
from tests.page.browser import CHROMIUM, Browser

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: install it with apt-get install chromium")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node: install it with apt-get install nodejs")


@pytest.fixture(scope="session")
def model() -> Classifier:
    """The pretrained digits model."""
    return arcaps.load("digits")


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """Real digits."""
    return arcaps.load_data("digits").test


@pytest.fixture(scope="session")
def files(model: Classifier) -> dict[str, bytes]:
    """The files of the pretrained model's page, with float32 weights so that answers can be compared exactly."""
    return page_files(model, precision="float32", **page_options(Path("digits"), model))


@pytest.fixture(scope="session")
def page(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in one file."""
    path = tmp_path_factory.mktemp("page") / "capsules.html"
    path.write_text(one_file(files))
    return path


@pytest.fixture(scope="session")
def shared_browser() -> Iterator[Browser]:
    """A browser without a network, for all tests."""
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(shared_browser: Browser) -> Browser:
    """The browser, in its first size."""
    shared_browser.resize(1440, 1000)
    shared_browser.scheme("light")
    return shared_browser
