"""The memory allocator, set up for tensors that come and go with every step."""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""The numbers that glibc's malloc.h gives to the settings of mallopt."""


def keep_freed_memory() -> bool:
    """Keep memory that a tensor gave back for the next tensor, instead of returning it to the system.

    As it comes, the C library returns each block above 32 MB at once, and the next step pays for having it cleared and
    mapped anew, page by page: a third of the time of a training step on a CPU. The process then stays as large as it
    ever was. Training, evaluation and the benchmarks call this; a loop of your own gains by it too. It is for glibc
    (most of Linux); elsewhere it does nothing and answers False.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(MMAP_THRESHOLD, 2**30)) and bool(mallopt(TRIM_THRESHOLD, -1))
