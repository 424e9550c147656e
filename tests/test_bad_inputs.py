"""One table of wrong inputs. Each ends with one line that names the thing and the way out, not with a traceback."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import arcaps
from arcaps import ArcapsError, Augmentation, Dataset, Run
from arcaps.cli import main
from arcaps.training.loop import Trainer
from arcaps.training.recipes import find_recipe
from arcaps.training.sweep import read_grid, read_settings

SMALL: dict[str, Any] = {"dim": 4, "caps": 2, "primary_dim": 4, "stem_channels": 4}


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good run, a good image, and files of every wrong kind."""
    folder = tmp_path_factory.mktemp("bad")
    settings: dict[str, Any] = {"epochs": 1, "limit": 50, "batch_size": 50, **SMALL}
    run = arcaps.train("digits", run=folder / "run", silent=True, report=False, **settings)
    Image.new("L", (28, 28), 3).save(folder / "good.png")
    good = run.model_file().read_bytes()
    files = {
        "empty.safetensors": b"",
        "text.safetensors": b"hello, I am text",
        "pickle.safetensors": b"\x80\x02}q\x00" + bytes(50),
        "zip.safetensors": b"PK\x03\x04" + bytes(50),
        "picture.safetensors": (folder / "good.png").read_bytes(),
        "truncated.safetensors": good[: len(good) // 2],
        "flipped.safetensors": good[:-50] + bytes([good[-50] ^ 1]) + good[-49:],
        "header.safetensors": (10**15).to_bytes(8, "little") + b"{" + bytes(50),
        "empty.png": b"",
        "text.png": b"hello",
        "cut.png": (folder / "good.png").read_bytes()[:40],
        "bomb.png": bomb(),
        "list.csv": b"path,label\nnone.png,a\nnone2.png,b\n",
        "empty.csv": b"",
        "zeros.csv": bytes(100),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    save_file({"weight": torch.zeros(2)}, folder / "other.safetensors")
    (folder / "empty_folder").mkdir()
    (folder / "flat_folder").mkdir()
    (folder / "other_files" / "cat").mkdir(parents=True)
    (folder / "other_files" / "cat" / "1.heic").write_bytes(b"x")
    shutil.copy(folder / "good.png", folder / "flat_folder")
    config = json.loads((run.path / "config.json").read_text())
    for name, content in bad_configs(config).items():
        shutil.copytree(run.path, folder / f"run-{name}")
        (folder / f"run-{name}" / "config.json").write_bytes(content)
    for name, (file, text) in BAD_FORMS.items():
        shutil.copytree(run.path, folder / f"run-{name}")
        (folder / f"run-{name}" / file).write_text(text)
    other = arcaps.create_model("ar_capsnet", classes=2, **SMALL)
    shutil.copytree(run.path, folder / "run-swapped")
    other.save(folder / "run-swapped" / "model.safetensors")
    for name in ("result.json", "data.json"):
        shutil.copytree(run.path, folder / f"run-{name}")
        (folder / f"run-{name}" / name).write_text("[1")
    return folder


def bomb() -> bytes:
    """A PNG that claims to be enormous."""
    import struct
    import zlib

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
    chunk = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


CONFIGS = ("empty", "text", "list", "null", "format", "no_recipe", "recipe_list", "unknown", "value", "model", "deep")


def bad_configs(good: dict[str, Any]) -> dict[str, bytes]:
    """`config.json` in every wrong way."""
    recipe = good["recipe"]
    wrong: dict[str, Any] = {
        "list": [],
        "null": None,
        "format": {**good, "format": 99},
        "no_recipe": {key: value for key, value in good.items() if key != "recipe"},
        "recipe_list": {**good, "recipe": []},
        "unknown": {**good, "recipe": {**recipe, "epoch": 3}},
        "value": {**good, "recipe": {**recipe, "epochs": "many"}},
        "model": {**good, "recipe": {**recipe, "schedule": "cosin"}},
    }
    texts = {"empty": b"", "text": b"\xff\xfe hello", "deep": b"[" * 100_000}
    return {**texts, **{name: json.dumps(value).encode() for name, value in wrong.items()}}


PART = '{"count": 1, "class_names": ["a"], "image_size": [1, 1], "channels": 1, "fingerprint": "x", "files": %s}'
BAD_FORMS = {
    "accuracy": ("result.json", '{"epoch": 1, "validation_error": 0.5, "test": {"accuracy": "high"}}'),
    "interval": (
        "result.json",
        '{"epoch": 1, "validation_error": 0.5, "test": {"accuracy": 1, "interval_95": [1], "count": 1, "data": "x"}}',
    ),
    "not_a_number": ("result.json", '{"epoch": 1, "validation_error": NaN, "test": {}}'),
    "no_test": ("result.json", '{"epoch": 1, "validation_error": 0.5, "test": null}'),
    "no_data": ("data.json", "{}"),
    "data_list": ("data.json", '{"data": []}'),
    "no_parts": ("data.json", '{"data": {"train": null, "validation": null, "test": null}}'),
    "files": ("data.json", '{"data": {"train": null, "validation": null, "test": %s}}' % (PART % "[1]")),
    "names": ("data.json", '{"data": {"train": "x", "validation": null, "test": %s}}' % (PART % "{}")),
    "no_error": ("metrics.jsonl", '{"epoch": 1}\n'),
    "number": ("metrics.jsonl", "3\n"),
    "not_json": ("metrics.jsonl", 'x\n{"epoch": 1, "validation_error": 0.5}\n'),
}
"""Files of a run folder that are JSON, and not what a run writes."""


def numbers(flags: str, values: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [("train", "digits", f"--{flag}", value) for flag, value in product(flags.split(), values)]


COUNTS = "epochs batch-size patience limit halve-after seed dim caps primary-dim layers stem-channels images-at-once"
PARTS = "learning-rate decay weight-decay warm-up validation average rotation shift scale shear dropout channel-dropout"
MODEL_FILES = (
    "empty text pickle zip picture truncated flipped header other none".split()  # noqa: SIM905 (short)
)
COMMANDS: list[tuple[str, ...]] = [
    *numbers(COUNTS, ("-1", "1.5", "nan", "many", "", "1e9")),
    *numbers(PARTS, ("-1", "nan", "inf", "half", "1e9")),
    *numbers("image-size channels", ("0", "-3", "x", "1e3")),
    ("train", "digits", "--image-size", "28", "28", "28"),
    ("train", "digits", "--image-size", "3"),
    ("train", "digits", "--channels", "2"),
    ("train", "digits", "--schedule", "cosin"),
    ("train", "digits", "--optimiser", "adam"),
    ("train", "digits", "--border", "white"),
    ("train", "digits", "--fit", "crop"),
    ("train", "digits", "--model", "ar_capnet"),
    ("train", "digits", "--model", ""),
    ("train", "digits", "--routing", "dynamic(iters=2)"),
    ("train", "digits", "--routing", "dynmic"),
    ("train", "digits", "--routing", "__import__('os')"),
    ("train", "digits", "--routing", "dynamic("),
    ("train", "digits", "--routing", ""),
    ("train", "digits", "--activation", "squish"),
    ("train", "digits", "--votes", "conf"),
    ("train", "digits", "--loss", "margins"),
    ("train", "digits", "--score", "len"),
    ("train", "digits", "--strides", "2", "2"),
    ("train", "digits", "--strides", "3"),
    ("train", "digits", "--set", "dim"),
    ("train", "digits", "--set", "dim=1,2"),
    ("train", "digits", "--set", "dims=3"),
    ("train", "digits", "--set", "classes=3"),
    ("train", "digits", "--data", "nowhere"),
    ("train", "digits", "--data", "@empty_folder"),
    ("train", "digits", "--data", "@flat_folder"),
    ("train", "digits", "--data", "@list.csv"),
    ("train", "digits", "--data", "@empty.csv"),
    ("train", "digits", "--data", "@zeros.csv"),
    ("train", "digits", "--data", "@good.png"),
    ("train", "digits", "--test-data", "nowhere"),
    ("train", "digits", "--test-data", "@flat_folder"),
    ("train", "digits", "--device", "gpu"),
    ("train", "digits", "--device", "cuda:99"),
    ("train", "digits", "--device", "tpu"),
    ("train", "digits", "--device", "meta"),
    ("train", "digits", "--precision", "half"),
    ("train", "digits", "--micro-batch", "0"),
    ("train", "digits", "--max-minutes", "-1"),
    ("train", "digits", "--max-minutes", "nan"),
    ("train", "digits", "--save-minutes", "-1"),
    ("train", "digits", "--run", "@run"),
    ("train", "digits", "--run", "@good.png"),
    ("train", "digits", "--run", "/proc/none/run"),
    ("train", "digits", "--from", "@none"),
    ("train", "digits", "--from", "@text.safetensors"),
    ("train", "digits", "--resume", "@run"),
    ("train", "digit"),
    ("train",),
    ("train", "folder"),
    ("train", "digits", "mnist"),
    ("train", "--resume", "@none"),
    ("train", "--resume", "@empty_folder"),
    ("train", "--resume", "@good.png"),
    ("train", "--resume", "@run", "--dim", "8"),
    ("train", "--resume", "@run", "--epochs", "0"),
    *(("train", "--resume", f"@run-{name}") for name in CONFIGS),
    *(("evaluate", f"@run-{name}") for name in CONFIGS),
    ("train", "--resume", "@run-result.json"),
    ("evaluate", "@run-data.json"),
    *(
        (*command, f"@{name}.safetensors", *rest)
        for name, (command, rest) in product(
            MODEL_FILES,
            (
                (("info",), ()),
                (("evaluate",), ("--data", "digits")),
                (("predict",), ("@good.png",)),
                (("export",), ("--to", "@out.onnx")),
                (("ensemble", "@run"), ()),
                (("analyze", "@run", "robustness", "--with"), ()),
            ),
        )
    ),
    *(("predict", "@run", f"@{name}") for name in ("empty.png", "text.png", "cut.png", "bomb.png", "none.png")),
    *(("predict", "@run", f"@{name}") for name in ("empty_folder", "list.csv", "run/config.json")),
    ("predict", "@run", "/dev/zero"),
    ("predict", "@run"),
    ("predict", "@run", "@good.png", "--top", "0"),
    ("predict", "@run", "@good.png", "--top", "x"),
    ("predict", "@run", "@good.png", "--device", "gpu"),
    ("predict", "@run", "@good.png", "--csv", "/proc/none/x.csv"),
    ("predict", "@none.onnx", "@good.png"),
    ("predict", "no_such_weights", "@good.png"),
    ("evaluate", "@run", "--part", "all"),
    ("evaluate", "@run", "--data", "nowhere"),
    ("evaluate", "@run", "--data", "@flat_folder"),
    ("evaluate", "@run", "--data", "fashion-mnits"),
    ("evaluate", "@run", "--precision", "half"),
    ("evaluate", "@run/model.safetensors"),
    ("evaluate", "@empty_folder"),
    ("evaluate",),
    ("ensemble", "@run"),
    ("ensemble",),
    ("ensemble", "@run", "@none"),
    ("info", "ar_capnet"),
    ("info", "ar_capsnet", "--image-size", "5"),
    ("info", "ar_capsnet", "--batch-size", "0"),
    ("info", "capsule_net", "--layers", "2"),
    ("info", "ar_capsnet", "--classes", "0"),
    ("info", "@run/model.safetensors", "--layers", "2"),
    ("sweep", "digits", "--grid", "dim"),
    ("sweep", "digits", "--grid", "dim=4", "--folder", "@good.png/sweep"),
    ("compare", "digits", "--rows", "uniform", "--folder", "@good.png/compare"),
    ("sweep", "digits", "--grid", "dim="),
    ("sweep", "digits", "--grid", "dim=0"),
    ("sweep", "digits", "--grid", "dim=4", "dim=8"),
    ("sweep", "digits", "--grid", "dims=4"),
    ("sweep", "digits", "--grid", "schedule=cosine,cosin"),
    ("sweep", "digits", "--grid", "strides=(2,2),(2,1)"),
    ("sweep", "digit", "--grid", "dim=4"),
    ("train", "digits", "--seed", "1", "--seed", "2"),
    ("train", "digits", "--dim", "4", "--dim=8"),
    ("train", "digits", "--flip", "--no-flip"),
    ("train", "--resume", "@run", "--resume", "@none"),
    ("predict", "@run", "@good.png", "--csv", "a.csv", "--csv", "b.csv"),
    ("info", "ar_capsnet", "--image_size", "28", "--image-size", "32"),
    ("train", "digits", "--run", ""),
    ("train", "digits", "--from", " "),
    ("train", "digits", "--test-data", ""),
    ("train", "--resume", ""),
    ("evaluate", "@run", "--data="),
    ("predict", "@run", ""),
    ("train", "--resume", "@run", "--run", "@new"),
    ("train", "--resume", "@run", "--from", "digits"),
    ("train", "--resume", "@run", "--data", "digits"),
    ("train", "digits", "--run", "@flat_folder"),
    ("train", "digits", "--run", "@"),
    ("train", "digits", "--dim", "1000000"),
    ("train", "digits", "--caps", "1000000"),
    ("train", "digits", "--layers", "1000000"),
    ("train", "digits", "--stem-channels", "1000000"),
    ("train", "digits", "--image-size", "10000"),
    ("train", "digits", "--dropout", "1"),
    ("train", "digits", "--routing", "dynamic(iterations=1000000)"),
    ("train", "digits", "--routing", "dynamic(iterations=1.5)"),
    ("train", "digits", "--routing", "attention(heads=2.0)"),
    ("predict", "@run", "@good.png", "--csv", "/dev/full"),
    *(("runs", f"@run-{name}") for name, (file, _) in BAD_FORMS.items() if file != "data.json"),
    *(("evaluate", f"@run-{name}") for name, (file, _) in BAD_FORMS.items() if file == "data.json"),
    *(("train", "--resume", f"@run-{name}", "--epochs", "2") for name in BAD_FORMS if name != "not_json"),
    ("evaluate", "@run-swapped"),
    ("train", "--resume", "@run-swapped", "--epochs", "2"),
    ("runs", "@run-empty"),
    ("export", "@run", "--to", "@"),
    ("export", "@run", "--to", "@good.png/model.onnx"),
    ("export", "@run", "--decoder", "@empty_folder"),
    ("page", "@run", "--to", "@empty_folder"),
    ("page", "@run", "--folder", "@good.png"),
    ("data", "show", "digits", "--count", "0"),
    ("data", "show", "digits", "--out", "@empty_folder"),
    ("data", "fetch"),
    ("ensemble", "@run", "@run"),
    ("info", "ar_capsnet", "--caps", "1000000"),
    ("info", "ar_capsnet", "--layers", "1000"),
    ("sweep", "digits", "--grid", "seed=1,1"),
    ("sweep", "digits", "--grid", "name=x"),
    ("train", "digits", "--set", "dim=4", "--set", "dim=8"),
    ("train", "digits", "--set", "dim=4", "--dim", "8"),
    *(("train", "digits", "--set", f"{name}=x") for name in ("name", "options", "run", "recipe", "on_step", "test")),
    ("runs", "@empty_folder"),
    ("runs", "@none"),
    ("data", "fetch", "mnits"),
    ("data", "show", "mnits"),
    ("data", "show", "digits", "--part", "validation"),
    ("data", "show", "digits", "--rotation", "nan"),
    ("data", "show", "digits", "--out", "/proc/none/x.png"),
    ("analyze", "@run", "nothing"),
    ("analyze", "@none"),
    ("analyze", "@run", "--count", "-1"),
    ("reproduce", "--only", "mnits"),
    ("--import", "no_such_module", "recipes"),
    ("--import", "@text.png", "recipes"),
    ("recipes", "--import"),
    ("no_such_command",),
    ("train", "digits", "--no-such-flag", "3"),
]


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever comes as far as the first step was accepted."""

    def accepted(self: Trainer) -> None:
        raise AssertionError("the input was accepted")

    monkeypatch.setattr(Trainer, "train", accepted)
    return iter(())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command))
def test_a_wrong_command_line_ends_with_one_line(
    command: tuple[str, ...],
    place: Path,
    tmp_path: Path,
    no_training: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = snapshot(place / "run")
    arguments = [str(place / one.removeprefix("@")) if one.startswith("@") else one for one in command]
    monkeypatch.setattr("sys.argv", ["arcaps", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    said = str(ended.value) if isinstance(ended.value.code, str) else printed.err + printed.out
    assert ended.value.code not in (0, None)
    assert "Traceback" not in printed.err + said
    assert "mistake in arcaps" not in said, said
    assert len(said.strip()) > 20
    if isinstance(ended.value.code, str):
        assert said.startswith("arcaps: ")
        assert ":" in said.removeprefix("arcaps: ") or "give" in said
        assert named(arguments, said + printed.err), said
    assert snapshot(place / "run") == before


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file."""
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir() if path.is_file()}


def named(arguments: list[str], said: str) -> bool:
    """Whether the message names a flag, a value or a file of the command line."""
    words = [word.lstrip("-").partition("=")[0] for word in arguments]
    words += [word.replace("-", "_") for word in words] + [Path(word).name for word in words] + ["recipe", "runs"]
    return any(word and word in said for word in words)


WRONG: tuple[Any, ...] = (None, "x", -1, float("nan"), [], {}, object)
CALLS: dict[str, Any] = {
    "recipe none": lambda place: arcaps.train(),
    "setting unknown": lambda place: arcaps.train("digits", epoch=3),
    "run is a file": lambda place: arcaps.train("digits", run=place / "good.png"),
    "device number": lambda place: arcaps.train("digits", device="3x"),
    "precision": lambda place: arcaps.train("digits", precision="float8", run=place / "new"),
    "micro batch": lambda place: arcaps.train("digits", micro_batch=-1),
    "minutes": lambda place: arcaps.train("digits", max_minutes=float("nan")),
    "data number": lambda place: arcaps.train("digits", data=3),
    "data tuple": lambda place: arcaps.train("digits", data=(np.zeros((9, 28, 28), np.uint8), np.zeros(9, np.int64))),
    "predict examples": lambda place: ANY.predict(place / "run", arcaps.load_data("digits").test[:2]),
    "load folder of other files": lambda place: arcaps.load_folder(place / "other_files"),
    "export to a folder": lambda place: arcaps.export_onnx(arcaps.load("digits"), place),
    "open run": lambda place: arcaps.open_run(place / "none"),
    "open run device": lambda place: arcaps.open_run(place / "run", device="gpu"),
    "predict nothing": lambda place: arcaps.predict(place / "run", []),
    "predict floats": lambda place: arcaps.predict(place / "run", torch.rand(1, 28, 28)),
    "predict shape": lambda place: arcaps.predict(place / "run", torch.zeros(2, 1, 1, 28, 28, dtype=torch.uint8)),
    "predict module": lambda place: arcaps.predict(torch.nn.Linear(2, 2), place / "good.png"),
    "predict missing": lambda place: arcaps.predict(place / "none", place / "good.png"),
    "evaluate shape": lambda place: arcaps.evaluate(
        arcaps.create_model("ar_capsnet", image_size=40, **SMALL), arcaps.load_data("digits").test
    ),
    "evaluate module": lambda place: arcaps.evaluate(torch.nn.Conv2d(1, 1, 3), arcaps.load_data("digits").test),
    "load folder": lambda place: arcaps.load_folder(place / "empty_folder"),
    "load folder none": lambda place: arcaps.load_folder(place / "none"),
    "load data": lambda place: arcaps.load_data("mnits"),
    "model unknown": lambda place: arcaps.create_model("ar_capnet"),
    "model option": lambda place: arcaps.create_model("ar_capsnet", dims=3),
    "model value": lambda place: arcaps.create_model("ar_capsnet", dim="many"),
    "model size": lambda place: arcaps.create_model("ar_capsnet", image_size=(28,) * 3),
    "labels range": lambda place: Dataset.from_arrays(torch.zeros(2, 4, 4, dtype=torch.uint8), [0, 5], ["a", "b"]),
    "labels length": lambda place: Dataset.from_arrays(torch.zeros(2, 4, 4, dtype=torch.uint8), [0]),
    "routing without its layer": lambda place: arcaps.Routing.build("self", 2, 2, 3),
    "options": lambda place: replace(find_recipe("digits"), options={"width": float("nan")}),  # type: ignore[arg-type]
    "split": lambda place: arcaps.load_folder(
        place / "flat_folder", split={"train": {"files": None}, "test": {"files": {}}}
    ),
    "grid": lambda place: read_grid(["=3"]),
    "settings": lambda place: read_settings(["dim=1,2"]),
    "augmentation": lambda place: Augmentation(rotation=float("nan")),
    "augmentation type": lambda place: Augmentation(flip="yes"),  # type: ignore[arg-type]
    "recipe type": lambda place: find_recipe("digits", epochs=None),
    "recipe name": lambda place: find_recipe("digit"),
    "result": lambda place: Run(place / "run-result.json").result,
    **{
        f"{name} {value!r}": lambda place, name=name, value=value: find_recipe("digits", **{name: value})
        for name, value in product(
            ("epochs", "learning_rate", "dim", "dropout", "image_size", "seed", "flip", "model", "schedule"),
            WRONG,
        )
        if not (name in ("dropout", "image_size") and value is None)  # None is their default
    },
}


IMAGES = torch.zeros(3, 1, 28, 28, dtype=torch.uint8)
ANY: Any = arcaps
"""The package as a program without types sees it."""
OTHER_TYPES: dict[str, Any] = {
    "a path": lambda place: [
        *(lambda value=value: ANY.load(value) for value in (None, 3, "", "a\0b", place)),
        *(lambda value=value: ANY.load_folder(value) for value in (None, 3, "", "a\0b")),
        *(lambda value=value: ANY.load_data(value) for value in (None, 3, "")),
        *(lambda value=value: ANY.train("digits", run=value, **SMALL) for value in (3, "", "a\0b", place)),
        *(lambda value=value: ANY.train(resume=value) for value in (3, "")),
        *(lambda value=value: ANY.train("digits", start_from=value) for value in (3, "")),
    ],
    "a number or a function": lambda place: [
        *(lambda value=value: ANY.train("digits", micro_batch=value) for value in (2.5, "2", True)),
        lambda: ANY.train("digits", max_minutes="5"),
        lambda: ANY.train("digits", on_step="x"),
        lambda: ANY.train("digits", device=0),
        lambda: ANY.predict(place / "run", IMAGES, batch_size=2.0),
        lambda: ANY.load_data("digits").test.split("half"),
        lambda: ANY.load_data("digits").test.split(0.1, seed=None),
        *(lambda value=value: ANY.train(value) for value in (3, ["digits"])),
        *(lambda value=value: ANY.create_model(value) for value in (None, 3, ["digits"])),
    ],
    "images": lambda place: [
        *(
            lambda value=value: ANY.load(place / "run" / "model.safetensors").predict(value)
            for value in (None, 3, b"x", {"a": 1}, [None], IMAGES.float())
        ),
        *(lambda value=value: Dataset.from_arrays(value, [0]) for value in (None, "x", object())),
        lambda: Dataset.from_arrays(IMAGES, [0, 1, 1], ["a", "a"]),
        lambda: Dataset.from_arrays(IMAGES, [0, 1, 1], "ab"),
        lambda: ANY.load("digits")(IMAGES.numpy()),
        lambda: ANY.load("digits")(IMAGES.double()),
        lambda: ANY.load("digits")(IMAGES.float(), torch.tensor([1])),
        lambda: ANY.load("digits")(IMAGES.float(), torch.tensor([1.0, 2.0, 3.0])),
        *(lambda value=value: ANY.evaluate(ANY.load("digits"), value) for value in (None, IMAGES, "digits")),
        lambda: ANY.evaluate(place / "run", digits()),
        lambda: ANY.evaluate(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 3)), digits()),
        lambda: ANY.train("digits", data=Dataset.from_arrays(IMAGES, [0, 1, 2]), **SMALL),
    ],
}


def digits() -> Dataset:
    return arcaps.load_data("digits").test[:20]


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_a_value_of_another_type_is_refused(
    kind: str, place: Path, tmp_path: Path, no_training: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the run-time check of types, as users call it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for call in OTHER_TYPES[kind](place):
        with pytest.raises(ArcapsError) as caught:
            call()
        assert len(str(caught.value)) > 15


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_refused(
    name: str, place: Path, tmp_path: Path, no_training: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArcapsError) as caught:
        CALLS[name](place)
    assert len(str(caught.value)) > 15


def test_there_are_enough_cases() -> None:
    assert len(COMMANDS) + len(CALLS) >= 300
