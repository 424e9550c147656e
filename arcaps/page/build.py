"""The page as files to serve, and as one file.

The files are plain ES modules: what is in this folder is what runs. In the one file, the import map holds every
module as a data: address, and everything else is gzip in base64 inside script elements that are not executed.
"""

import base64
import gzip
import json
import os
import re
import tempfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import torch

from arcaps.data import Dataset
from arcaps.export.onnx import export_decoder, export_onnx
from arcaps.models import Classifier
from arcaps.page.card import Facts, choose_examples, make_card
from arcaps.storage import write_whole

ENCODER_PARTS = ("scores", "capsules", "coefficients")


def static_files() -> dict[str, bytes]:
    """The files of the page that are the same for every model, by their path in the page."""
    found = {}

    def collect(folder: Traversable, path: str) -> None:
        for item in folder.iterdir():
            if item.is_dir() and not item.name.startswith("__"):
                collect(item, f"{path}{item.name}/")
            elif item.is_file() and not item.name.endswith((".py", ".pyi", "package.json")):
                found[path + item.name] = item.read_bytes()

    collect(files("arcaps.page"), "")
    return dict(sorted(found.items()))


def page_files(
    model: Classifier, *, precision: str = "float16", examples: Dataset | None = None, facts: Facts | None = None
) -> dict[str, bytes]:
    """Every file of the page for this model, by its path: what a static host or `arcaps serve` serves."""
    facts = facts or Facts(data=examples.name if examples is not None else "")
    answering = model.for_inference().cpu()
    chosen = choose_examples(answering, examples)
    card = make_card(answering, facts, chosen, precision)
    card["parameters"] = model.parameter_count()
    with tempfile.TemporaryDirectory() as folder:
        encoder, decoder = Path(folder) / "encoder.onnx", Path(folder) / "decoder.onnx"
        export_onnx(model, encoder, precision=precision, parts=ENCODER_PARTS)
        made = {"encoder.onnx.gz": pack(encoder.read_bytes())}
        if card["decoder"]:
            export_decoder(model, decoder, precision=precision)
            made["decoder.onnx.gz"] = pack(decoder.read_bytes())
    if len(chosen.images):
        made["examples.bin.gz"] = pack(chosen.images.contiguous().view(torch.uint8).numpy().tobytes())
    made["model.json"] = json.dumps(card, ensure_ascii=False, separators=(",", ":")).encode()
    return {**static_files(), **made}


def build_page(model: Classifier, path: str | os.PathLike[str], **options: Any) -> Path:
    """Write the page with this model to one HTML file, which opens by double click. Options: those of `page_files`."""
    target = Path(path)
    write_whole(target, one_file(page_files(model, **options)).encode())
    return target


def build_folder(model: Classifier, folder: str | os.PathLike[str], **options: Any) -> Path:
    """Write the page with this model to a folder for any static host. Options: those of `page_files`."""
    root = Path(folder)
    for name, content in page_files(model, **options).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(root / name, content)
    return root


def pack(content: bytes) -> bytes:
    """Compress; equal contents give equal bytes."""
    return gzip.compress(content, 9, mtime=0)


def one_file(page: dict[str, bytes]) -> str:
    """All files of a page in one HTML text."""
    html = page["index.html"].decode()
    html = replace_once(
        r'<link rel="stylesheet" href="style.css">', f"<style>\n{page['style.css'].decode()}</style>", html
    )
    modules = {name: content for name, content in page.items() if name.endswith(".js") and name != "worker.js"}
    imports = {f"arcaps/{name}": f"data:text/javascript;base64,{encode(content)}" for name, content in modules.items()}
    import_map = json.dumps({"imports": imports})
    html = replace_once(
        r'<script type="importmap">.*?</script>', f'<script type="importmap">{import_map}</script>', html
    )
    inside = {name: content for name, content in page.items() if name not in {*modules, "index.html", "style.css"}}
    elements = "\n".join(
        f'<script type="text/plain" id="asset:{name}">'
        f"{encode(content if name.endswith('.gz') else pack(content))}</script>"
        for name, content in inside.items()
    )
    return replace_once(r'(?=<script type="module">)', elements + "\n", html)


def encode(content: bytes) -> str:
    """Base64."""
    return base64.b64encode(content).decode()


def replace_once(pattern: str, replacement: str, text: str) -> str:
    """Replace what occurs exactly once."""
    replaced, count = re.subn(pattern, lambda _: replacement, text, flags=re.DOTALL)
    if count != 1:
        raise AssertionError(f"{pattern} occurs {count} times in index.html")
    return replaced
