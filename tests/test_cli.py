"""The command line, called as a user calls it."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import arcaps
from arcaps import Run, create_model
from arcaps.cli import COMMANDS, join_repeated, main
from arcaps.training.recipes import RECIPES, find_recipe


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["arcaps", *arguments])
    main()


@pytest.mark.parametrize("arguments", [[], ["info"]])
def test_help_needs_no_torch(arguments: list[str]) -> None:
    code = f"import sys; sys.argv = ['arcaps', *{arguments}, '--help']\nimport arcaps.cli\n"
    code += "try:\n    arcaps.cli.main()\nexcept SystemExit as end:\n    assert not end.code\n"
    code += "assert 'torch' not in sys.modules and 'numpy' not in sys.modules, 'slow imports'"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "usage: arcaps" in result.stdout


@pytest.mark.parametrize(
    ("encoding", "name", "shown"),
    [
        ("ascii", "é漢.png", r"\xe9\u6f22.png"),
        ("utf-8", "é漢.png", "é漢.png"),
        ("utf-8", "a\udcff.png", r"a\udcff.png"),
    ],
)
def test_names_that_the_terminal_cannot_show(encoding: str, name: str, shown: str, tmp_path: Path) -> None:
    Image.new("L", (28, 28), 3).save(tmp_path / "plain.png")
    (tmp_path / "plain.png").rename(tmp_path / name)
    command = [
        sys.executable,
        "-m",
        "arcaps",
        "predict",
        "digits",
        str(tmp_path / name),
        "--csv",
        str(tmp_path / "a.csv"),
    ]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1", "COLUMNS": "1"}
    ended = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert shown in ended.stdout.decode(encoding)
    assert os.fsencode(name) in (tmp_path / "a.csv").read_bytes()


def test_help_in_a_narrow_terminal() -> None:
    environment = {**os.environ, "COLUMNS": "1"}
    command = [sys.executable, "-m", "arcaps", "train", "--help"]
    subprocess.run(command, capture_output=True, env=environment, check=True, timeout=60)


def test_help_of_all_commands_and_of_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch)
    assert not ended.value.code
    alone = capsys.readouterr().out
    assert "Predict the class of image files" in alone
    assert "the exit code is then 1" not in alone
    with pytest.raises(SystemExit):
        run(monkeypatch, "predict", "--help")
    assert "the exit code is then 1" in capsys.readouterr().out


@pytest.mark.parametrize("command", [*(one.__name__ for one in COMMANDS), "data list", "data fetch", "data show"])
def test_help_says_nothing_of_empty_defaults(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        run(monkeypatch, *command.split(), "--help")
    printed = capsys.readouterr().out
    for word in ("None", "(default: )", "(default: '')", "(default: False)", "(unset by default)"):
        assert word not in printed


def test_python_dash_m() -> None:
    result = subprocess.run([sys.executable, "-m", "arcaps", "--help"], capture_output=True, text=True, check=True)
    assert "info" in result.stdout


@pytest.mark.parametrize(
    ("given", "joined"),
    [
        ("train digits --set dim=4 --set caps=2", "train digits --set dim=4 caps=2"),
        (
            "train digits --set=dim=4 --epochs 3 --set caps=2 layers=1",
            "train digits --set dim=4 caps=2 layers=1 --epochs 3",
        ),
        ("sweep digits --grid dim=4 --grid caps=2", "sweep digits --grid dim=4 caps=2"),
        ("analyze run perturb --with a --dims 1 --with b --dims 2", "analyze run perturb --with a b --dims 1 2"),
        ("compare digits --rows em --rows uniform", "compare digits --rows em uniform"),
        ("reproduce --only mnist --only digits", "reproduce --only mnist digits"),
        ("train digits --epochs 3 --no-report", "train digits --epochs 3 --no-report"),
    ],
)
def test_every_value_of_a_repeated_list_option_counts(given: str, joined: str) -> None:
    assert join_repeated(given.split()) == joined.split()


def test_info_for_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run(monkeypatch, "info", "ar_capsnet")
    narrow = capsys.readouterr().out
    assert "5,312,528 trainable, 5,312,784 with BatchNorm statistics" in narrow
    assert "7x7x8x32" in narrow
    assert "…" not in narrow
    monkeypatch.setenv("COLUMNS", "160")
    run(monkeypatch, "info", "ar_capsnet")
    assert "ConvCaps(8x16 -> 8x32, 3x3/2, attention, capsule, dropout 0.5)" in capsys.readouterr().out


def test_info_for_machines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--image-size 32 32 --channels 3 --classes 7 --layers 4 --dim 16 --batch-size 50 --json"
    run(monkeypatch, "info", "ar_capsnet", *options.split())
    found = json.loads(capsys.readouterr().out)
    assert found["batch_size"] == 50
    assert found["config"]["image_size"] == [32, 32]
    assert [found["config"][name] for name in ("channels", "classes", "layers", "dim")] == [3, 7, 4, 16]
    assert found["layers"][-2]["output_shape"] == [50, 7, 16]


def test_info_of_a_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "model.safetensors")
    create_model("ar_capsnet", image_size=12, caps=3, dim=4, classes=5).save(path)
    run(monkeypatch, "info", path, "--json")
    assert json.loads(capsys.readouterr().out)["config"]["classes"] == 5
    with pytest.raises(SystemExit, match="already fixes the architecture: leave out --layers"):
        run(monkeypatch, "info", path, "--layers", "2")
    run(monkeypatch, "info", "digits", "--json")
    assert json.loads(capsys.readouterr().out)["model"] == "ar_capsnet"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ar_capnet"], "arcaps: unknown model 'ar_capnet': did you mean 'ar_capsnet'"),
        (["capsule_net", "--layers", "2"], "arcaps: model 'capsule_net' has no option 'layers'"),
        (
            ["ar_capsnet", "--image-size", "5", "5"],
            "arcaps: image_size 5x5 is too small for 2 strided layers: give at least 8x8",
        ),
        (["ar_capsnet", "--routing", "dynamic(iters=2)"], "arcaps: routing 'dynamic' has no option 'iters'"),
        (["ar_capsnet", "--batch-size", "0"], "arcaps: batch_size is 0: give at least 1"),
        (["none.safetensors"], "arcaps: none.safetensors is not a run folder: there is no such file"),
    ],
)
def test_mistakes_end_with_one_line(monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, "info", *arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_data_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    run(monkeypatch, "data", "list", "--data-dir", str(tmp_path))
    printed = capsys.readouterr().out
    assert f"data directory: {tmp_path}" in printed
    for name in ("digits", "affNIST (regenerated)", "mnist", "fashion-mnist", "cifar10", "not fetched yet"):
        assert name in printed


def test_data_fetch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "data", "fetch", "digits")
    assert capsys.readouterr().out == "digits: in the package\n"
    with pytest.raises(SystemExit, match="unknown data set 'mnits': did you mean 'mnist'"):
        run(monkeypatch, "data", "fetch", "digits", "mnits")


def test_data_show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    run(
        monkeypatch,
        "data",
        "show",
        "digits",
        "--out",
        str(sheet),
        "--part",
        "test",
        "--rotation",
        "20",
        "--count",
        "12",
    )
    assert capsys.readouterr().out == f"{sheet}: 12 of 1,000 images of digits, test\n"
    with Image.open(sheet) as image:
        assert image.size[0] > 400
    run(monkeypatch, "data", "show", "digits", "--out", str(sheet), "--count", "1", "--image-size", "50")  # a square
    with pytest.raises(SystemExit, match="digits has no validation part: there are train, test"):
        run(monkeypatch, "data", "show", "digits", "--part", "validation")


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "--version")
    assert capsys.readouterr().out == f"arcaps {arcaps.__version__}\n"


def test_a_module_of_a_user_registers_what_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = """
    from dataclasses import replace
    from arcaps.training import find_recipe, register_recipe
    register_recipe(replace(find_recipe("digits"), name="mine", about="a recipe of a user"))
    """
    (tmp_path / "my_recipes.py").write_text(textwrap.dedent(code))
    monkeypatch.chdir(tmp_path)
    try:
        run(monkeypatch, "recipes", "--import", "my_recipes", "--json")
        assert json.loads(capsys.readouterr().out)["mine"]["about"] == "a recipe of a user"
    finally:
        RECIPES.pop("mine", None)
    (tmp_path / "broken_module.py").write_text("1 / 0")
    with pytest.raises(SystemExit, match=r"--import broken_module: ZeroDivisionError"):
        run(monkeypatch, "recipes", f"--import={tmp_path / 'broken_module.py'}")


def test_an_error_that_nobody_foresaw_is_one_line_and_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("arcaps.costs.info", fail)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "info", "ar_capsnet")
    message = str(ended.value)
    assert "\n" not in message
    assert message.startswith("arcaps: KeyError: 'surprise' (this is a mistake in arcaps; the details are in ")
    file = Path(message.split("details are in ")[1].split(": please")[0])
    assert "Traceback" in file.read_text()
    file.unlink()


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("arcaps.costs.info", interrupt)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "info", "ar_capsnet")
    assert ended.value.code == 130
    assert capsys.readouterr().err == "arcaps: interrupted\n"


def test_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small: dict[str, Any] = {"dim": 4, "caps": 2, "primary_dim": 4, "stem_channels": 4, "limit": 50}
    arcaps.train("digits", run=tmp_path / "one", epochs=1, silent=True, report=False, **small)
    Run.create(tmp_path / "two", find_recipe("digits", epochs=3), {})
    run(monkeypatch, "runs", str(tmp_path), "--json")
    rows = json.loads(capsys.readouterr().out)
    assert [(row["status"], row["epochs_done"], row["epochs"]) for row in rows] == [
        ("finished", 1, 1),
        ("stopped", 0, 3),
    ]
    run(monkeypatch, "runs", str(tmp_path))
    assert "stopped" in capsys.readouterr().out.splitlines()[1]


@pytest.mark.parametrize("given", [("--seeds", "3"), ("--rows", "em"), ("--dim", "8")])
def test_a_comparison_at_equal_time_takes_everything_from_the_first(
    given: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=r"takes rows, seeds and settings from the comparison in .*: leave them out"):
        run(monkeypatch, "compare", "digits", "--folder", str(tmp_path), "--equal-time", *given)


def test_runs_of_another_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    run_of_other = Run.create(tmp_path / "other", find_recipe("digits", epochs=3), {})
    with run_of_other.lock():
        run(monkeypatch, "runs", str(tmp_path))
    assert "running" in capsys.readouterr().out
    monkeypatch.setattr("filelock.FileLock._acquire", refuse)  # as for a .lock that this user may not write
    run(monkeypatch, "runs", str(tmp_path))
    assert "unknown" in capsys.readouterr().out
