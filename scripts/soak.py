"""Train for an hour and tell whether the process grows: `python scripts/soak.py --minutes 60`.

The resident memory is sampled after each epoch. What it is after a tenth of the time is compared with the end.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tyro

import arcaps
from arcaps.training import Stopped


def resident_mb() -> float:
    """The memory that this process holds now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def soak(minutes: float = 60.0, limit: int = 500, growth: float = 0.05) -> None:
    """Soak.

    Args:
        minutes: How long to train.
        limit: Training images per epoch.
        growth: How much larger the process may be at the end, as a share.
    """
    samples: list[tuple[float, float]] = []
    start = time.monotonic()

    def sample(*_: Any) -> None:
        samples.append((time.monotonic() - start, resident_mb()))

    def on_epoch(_: Any, line: Mapping[str, Any]) -> None:
        sample()
        if len(samples) % 50 == 1:
            print(f"epoch {line['epoch']}: {samples[-1][1]:.1f} MB", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        small: dict[str, Any] = {"dim": 8, "caps": 4, "primary_dim": 8, "stem_channels": 8}
        with suppress(Stopped):
            arcaps.train(
                "digits",
                run=Path(folder) / "run",
                epochs=100_000,
                limit=limit,
                max_minutes=minutes,
                silent=True,
                on_epoch=on_epoch,
                **small,
            )
    warm = [held for when, held in samples if 0.1 <= when / (60 * minutes) < 0.2]
    end = [held for when, held in samples if when / (60 * minutes) >= 0.9]
    if not warm or not end:
        sys.exit(f"{len(samples)} epochs are too few to compare: give more --minutes or a smaller --limit")
    most = max(held for _, held in samples)
    before, after = statistics.median(warm), statistics.median(end)
    print(
        f"{len(samples)} epochs in {minutes:g} minutes: {samples[0][1]:.1f} MB after the first, {before:.1f} MB after"
    )
    print(f"a tenth of the time, {after:.1f} MB at the end ({after / before - 1:+.1%}), {most:.1f} MB at most")
    sys.exit(after > (1 + growth) * before)


if __name__ == "__main__":
    tyro.cli(soak)
