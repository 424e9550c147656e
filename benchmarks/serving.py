"""Requests per second of `arcaps serve` against the same server on eager torch without batching.

    python benchmarks/serving.py [RUN] [--rounds 3] [--seconds 8] [--connections 16]

Both servers run side by side in processes of their own, one model thread each. They are asked in turns, so that what
else the machine does affects both. The client is a process of its own that only sends prepared bytes and counts.
"""

import argparse
import json
import multiprocessing
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SERVERS = {"onnxruntime, batches": ("onnx", 32), "eager torch, one by one": ("torch", 1)}
"""What answers, and how many images at once."""


class Round(NamedTuple):
    """What one server did in one round."""

    per_second: float
    cpu_ms: float
    """Of the server, for one request."""
    median_ms: float
    p99_ms: float


class EagerSession:
    """A torch model in the place of an onnxruntime session."""

    def __init__(self, model: Any, outputs: list[Any]) -> None:
        self.model, self.outputs = model.for_inference(), outputs

    def get_outputs(self) -> list[Any]:
        """The outputs of the ONNX file: this session answers with the same."""
        return self.outputs

    def run(self, _: None, inputs: dict[str, NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """Answer with all outputs."""
        import torch

        from arcaps.export.onnx import Answer

        with torch.inference_mode():
            answers = Answer(self.model, [output.name.partition(".")[0] for output in self.outputs])
            found = answers.named(torch.from_numpy(inputs["images"]))
        return [found[output.name].numpy() for output in self.outputs]


def serve(kind: str, batch: int, folder: Path) -> None:
    """Run one of the two servers; both have the outputs of the same ONNX file."""
    import torch

    import arcaps
    from arcaps.serve import Limits, create_app, listen, run
    from arcaps.serve.server import url

    torch.set_num_threads(1)
    exported = arcaps.Exported.open(folder / "model.onnx", threads=1)
    if kind == "torch":
        model = arcaps.load(folder / "model.safetensors")
        exported = arcaps.Exported(EagerSession(model, exported.session.get_outputs()), exported.metadata, "torch")
    limits = Limits(batch=batch)
    with listen("127.0.0.1", 0) as listening:
        print(url(listening), flush=True)
        run(create_app(exported, limits=limits), listening, limits=limits)


def start(kind: str, batch: int, folder: Path) -> tuple[subprocess.Popen[str], int]:
    """Start a server process; its port."""
    command = [sys.executable, __file__, "--serve", kind, str(batch), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    found = re.search(r":(\d+)\s*$", process.stdout.readline())
    if found is None:
        raise SystemExit(f"the server {kind} did not start")
    return process, int(found[1])


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def prepared_request() -> bytes:
    """A digit as a PNG file in a form: what curl -F sends."""
    from PIL import Image

    import arcaps

    content = BytesIO()
    Image.fromarray(arcaps.load_data("digits").test.images[0, 0].numpy()).save(content, "PNG")
    head = (
        b'--edge\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    )
    body = head + content.getvalue() + b"\r\n--edge--\r\n"
    lines = ["POST /predict HTTP/1.1", "Host: 127.0.0.1", "Content-Type: multipart/form-data; boundary=edge"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def ask(connection: socket.socket, request: bytes) -> None:
    """Send a request and read its answer."""
    connection.sendall(request)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += received(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head[:20]:
        raise SystemExit(f"a request failed: {answer!r}")
    length = int(re.search(rb"content-length: (\d+)", head.lower())[1])  # type: ignore[index]
    while len(body) < length:
        body += received(connection)


def received(connection: socket.socket) -> bytes:
    """The next bytes of an answer."""
    piece = connection.recv(65536)
    if not piece:
        raise SystemExit("the server closed a connection")
    return piece


def load(port: int, request: bytes, connections: int, seconds: float, times: Any) -> None:
    """Ask over many connections at once for a time; sends back the time of each request in ms."""
    end = time.perf_counter() + seconds
    taken: list[list[float]] = [[] for _ in range(connections)]

    def client(number: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (began := time.perf_counter()) < end:
                ask(connection, request)
                taken[number].append(1000 * (time.perf_counter() - began))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times.send([one for each in taken for one in each])


def measure(process: subprocess.Popen[str], port: int, request: bytes, connections: int, seconds: float) -> Round:
    """One round against one server."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    client = multiprocessing.Process(target=load, args=(port, request, connections, seconds, sender))
    used, began = cpu_seconds(process), time.perf_counter()
    client.start()
    sender.close()
    times = sorted(receiver.recv())
    took = time.perf_counter() - began
    client.join()
    cpu = 1000 * (cpu_seconds(process) - used) / len(times)
    return Round(len(times) / took, cpu, statistics.median(times), times[int(0.99 * len(times))])


def prepare(run: str, folder: Path) -> None:
    """The model to serve as a model file and as an ONNX file: a run's, or one as large as that of the recipe digits."""
    import arcaps
    from arcaps.training.inference import open_model
    from arcaps.training.recipes import RECIPES

    model = open_model(Path(run)) if run else arcaps.create_model("ar_capsnet", **RECIPES["digits"].options).eval()
    model.save(folder / "model.safetensors")
    arcaps.export_onnx(model, folder / "model.onnx")


def compare(run: str, rounds: int, seconds: float, connections: int) -> dict[str, list[Round]]:
    """Measure both servers in turns."""
    results: dict[str, list[Round]] = {name: [] for name in SERVERS}
    with tempfile.TemporaryDirectory() as place:
        prepare(run, Path(place))
        request = prepared_request()
        running = {name: start(kind, batch, Path(place)) for name, (kind, batch) in SERVERS.items()}
        try:
            for process, port in running.values():
                measure(process, port, request, connections, min(1.0, seconds))  # does not count
            for _ in range(rounds):
                for name, (process, port) in running.items():
                    results[name].append(measure(process, port, request, connections, seconds))
        finally:
            for process, _ in running.values():
                process.send_signal(signal.SIGINT)
                process.wait(20)
    return results


def main() -> None:
    """Print a table: the median of the rounds, and the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", default="", help="a run folder or a .safetensors file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results = compare(given.run, given.rounds, given.seconds, given.connections)
    if given.json:
        print(json.dumps({name: [one._asdict() for one in each] for name, each in results.items()}, indent=2))
        return
    print(f"{given.connections} connections, {given.rounds} rounds of {given.seconds:g} s each, medians (and rounds)")
    print("| server | requests/s | CPU ms per request | median ms | p99 ms |\n|---|---|---|---|---|")
    for name, each in results.items():
        columns = [
            f"{statistics.median(column):.{digits}f} ({', '.join(f'{one:.{digits}f}' for one in column)})"
            for column, digits in zip(zip(*each, strict=True), (0, 2, 1, 1), strict=True)
        ]
        print(f"| {name} | " + " | ".join(columns) + " |")
    ours, theirs = ([statistics.median(column) for column in zip(*each, strict=True)] for each in results.values())
    print(f"requests per second: {ours[0] / theirs[0]:.2f} times; CPU time per request: {ours[1] / theirs[1]:.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
