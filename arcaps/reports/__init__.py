"""Reports: Markdown and figures from records. `write_report` for a training, `analyze_run` for experiments.

Names are imported on first use, so that matplotlib is loaded only where a report is written.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
