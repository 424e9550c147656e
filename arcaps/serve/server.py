"""A server process: the address that it listens on, and how it ends."""

import gc
import ipaddress
import logging
import os
import socket
from typing import Any

from arcaps.errors import ArcapsError
from arcaps.serve.limits import Limits

try:
    import uvicorn
except ModuleNotFoundError as error:
    raise ArcapsError(f"this needs the package {error.name}: pip install 'arcaps[serve]'") from None

LOG = logging.getLogger("arcaps")
KEEP_ALIVE = 5
"""Seconds that an idle connection is kept open."""
IDLE_CONNECTIONS = 512
"""Connections beyond those whose requests are under way."""
GRACE = 2
"""Seconds that requests under way have to finish when the server is stopped."""


def listen(host: str = "127.0.0.1", port: int = 8000) -> socket.socket:
    """Open the address for connections; port 0 takes a free one. Warns when other machines can reach it."""
    if not 0 <= port <= 65535:
        raise ArcapsError(f"port is {port}: give a number from 0 to 65535, such as 8000")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(address[:2], family=family, backlog=1024)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no machine can have
        given = f"cannot listen on {host} port {port}"
        raise ArcapsError(f"{given}: {reason(error)}; give another --host or --port") from None
    found = ipaddress.ip_address(listening.getsockname()[0].partition("%")[0])
    if not found.is_loopback:
        where = "on all interfaces" if found.is_unspecified else f"on {found}"
        LOG.warning(
            "warning: listening %s. Whoever can reach this machine can send images: there is no password and no "
            "encryption. For this machine only, leave out --host.",
            where,
        )
    return listening


def reason(error: OSError | UnicodeError) -> str:
    """Why an address cannot be opened, without what Python adds to it."""
    if isinstance(error, UnicodeError):
        return "this is not the name of a machine"
    if error.errno is not None and error.errno > 0:  # the numbers of name resolution are negative
        return os.strerror(error.errno)
    return error.strerror or str(error)


def url(listening: socket.socket) -> str:
    """The address of a server, as a browser on this machine takes it."""
    host, port = listening.getsockname()[:2]
    found = ipaddress.ip_address(host.partition("%")[0])
    if found.is_unspecified:
        host = "127.0.0.1" if found.version == 4 else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: Any, listening: socket.socket, *, limits: Limits | None = None) -> None:
    """Serve until Ctrl-C or SIGTERM; then finish what is under way, for two seconds at most, and return."""
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=(limits or Limits()).queue + IDLE_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
    )
    gc.freeze()  # what is loaded stays: no request, and not the end, waits for it to be searched for garbage
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn has finished, and repeats the signal
        LOG.info("stopped")
