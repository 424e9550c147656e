"""What a server accepts: the one place where its limits are written down."""

from dataclasses import dataclass, fields

from arcaps.errors import ArcapsError


@dataclass(frozen=True)
class Limits:
    """Limits of a server. Together they bound the memory and the time that a request can cost."""

    max_bytes: int = 2_000_000
    """Bytes of the largest request; a larger one is refused with 413 before it is read whole."""
    max_pixels: int = 4_000_000
    """Pixels of the largest image; a larger one is refused with 422 before it is decoded."""
    batch: int = 32
    """Images that the model answers at once, at most."""
    queue: int = 256
    """Requests under way, at most; one more is refused with 503."""
    deadline: float = 5.0
    """Seconds from a request to its answer; later it is 504."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ArcapsError(f"{field.name} is {value}: give a number above 0, such as {field.default}")
