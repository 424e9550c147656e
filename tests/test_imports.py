"""Which way imports go: from the command line down to the functions, never back. Read from the source, not executed."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "arcaps"

FLOORS = [
    {"cli"},
    {"reports"},
    {"figures", "page", "serve", "benchmark"},
    {"analysis", "training", "export"},
    {"costs", "testing"},
    {"data", "models"},
    {"layers"},
    {"routing", "activation", "scores", "losses"},
    {"competition"},
    {"votes", "dropout"},
    {"capsules", "init", "norm", "weights"},
    {"functional", "settings", "preprocessing", "storage", "statistics", "schedule"},
    {"kernels", "fields"},
    {"compat", "image_files", "memory", "mode", "progress", "registry"},
    {"errors"},
]
"""A part of the package imports what is below it, and itself. Parts on one floor do not know each other."""
ALLOWED = {("training", "reports"): "a finished training writes its report"}


def part_of(path: Path) -> str:
    """The part of the package that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """The parts of arcaps that a file imports, anywhere in it, types aside."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):  # what is imported for type checkers alone is not executed
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module} if node.module != "arcaps" else {f"arcaps.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
    return {name.split(".")[1] for name in names if name.startswith("arcaps.")}


FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or not path.name.startswith("__"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    floor = {part: number for number, parts in enumerate(FLOORS) for part in parts}
    own = part_of(path)
    assert own in floor, f"say on which floor {own} is"
    for other in imported_parts(path) - {own}:
        if other in floor:
            assert floor[own] < floor[other] or (own, other) in ALLOWED, f"{own} imports {other}"


def test_the_tree_of_the_readme_is_in_this_order() -> None:
    tree = (ROOT.parent / "README.md").read_text().split("\narcaps/\n")[1].split("\ntests/")[0]
    parts = re.findall(r"(?:^  |\.py  )(\w+)(?:/|\.py)", tree, re.MULTILINE)
    floors = [number for part in parts for number, names in enumerate(FLOORS) if part in names]
    assert len(floors) == len(parts) > 20
    assert floors == sorted(floors)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_figures_are_drawn_by_reports_alone(path: Path) -> None:
    if part_of(path) not in ("figures", "reports"):
        assert "figures" not in imported_parts(path)
        assert "matplotlib" not in path.read_text()


def test_a_users_matplotlib_is_left_alone_and_the_parts_are_reached_from_the_package() -> None:
    script = (
        "import sys, matplotlib; before = matplotlib.get_backend(auto_select=False)\n"
        "import arcaps\n"
        "for name in 'functional testing routing models data training layers losses votes settings analysis'.split():\n"
        "    getattr(arcaps, name)\n"
        "from arcaps import Run, train\n"
        "import arcaps.reports\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert matplotlib.get_backend(auto_select=False) == before\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
