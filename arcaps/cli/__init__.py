"""The command line: one function per command. Each imports torch inside, so that help comes at once."""

import logging
import os
import sys

import tyro

from arcaps.cli import analysis, bench, data, export, model, reproduce, serve, training
from arcaps.errors import ArcapsError
from arcaps.memory import keep_freed_memory

app = tyro.extras.SubcommandApp()
app.command(training.train)
app.command(training.recipes)
app.command(training.evaluate)
app.command(training.predict)
app.command(training.ensemble)
app.command(training.sweep)
app.command(reproduce.reproduce)
app.command(analysis.analyze)
app.command(export.export)
app.command(serve.serve)
app.command(model.info)
app.command(bench.bench)
data_app = tyro.extras.SubcommandApp()
data_app.command(name="list")(data.list_data)
data_app.command(name="fetch")(data.fetch_data)
data_app.command(name="show")(data.show_data)
app.command(data_app, name="data", help="List, fetch and look at data sets.")


def show_log() -> None:
    """Print what the library logs to stderr, as plain lines; stdout is for results."""
    logger = logging.getLogger("arcaps")
    for handler in logger.handlers[:]:
        if handler.get_name() == "arcaps.cli":
            logger.removeHandler(handler)
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name("arcaps.cli")
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def main() -> None:
    """Run the command line. A user's mistake ends with one line, not a traceback."""
    keep_freed_memory()
    show_log()
    try:
        app.cli(prog="arcaps", description="Capsule networks, exact and fast.")
    except ArcapsError as error:
        sys.exit(f"arcaps: {error}")
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        sys.exit(f"arcaps: {error.filename}: {error.strerror}" if error.filename else f"arcaps: {error}")
