"""Files of a benchmark: its numbers and a bar chart."""

import json
from pathlib import Path

from arcaps import figures
from arcaps.benchmark import Benchmark
from arcaps.storage import write_whole


def save_benchmark(result: Benchmark, folder: Path) -> None:
    """Write `bench.json` and `bench.png` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "bench.json", (json.dumps(result.as_dict(), indent=2) + "\n").encode())
    figures.save(figures.bench_chart(result.as_dict()["timings"], caption(result)), folder / "bench.png")


def caption(result: Benchmark) -> str:
    """Say where and how it was measured."""
    machine = result.machine
    rates = ", ".join(f"{rate:,.0f} GFLOP/s in {name}" for name, rate in result.gflops.items())
    return (
        f"{machine['processor']}, {machine['threads']} threads, torch {result.versions['torch']}, {result.day}; "
        f"medians over {result.rounds} interleaved rounds; matrix products: {rates} at best, by the median "
        f"{result.median_gflops:,.0f} in float32"
    )
