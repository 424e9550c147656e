"""The one exception for mistakes that a user can fix, and how its messages list names."""

from collections.abc import Iterable


class ArcapsError(ValueError):
    """A wrong value, name or file. The message names the thing, the value and the way out."""


def listed(names: Iterable[object], most: int = 5) -> str:
    """The first few of some names, and how many there are besides."""
    every = [str(name) for name in names]
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
