"""Progress bars, on a terminal's stderr only."""

import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import AbstractContextManager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """The items, one by one, with a bar of how many are done. `total` is for items without a length."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from items
        return
    length = total if total is not None else len(items) if isinstance(items, Sized) else None
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(description, total=length)
        shown = time.monotonic()
        waiting = 0
        for item in items:
            yield item
            waiting += 1
            if time.monotonic() - shown > 0.1:  # an update costs more than many an item
                progress.update(task, advance=waiting)
                shown, waiting = time.monotonic(), 0


def wait(description: str) -> AbstractContextManager[object]:
    """Show a moving bar during work of unknown length."""
    return Console(stderr=True).status(description)


class Download:
    """The progress of downloads in bytes, as pooch reports it."""

    def __init__(self, description: str) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        console = Console(stderr=True)
        self.progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.task = self.progress.add_task(description)
        self.total = 0
        """Bytes of the file under way; pooch sets it."""

    def __enter__(self) -> "Download":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def update(self, count: int) -> None:
        """Add `count` bytes."""
        self.progress.update(self.task, total=self.total, advance=count)

    def reset(self) -> None:
        """Begin with another file."""
        self.progress.reset(self.task)

    def close(self) -> None:
        """End a file."""
