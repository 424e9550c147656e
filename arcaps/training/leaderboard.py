"""The leaderboards of routings: comparisons that are defined once, so that one command makes each of them again."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arcaps.registry import unknown
from arcaps.training.compare import EQUAL_TIME, compare, compare_at_equal_time

ROUTINGS = (
    "uniform",
    "random",
    "dynamic",
    "kl",
    "inverted",
    "self_attention",
    "query_key",
    "score",
    "self",
    "variational",
    "spectral",
    "heinsen",
    "em",
)
"""All routings besides the baseline, in one network, with one score and one loss."""
OWN = (
    "ar_capsnet(routing='spectral', score='linear', loss='cross_entropy')",
    "ar_capsnet(routing='variational', score='linear', loss='cross_entropy')",
    "ar_capsnet(routing='em', score='presence', loss='spread')",
)
"""Some with the score and loss of their own authors, or the nearest that we have."""
TUNE = {"learning_rate": [3e-3, 1e-2]}
"""The trials of every row, on validation images; 1e-3 was worse than 3e-3 in all rows of mnist-2000."""


@dataclass(frozen=True)
class Leaderboard:
    """A comparison with a name: a recipe, its rows, the trials of each row, the seeds."""

    name: str
    """The name, which is also that of its recipe."""
    title: str
    rows: tuple[str, ...]
    tune: dict[str, list[Any]] = field(default_factory=lambda: dict(TUNE))
    seeds: int = 3


# the strong CNN has as many parameters as the row attention, to within 2 %
LEADERBOARDS = (
    Leaderboard(
        "mnist-2000",
        "MNIST, 2,000 training digits",
        ("dense_head", "strong_conv_net(widths=(16, 34, 68, 84))", *ROUTINGS, *OWN),
    ),
    Leaderboard(
        "affnist-10000",
        "affNIST (regenerated), trained on 10,000 shifted digits",
        ("dense_head", "strong_conv_net(widths=(16, 34, 68, 140))", *ROUTINGS),
    ),
    Leaderboard(
        "cifar10-small",
        "CIFAR-10, 10,000 training images",
        ("dense_head", "strong_conv_net(widths=(16, 38, 76, 94))", *ROUTINGS),
    ),
)


def choose_leaderboards(names: tuple[str, ...]) -> list[Leaderboard]:
    """The leaderboards of these names, or all."""
    known = {board.name: board for board in LEADERBOARDS}
    for name in names:
        if name not in known:
            raise unknown("leaderboard", name, list(known))
    return [board for board in LEADERBOARDS if not names or board.name in names]


def make_leaderboard(
    board: Leaderboard,
    *,
    folder: Path,
    records: Path,
    equal_time: bool = False,
    max_minutes: float | None = None,
    **session: Any,
) -> list[str]:
    """Train what is not done of a leaderboard, in `folder / name`; copy its records to `records / name`.

    With `equal_time` its second table, at equal time, is made from the records of the first, in subfolders
    `equal-time`. The names of trainings that failed are returned.
    """
    place, target = folder / board.name, records / board.name
    options: dict[str, Any] = {"max_minutes": max_minutes, "session": {"report": False, **session}}
    if equal_time:
        source, place, target = target, place / EQUAL_TIME, target / EQUAL_TIME
    try:
        if equal_time:
            return compare_at_equal_time(source, folder=place, **options)
        return compare(board.name, board.rows, folder=place, seeds=board.seeds, tune=board.tune, **options)
    finally:
        copy_records(place, target)


def copy_records(folder: Path, target: Path) -> None:
    """Copy what the table of a comparison is made from."""
    for path in (*folder.glob("*.json"), *folder.glob("records/*.json")):
        copy = target / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
