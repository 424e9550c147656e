"""The page: a model in one HTML file that opens by double click, without a server and without a network."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
