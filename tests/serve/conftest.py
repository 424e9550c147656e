"""Servers in processes of their own, and a client that speaks plain HTTP to them."""

import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

import arcaps
from arcaps import Classifier, Exported
from tests.export.conftest import taught

ROOT = Path(__file__).parent.parent.parent


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


class Server(NamedTuple):
    """A server that runs in another process of this machine."""

    process: subprocess.Popen[str]
    port: int

    def connect(self) -> http.client.HTTPConnection:
        """A new connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def get(self, path: str) -> Answer:
        """GET over a connection of its own."""
        with closing(self.connect()) as connection:
            return ask(connection, "GET", path)

    def post(self, body: Any, kind: str = "image/png", path: str = "/predict") -> Answer:
        """POST over a connection of its own."""
        with closing(self.connect()) as connection:
            return ask(connection, "POST", path, body, kind)

    def memory(self, what: str = "VmRSS") -> float:
        """The memory of the process in MB: VmRSS now, VmHWM at most so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{what}:")[1].split()[0]) / 1024

    def stop(self) -> int:
        """Send what Ctrl-C sends, and wait for the end."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(10)


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, kind: str | None = None
) -> Answer:
    """One request and its answer; the connection stays open."""
    connection.request(method, path, body, {} if kind is None else {"Content-Type": kind})
    response = connection.getresponse()
    return Answer(response.status, {key.lower(): value for key, value in response.getheaders()}, response.read())


def form(content: bytes, *, name: str = "image", kind: str = "image/png") -> tuple[bytes, str]:
    """A file as a form, and the form's type."""
    head = f'--edge\r\nContent-Disposition: form-data; name="{name}"; filename="a.png"\r\nContent-Type: {kind}\r\n\r\n'
    return head.encode() + content + b"\r\n--edge--\r\n", "multipart/form-data; boundary=edge"


@contextmanager
def serving(*command: str) -> Iterator[Server]:
    """Start a server, wait until it says its address, and stop it in the end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        address = next(filter(None, (re.search(r"http://[\d.]+:(\d+)", line) for line in process.stdout)), None)
        assert address is not None, "the server ended before it said its address"
        server = Server(process, int(address[1]))
        server.get("/health")  # the address is open before the server has started
        yield server
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def slow_serving(file: Path, seconds: float, **limits: float) -> Iterator[Server]:
    """A server whose model takes so long for each batch."""
    with serving("tests.serve.worker", str(file), str(seconds), json.dumps(limits)) as server:
        yield server


@pytest.fixture(scope="session")
def model() -> Classifier:
    """A small AR CapsNet that has learned a little."""
    return taught("ar_capsnet", 40)


@pytest.fixture(scope="session")
def file(model: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, exported."""
    path = tmp_path_factory.mktemp("serve") / "model.onnx"
    arcaps.export_onnx(model, path)
    return path


@pytest.fixture(scope="session")
def exported(file: Path) -> Exported:
    """The exported model, to compare with."""
    return Exported.open(file, threads=1)


@pytest.fixture(scope="session")
def server(file: Path) -> Iterator[Server]:
    """`arcaps serve` with its own limits."""
    with serving("arcaps", "serve", str(file), "--port", "0") as running:
        yield running


@pytest.fixture(scope="session")
def images() -> list[Image.Image]:
    """Real digits."""
    return [Image.fromarray(image[0].numpy()) for image in arcaps.load_data("digits").test.images[:64]]


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """An image as the bytes of a file."""
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()
