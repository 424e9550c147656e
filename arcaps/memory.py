"""Memory: the allocator, set up for tensors that come and go with every step; and how much there is."""

import ctypes
import os
import sys
from pathlib import Path

from arcaps.errors import ArcapsError

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""The numbers that glibc's malloc.h gives to the settings of mallopt."""


def keep_freed_memory() -> bool:
    """Keep memory that a tensor gave back for the next tensor, instead of returning it to the system.

    As it comes, the C library returns each block above 32 MB at once, and the next step pays for having it cleared and
    mapped again, page by page: a third of the time of a training step on a CPU. The process then stays as large as it
    ever was. Training, evaluation and the benchmarks call this; a loop of your own gains by it too. It is for glibc
    (most of Linux); elsewhere it does nothing and answers False.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(MMAP_THRESHOLD, 2**30)) and bool(mallopt(TRIM_THRESHOLD, -1))


SYSTEM = Path("/proc/meminfo")
CONTROL = Path("/sys/fs/cgroup")
CONTROL_FILES = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
"""The files of a container's limit, its use and the parts of its use, in both versions of Linux's control groups."""


def file_cache(statistics: Path) -> int:
    """The bytes of a container's use that hold parts of files not read lately: the system gives them back on demand."""
    try:
        rows = dict(line.split() for line in statistics.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(rows.get("total_inactive_file", rows.get("inactive_file", 0)))


def available_memory() -> int | None:
    """Bytes that this process can still use, by the system and by its container's limit; None where it is unknown."""
    found = []
    try:
        lines = SYSTEM.read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
    except (OSError, ValueError, IndexError):
        if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):  # there are none on Windows
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit, used, cache in CONTROL_FILES:
        try:
            bytes_used = int((CONTROL / used).read_text()) - file_cache(CONTROL / cache)
            found.append(int((CONTROL / limit).read_text()) - bytes_used)
        except (OSError, ValueError):  # no such file, or no limit
            continue
    return max(0, min(found)) if found else None


def require_memory(needed: int, what: str, way_out: str) -> None:
    """Refuse what would not fit into memory, before any of it is taken."""
    there = available_memory()
    if there is not None and needed > there:
        raise ArcapsError(f"{what} need {needed / 1e9:,.1f} GB, and {there / 1e9:,.1f} GB are free: {way_out}")


NO_MEMORY = "there is not enough memory: give a smaller --batch-size, --micro-batch, --image-size or network"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory could not be had; torch has several of them."""
    text = str(error)
    return isinstance(error, MemoryError) or "can't allocate memory" in text or "out of memory" in text
