"""Take the pictures of docs/page.md and the README from the real page of the pretrained MNIST model.

    PYTHONPATH=. python scripts/page_screenshot.py         # writes docs/figures/page.png and docs/figures/page.gif

A 7 is drawn, turned, and its point is dragged along the curve of its movement up and down. It needs
chromium, and the extra onnx.
"""

import io
import math
import tempfile
from itertools import pairwise
from pathlib import Path

from PIL import Image

import arcaps
from arcaps.page import build_page, page_options
from tests.page.browser import Browser

FIGURES = Path(__file__).parent.parent / "docs/figures"
WIDTH, HEIGHT = 1440, 1000
SMALL = 960
"""Width of the animation."""
SEVEN = [(0.24, 0.22), (0.5, 0.2), (0.78, 0.2), (0.7, 0.4), (0.6, 0.6), (0.52, 0.86)]


def main() -> None:
    """Build the page, drive it, write both pictures."""
    with tempfile.TemporaryDirectory() as folder, Browser(width=WIDTH, height=HEIGHT) as browser:
        model = arcaps.load("mnist")
        page = build_page(model, Path(folder) / "capsules.html", **page_options(Path("mnist"), model))
        browser.open(page.as_uri())
        browser.wait("document.body.dataset.path !== undefined")
        browser.screenshot(FIGURES / "page.png", whole=False)
        frames = film(browser, Path(folder) / "frame.png")
    shrink(FIGURES / "page.png")
    colours = choose_colours(frames[-1])
    first, *rest = (frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in frames)
    content = io.BytesIO()
    durations = [120] * (len(frames) - 1) + [1500]
    first.save(content, "GIF", save_all=True, append_images=rest, duration=durations, loop=0, optimize=True)
    (FIGURES / "page.gif").write_bytes(content.getvalue())
    for name in ("page.png", "page.gif"):
        print(f"docs/figures/{name}: {(FIGURES / name).stat().st_size / 1e6:.2f} MB")


def choose_colours(frame: Image.Image) -> Image.Image:
    """A palette of the colours that cover much of a frame, and of those that are rare but bright."""
    palette: list[int] = []
    for method in (Image.Quantize.MEDIANCUT, Image.Quantize.MAXCOVERAGE):
        palette += (frame.quantize(96, method, dither=Image.Dither.NONE).getpalette() or [])[: 3 * 96]
    colours = Image.new("P", (1, 1))
    colours.putpalette(palette)
    return colours


def film(browser: Browser, file: Path) -> list[Image.Image]:
    """Draw a 7, turn it, drag its point; a frame after each step."""
    frames = []

    def frame() -> None:
        browser.wait("!arcaps.busy && !arcaps.again && !arcaps.network.waiting.some((question) => question.urgent)")
        browser.screenshot(file, whole=False)
        with Image.open(file) as picture:
            frames.append(picture.convert("RGB").resize((SMALL, SMALL * HEIGHT // WIDTH), Image.Resampling.LANCZOS))

    browser.evaluate("document.getElementById('clear').click()")
    frame()
    left, top, width, height = box(browser, "pad")
    points = [
        (left + width * (a + (c - a) * k / 3), top + height * (b + (d - b) * k / 3))
        for (a, b), (c, d) in pairwise(SEVEN)
        for k in range(1, 4)
    ]
    browser.mouse("mousePressed", left + width * SEVEN[0][0], top + height * SEVEN[0][1])
    for number, point in enumerate(points):
        browser.mouse("mouseMoved", *point)
        if number % 2:
            frame()
    browser.mouse("mouseReleased", *points[-1])
    browser.wait("!document.querySelector('#plane.stale')")
    frame()
    for step in range(12):
        angle = round(25 * math.sin(2 * math.pi * (step + 1) / 12))
        browser.evaluate(f"arcaps.pose.angle = {angle}, arcaps.refresh()")
        frame()
    browser.wait("!document.querySelector('#plane.stale')")
    way = along_the_curve(browser)
    for step, point in enumerate([*way, *reversed(way)]):
        browser.mouse("mousePressed" if step == 0 else "mouseMoved", *point)
        browser.wait("arcaps.network.current === null")
        frame()
    browser.mouse("mouseReleased", *way[0])
    return frames


def along_the_curve(browser: Browser) -> list[tuple[float, float]]:
    """Where on the screen the curve of the picture that moves up and down is: every second point."""
    left, top, width, height = box(browser, "plane")
    path = "arcaps.panels.find((panel) => panel.curves)"
    view, places = browser.evaluate(f"[{path}.view, {path}.curves[2].places]")
    scale = min(width / view["wide"], height / view["high"])
    middle_x, middle_y = left + width / 2, top + height / 2
    return [(middle_x + (x - view["x"]) * scale, middle_y - (y - view["y"]) * scale) for x, y in places[::2]]


def box(browser: Browser, element: str) -> tuple[float, float, float, float]:
    """Left, top, width and height of an element."""
    found = browser.evaluate(f"(({{x, y, width, height}}) => [x, y, width, height])({element}.getBoundingClientRect())")
    return found[0], found[1], found[2], found[3]


def shrink(path: Path) -> None:
    """Store a picture with 256 colours."""
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
