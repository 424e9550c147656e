"""What a visitor of the page does, in any browser."""

import json
from itertools import pairwise
from typing import Any, Protocol

SCORES = "[...arcaps.answer.scores.data]"
SEVEN = [(0.2, 0.2), (0.5, 0.2), (0.8, 0.2), (0.68, 0.45), (0.55, 0.7), (0.48, 0.9)]
FIRST_IS_RIGHT = (
    "document.querySelector('#answer b').textContent === "
    "arcaps.card.class_names[arcaps.card.examples[arcaps.card.first].label]"
)
PATH = "arcaps.panels.find((panel) => panel.curves)"


class Driver(Protocol):
    """A browser that shows one page."""

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""

    def wait(self, condition: str, *, seconds: float = 30.0) -> None:
        """Wait until a JavaScript expression is true."""

    def drag(self, points: list[tuple[float, float]]) -> None:
        """Press the mouse at the first point, go over all, release at the last."""


def draw(browser: Driver, points: list[tuple[float, float]], element: str = "paper") -> None:
    """Drag over an element; the points are parts of its width and height."""
    browser.evaluate(f"document.getElementById('{element}').scrollIntoView({{block: 'center'}})")
    box = browser.evaluate(f"(({{x, y, width, height}}) => [x, y, width, height])({element}.getBoundingClientRect())")
    fine = [(a + (c - a) * k / 6, b + (d - b) * k / 6) for (a, b), (c, d) in pairwise(points) for k in range(6)]
    browser.drag([(box[0] + x * box[2], box[1] + y * box[3]) for x, y in [*fine, points[-1]]])
    settle(browser)


def clear(browser: Driver) -> None:
    """Empty the drawing area."""
    browser.evaluate("document.getElementById('clear').click()")
    settle(browser)


def settle(browser: Driver) -> None:
    """Wait until the page has answered for its last state."""
    browser.wait("!arcaps.busy && !arcaps.again && !arcaps.network.current")


def set_pose(browser: Driver, **pose: float) -> None:
    """Turn, move or scale the picture."""
    browser.evaluate(f"Object.assign(arcaps.pose, {json.dumps(pose)}), arcaps.refresh()")
    settle(browser)


def wait_for_path(browser: Driver) -> None:
    """Wait until the path belongs to the shown picture."""
    browser.wait("document.body.dataset.path !== undefined && !document.querySelector('#plane.stale')")
