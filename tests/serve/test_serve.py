"""A served model answers as `arcaps predict` does, under load too, and refuses what is too much."""

import asyncio
import http.client
import importlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from PIL import Image

from arcaps import ArcapsError, Classifier, Exported
from arcaps.cli import main
from arcaps.serve import Limits, create_app
from tests.serve.conftest import ROOT, Answer, Server, ask, encode, form, serving, slow_serving

LOAD_SECONDS = float(os.environ.get("ARCAPS_LOAD_SECONDS", "4"))
"""How long 64 connections ask at once."""
TRIES = 3
"""Refusals are timed by the best of this number: other tests run at the same time."""


def scores(answer: Answer) -> np.ndarray[Any, Any]:
    """The scores of an answer, in order of the classes."""
    assert answer.status == 200, answer.body
    return np.array(list(answer.json["scores"].values()))


def assert_refused(answer: Answer, status: int, sentence: str) -> None:
    """The status, and a sentence as JSON."""
    assert answer.status == status, answer.body
    assert list(answer.json) == ["detail"]
    assert re.search(sentence, answer.json["detail"]), answer.json


def png_header(side: int) -> bytes:
    """A small PNG file whose image would be large."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(side // 8 + 1)) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def half_a_request(server: Server) -> http.client.HTTPConnection:
    """A connection over which a body of 1,000 bytes was announced, and 4 were sent."""
    connection = server.connect()
    connection.putrequest("POST", "/predict")
    for header, value in {"Content-Type": "image/png", "Content-Length": "1000"}.items():
        connection.putheader(header, value)
    connection.endheaders(b"half")
    return connection


def test_it_answers_as_predict_does(
    server: Server, model: Classifier, images: list[Image.Image], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    model.save(tmp_path / "model.safetensors")
    colour = Image.merge("RGB", [images[1].resize((50, 70)), images[2].resize((50, 70)), images[3].resize((50, 70))])
    files = {
        "a.png": encode(images[0]),
        "b.jpg": encode(colour, "JPEG", quality=60),
        "c.webp": encode(colour, "WEBP"),
        "progressive.jpg": encode(colour, "JPEG", progressive=True),
        "d.png": encode(colour.convert("P")),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    paths = [str(tmp_path / name) for name in files]
    monkeypatch.setattr("sys.argv", ["arcaps", "predict", str(tmp_path / "model.safetensors"), *paths, "--json"])
    main()
    kinds = {"png": "image/png", "jpg": "image/jpeg", "webp": "image/webp"}
    for (name, content), expected in zip(files.items(), json.loads(capsys.readouterr().out), strict=True):
        kind = kinds[name.split(".")[1]]
        answers = [server.post(content, kind), server.post(*form(content, kind=kind))]
        answers.append(server.post(*form(content, kind="application/octet-stream")))
        for answer in answers:
            assert answer.json["class"] == expected["class"]
            assert list(answer.json["scores"]) == list(expected["scores"])
            assert scores(answer) == pytest.approx(list(expected["scores"].values()), abs=1e-5)


def test_parts_are_those_of_the_model(server: Server, exported: Exported, images: list[Image.Image]) -> None:
    content = encode(images[0])
    answer = server.post(content, path="/predict?parts=capsules,reconstruction,coefficients").json
    expected = exported(exported.prepare(images[0]))
    for part in ("capsules", "reconstruction"):
        assert np.array(answer[part]) == pytest.approx(getattr(expected, part)[0], abs=1e-6)
    assert answer["coefficients"].keys() == expected.coefficients.keys()
    for layer, coefficients in expected.coefficients.items():
        assert np.array(answer["coefficients"][layer]) == pytest.approx(coefficients[0], abs=1e-6)
    assert list(server.post(content).json) == ["class", "scores"]
    assert_refused(server.post(content, path="/predict?parts=capsule"), 422, "did you mean 'capsules'")


def test_it_describes_itself(server: Server, exported: Exported) -> None:
    described = server.get("/model").json
    assert described["classes"] == exported.class_names
    assert described["image"] == {"channels": 1, "height": 28, "width": 28}
    assert (described["precision"], described["architecture"]) == ("float32", "ar_capsnet")
    assert described["limits"] == {"max_bytes": 2_000_000, "max_pixels": 4_000_000}
    assert server.get("/health").json["status"] == "ok"
    assert server.get("/openapi.json").json["paths"].keys() == {"/predict", "/model", "/health"}
    assert_refused(server.get("/nothing"), 404, "nothing at this address")


def test_no_request_leaves_the_machine(server: Server) -> None:
    page = server.get("/")
    assert page.status == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for path in ("/", "/openapi.json"):
        assert not re.search(rb"(https?:)?//\w", server.get(path).body), path
    for path in ("/docs", "/redoc"):
        assert server.get(path).status == 404


@pytest.mark.parametrize(
    ("body", "kind", "status", "sentence"),
    [
        (b"", "image/png", 422, "is empty"),
        (b"hello", "image/png", 422, "not an image"),
        (b"GIF89a" + bytes(50), "image/png", 422, "not an image"),
        (b"hello", "text/plain", 415, "has the type text/plain: send an image as one of image/png"),
        (b"hello", None, 415, r"has the type \(none\)"),
        (b"{}", "application/json", 415, "application/json"),
        (*form(b""), 422, "is empty"),
        (*form(b"hello"), 422, "not an image"),
        (*form(b"hello", kind="text/plain"), 415, "the file has the type text/plain"),
        (*form(b"hello", name="picture"), 422, "no file in the field 'image'"),
        (b"image=1", "multipart/form-data", 400, "boundary"),
        (b"nothing of the kind", "multipart/form-data; boundary=edge", 400, ""),
        (b"\xff\xd8" + b"\xff\xda" * 101, "image/jpeg", 422, "more than 100 scans"),
    ],
)
def test_what_is_no_image_is_refused(server: Server, body: bytes, kind: str, status: int, sentence: str) -> None:
    assert_refused(server.post(body, kind), status, sentence)


def test_a_cut_image_is_refused(server: Server, images: list[Image.Image]) -> None:
    content = encode(images[0])
    assert_refused(server.post(content[: len(content) // 2]), 422, "damaged image")


def test_large_images_are_refused_before_they_are_decoded(server: Server) -> None:
    for side, sentence in (
        (12_000, "12000x12000 pixels, 144 megapixels, more than the 4"),
        (30_000, "more than 4 mega"),
    ):
        content = png_header(side)
        before, taken = server.memory(), []
        for _ in range(TRIES):
            start = time.perf_counter()
            assert_refused(server.post(content), 422, sentence)
            taken.append(time.perf_counter() - start)
        assert min(taken) < 0.1
        assert server.memory() - before < 10


def pieces(count: int) -> Iterator[bytes]:
    """A body of unknown length: this number of pieces of 0.1 MB."""
    for _ in range(count):
        yield bytes(100_000)


@pytest.mark.parametrize("kind", ["image/png", "multipart/form-data; boundary=edge"])
@pytest.mark.parametrize("declared", [True, False])
def test_large_bodies_are_refused_before_they_are_read(server: Server, kind: str, declared: bool) -> None:
    start = form(b"")[0].removesuffix(b"\r\n--edge--\r\n") if kind != "image/png" else b""
    whole = start + bytes(30_000_000)
    before = server.memory()
    began = time.perf_counter()
    answer = server.post(whole if declared else iter([start or b"-", *pieces(300)]), kind)
    took = time.perf_counter() - began
    assert_refused(answer, 413, "more than 2,000,000 bytes: send a smaller image")
    assert took < 1  # the client's own time to send 30 MB is in it
    assert server.memory() - before < 10
    assert server.get("/health").status == 200


def test_a_large_body_is_refused_before_the_client_sends_it(server: Server) -> None:
    taken = []
    for _ in range(TRIES):
        connection = server.connect()
        connection.putrequest("POST", "/predict")
        for header, value in {"Content-Type": "image/png", "Content-Length": "30000000"}.items():
            connection.putheader(header, value)
        start = time.perf_counter()
        connection.endheaders()
        assert connection.getresponse().status == 413
        taken.append(time.perf_counter() - start)
        connection.close()
    assert min(taken) < 0.1


def test_a_connection_is_used_again_after_a_refusal(server: Server, images: list[Image.Image]) -> None:
    connection = server.connect()
    assert ask(connection, "POST", "/predict", bytes(3_000_000), "image/png").status == 413
    assert ask(connection, "POST", "/predict", encode(images[0]), "image/png").status == 200
    connection.close()


def test_a_client_that_goes_away_does_no_harm(server: Server, images: list[Image.Image]) -> None:
    connection = half_a_request(server)
    connection.close()
    assert server.post(encode(images[0])).status == 200
    assert server.get("/health").json["under_way"] == 0


@pytest.mark.slow
def test_many_at_once_are_answered_as_one_alone(server: Server, images: list[Image.Image]) -> None:
    contents = [encode(image) for image in images]
    alone = [scores(server.post(content)) for content in contents]
    end = time.perf_counter() + LOAD_SECONDS
    before = server.get("/health").json

    def client(number: int) -> int:
        connection, count = server.connect(), 0
        while time.perf_counter() < end:
            which = (number + count) % len(contents)
            body = form(contents[which]) if count % 2 else (contents[which], "image/png")
            answer = ask(connection, "POST", "/predict", *body)
            assert np.abs(scores(answer) - alone[which]).max() <= 1e-6
            count += 1
        connection.close()
        return count

    with ThreadPoolExecutor(64) as clients:
        total = sum(clients.map(client, range(64)))
    after = server.get("/health").json
    assert after["answered"] - before["answered"] == total >= 64
    assert after["under_way"] == 0
    assert total > 2 * (after["batches"] - before["batches"]), "nothing was batched"


@pytest.mark.slow
def test_what_waits_together_is_answered_together_and_ctrl_c_finishes_it(file: Path, images: list[Image.Image]) -> None:
    content = encode(images[0])
    with slow_serving(file, 0.5, batch=4) as server, ThreadPoolExecutor(9) as clients:
        idle = server.connect()
        ask(idle, "GET", "/health")
        start = time.perf_counter()
        server.post(content)
        assert time.perf_counter() - start < 0.9  # alone: no timer adds to the model's time
        answers = list(clients.map(lambda _: server.post(content), range(9)))
        assert {answer.status for answer in answers} == {200}
        health = server.get("/health").json
        assert (health["answered"], health["batches"]) == (10, 4)  # 1; then 1, 4 and 4
        under_way = [clients.submit(server.post, content) for _ in range(3)]
        while server.get("/health").json["under_way"] < 3:
            time.sleep(0.01)
        start = time.perf_counter()
        assert server.stop() == 0
        assert time.perf_counter() - start < 5
        assert [answer.result().status for answer in under_way] == [200] * 3
        idle.close()


def test_a_full_queue_and_a_missed_deadline(file: Path, images: list[Image.Image]) -> None:
    content = encode(images[0])
    with slow_serving(file, 1.0, queue=3, deadline=0.5) as server:
        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(lambda _: server.post(content), range(8)))
        refused = [answer for answer in answers if answer.status == 503]
        late = [answer for answer in answers if answer.status == 504]
        assert (len(refused), len(late)) == (5, 3)
        assert_refused(refused[0], 503, "3 requests are under way, which is the most: try again in a second")
        assert refused[0].headers["retry-after"] == "1"
        assert_refused(late[0], 504, "no answer within 0.5 s: try again later")
        connection = half_a_request(server)
        assert connection.getresponse().status == 408
        connection.close()
        assert server.get("/health").json["under_way"] == 0


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_who_does_not_finish(file: Path) -> None:
    with slow_serving(file, 0.0, deadline=60) as server:
        connection = half_a_request(server)
        while server.get("/health").json["under_way"] == 0:
            time.sleep(0.01)
        start = time.perf_counter()
        assert server.stop() == 0
        assert 1 < time.perf_counter() - start < 5
        connection.close()


@pytest.mark.slow
def test_the_command_takes_a_model_file(model: Classifier, images: list[Image.Image], tmp_path: Path) -> None:
    model.save(tmp_path / "model.safetensors")
    with serving(
        "arcaps", "serve", str(tmp_path / "model.safetensors"), "--port", "0", "--max-pixels", "100"
    ) as server:
        assert_refused(server.post(encode(images[0])), 422, "28x28 pixels, 0 megapixels, more than the 0.0001")
        assert server.stop() == 0


def test_the_page_is_served_from_memory(exported: Exported) -> None:
    files = {"index.html": b"<p>the page", "a/b.js": b"1", "c.wasm.gz": b"2", "x.css": b"3"}
    app = create_app(exported, page=files)
    kinds = {"/": "text/html", "/a/b.js": "text/javascript", "/c.wasm.gz": "application/octet-stream"}
    for path, kind in kinds.items():
        status, headers, body = call(app, path)
        assert (status, body) == (200, files[path[1:] or "index.html"])
        assert headers[b"content-type"].startswith(kind.encode())
        assert b"default-src 'self'" in headers[b"content-security-policy"]
    assert call(app, "/../pyproject.toml")[0] == call(app, "/a")[0] == 404
    assert json.loads(call(app, "/health")[2])["status"] == "ok"


def call(app: FastAPI, path: str) -> tuple[int, dict[bytes, bytes], bytes]:
    """GET from an application in this process."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [], "app": app}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(one.get("body", b"") for one in sent[1:])


def test_the_documented_requests_work(
    server: Server, images: list[Image.Image], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    images[0].save("digit.png")
    text = (ROOT / "docs/serving.md").read_text().replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    expected = server.post(encode(images[0])).json
    for sample in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(sample, {})
    assert capsys.readouterr().out == f"{expected['class']} 10\n"
    (command,) = re.findall(r"^(curl .*)$", text, re.MULTILINE)
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    found = json.loads(subprocess.run(command.split(), capture_output=True, check=True).stdout)
    assert found == expected
    assert found.keys() == json.loads(re.findall(r"^```json\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[0]).keys()
    for field in fields(Limits):
        flag = f"--{field.name.replace('_', '-')} {field.default:g}" if field.name != "batch" else "--batch"
        assert flag in text.replace("2000000", "2e+06").replace("4000000", "4e+06"), flag


def test_mistakes_are_named(file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from arcaps.serve import listen
    from arcaps.serve.server import url

    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert url(taken) == f"http://127.0.0.1:{port}"
        assert not caplog.records
        monkeypatch.setattr("sys.argv", ["arcaps", "serve", str(file), "--port", str(port)])
        with pytest.raises(SystemExit, match=f"cannot listen on 127.0.0.1 port {port}: .*in use; give another"):
            main()
    with listen("0.0.0.0", 0) as everywhere:
        assert "on all interfaces" in caplog.text
        assert "no password" in caplog.text
        assert url(everywhere).startswith("http://127.0.0.1:")
    with pytest.raises(ArcapsError, match="port is 70000: give a number from 0 to 65535"):
        listen("127.0.0.1", 70_000)
    with pytest.raises(ArcapsError, match=r"cannot listen on no\.such\.host\.invalid port 0: .*; give another --host"):
        listen("no.such.host.invalid", 0)
    for name in ("a..b", 70 * "x"):
        with pytest.raises(ArcapsError, match="this is not the name of a machine; give another --host"):
            listen(name, 0)
    with pytest.raises(ArcapsError, match="queue is 0: give a number above 0, such as 256"):
        Limits(queue=0)
    monkeypatch.setattr("sys.argv", ["arcaps", "serve", str(file), "--port", "0", "--threads", "0"])
    with pytest.raises(SystemExit, match="threads is 0: give 1 or more"):
        main()


@pytest.mark.parametrize(
    ("package", "module"), [("fastapi", "app"), ("python_multipart", "app"), ("uvicorn", "server")]
)
def test_a_missing_package_is_named(package: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"arcaps.serve.{module}", raising=False)
    with pytest.raises(ArcapsError, match=re.escape(f"needs the package {package}: pip install 'arcaps[serve]'")):
        importlib.import_module(f"arcaps.serve.{module}")
