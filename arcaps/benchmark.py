"""How fast the models are on this machine's processor, as multiples of the matrix products that they are made of.

The floor of an operation is the time its multiply-adds would take as plain float32 matrix products, at the best rate
seen in the same run. Machines are noisy: everything is timed in rounds, one after the other, so that a slow minute
affects all alike, and both medians and minima are given. A matrix product itself is slower by the median than at its
best, so each round of an operation is also compared with the products made just before it.
"""

import logging
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcaps.costs import info
from arcaps.data import Batch
from arcaps.errors import ArcapsError
from arcaps.memory import keep_freed_memory
from arcaps.models import Classifier, create_model
from arcaps.training.evaluate import choose_precision
from arcaps.training.run import surroundings

SHAPES: dict[str, dict[str, Any]] = {
    "mnist": {"image_size": (28, 28), "channels": 1},
    "cifar10": {"image_size": (32, 32), "channels": 3},
}
logger = logging.getLogger("arcaps")
PAPER_OPTIONS: dict[tuple[str, str], dict[str, Any]] = {("ar_capsnet", "cifar10"): {"layers": 4}}
CPU = torch.device("cpu")
MATMUL_SIDE = 2048
ROUND_SECONDS = 1.0
"""An operation is repeated for this time in each round: the first time pays for what others left in the caches."""


@dataclass(frozen=True)
class Timing:
    """One operation of one model: how long it took, and how many times its floor."""

    model: str
    data: str
    precision: str
    operation: str
    """"training step", "forward" (a batch), or "latency" (one image)."""
    batch_size: int
    median_ms: float
    minimum_ms: float
    images_per_second: float
    times_floor: float
    """The median, as a multiple of the floor at the best rate of the run."""
    times_recent_floor: float
    """The same with each round's own rate, measured just before: the median over the rounds."""
    peak_mb: float | None
    """The most memory of a process that does nothing else, itself included; None where the system does not tell."""


@dataclass(frozen=True)
class Growth:
    """A training step of AR CapsNet in a process of its own, with one setting changed."""

    setting: str
    value: str
    batch_size: int
    million_multiply_adds: float
    """The multiply-adds of one image in a forward pass."""
    step_ms: float
    ms_per_image: float
    times_floor: float
    peak_mb: float | None


@dataclass(frozen=True)
class Benchmark:
    """The results of one run of the benchmark."""

    day: str
    machine: dict[str, Any]
    versions: dict[str, str]
    rounds: int
    gflops: dict[str, float]
    """The best rate of matrix products, by number format."""
    median_gflops: float
    """Of float32 products, the better of two each time: how far the machine keeps to its best rate."""
    notes: list[str]
    growth_steps: int
    """Training steps of each setting in the growth table."""
    timings: list[Timing] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    ratios: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def seconds(operation: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    operation()
    return time.perf_counter() - began


def repeated(operation: Callable[[], object]) -> list[float]:
    """Seconds of each call, repeated for about a second, at least once."""
    taken = [seconds(operation)]
    while sum(taken) < ROUND_SECONDS:
        taken.append(seconds(operation))
    return taken


def matmul_seconds(dtype: torch.dtype) -> float:
    """Seconds of a product of square matrices, the shorter of two."""
    left = torch.rand(MATMUL_SIDE, MATMUL_SIDE, dtype=dtype)
    return min(seconds(lambda: left @ left) for _ in range(2))


class Subject:
    """A model with images, ready to be timed."""

    def __init__(self, name: str, options: dict[str, Any], batch_size: int, precision: torch.dtype) -> None:
        torch.manual_seed(0)
        self.name, self.options, self.batch_size, self.precision = name, options, batch_size, precision
        self.model: Classifier = create_model(name, **options)
        self.for_inference = self.model.for_inference()
        self.optimiser = torch.optim.RMSprop(self.model.parameters(), lr=1e-4, alpha=0.9)
        self.images = torch.rand(batch_size, self.model.channels, *self.model.image_size)
        self.labels = torch.arange(batch_size) % self.model.classes

    def autocast(self) -> torch.autocast:
        """The number format under test."""
        return torch.autocast("cpu", self.precision, enabled=self.precision != torch.float32)

    def step(self) -> None:
        """A training step with RMSprop, as in the paper."""
        self.optimiser.zero_grad()
        with self.autocast():
            losses = self.model.loss(Batch(self.images, self.labels, len(self.labels)))
        sum(losses.values(), torch.zeros(())).backward()
        self.optimiser.step()

    @torch.inference_mode()
    def answer(self, images: Tensor) -> None:
        """The model's answer, after BatchNorm was folded."""
        with self.autocast():
            self.for_inference(images)

    def operations(self) -> dict[str, tuple[Callable[[], None], int, int]]:
        """By name: the operation, its images, and the forward passes that it counts as."""
        return {
            "training step": (self.step, self.batch_size, 3),
            "forward": (partial(self.answer, self.images), self.batch_size, 1),
            "latency": (partial(self.answer, self.images[:1]), 1, 1),
        }


def peak_mb() -> float | None:
    """The peak memory of this process, in MB; None where the system does not tell."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1000


def peaks(name: str, options: dict[str, Any], batch_size: int, precision: torch.dtype) -> dict[str, float | None]:
    """Peak memory in MB after each kind of operation, the smallest first. Call it in a new process."""
    keep_freed_memory()
    subject = Subject(name, options, batch_size, precision)
    found = {}
    for operation in ("latency", "forward", "training step"):
        for _ in range(2):
            subject.operations()[operation][0]()
        found[operation] = peak_mb()
    return found


def step_alone(
    options: dict[str, Any], batch_size: int, rounds: int, threads: int
) -> tuple[float, float, float | None]:
    """Median seconds of a training step of AR CapsNet, best seconds of a matrix product, and the most memory."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    subject = Subject("ar_capsnet", options, batch_size, torch.float32)
    subject.step()
    floor, steps = [matmul_seconds(torch.float32)], []
    for _ in range(rounds):
        steps.append(seconds(subject.step))
        floor.append(matmul_seconds(torch.float32))
    return statistics.median(steps), min(floor), peak_mb()


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process, so that its memory is its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def computes_in_bfloat16() -> bool:
    """Whether the processor has instructions for bfloat16: AVX-512 BF16, AMX or those of Arm."""
    return any("bf16" in name and there is True for name, there in torch.cpu.get_capabilities().items())


def gflops(took: float) -> float:
    """The GFLOP/s of a product of square matrices that took this number of seconds."""
    return 2 * MATMUL_SIDE**3 / took / 1e9


def multiply_adds(name: str, options: dict[str, Any]) -> int:
    """The multiply-adds of one image in a forward pass."""
    with torch.device("meta"):
        return info(create_model(name, **options), batch_size=1).multiply_adds


def bench(
    models: tuple[str, ...] = ("ar_capsnet", "capsule_net", "conv_net", "strong_conv_net"),
    data: tuple[str, ...] = ("mnist", "cifar10"),
    *,
    rounds: int = 7,
    batch_size: int = 100,
    precisions: tuple[str, ...] | None = None,
    growth: bool = False,
) -> Benchmark:
    """Time training steps, batches and single images; with `growth` also how time and memory grow with the settings.

    By default bfloat16 is timed only where the processor computes in it.
    """
    for name in data:
        if name not in SHAPES:
            raise ArcapsError(f"unknown data {name!r}: there are {', '.join(SHAPES)}")
    for name, value in {"rounds": rounds, "batch size": batch_size}.items():
        if value < 1:
            raise ArcapsError(f"{name} is {value}: give at least 1")
    keep_freed_memory()
    notes = []
    if precisions is None:
        has_it = computes_in_bfloat16()
        precisions = ("float32", "bfloat16") if has_it else ("float32",)
        if not has_it:
            notes.append("bfloat16 was not timed: this processor does not compute in it")
    dtypes = {name: choose_precision(name, CPU) for name in precisions}
    subjects = {
        (model, where, precision): Subject(
            model, {**SHAPES[where], **PAPER_OPTIONS.get((model, where), {})}, batch_size, dtype
        )
        for model, where, (precision, dtype) in product(models, data, dtypes.items())
    }
    products: dict[str, list[float]] = {name: [] for name in {"float32": 0, **dtypes}}
    times: dict[tuple[str, str, str, str], list[tuple[float, list[float]]]] = {}
    for number in range(rounds + 1):
        logger.info(f"round {number} of {rounds}" if number else "warming up")
        for name, taken in products.items():
            taken.append(matmul_seconds(choose_precision(name, CPU)))
        for key, subject in subjects.items():
            for operation, (call, *_) in subject.operations().items():
                products["float32"].append(matmul_seconds(torch.float32))
                times.setdefault((*key, operation), []).append((products["float32"][-1], repeated(call)))
    rates = {name: gflops(min(taken)) for name, taken in products.items()}
    timings = []
    for key, subject in subjects.items():
        model, where, precision = key
        logger.info(f"memory of {model} on {where} in {precision}")
        memory = alone(peaks, subject.name, subject.options, batch_size, subject.precision)
        for operation, (_, images, passes) in subject.operations().items():
            counted = times[(*key, operation)][1:]
            median = statistics.median(taken for _, round_times in counted for taken in round_times)
            work = 2e-9 * multiply_adds(subject.name, subject.options) * passes * images
            timings.append(
                Timing(
                    model=model,
                    data=where,
                    precision=precision,
                    operation=operation,
                    batch_size=images,
                    median_ms=1000 * median,
                    minimum_ms=1000 * min(min(round_times) for _, round_times in counted),
                    images_per_second=images / median,
                    times_floor=median / (work / rates["float32"]),
                    times_recent_floor=statistics.median(
                        statistics.median(round_times) / (work / gflops(then)) for then, round_times in counted
                    ),
                    peak_mb=memory[operation],
                )
            )
    growth_steps = max(3, rounds // 2)
    around = surroundings()
    processor = f"{around['machine']['processor']}, {torch.backends.cpu.get_cpu_capability()}"
    return Benchmark(
        day=date.today().isoformat(),
        machine={**around["machine"], "processor": processor},
        versions=around["versions"],
        rounds=rounds,
        gflops=rates,
        median_gflops=gflops(statistics.median(products["float32"])),
        notes=notes,
        growth_steps=growth_steps,
        timings=timings,
        growth=measure_growth(growth_steps) if growth else [],
        ratios=compare(subjects, timings),
    )


def compare(subjects: dict[tuple[str, str, str], Subject], timings: list[Timing]) -> list[dict[str, Any]]:
    """CapsuleNet over AR CapsNet: times, parameters and multiply-adds, where both were timed."""
    found = []
    for (model, where, precision), ours in subjects.items():
        theirs = subjects.get(("capsule_net", where, precision))
        if model != "ar_capsnet" or theirs is None:
            continue
        median = {
            (timing.model, timing.operation): timing.median_ms
            for timing in timings
            if (timing.data, timing.precision) == (where, precision)
        }
        found.append(
            {
                "data": where,
                "precision": precision,
                **{
                    operation: median["capsule_net", operation] / median["ar_capsnet", operation]
                    for operation in ours.operations()
                },
                "parameters": theirs.model.parameter_count() / ours.model.parameter_count(),
                "multiply_adds": multiply_adds(theirs.name, theirs.options) / multiply_adds(ours.name, ours.options),
            }
        )
    return found


def growth_settings() -> list[tuple[str, str, dict[str, Any], int]]:
    """(what is varied, its value, the model's options, the batch): all else is the paper's MNIST network."""
    sizes = {28: (2,), 64: (2, 2), 128: (2, 2, 2)}  # as many strided layers as bring the class layer down to 8x8
    large = {"image_size": 128, "channels": 3, "classes": 100, "layers": 3, "strides": (2, 2, 2)}
    return [
        *(
            ("image size", f"{side}x{side}", {"image_size": side, "layers": len(strides), "strides": strides}, 100)
            for side, strides in sizes.items()
        ),
        *(("classes", str(count), {"classes": count}, 100) for count in (10, 100)),
        *(("conv caps layers", str(count), {"layers": count}, 100) for count in range(9)),
        *(("batch", str(count), {}, count) for count in (1, 10, 50, 100, 200, 500)),
        ("128x128x3, 100 classes", "votes kept", large, 100),
        ("128x128x3, 100 classes", "10 at once", {**large, "images_at_once": 10}, 100),
    ]


def measure_growth(rounds: int) -> list[Growth]:
    """Each setting in a process of its own."""
    rows = []
    for setting, value, options, batch_size in growth_settings():
        logger.info(f"growth: {setting} {value}")
        took, best_product, memory = alone(step_alone, options, batch_size, rounds, torch.get_num_threads())
        work = multiply_adds("ar_capsnet", options)
        rows.append(
            Growth(
                setting=setting,
                value=value,
                batch_size=batch_size,
                million_multiply_adds=work / 1e6,
                step_ms=1000 * took,
                ms_per_image=1000 * took / batch_size,
                times_floor=took / (6e-9 * work * batch_size / gflops(best_product)),
                peak_mb=memory,
            )
        )
    return rows
