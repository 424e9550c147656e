"""A server whose model takes its time: `python -m tests.serve.worker MODEL SECONDS LIMITS`."""

import json
import sys
import time
from typing import Any

from numpy.typing import NDArray

from arcaps.export import Exported
from arcaps.export.session import Array
from arcaps.serve import Limits, create_app, listen, run
from arcaps.serve.server import url


class Slow(Exported):
    """An exported model that sleeps before it answers."""

    seconds = 0.0

    def run(self, images: NDArray[Any]) -> dict[str, Array]:
        time.sleep(Slow.seconds)
        return super().run(images)


if __name__ == "__main__":
    model, seconds, limits = sys.argv[1], float(sys.argv[2]), Limits(**json.loads(sys.argv[3]))
    slow = Slow.open(model, threads=1)
    app = create_app(slow, limits=limits)
    Slow.seconds = seconds
    with listen("127.0.0.1", 0) as listening:
        print(url(listening), flush=True)
        run(app, listening, limits=limits)
