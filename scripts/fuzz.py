"""Try random and damaged inputs for as long as told: `python scripts/fuzz.py --minutes 10`.

Every target of `tests/fuzzing.py` gets the same share of the time, with new random inputs each time. An input that is
neither answered nor refused is made smaller and printed, and the script ends with 1.
"""

import logging
import sys
import time
import traceback
from pathlib import Path

import tyro
from hypothesis import HealthCheck, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fuzzing import TARGETS


def fuzz(minutes: float = 10.0, targets: tuple[str, ...] = (), examples: int = 200) -> None:
    """Fuzz.

    Args:
        minutes: How long, all targets together.
        targets: Which kinds of input; by default all.
        examples: Inputs of one target before the next has its turn.
    """
    logging.getLogger("arcaps").setLevel(logging.ERROR)
    chosen = targets or tuple(sorted(TARGETS))
    rules = settings(
        max_examples=examples, deadline=None, database=None, derandomize=False, suppress_health_check=list(HealthCheck)
    )
    start, rounds = time.monotonic(), 0
    failed: set[str] = set()
    while time.monotonic() - start < 60 * minutes and len(failed) < len(chosen):
        for name in chosen:
            if name in failed:
                continue
            target = TARGETS[name]
            try:
                seed(time.time_ns())(rules(given(target.strategy)(target.check)))()
            except Exception:
                failed.add(name)
                print(f"{name}:", file=sys.stderr)
                traceback.print_exc()
        rounds += 1
    print(f"{rounds} rounds of {examples} inputs for {', '.join(chosen)}: {', '.join(failed) or 'nothing'} found")
    sys.exit(bool(failed))


if __name__ == "__main__":
    tyro.cli(fuzz)
