"""The command line: one function per command. Each imports torch inside, so that help comes at once."""

import importlib
import logging
import os
import sys
import tempfile
import traceback
from importlib.metadata import version
from pathlib import Path

import tyro

from arcaps.cli import (
    analysis,
    bench,
    compare,
    data,
    export,
    inference,
    leaderboard,
    model,
    page,
    reproduce,
    serve,
    training,
)
from arcaps.errors import ArcapsError
from arcaps.memory import keep_freed_memory

app = tyro.extras.SubcommandApp()
app.command(training.train)
app.command(training.recipes)
app.command(training.runs)
app.command(inference.evaluate)
app.command(inference.predict)
app.command(inference.ensemble)
app.command(training.sweep)
app.command(compare.compare)
app.command(leaderboard.leaderboard)
app.command(reproduce.reproduce)
app.command(analysis.analyze)
app.command(export.export)
app.command(page.page)
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
    """Run the command line. A mistake ends with one line, not a traceback; Ctrl-C too, with exit code 130."""
    keep_freed_memory()
    show_log()
    try:
        arguments = import_modules(sys.argv[1:])
        if arguments == ["--version"]:
            print(f"arcaps {version('arcaps')}")
            return
        app.cli(prog="arcaps", description=DESCRIPTION, args=arguments)
        sys.stdout.flush()
    except ArcapsError as error:
        sys.exit(f"arcaps: {error}")
    except KeyboardInterrupt:
        print("arcaps: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        sys.exit(f"arcaps: {error.filename}: {error.strerror}" if error.filename else f"arcaps: {error}")
    except MemoryError:
        sys.exit("arcaps: there is not enough memory: give a smaller --batch-size, --micro-batch or --image-size")
    except Exception as error:
        sys.exit(f"arcaps: {unexpected(error)}")


DESCRIPTION = """Capsule networks, exact and fast.

With any command, --import MODULE imports a module of your own first, for the models, routings and recipes that it
registers. arcaps --version prints the version."""


def import_modules(arguments: list[str]) -> list[str]:
    """Import the modules that `--import` names; returns the other arguments."""
    rest, modules = [], []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--import":
            modules.append(next(waiting, ""))
        elif argument.startswith("--import="):
            modules.append(argument.removeprefix("--import="))
        else:
            rest.append(argument)
    for module in modules:
        import_module(module)
    return rest


def import_module(name: str) -> None:
    """Import a user's module, by its name or by its file."""
    if not name or name.startswith("-"):
        raise ArcapsError(f"--import is {name!r}: give the name of a module, or a .py file")
    folder = str(Path.cwd())
    if name.endswith(".py"):
        folder, name = str(Path(name).parent.absolute()), Path(name).stem
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        importlib.import_module(name)
    except ArcapsError:
        raise
    except ModuleNotFoundError as error:
        raise ArcapsError(f"--import {name}: {error}: give a module that Python finds, or a .py file") from None
    except Exception as error:
        raise ArcapsError(f"--import {name}: {unexpected(error)}") from None


def unexpected(error: Exception) -> str:
    """One line about an unexpected error, and the file that holds its traceback."""
    text = "".join(traceback.format_exception(error))
    what = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="arcaps-error-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(f"arcaps {version('arcaps')}\n{' '.join(sys.argv)}\n\n{text}")
    except OSError:
        return what
    return f"{what} (this is a mistake in arcaps; the details are in {file.name}: please report them)"
