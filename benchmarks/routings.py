"""The time of each routing, alone, against its own floor of memory traffic and matrix products.

    python benchmarks/routings.py [--batch 100] [--rounds 7] [--only NAME ...] [--write]

A routing gets votes as a layer makes them (14x14 positions, 8 input and 8 output capsules, dim 16, patches of 144
elements, float32, one thread). Its forward and backward pass are timed: gradients of the capsules and, where there is
one, of the presence are ones. `attention` is timed by its function on votes too, not by the kernel that the layer
calls.

The floor is the sum of two times, both from the same run:

- Passes. A pass reads or writes a tensor as large as the votes once. Its time is a third of that of `a * b`, written
  into a tensor that is there, all three as large as the votes. A step sums the votes over inputs or elements, with
  weights that are no votes:

      forward   1 read of the votes
      backward  1 write of the votes' gradient; 1 read of it more, if another step has written to it before;
                1 read of the votes, if the weights need a gradient

  So S steps are 4 S - 1 passes, and one less for each whose weights are fixed. A tensor of the votes' size that stands
  between two products (the keys of `score`) is written and read forward, read backward, and its gradient is written
  and read: 5 passes. The input capsules, of which `self` and `heinsen` make use, are counted in the same way.
- Products. Multiply-adds of products with matrices of parameters or of input capsules, three times those of the forward
  pass, at the rate of a product of two 1024x1024 matrices. Weighted sums of votes are passes, not products.

Not in the floor: work on tensors smaller than the votes, tanh, exponentials, eigenvectors, digamma functions. One
kernel for a whole routing could keep a position's votes in the cache and make fewer passes than this floor counts.

All routings are timed once in each round, after a round that does not count. Processor time is counted, so that other
work on the machine affects it less; the ratio is the median over the rounds of time over floor, each with the pass and
the product of its own round. With `--write` the record goes to docs/records/routing_costs.json and the table to
docs/routings.md.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcaps import keep_freed_memory, list_routings
from arcaps.benchmark import alone, peak_mb
from arcaps.capsules import Routed
from arcaps.reports.results import fill_page
from arcaps.routing import Routing
from arcaps.training.run import surroundings
from arcaps.votes import votes_of_patches

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs/records/routing_costs.json"
PAGE = ROOT / "docs/routings.md"
START, END = "<!-- costs: made by benchmarks/routings.py --write -->", "<!-- end of costs -->"
SIDE, CAPS, DIM, PATCH = 14, 8, 16, 144
MATMUL_SIDE = 1024


def passes_of(steps: int, fixed: int = 0) -> int:
    """The passes of this number of steps, of which some have fixed weights."""
    return 4 * steps - 1 - fixed


@dataclass(frozen=True)
class Work:
    """What a training step of a routing must do at least."""

    passes: int
    """Over the votes."""
    input_passes: int = 0
    """Over the input capsules."""
    multiply_adds: int = 0
    """Of matrix products, for one position of one image, forward."""
    why: str = ""
    """What the passes are."""


VOTES = CAPS * CAPS * DIM
"""Elements of the votes at one position."""
INPUTS = CAPS * PATCH
"""Elements of the input capsules at one position."""
FLOORS: dict[str, Work] = {
    "attention": Work(passes_of(2), 0, CAPS * VOTES, "logits, sum"),
    "dynamic": Work(passes_of(5, 1), why="3 sums, the first with fixed weights, 2 agreements"),
    "em": Work(passes_of(5, 1), why="2 means, the first with fixed weights, 2 variances, 1 distance"),
    "heinsen": Work(
        passes_of(2),
        passes_of(2) + 5,
        INPUTS + CAPS * DIM * PATCH + CAPS * INPUTS,
        "2 sums; inputs: activity, similarity, and the predictions between two products",
    ),
    "inverted": Work(passes_of(3, 1), why="2 sums, the first with fixed weights, 1 agreement"),
    "kl": Work(passes_of(5, 1), why="3 sums, the first with fixed weights, 2 agreements"),
    "query_key": Work(passes_of(3, 1), 0, 2 * CAPS * DIM * DIM, "mean with fixed weights, logits, sum"),
    "random": Work(passes_of(1, 1), why="1 sum with fixed weights"),
    "score": Work(
        passes_of(3, 1) + 5, 0, CAPS * DIM * 16 + VOTES * 16, "mean with fixed weights, keys, sum; the keys themselves"
    ),
    "self": Work(passes_of(1), passes_of(1), CAPS * INPUTS, "1 sum; inputs: logits"),
    "self_attention": Work(passes_of(3, 1), why="2 sums, the first with fixed weights, 1 agreement"),
    "spectral": Work(
        passes_of(4) + 2, 0, 0, "power step (2), agreement with it, sum of squares; largest and Gram without gradient"
    ),
    "uniform": Work(passes_of(1, 1), why="1 sum with fixed weights"),
    "variational": Work(passes_of(8, 1), why="3 means, the first with fixed weights, 3 variances, 2 distances"),
}


class Subject:
    """A routing with votes, ready to be timed."""

    def __init__(self, name: str, votes: Tensor, patches: Tensor) -> None:
        self.routing = Routing.build(name, CAPS, CAPS, DIM, in_dim=PATCH)
        self.votes = votes
        self.given = {"inputs": patches} if "inputs" in self.routing.needs else {}

    def step(self) -> None:
        """Route, and the gradients of all that took part."""
        found = Routed(*self.routing(self.votes, **self.given))
        outputs = [tensor for tensor in (found.capsules, found.presence) if tensor is not None]
        leaves = [self.votes, *self.given.values(), *self.routing.parameters()]
        torch.autograd.grad(outputs, leaves, [torch.ones_like(output) for output in outputs])


def make_patches_and_kernels(batch: int) -> tuple[Tensor, Tensor]:
    """The input capsules, and what makes votes of them."""
    torch.manual_seed(0)
    patches = torch.randn(CAPS, batch, SIDE, SIDE, PATCH).permute(1, 2, 3, 0, 4)
    return patches.requires_grad_(), (torch.randn(CAPS, PATCH, CAPS, DIM) / PATCH).requires_grad_()


def make_votes(patches: Tensor, kernels: Tensor) -> Tensor:
    """Votes as a layer makes them."""
    return votes_of_patches(patches.detach(), kernels.detach()).requires_grad_()


def vote(patches: Tensor, kernels: Tensor, votes: Tensor) -> None:
    """Make the votes, and the gradients of patches and kernels; some gradient of the votes is given."""
    torch.autograd.grad(votes_of_patches(patches, kernels), [patches, kernels], votes.detach())


def cpu_seconds(call: Callable[[], object]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def memory_of(name: str, batch: int) -> float | None:
    """Peak MB of a process that routes twice and does nothing else."""
    torch.set_num_threads(1)
    keep_freed_memory()
    patches, kernels = make_patches_and_kernels(batch)
    subject = Subject(name, make_votes(patches, kernels), patches)
    for _ in range(2):
        subject.step()
    return peak_mb()


def measure(names: list[str], batch: int, rounds: int) -> dict[str, Any]:
    """Time everything in rounds; the record."""
    patches, kernels = make_patches_and_kernels(batch)
    votes = make_votes(patches, kernels)
    subjects = {name: Subject(name, votes, patches) for name in names}
    one, other, third = (torch.rand(votes.numel()) for _ in range(3))
    matrix = torch.rand(MATMUL_SIDE, MATMUL_SIDE)
    positions = batch * SIDE * SIDE
    seconds: dict[str, list[float]] = {name: [] for name in names}
    floors: dict[str, list[float]] = {name: [] for name in names}
    passes, rates, voting = [], [], []
    for _ in range(rounds + 1):
        passes.append(statistics.median(cpu_seconds(lambda: torch.mul(one, other, out=third)) for _ in range(3)) / 3)
        product = statistics.median(cpu_seconds(lambda: matrix @ matrix) for _ in range(3))
        rates.append(2 * MATMUL_SIDE**3 / product)
        voting.append(cpu_seconds(lambda: vote(patches, kernels, votes)))
        for name, subject in subjects.items():
            work = FLOORS[name]
            traffic = (work.passes + work.input_passes * INPUTS / VOTES) * passes[-1]
            floors[name].append(traffic + 6 * work.multiply_adds * positions / rates[-1])
            seconds[name].append(cpu_seconds(subject.step))
    around = surroundings()
    return {
        "day": date.today().isoformat(),
        "machine": around["machine"],
        "versions": around["versions"],
        "settings": {"batch": batch, "side": SIDE, "caps": CAPS, "dim": DIM, "patch": PATCH, "dtype": "float32"},
        "rounds": rounds,
        "gb_per_second": 4e-9 * votes.numel() / statistics.median(passes[1:]),
        "gflops": 1e-9 * statistics.median(rates[1:]),
        "votes_ms": 1000 * statistics.median(voting[1:]),
        "routings": {
            name: {
                "work": asdict(FLOORS[name]),
                "ms": 1000 * statistics.median(seconds[name][1:]),
                "floor_ms": 1000 * statistics.median(floors[name][1:]),
                "ratio": statistics.median(
                    took / floor for took, floor in zip(seconds[name][1:], floors[name][1:], strict=True)
                ),
                "peak_mb": alone(memory_of, name, batch),
            }
            for name in names
        },
    }


def table(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    settings, machine = record["settings"], record["machine"]
    products = 6 * VOTES * PATCH * settings["batch"] * SIDE * SIDE / (1e6 * record["gflops"])
    lines = [
        "| routing | passes over the votes | over the inputs | multiply-adds per position | floor ms | ms | ms / floor "
        "| peak MB | the passes are |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, row in record["routings"].items():
        work = row["work"]
        peak = "" if row["peak_mb"] is None else f"{row['peak_mb']:,.0f}"
        cells = [
            f"`{name}`",
            work["passes"],
            work["input_passes"],
            f"{work['multiply_adds']:,}",
            f"{row['floor_ms']:.1f}",
            f"{row['ms']:.1f}",
            f"{row['ratio']:.1f}",
            peak,
            work["why"],
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        "",
        f"`python benchmarks/routings.py --write`, {record['day']}: {machine['processor']}, 1 thread, torch "
        f"{record['versions']['torch']}, float32, batch {settings['batch']}, medians of {record['rounds']} interleaved "
        f"rounds of processor time. A pass moved {record['gb_per_second']:.0f} GB/s, products reached "
        f"{record['gflops']:.0f} GFLOP/s. The votes themselves take {record['votes_ms']:.0f} ms, forward and backward, "
        f"and their products {products:.0f} ms at that rate. Peak MB are those of a process that routes and does "
        "nothing else, the votes and torch itself included. The record is in [records/routing_costs.json]"
        "(records/routing_costs.json).",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", default=list_routings(), choices=list(FLOORS), metavar="NAME")
    parser.add_argument("--write", action="store_true", help="fill the record and the table of the docs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    record = measure(given.only, given.batch, given.rounds)
    print(table(record))
    if given.write:
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        fill_page(PAGE, table(record), start=START, end=END)


if __name__ == "__main__":
    main()
