"""The command line: one function per command. Each imports torch inside, so that help comes at once."""

import importlib
import inspect
import io
import logging
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

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
from arcaps.cli.options import hide_empty_defaults
from arcaps.errors import ArcapsError
from arcaps.memory import NO_MEMORY, is_out_of_memory, keep_freed_memory
from arcaps.registry import unknown

COMMANDS: tuple[Callable[..., None], ...] = (
    training.train,
    training.recipes,
    training.runs,
    inference.evaluate,
    inference.predict,
    inference.ensemble,
    training.sweep,
    compare.compare,
    leaderboard.leaderboard,
    reproduce.reproduce,
    analysis.analyze,
    export.export,
    page.page,
    serve.serve,
    model.info,
    bench.bench,
)
DATA_COMMANDS: dict[str, Callable[..., None]] = {
    "list": data.list_data,
    "fetch": data.fetch_data,
    "show": data.show_data,
}
for command in (*COMMANDS, *DATA_COMMANDS.values()):
    hide_empty_defaults(command)


def make_app(chosen: str = "") -> tyro.extras.SubcommandApp:
    """The commands. The help of the chosen one is whole; of the others it is the first line, for the list of all."""
    app = tyro.extras.SubcommandApp()
    for command in COMMANDS:
        first_line = (command.__doc__ or "").partition("\n")[0]
        app.command(help=None if command.__name__ == chosen else first_line)(command)
    data_app = tyro.extras.SubcommandApp()
    for name, command in DATA_COMMANDS.items():
        data_app.command(name=name)(command)
    app.command(data_app, name="data", help="List, fetch and look at data sets.")
    return app


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


def adapt_to_terminal() -> None:
    """Print names that the terminal's encoding does not have with backslashes, and use 40 columns at least."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if shutil.get_terminal_size().columns < 40:
        os.environ["COLUMNS"] = "40"


def main() -> None:
    """Run the command line. A mistake ends with one line, not a traceback; Ctrl-C too, with exit code 130."""
    keep_freed_memory()
    adapt_to_terminal()
    show_log()
    try:
        arguments = import_modules(sys.argv[1:])
        if arguments == ["--version"]:
            print(f"arcaps {version('arcaps')}")
            return
        names = [*(command.__name__ for command in COMMANDS), "data"]
        if arguments and not arguments[0].startswith("-") and arguments[0] not in names:
            raise unknown("command", arguments[0], names)
        app = make_app(*arguments[:1])
        app.cli(prog="arcaps", description=DESCRIPTION, args=join_repeated(arguments) or ["--help"])
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
    except Exception as error:
        if not is_out_of_memory(error):
            sys.exit(f"arcaps: {unexpected(error)}")
        sys.exit(f"arcaps: {NO_MEMORY}")


DESCRIPTION = """Capsule networks, exact and fast. To begin: arcaps train digits

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


def list_options(command: Callable[..., None]) -> set[str]:
    """The options of a command that take any number of values."""
    found = set()
    for name, parameter in inspect.signature(command).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and takes_several(parameter.annotation):
            given = (getattr(one, "name", None) for one in get_args(parameter.annotation))
            found.add(next(filter(None, given), name).replace("_", "-"))
    return found


def takes_several(kind: Any) -> bool:
    """Whether a type is a tuple of any length, or one of its choices is."""
    return Ellipsis in get_args(kind) or any(map(takes_several, get_args(kind)))


def join_repeated(arguments: list[str]) -> list[str]:
    """The arguments with every option once: the values of a list option together, any other option refused twice.

    An empty argument is most often a shell variable that is not set. It is refused too.
    """
    several = next((list_options(one) for one in COMMANDS if [one.__name__] == arguments[:1]), set())
    groups: list[list[str]] = [[]]
    places: dict[str, list[str]] = {}
    for argument in arguments:
        option, _, value = argument.partition("=")
        if not argument.strip() or (argument.startswith("--") and "=" in argument and not value.strip()):
            where = option or " ".join(groups[-1][:1]) or "the command"
            raise ArcapsError(f"an argument of {where} is empty: give a value, or leave it out")
        name = option[2:].replace("_", "-").removeprefix("no-") if option.startswith("--") else ""
        if not name:
            groups[-1].append(argument)
        elif name not in places:
            groups.append([argument] if name not in several or not value else [option, value])
            places[name] = groups[-1]
        elif name in several:
            groups.append(places[name])
            groups[-1] += [value] if value else []
        else:
            raise ArcapsError(f"{option} is given twice: give it once")
    kept = [group for number, group in enumerate(groups) if not any(group is other for other in groups[:number])]
    return [argument for group in kept for argument in group]


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
