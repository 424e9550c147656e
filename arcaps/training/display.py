"""What a run shows while it goes: log lines, and a live line on a terminal. Each is a hook of the training loop."""

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from arcaps.errors import ArcapsError

if TYPE_CHECKING:
    from arcaps.training.loop import Trainer

logger = logging.getLogger("arcaps")
SECONDS_BETWEEN_LINES = 30.0


class Display:
    """Logs a line per epoch; within an epoch, a live line on a terminal, and a log line every half minute elsewhere."""

    def __init__(self, *, live: bool = True) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeRemainingColumn(),
        )
        live = live and console.is_terminal and logger.isEnabledFor(logging.INFO)
        self.progress = Progress(*columns, console=console, transient=True) if live else None
        self.task: Any = None
        self.clock = self.said = time.monotonic()
        self.images = 0

    def __enter__(self) -> "Display":
        if self.progress is not None:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()

    def on_start(self, trainer: "Trainer") -> None:
        """Before the first step."""
        recipe, model = trainer.recipe, trainer.model
        where = f"{trainer.processes.device}, {str(trainer.session.precision).removeprefix('torch.')}"
        size = f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"
        logger.info("%s: %s with %s on %s, in %s", recipe.name, recipe.model, size, where, trainer.run.path)
        if trainer.step:
            logger.info("resuming after step %s of %s", f"{trainer.step:,}", f"{trainer.total_steps:,}")
        self.clock = self.said = time.monotonic()

    def on_step(self, trainer: "Trainer") -> None:
        """After each step."""
        self.images += min(trainer.recipe.batch_size, len(trainer.splits.train))
        now = time.monotonic()
        if self.progress is None and now - self.said < SECONDS_BETWEEN_LINES:
            return
        count = max(trainer.sums.get("images", 1), 1)
        parts = "  ".join(f"{name} {value / count:.4f}" for name, value in trainer.sums.items() if name != "images")
        speed = self.images / max(now - self.clock, 1e-9)
        text = f"epoch {trainer.epoch + 1}/{trainer.recipe.epochs}  {parts}  {speed:,.0f} images/s"
        if self.progress is None:
            logger.info("%s  step %s of %s", text, f"{trainer.step:,}", f"{trainer.total_steps:,}")
            self.said = now
            return
        if self.task is None:
            self.task = self.progress.add_task("", total=trainer.total_steps, completed=trainer.step - 1)
        self.progress.update(self.task, description=text, completed=trainer.step)

    def on_epoch(self, trainer: "Trainer", line: Mapping[str, Any]) -> None:
        """After each epoch."""
        parts = "  ".join(f"{name} {value:.4f}" for name, value in line["losses"].items())
        left = line["seconds"] / line["epoch"] * (trainer.recipe.epochs - line["epoch"])
        speed = self.images / max(time.monotonic() - self.clock, 1e-9)
        best = " *" if trainer.best["validation"]["epoch"] == line["epoch"] else "  "
        logger.info(
            f"epoch {line['epoch']:3}/{trainer.recipe.epochs}  loss {line['loss']:.4f}  {parts}  "
            f"validation error {line['validation_error']:6.2%}{best}  {speed:,.0f} images/s  {left / 60:.1f} min left"
        )
        self.clock = self.said = time.monotonic()
        self.images = 0


class TensorBoard:
    """Writes the numbers of each epoch for TensorBoard."""

    def __init__(self) -> None:
        self.writer_class = find_writer()
        self.writer: Any = None

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()

    def on_epoch(self, trainer: "Trainer", line: Mapping[str, Any]) -> None:
        """After each epoch."""
        if self.writer is None:
            self.writer = self.writer_class(trainer.run.path / "tensorboard")
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
