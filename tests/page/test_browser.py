"""The page as a visitor meets it: in chromium, from a file, without a network."""

import base64
import json
import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from arcaps import Classifier, Dataset, create_model, warp
from arcaps.data.warp import Transform
from arcaps.models.capsules import CapsuleClassifier
from arcaps.page import page_files
from arcaps.page.build import one_file
from tests.export.conftest import SMALL
from tests.page.browser import Browser
from tests.page.conftest import needs_browser
from tests.page.test_files import noise
from tests.page.visitor import FIRST_IS_RIGHT, PATH, SCORES, SEVEN, clear, draw, set_pose, settle, wait_for_path
from tests.serve.conftest import serving

pytestmark = [needs_browser, pytest.mark.slow]

EVERYTHING = ["draw", "classes", "path", "capsule", "routing"]


def test_it_opens_from_a_file_with_one_request_and_no_error(browser: Browser, page: Path) -> None:
    start = time.monotonic()
    browser.open(page.as_uri(), seconds=60)
    assert time.monotonic() - start < 20  # under 5 s, but tests may run beside others
    sent = [address for address in browser.requests if not address.startswith("blob:")]
    assert sent == [page.as_uri()]
    assert browser.problems == []
    assert browser.evaluate(FIRST_IS_RIGHT)


def test_its_answers_are_the_models(browser: Browser, page: Path, model: Classifier, digits: Dataset) -> None:
    browser.open(page.as_uri())
    image = (digits.images[3, 0].float() / 255).flatten()
    browser.evaluate(f"arcaps.setPicture(Float32Array.from({image.tolist()}))")
    set_pose(browser, angle=30)
    seen = warp(image.view(1, 1, 28, 28), Transform.make(1, angle=30.0))
    with torch.no_grad():
        expected = model(seen)
    assert browser.evaluate(SCORES) == pytest.approx(expected.scores[0].tolist(), abs=1e-5)
    assert expected.capsules is not None
    found = browser.evaluate("[...arcaps.answer.capsules.data]")
    assert found == pytest.approx(expected.capsules.flatten().tolist(), abs=1e-5)
    for name, tensor in expected.coefficients.items():
        rows = np.array(browser.evaluate(f"[...arcaps.answer['coefficients.{name}'].data]"))
        assert rows == pytest.approx(tensor.flatten().numpy(), abs=1e-5)
        assert rows.reshape(-1, tensor.shape[-1]).sum(-1) == pytest.approx(1, abs=1e-5)


def test_a_moved_dimension_is_drawn_as_by_the_decoder(browser: Browser, page: Path, model: Classifier) -> None:
    browser.open(page.as_uri())
    before = browser.evaluate("drawn.toDataURL()")
    browser.evaluate("dims.querySelector('input').focus()")
    first = browser.evaluate("document.activeElement.ariaLabel")
    for _ in range(30):
        browser.key("ArrowRight")
    settle(browser)
    assert browser.evaluate("drawn.toDataURL()") != before
    dim = int(re.findall(r"\d+", first)[0])
    assert [n for n, by in enumerate(browser.evaluate("[...arcaps.moved]")) if by] == [dim]
    capsule = torch.tensor(browser.evaluate("[...arcaps.movedCapsule]"))
    assert isinstance(model, CapsuleClassifier)
    assert model.decoder is not None
    inputs = torch.zeros(1, 10, len(capsule))
    label = browser.evaluate("arcaps.label")
    inputs[0, label] = capsule
    with torch.no_grad():
        expected = model.decoder(inputs).flatten().numpy()
    found = browser.evaluate(
        "arcaps.network.decode([[arcaps.label, arcaps.movedCapsule]]).then(([picture]) => [...picture])"
    )
    assert np.abs(np.array(found) - expected).max() < 1e-5
    browser.evaluate("back.click()")
    settle(browser)
    browser.wait(f"drawn.toDataURL() === {json.dumps(before)}")


def test_a_drawn_seven_is_a_seven_and_an_empty_pad_is_nothing(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    clear(browser)
    assert browser.evaluate("arcaps.answer") is None
    assert "Draw something" in browser.evaluate("answer.textContent")
    assert not browser.evaluate("document.getElementById('pad-hint').hidden")
    draw(browser, SEVEN)
    assert browser.evaluate("document.querySelector('#answer b').textContent") == "7"
    assert max(browser.evaluate(SCORES)) > 0.7


def test_the_path_has_three_curves_and_its_point_can_be_dragged(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    wait_for_path(browser)
    before = browser.evaluate("there.toDataURL()")
    assert browser.evaluate(f"{PATH}.curves.map((curve) => curve.points.length)") == [17, 17, 17]
    assert browser.evaluate(f"{PATH}.plane.share") > 0.5
    draw(browser, [(0.5, 0.5), (0.3, 0.3)], "plane")
    assert browser.evaluate("there.toDataURL()") != before
    x, y = browser.evaluate(f"{PATH}.plane.place(arcaps.movedCapsule)")
    view = browser.evaluate(f"{PATH}.view")
    assert (x - view["x"]) / view["wide"] < -0.1
    assert (y - view["y"]) / view["high"] > 0.05
    browser.evaluate("plane.focus()")
    browser.key("ArrowRight")
    settle(browser)
    assert browser.evaluate(f"{PATH}.plane.place(arcaps.movedCapsule)[0]") > x


def test_a_turned_picture_runs_along_its_path(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    wait_for_path(browser)
    path = browser.evaluate("document.body.dataset.path")
    step = browser.evaluate("arcaps.card.reach.angle") / 8
    set_pose(browser, angle=3 * step)
    assert browser.evaluate("document.body.dataset.path") == path  # the path is not computed again
    point = browser.evaluate(f"[...{PATH}.curves[0].points[11]]")
    assert browser.evaluate("[...arcaps.capsule(arcaps.label)]") == pytest.approx(point, abs=1e-5)


def test_a_curve_can_be_switched_off_but_not_the_last(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    wait_for_path(browser)
    share = browser.evaluate(f"{PATH}.plane.share")
    for number in (2, 1, 0):
        browser.evaluate(f"document.querySelector('#legend .curve-{number}').click()")
    assert browser.evaluate(f"{PATH}.shown.map((curve) => curve.number)") == [0]
    assert browser.evaluate(f"{PATH}.plane.share") > share  # the plane is that of the curve that is left
    browser.evaluate("document.querySelector('#legend .curve-1').click()")
    assert browser.evaluate(f"{PATH}.shown.map((curve) => curve.number)") == [0, 1]


def test_the_pen_draws_where_the_pointer_is_on_a_turned_pad(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    clear(browser)
    draw(browser, SEVEN)
    set_pose(browser, angle=90)
    browser.evaluate("arcaps.panels[0].wipe()")
    draw(browser, [(0.2, 0.3), (0.8, 0.3)])  # a line across the upper half of what is seen
    ink = np.array(browser.evaluate("[...arcaps.panels[0].pen.getImageData(0, 0, 280, 280).data]")).reshape(280, 280, 4)
    rows, columns = np.nonzero(ink[..., 0] > 128)
    assert np.ptp(rows) > 4 * np.ptp(columns)  # on the pad itself, which is turned to the left, it is upright,
    assert columns.mean() > 180  # and in its right half


COUNT_FRAMES = """new Promise((resolve) => {
  const before = document.body.dataset.path;
  let began = null, frames = 0;
  arcaps.pose.size = arcaps.pose.size === 1 ? 1.1 : 1;
  arcaps.refresh().then(() => { began = performance.now(); });
  const tick = () => {
    if (document.body.dataset.path !== before) resolve((1000 * frames) / (performance.now() - began));
    else requestAnimationFrame(tick);
    if (began !== null) frames += 1;
  };
  requestAnimationFrame(tick);
})"""


def test_drawing_stays_smooth_while_the_path_is_computed(browser: Browser, tmp_path: Path) -> None:
    model = create_model("ar_capsnet", image_size=32, channels=3, layers=4).eval()
    path = tmp_path / "page.html"
    path.write_text(one_file(page_files(model, examples=noise(3, (32, 32), 10))))
    browser.open(path.as_uri())
    wait_for_path(browser)
    rates = [browser.evaluate(COUNT_FRAMES) for _ in range(3)]
    assert max(rates) > 30, f"frames per second: {rates}"  # 60 where nothing else runs


def test_a_copied_address_shows_the_same(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    clear(browser)
    draw(browser, SEVEN)
    set_pose(browser, angle=-20, right=1.5)
    browser.evaluate("arcaps.choose(2)")
    settle(browser)
    browser.evaluate("arcaps.moved[3] = 0.4, arcaps.refreshMoved()")
    settle(browser)
    browser.wait("location.hash.includes('moved=3')")
    address, scores = browser.evaluate("location.href"), browser.evaluate(SCORES)
    browser.open(address)
    assert browser.evaluate(SCORES) == pytest.approx(scores, abs=2e-3)  # the drawing is stored as bytes
    assert browser.evaluate("[arcaps.chosen, arcaps.pose.angle, arcaps.pose.right]") == [2, -20, 1.5]
    assert browser.evaluate("arcaps.moved[3]") == pytest.approx(0.4, abs=1e-3)


def test_a_dropped_image_is_read_as_by_the_library(
    browser: Browser, page: Path, model: Classifier, digits: Dataset, tmp_path: Path
) -> None:
    digit = Image.fromarray(digits.images[5, 0].numpy())
    content = BytesIO()
    digit.save(content, "PNG")
    browser.open(page.as_uri())
    address = f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
    file = f"fetch('{address}').then((answer) => answer.blob()).then((blob) => new File([blob], 'digit.png'))"
    browser.evaluate(f"{file}.then((file) => arcaps.panels[0].open(file))")
    settle(browser)
    with torch.no_grad():
        expected = model(model.preprocessing.prepare(digit)).scores[0]
    assert browser.evaluate(SCORES) == pytest.approx(expected.tolist(), abs=1e-5)
    browser.evaluate("arcaps.panels[0].open(new File(['no'], 'no.txt'))")
    browser.wait("!problem.hidden")
    assert "no.txt is not an image" in browser.evaluate("problem.textContent")


def test_the_value_of_a_cell_can_be_read(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    browser.evaluate("maps.querySelectorAll('canvas')[1].focus()")
    for _ in range(2):
        browser.key("ArrowDown")
    said = browser.evaluate("maps.querySelectorAll('output')[1].textContent")
    assert re.fullmatch(r"class 2 from capsule 0: \d\.\d{3}", said)


@pytest.mark.parametrize(("width", "height", "mobile"), [(1440, 900, False), (1024, 768, False), (390, 844, True)])
def test_it_fits_the_screen(browser: Browser, page: Path, width: int, height: int, mobile: bool) -> None:
    browser.resize(width, height, mobile=mobile)
    browser.open(page.as_uri())
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("getComputedStyle(paper).touchAction") == "none"
    for seen in ["answer", "pose"] if mobile else ["answer", "pose", "plane"]:  # without scrolling
        assert browser.evaluate(f"{seen}.getBoundingClientRect().bottom") <= height, seen


def test_light_and_dark(browser: Browser, page: Path) -> None:
    browser.scheme("dark")
    browser.open(page.as_uri())
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = browser.evaluate(colour)
    browser.evaluate("theme.click()")
    light = browser.evaluate(colour)
    assert sum(map(int, re.findall(r"\d+", dark))) < 150 < 600 < sum(map(int, re.findall(r"\d+", light)))


def test_every_control_is_reached_by_tab(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    controls = browser.evaluate(
        "[...document.querySelectorAll('main button, main input, main canvas[tabindex], nav button')]"
        ".filter((e) => e.offsetParent && !e.disabled).length"
    )
    reached, said = set(), []
    browser.evaluate("window.count = 0, document.addEventListener('focusin', (e) => e.target.dataset.tab ??= ++count)")
    for _ in range(controls + 3):
        browser.key("Tab")
        reached.add(browser.evaluate("document.activeElement.dataset.tab"))
        said.append(browser.evaluate("document.activeElement.ariaLabel"))
    assert len(reached - {None}) >= controls
    ranking = browser.evaluate("arcaps.card.ranking[arcaps.label]")
    assert [label for label in said if label and "dimension" in label] == [f"dimension {dim}" for dim in ranking]


def test_licences_can_be_read(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    browser.evaluate("document.getElementById('about-open').click()")
    browser.wait("notices.textContent.length > 100000")
    assert "MIT License" in browser.evaluate("licence.textContent")
    assert "CC BY-SA 3.0" in browser.evaluate("notice.textContent")


@pytest.mark.parametrize(
    ("name", "options", "panels"),
    [
        ("ar_capsnet", {"layers": 0}, EVERYTHING),
        ("ar_capsnet", {"layers": 3, "dim": 32}, EVERYTHING),
        ("ar_capsnet", {"decoder": False}, ["draw", "classes", "path", "routing"]),
        (
            "ar_capsnet",
            {"channels": 3, "image_size": (20, 24), "classes": 5},
            EVERYTHING,
        ),
        ("capsule_net", {}, EVERYTHING),
        ("strong_conv_net", {}, ["draw", "classes"]),
    ],
    ids=str,
)
def test_what_applies_to_a_model_is_shown(
    browser: Browser, tmp_path: Path, name: str, options: dict[str, Any], panels: list[str]
) -> None:
    model = create_model(name, **{**SMALL[name], **options}).eval()
    path = tmp_path / "page.html"
    path.write_text(one_file(page_files(model, examples=noise(model.channels, model.image_size, model.classes))))
    browser.open(path.as_uri())
    assert browser.problems == []
    shown = browser.evaluate("[...document.querySelectorAll('main section')].filter((s) => !s.hidden).map((s) => s.id)")
    assert shown == panels
    if "path" in panels:
        browser.wait("document.body.dataset.path !== undefined")
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture
def server(files: dict[str, bytes], tmp_path: Path) -> Iterator[str]:
    """The page's folder on a static web host."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    host = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=host.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{host.server_port}/"
    host.shutdown()
    host.server_close()


def test_the_folder_works_on_a_static_host(server: str) -> None:
    with Browser(offline=False) as browser:
        browser.open(server)
        assert browser.problems == []
        assert browser.evaluate(FIRST_IS_RIGHT)
        assert all(address.startswith((server, "blob:")) for address in browser.requests)


def test_the_page_works_behind_arcaps_serve() -> None:
    with serving("arcaps", "serve", "digits", "--port", "0") as server, Browser(offline=False) as browser:
        address = f"http://127.0.0.1:{server.port}/"
        browser.open(address)
        assert browser.problems == []
        assert browser.evaluate(FIRST_IS_RIGHT)
        assert all(sent.startswith((address, "blob:")) for sent in browser.requests)
