"""The one exception for mistakes that a user can fix."""


class ArcapsError(ValueError):
    """A wrong value, name or file. The message names the thing, the value and the way out."""
