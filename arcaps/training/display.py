"""What a run shows while it goes: a live line on a terminal, plain lines elsewhere."""

import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from arcaps.errors import ArcapsError

if TYPE_CHECKING:
    from arcaps.training.loop import Trainer


class Display:
    """Tells a person how the training goes. The silent one tells nothing."""

    def __init__(self, *, silent: bool = False, tensorboard: bool = False) -> None:
        self.silent = silent
        self.writer_class = find_writer() if tensorboard and not silent else None
        self.writer: Any = None
        self.console = Console(file=sys.stdout)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeRemainingColumn(),
        )
        live = self.console.is_terminal and not silent
        self.progress = Progress(*columns, console=self.console, transient=True) if live else None
        self.task: Any = None
        self.clock = time.monotonic()
        self.images = 0

    def __enter__(self) -> "Display":
        if self.progress is not None:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()
        if self.writer is not None:
            self.writer.close()

    def start(self, trainer: "Trainer") -> None:
        """Before the first step."""
        recipe, model = trainer.recipe, trainer.model
        if self.writer_class is not None:
            self.writer = self.writer_class(trainer.run.path / "tensorboard")
        where = f"{trainer.processes.device}, {str(trainer.options.precision).removeprefix('torch.')}"
        size = f"{model.parameter_count():,} parameters"
        self.say(f"{recipe.name}: {recipe.model} with {size} on {where}, in {trainer.run.path}")
        if trainer.step:
            self.say(f"going on after step {trainer.step:,} of {recipe.epochs * len(trainer.loader):,}")

    def say(self, text: str) -> None:
        """A line for people."""
        if not self.silent:
            self.console.print(text, highlight=False, soft_wrap=True)

    def step(self, trainer: "Trainer") -> None:
        """After each step."""
        self.images += trainer.recipe.batch_size
        if self.progress is None:
            return
        total = trainer.recipe.epochs * len(trainer.loader)
        if self.task is None:
            self.task = self.progress.add_task("", total=total, completed=trainer.step - 1)
        count = max(trainer.sums.get("images", 1), 1)
        parts = "  ".join(f"{name} {value / count:.4f}" for name, value in trainer.sums.items() if name != "images")
        speed = self.images / (time.monotonic() - self.clock)
        text = f"epoch {trainer.epoch + 1}/{trainer.recipe.epochs}  {parts}  {speed:,.0f} images/s"
        self.progress.update(self.task, description=text, completed=trainer.step)

    def epoch(self, trainer: "Trainer", line: dict[str, Any], better: bool) -> None:
        """After each epoch."""
        parts = "  ".join(f"{name} {value:.4f}" for name, value in line["losses"].items())
        left = line["seconds"] / line["epoch"] * (trainer.recipe.epochs - line["epoch"])
        speed = self.images / max(time.monotonic() - self.clock, 1e-9)
        self.say(
            f"epoch {line['epoch']:3}/{trainer.recipe.epochs}  loss {line['loss']:.4f}  {parts}  "
            f"validation error {line['validation_error']:6.2%}{' *' if better else '  '}  {speed:,.0f} images/s  "
            f"{left / 60:.1f} min left"
        )
        self.clock, self.images = time.monotonic(), 0
        if self.writer is not None:
            for name, value in {**line, **line["losses"]}.items():
                if not isinstance(value, dict):
                    self.writer.add_scalar(name, value, line["step"])


def find_writer() -> Any:
    """TensorBoard's, if it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ArcapsError("TensorBoard is not installed: pip install 'arcaps[tensorboard]'") from None
    return SummaryWriter
