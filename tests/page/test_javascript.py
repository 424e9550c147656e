"""The page's arithmetic is that of the Python library."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from arcaps import Dataset, Preprocessing, warp
from arcaps.data.warp import Transform
from tests.page.conftest import needs_node

PAGE = Path(__file__).parent.parent.parent / "arcaps/page"
pytestmark = needs_node


def run_node(code: str, data: object) -> Any:
    """What JavaScript prints, as JSON, for `data`."""
    script = f"import {{ readFileSync }} from 'node:fs';\nconst data = JSON.parse(readFileSync(0, 'utf8'));\n{code}"
    result = subprocess.run(
        ["node", "--input-type=module", "-e", script],
        input=json.dumps(data),
        capture_output=True,
        text=True,
        cwd=PAGE,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_node_tests_pass() -> None:
    tests = sorted(map(str, Path(__file__).parent.glob("*.test.mjs")))
    result = subprocess.run(["node", "--test", *tests], capture_output=True, text=True, check=False, cwd=PAGE)
    assert result.returncode == 0, result.stdout
    assert "# fail 0" in result.stdout


def test_warp_is_the_librarys(digits: Dataset) -> None:
    generator = torch.Generator().manual_seed(1)
    draws = 2 * torch.rand(20, 4, generator=generator, dtype=torch.float64) - 1
    names = ("angle", "right", "down", "size")
    poses = [dict(zip(names, row, strict=True)) for row in (draws * torch.tensor([90, 6, 6, 0.4])).tolist()]
    for pose in poses:
        pose["size"] += 1
    images = digits.images[:20].float() / 255
    transform = Transform.make(
        20,
        angle=torch.tensor([pose["angle"] for pose in poses]),
        shift_x=torch.tensor([pose["right"] for pose in poses]),
        shift_y=torch.tensor([pose["down"] for pose in poses]),
        scale_x=torch.tensor([pose["size"] for pose in poses]),
        scale_y=torch.tensor([pose["size"] for pose in poses]),
    )
    expected = warp(images.double(), transform).flatten(1)
    code = """
    const { warp } = await import("arcaps/picture.js");
    const shape = { channels: 1, height: 28, width: 28 };
    console.log(JSON.stringify(data.poses.map((pose, n) => [...warp(data.images[n], shape, pose)])));
    """
    found = run_node(code, {"poses": poses, "images": images.flatten(1).double().tolist()})
    assert np.abs(np.array(found) - expected.numpy()).max() < 1e-6


@pytest.mark.parametrize("fit", ["scale", "pad"])
@pytest.mark.parametrize("size", [(100, 60), (40, 300), (17, 20), (28, 28)])
def test_images_are_placed_as_by_preprocessing(size: tuple[int, int], fit: Any) -> None:
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (7, 5), dtype=np.uint8))
    pixels = np.asarray(coarse.resize((size[1], size[0]), Image.Resampling.BICUBIC))
    expected = Preprocessing((28, 28), 1, fit).prepare(pixels)[0, 0].numpy()
    code = """
    const { place } = await import("arcaps/picture.js");
    const [height, width] = data.size;
    const found = place(data.pixels, { channels: 1, height, width }, { channels: 1, height: 28, width: 28 }, data.fit);
    console.log(JSON.stringify([...found]));
    """
    found = run_node(code, {"pixels": (pixels / 255).flatten().tolist(), "size": size, "fit": fit})
    assert np.abs(np.array(found).reshape(28, 28) - expected).max() <= 1.01 / 255  # Pillow rounds twice


def test_grey_is_pillows_grey() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(pixels).convert("L"))
    code = """
    const { fromBytes } = await import("arcaps/picture.js");
    console.log(JSON.stringify([...fromBytes(data, 64, 1)].map((value) => Math.round(255 * value))));
    """
    opaque = np.dstack([pixels, np.full((8, 8), 255, np.uint8)])
    assert run_node(code, opaque.flatten().tolist()) == expected.flatten().tolist()


def test_the_plane_is_that_of_the_singular_values() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(51, 16)) * np.linspace(3, 0.1, 16)
    centred = points - points.mean(0)
    _, values, axes = np.linalg.svd(centred)
    code = """
    const { principalPlane } = await import("arcaps/plane.js");
    const { axes, share, place, along } = principalPlane(data);
    const [x, y] = place(data[0]), step = along(1, -2);
    console.log(JSON.stringify({ axes, share, place: [x, y], step, back: place(data[0].map((v, k) => v + step[k])) }));
    """
    found = run_node(code, points.tolist())
    for own, expected in zip(np.array(found["axes"]), axes[:2], strict=True):
        assert abs(own @ expected) == pytest.approx(1, abs=1e-9)
        assert own[np.abs(own).argmax()] > 0
    assert found["share"] == pytest.approx((values[:2] ** 2).sum() / (values**2).sum(), abs=1e-9)
    assert found["place"] == pytest.approx(np.array(found["axes"]) @ centred[0], abs=1e-9)
    assert found["back"] == pytest.approx([found["place"][0] + 1, found["place"][1] - 2], abs=1e-9)
