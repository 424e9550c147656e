"""The page in Firefox: from a file, without a network."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from arcaps import Classifier, Dataset, warp
from arcaps.data.warp import Transform
from tests.page.firefox import FIREFOX, Firefox
from tests.page.visitor import FIRST_IS_RIGHT, PATH, SCORES, SEVEN, clear, draw, set_pose, wait_for_path

pytestmark = [
    pytest.mark.skipif(FIREFOX is None, reason="no firefox: install it with apt-get install firefox-esr"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Firefox]:
    """Firefox, for all tests of this file."""
    with Firefox() as running:
        yield running


def test_it_opens_from_a_file_and_asks_for_nothing(browser: Firefox, page: Path) -> None:
    start = time.monotonic()
    browser.open(page.as_uri())
    assert time.monotonic() - start < 20  # 2 s when the machine does nothing else
    assert browser.evaluate("navigator.onLine") is False
    assert browser.requests == []  # Firefox does not count the file itself
    assert browser.problems == []
    assert browser.evaluate(FIRST_IS_RIGHT)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_its_answers_are_the_models(browser: Firefox, page: Path, model: Classifier, digits: Dataset) -> None:
    browser.open(page.as_uri())
    image = (digits.images[3, 0].float() / 255).flatten()
    browser.evaluate(f"arcaps.setPicture(Float32Array.from({image.tolist()}))")
    set_pose(browser, angle=30)
    with torch.no_grad():
        expected = model(warp(image.view(1, 1, 28, 28), Transform.make(1, angle=30.0)))
    assert browser.evaluate(SCORES) == pytest.approx(expected.scores[0].tolist(), abs=1e-5)
    assert expected.capsules is not None
    found = browser.evaluate("[...arcaps.answer.capsules.data]")
    assert found == pytest.approx(expected.capsules.flatten().tolist(), abs=1e-5)


def test_a_drawn_seven_is_a_seven_and_has_a_path(browser: Firefox, page: Path) -> None:
    browser.open(page.as_uri())
    clear(browser)
    draw(browser, SEVEN)
    assert browser.evaluate("document.querySelector('#answer b').textContent") == "7"
    wait_for_path(browser)
    before = browser.evaluate("there.toDataURL()")
    draw(browser, [(0.5, 0.5), (0.3, 0.3)], "plane")
    assert browser.evaluate("there.toDataURL()") != before
    assert browser.evaluate(f"{PATH}.curves.map((curve) => curve.points.length)") == [17, 17, 17]
    assert browser.problems == []
