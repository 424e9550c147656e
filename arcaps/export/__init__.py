"""Export: a trained model as one ONNX file, and a class that answers from such a file without torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
