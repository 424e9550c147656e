"""arcaps: capsule networks, exact and fast. The public names are in `__init__.pyi`, each imported on first use."""

from importlib.metadata import version

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = version("arcaps")
