"""What making and augmenting a batch costs beside a training step: `python benchmarks/data.py`."""

import statistics
import time
from collections.abc import Callable, Iterator

import torch

import arcaps
from arcaps.data import Batch


def median_ms(operation: Callable[[], object], repetitions: int) -> float:
    """The median time of an operation, in milliseconds, after one that does not count."""
    times = []
    for _ in range(repetitions + 1):
        start = time.perf_counter()
        operation()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[1:])


def endless(loader: arcaps.Loader) -> Iterator[Batch]:
    """Batches without end."""
    while True:
        yield from loader


def main() -> None:
    """The paper's MNIST model at its batch of 100, on the embedded digits."""
    train = arcaps.load_data("digits").train
    assert train is not None
    augmentation = arcaps.Augmentation(rotation=20.0, shift=0.1, scale=0.1, shear=0.1)
    plain = endless(arcaps.Loader(train, 100))
    augmented = endless(arcaps.Loader(train, 100, augmentation=augmentation))
    model = arcaps.create_model("ar_capsnet")
    optimiser = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9)
    images, labels, *_ = next(plain)

    def step() -> None:
        optimiser.zero_grad()
        sum(model.loss(Batch(images, labels, len(labels))).values(), torch.zeros(())).backward()
        optimiser.step()

    step_ms = median_ms(step, 10)
    print(f"{torch.get_num_threads()} threads, float32, batch of 100, medians")
    print(f"training step          {step_ms:8.1f} ms")
    for name, batches in {"batch": plain, "augmented batch": augmented}.items():
        took = median_ms(lambda batches=batches: next(batches), 100)  # type: ignore[misc]
        print(f"{name:22} {took:8.1f} ms  {took / step_ms:6.1%} of the step")


if __name__ == "__main__":
    main()
