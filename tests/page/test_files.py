"""What a page is made of."""

import gzip
import hashlib
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

import arcaps.page
from arcaps import ArcapsError, Classifier, Dataset, Routing, build_folder, build_page, create_model
from arcaps.cli import main
from arcaps.models.capsules import CapsuleClassifier
from arcaps.page import Facts, page_files
from arcaps.page.build import one_file, static_files
from arcaps.page.card import TITLES, describe_layer
from arcaps.scores import Score
from tests.export.conftest import SMALL

RUNTIME = {
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}


def card_of(files: dict[str, bytes]) -> dict[str, Any]:
    return dict(json.loads(files["model.json"]))


def noise(channels: int, size: tuple[int, int], classes: int) -> Dataset:
    images = torch.randint(256, (40, channels, *size), dtype=torch.uint8)
    return Dataset("noise", images, torch.arange(40) % classes, tuple("abcdefghijkl"[:classes]))


def test_the_runtime_is_the_published_one_and_its_licences_come_with_it() -> None:
    files = static_files()
    for name, sha256 in RUNTIME.items():
        assert hashlib.sha256(gzip.decompress(files[f"runtime/{name}.gz"])).hexdigest() == sha256
    assert b"MIT License" in files["runtime/LICENSE"]
    assert b"protobuf" in gzip.decompress(files["runtime/ThirdPartyNotices.txt.gz"])


def test_the_page_itself_names_no_other_host() -> None:
    own = {name: content for name, content in static_files().items() if not name.startswith("runtime/")}
    assert len(own) > 10
    for name, content in own.items():
        assert not re.search(rb"https?://", content), name


def test_the_package_stays_small() -> None:
    root = Path(arcaps.__file__).parent
    parts = [path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(len(zlib.compress(path.read_bytes(), 1)) for path in parts) < 20e6  # what a wheel of it takes


def test_every_module_that_is_imported_is_there() -> None:
    files = static_files()
    for name, content in files.items():
        if name.endswith((".js", ".html")):
            for imported in re.findall(r'(?:from|import) "([^"]+)"', content.decode()):
                assert imported.removeprefix("arcaps/") in files, f"{name} imports {imported}"


@pytest.mark.slow
def test_the_page_of_the_digits_is_one_small_file(model: Classifier, digits: Dataset, tmp_path: Path) -> None:
    path = build_page(model, tmp_path / "capsules.html", examples=digits, facts=Facts(data="digits"))
    assert path.stat().st_size < 11e6
    text = path.read_text()
    assert 'src="' not in text
    assert re.findall(r'href="([^"]*)"', text) == ["data:,"]
    assert str(Path.home()) not in text


def test_examples_are_right_and_mistakes_are_wrong(files: dict[str, bytes], model: Classifier, digits: Dataset) -> None:
    card = card_of(files)
    assert {example["label"] for example in card["examples"]} == set(range(10))
    assert all(example["label"] == example["answer"] for example in card["examples"])
    assert card["mistakes"]
    assert all(example["label"] != example["answer"] for example in card["mistakes"])
    pixels = torch.frombuffer(bytearray(gzip.decompress(files["examples.bin.gz"])), dtype=torch.uint8)
    images = model.preprocessing(pixels.view(-1, 1, 28, 28))
    with torch.no_grad():
        answers = model(images).scores.argmax(-1).tolist()
    assert answers == [example["answer"] for example in [*card["examples"], *card["mistakes"]]]
    assert card["first"] < 10  # the surest of its class, so that a drawing like it works too
    assert "CC BY-SA" in card["notice"]
    assert card["box"] == 20
    with torch.no_grad():
        right = model(model.preprocessing(digits.images)).scores.argmax(-1) == digits.labels
    assert card["accuracy"] == pytest.approx(float(right.float().mean()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ar_capsnet", {"layers": 0}),
        ("ar_capsnet", {"layers": 3, "dim": 32}),
        ("ar_capsnet", {"decoder": False}),
        ("ar_capsnet", {"channels": 3, "image_size": (20, 24), "classes": 5}),
        ("ar_capsnet", {"routing": "dynamic", "activation": "squash"}),
        ("ar_capsnet", {"layout": "code"}),
        ("capsule_net", {}),
        ("strong_conv_net", {}),
    ],
    ids=str,
)
def test_every_kind_of_model_has_a_page(name: str, options: dict[str, Any]) -> None:
    model = create_model(name, **{**SMALL[name], **options}).eval()
    files = page_files(model, examples=noise(model.channels, model.image_size, model.classes))
    card = card_of(files)
    assert ("decoder.onnx.gz" in files) == card["decoder"]
    assert (card["dim"] > 0) == (name != "strong_conv_net")
    assert len(card["layers"]) == (0 if name == "strong_conv_net" else 1 + model.config.get("layers", 0))
    for layer in card["layers"]:
        assert layer["sums"] == ("inputs" if "routing" not in options and name == "ar_capsnet" else "outputs")
    if card["layers"]:
        assert card["layers"][-1]["classes"] == (options.get("layout") != "code")
        assert card["layers"][-1]["positions"] == (name == "capsule_net")
    if card["decoder"]:
        assert all(sorted(ranking) == list(range(card["dim"])) for ranking in card["ranking"])
    assert one_file(files).count("asset:") >= 6


@pytest.mark.parametrize("head", ["full", "pooled"])
@pytest.mark.parametrize("routing", sorted(Routing.known))
def test_the_card_says_what_the_coefficients_are(routing: str, head: str) -> None:
    model = create_model("ar_capsnet", **SMALL["ar_capsnet"], routing=routing, head=head).eval()
    assert isinstance(model, CapsuleClassifier)
    with torch.no_grad():
        coefficients = model(torch.rand(3, 1, 28, 28)).coefficients
    for name, tensor in coefficients.items():
        layer = describe_layer(name, tensor, model)
        count = layer["out"] * layer["inp"] * layer["height"] * layer["width"]
        assert count == tensor[0].numel()
        totals = {"inputs": tensor.sum(-1), "outputs": tensor.sum(-2), "less": tensor.sum(-2)}.get(layer["sums"])
        if layer["sums"] in ("inputs", "outputs"):
            assert totals is not None
            assert totals.numpy() == pytest.approx(1, abs=1e-3)
        if totals is not None:
            assert float(totals.max()) <= 1.001


def test_the_card_names_every_score_and_the_window_of_matrix_capsules() -> None:
    model = create_model("matrix_capsules", stem_channels=8, primary_caps=2, caps=2).eval()
    card = card_of(page_files(model))
    assert card["score"] == "presence"
    assert [layer["window"] for layer in card["layers"]] == [9, 9, 1]
    known = (Path(arcaps.page.__file__).parent / "panels/classes.js").read_text()
    assert all(f"  {name}: {{ word:" in known for name in Score.known)


def test_every_model_has_a_title() -> None:
    ours = {name for name, model in Classifier.known.items() if model.__module__.startswith("arcaps.")}
    assert set(TITLES) >= ours


def test_a_folder_for_a_static_host(tmp_path: Path) -> None:
    model = create_model("strong_conv_net", **SMALL["strong_conv_net"]).eval()
    folder = build_folder(model, tmp_path / "site")
    assert (folder / "index.html").exists()
    assert (folder / "runtime/ort-wasm-simd-threaded.wasm.gz").exists()
    assert not list(folder.rglob("*.py"))


def test_examples_must_fit(model: Classifier) -> None:
    with pytest.raises(ArcapsError, match="do not fit the model: give images of 1x28x28"):
        page_files(model, examples=noise(1, (20, 20), 10))


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    create_model("strong_conv_net", **SMALL["strong_conv_net"]).save("model.safetensors")
    monkeypatch.setattr("sys.argv", ["arcaps", "page", "model.safetensors", "--data", "digits"])
    main()
    assert "model.html: " in capsys.readouterr().out
    assert '"data":"digits"' in gzip.decompress(asset("model.json", Path("model.html").read_text())).decode()


def asset(name: str, text: str) -> bytes:
    """A file inside a page."""
    import base64

    (found,) = re.findall(rf'id="asset:{re.escape(name)}">([^<]*)<', text)
    return base64.b64decode(found)
