"""Serving: a model behind an HTTP interface, with the page that shows it. `docs/serving.md` says how to use it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
