"""Downloads from public hosts."""

import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import pooch
from requests import RequestException

from arcaps.progress import Download

PATIENCE = 5
"""Seconds for a host to answer at all."""


class SourceError(Exception):
    """One source does not have the collection. The next one may."""


def download_files(title: str, files: Mapping[str, str | None], host: str, folder: Path) -> None:
    """Download files, of which the MD5 may be known, from one host into a folder."""
    if not reachable(host):
        raise SourceError("cannot be reached")
    registry = {name: md5 and f"md5:{md5}" for name, md5 in files.items()}
    downloads = pooch.create(path=folder, base_url=host, registry=registry, retry_if_failed=1)
    pooch.get_logger().setLevel("ERROR")
    with Download(title) as bar:
        for name in files:
            try:
                downloads.fetch(name, downloader=pooch.HTTPDownloader(progressbar=bar, timeout=2 * PATIENCE))
            except (RequestException, OSError, ValueError) as error:
                raise SourceError(f"{name}: {error}") from None


def reachable(address: str) -> bool:
    """Whether the host, or the proxy that is set up for it, takes a connection within `PATIENCE` seconds."""
    parts = urlsplit(address)
    proxy = getproxies().get(parts.scheme)
    if proxy and not proxy_bypass(parts.hostname or ""):
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 80)
    answer: list[bool] = []

    def connect() -> None:
        try:
            socket.create_connection((parts.hostname or "", port), timeout=PATIENCE).close()
            answer.append(True)
        except OSError:
            answer.append(False)

    # in a thread, since a name look-up knows no time limit
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return answer == [True]
