"""Firefox for tests: driven over WebDriver BiDi, which is JSON over a WebSocket, with nothing else to install."""

import base64
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
PREFERENCES = {
    "datareporting.policy.dataSubmissionEnabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "app.update.enabled": False,
}


class WebSocket:
    """A client of a WebSocket on this machine: text messages only, as RFC 6455 frames them."""

    def __init__(self, port: int, path: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.stream = self.socket.makefile("rb")
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        head = list(iter(self.stream.readline, b"\r\n"))
        assert b" 101 " in head[0], head

    def send(self, text: str) -> None:
        """Send one message; a client has to mask its bytes."""
        content, mask = text.encode(), os.urandom(4)
        size = len(content)
        code, wide = (size, 0) if size < 126 else (126, 2) if size < 1 << 16 else (127, 8)
        length = size.to_bytes(wide, "big") if wide else b""
        masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(content))
        self.socket.sendall(bytes([0x81, 0x80 | code]) + length + mask + masked)

    def receive(self) -> str:
        """The next message."""
        content, last = b"", False
        while not last:
            first, second = self.stream.read(2)
            wide = {126: 2, 127: 8}.get(second & 127, 0)
            length = int.from_bytes(self.stream.read(wide), "big") if wide else second & 127
            part = self.stream.read(length)
            if first & 15 in (0, 1):  # a text, or more of it; the rest are pings
                content, last = content + part, bool(first & 128)
        return content.decode()

    def close(self) -> None:
        """End the connection."""
        self.stream.close()
        self.socket.close()


class Firefox:
    """One page in Firefox, without a network. `requests` and `problems` are what it asked for and complained about."""

    def __init__(self, *, width: int = 1440, height: int = 1000) -> None:
        assert FIREFOX is not None
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in PREFERENCES.items()]
        Path(self.profile.name, "user.js").write_text("".join(lines))
        command = [FIREFOX, "--headless", "--no-remote", "--remote-debugging-port", "0", "--profile", self.profile.name]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        found = (re.search(r"BiDi listening on ws://[\d.]+:(\d+)", line) for line in self.process.stderr)
        address = next(filter(None, found), None)
        assert address is not None, "firefox ended before it could be driven"
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.numbers = itertools.count(1)
        self.connection = WebSocket(int(address[1]), "/session")
        self.call("session.new", capabilities={})
        self.context = self.call("browsingContext.getTree")["contexts"][0]["context"]
        self.call("session.subscribe", events=["log.entryAdded", "network.beforeRequestSent"])
        self.call("emulation.setNetworkConditions", networkConditions={"type": "offline"}, contexts=[self.context])
        self.call("browsingContext.setViewport", context=self.context, viewport={"width": width, "height": height})

    def __enter__(self) -> "Firefox":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.wait(20)
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.profile.cleanup()

    def call(self, method: str, **params: Any) -> Any:
        """Send a command and wait for its result."""
        number = next(self.numbers)
        self.connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(self.connection.receive())
            if answer.get("id") == number:
                assert answer["type"] == "success", f"{method}: {answer}"
                return answer["result"]
            self.notice(answer.get("method"), answer.get("params", {}))

    def notice(self, method: str | None, params: dict[str, Any]) -> None:
        """Keep what a test may want to know."""
        if method == "network.beforeRequestSent" and not params["request"]["url"].startswith("data:"):
            self.requests.append(params["request"]["url"])
        if method == "log.entryAdded" and params["level"] in ("error", "warn"):
            self.problems.append(str(params["text"]))

    def open(self, address: str, *, seconds: float = 60.0) -> None:
        """Open a page of arcaps and wait until it has answered."""
        self.requests.clear()
        self.problems.clear()
        self.call("browsingContext.navigate", context=self.context, url=address, wait="none")
        self.wait('document.body && document.body.dataset.ready === "yes"', seconds=seconds)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression that can be written as JSON; promises are awaited."""
        code = f"(async () => JSON.stringify(await ({expression})))()"
        result = self.call("script.evaluate", expression=code, target={"context": self.context}, awaitPromise=True)
        assert result["type"] == "success", result["exceptionDetails"]
        return json.loads(result["result"].get("value", "null"))

    def wait(self, condition: str, *, seconds: float = 30.0) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"{condition} did not become true; {self.problems}"
            time.sleep(0.05)

    def drag(self, points: list[tuple[float, float]]) -> None:
        """Press the left button at the first point, go over all, release at the last."""
        moves = [{"type": "pointerMove", "x": round(x), "y": round(y)} for x, y in points]
        actions = [moves[0], {"type": "pointerDown", "button": 0}, *moves[1:], {"type": "pointerUp", "button": 0}]
        source = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}
        self.call("input.performActions", context=self.context, actions=[source])
