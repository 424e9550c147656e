"""A browser that a test can drive: chromium over its debugging pipe, with nothing else to install."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]


class Browser:
    """One page in chromium. `requests` and `problems` are what it asked for and complained about."""

    def __init__(self, *, width: int = 1440, height: int = 1000, offline: bool = True) -> None:
        assert CHROMIUM is not None
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.numbers = itertools.count(1)
        self.session: str | None = None
        self.unread = b""
        commands, self.to = os.pipe()
        self.answers, results = os.pipe()
        # chromium reads commands from descriptor 3 and writes answers to descriptor 4
        script = f'exec "$0" "$@" 3<&{commands} 4>&{results}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, CHROMIUM, *FLAGS, f"--user-data-dir={self.profile.name}", "about:blank"],
            pass_fds=(commands, results),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(results)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        if offline:
            limits = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
            self.call("Network.emulateNetworkConditions", offline=True, **limits)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait(20)
        os.close(self.to)
        os.close(self.answers)
        self.profile.cleanup()

    def call(self, method: str, *, seconds: float = 60.0, **params: Any) -> Any:
        """Send a command and wait for its result."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + seconds
        while True:
            answer = self.receive(deadline, method)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.notice(answer)

    def receive(self, deadline: float, what: str) -> dict[str, Any]:
        """The next message."""
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser did not answer {what} in time"
            received = os.read(self.answers, 1 << 20)
            assert received, "the browser ended"
            self.unread += received
        message, self.unread = self.unread.split(b"\0", 1)
        return dict(json.loads(message))

    def notice(self, event: dict[str, Any]) -> None:
        """Keep what a test may want to know."""
        params = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent" and not params["request"]["url"].startswith("data:"):
            self.requests.append(params["request"]["url"])
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        if event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(params["args"]))
        if event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])

    def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Give the page another size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.call("Emulation.setTouchEmulationEnabled", enabled=mobile)

    def scheme(self, name: str) -> None:
        """Prefer light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, address: str, *, seconds: float = 60.0) -> None:
        """Open a page of arcaps and wait until it has answered."""
        self.call("Page.navigate", url="about:blank")
        self.requests.clear()
        self.problems.clear()
        self.call("Page.navigate", url=address)
        self.wait('document.body && document.body.dataset.ready === "yes"', seconds=seconds)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition: str, *, seconds: float = 30.0) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"{condition} did not become true; {self.problems}"
            time.sleep(0.05)

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Press, move or release the left button: `mousePressed`, `mouseMoved`, `mouseReleased`."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def drag(self, points: list[tuple[float, float]]) -> None:
        """Press at the first point, go over all, release at the last."""
        self.mouse("mousePressed", *points[0])
        for point in points[1:]:
            self.mouse("mouseMoved", *point)
        self.mouse("mouseReleased", *points[-1])

    def key(self, name: str) -> None:
        """Press a key."""
        codes = {"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=codes[name])

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page, the whole of it or what is visible."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        path.write_bytes(base64.b64decode(found["data"]))
