"""What a run remembers, what it refuses, and what users do with it."""

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import arcaps
from arcaps import ArcapsError, Data, Dataset, Run
from arcaps.fields import Options
from arcaps.training import Stopped, register_recipe
from arcaps.training.inference import evaluate_run
from arcaps.training.loop import Trainer
from arcaps.training.recipes import RECIPES, find_recipe
from arcaps.training.run import RunHeldError
from arcaps.training.splits import build_model, load_splits

SMALL: dict[str, Any] = {"dim": 4, "caps": 2, "primary_dim": 4, "stem_channels": 4}
QUICK: dict[str, Any] = {**SMALL, "epochs": 1, "batch_size": 50, "limit": 200, "silent": True, "report": False}
RESUME: dict[str, Any] = {"silent": True, "report": False}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return arcaps.train("digits", run=tmp_path_factory.mktemp("trust") / "run", **QUICK).path


def write_digits(folder: Path, names: list[str], count: int = 8) -> None:
    """Digits of the test set as files, in one sub-folder per class."""
    test = arcaps.load_data("digits").test
    for digit, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in (test.labels == digit).nonzero().flatten()[:count].tolist():
            Image.fromarray(test.images[number, 0].numpy()).save(folder / name / f"{number}.png")


def test_classes_are_matched_by_name(finished: Path, tmp_path: Path) -> None:
    """In version 0.1 the k-th class of the data was compared with output k."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    write_digits(tmp_path / "digits_as_words", words)
    with pytest.raises(ArcapsError, match=r"'eight'.* are not classes of the model"):
        arcaps.training.inference.evaluate_run(finished, data=tmp_path / "digits_as_words")
    write_digits(tmp_path / "some", ["0", "1", "2"])
    found = arcaps.training.inference.evaluate_run(finished, data=tmp_path / "some")
    assert found.count == 24
    assert found.class_names == tuple("0123456789")


def test_a_run_remembers_its_split(tmp_path: Path) -> None:
    write_digits(tmp_path / "images", list("0123456789"), 12)
    run = arcaps.train("folder", data=tmp_path / "images", run=tmp_path / "run", **{**QUICK, "limit": None})
    assert Path(run.recipe.data).is_absolute()
    assert run.data is not None
    tested = set(run.data["data"]["test"]["files"])
    file = Image.open(tmp_path / "images" / "0" / next((tmp_path / "images" / "0").iterdir()).name)
    file.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "images" / "0" / "00-new.png")
    again = arcaps.open_run(run.path).splits
    assert again.test.files is not None
    assert set(again.test.files) == tested


def test_resume_refuses_other_data(tmp_path: Path) -> None:
    write_digits(tmp_path / "images", list("01"), 12)
    options = {**QUICK, "limit": None, "max_minutes": 0.0}
    with pytest.raises(Stopped):
        arcaps.train("folder", data=tmp_path / "images", run=tmp_path / "run", **options)
    next((tmp_path / "images" / "0").iterdir()).unlink()
    with pytest.raises(ArcapsError, match="has changed since its split was stored"):
        arcaps.train(resume=tmp_path / "run", **RESUME)


def test_two_trainings_never_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *_: "same-second")
    assert arcaps.train("digits", **QUICK).path != arcaps.train("digits", **QUICK).path
    run = Run.reserve(tmp_path / "held", "digits")
    with run.lock(), pytest.raises(RunHeldError, match="another process trains in"):
        arcaps.train("digits", run=run.path, **QUICK)


def test_a_finished_run_stays_as_it_is_even_without_checkpoints(tmp_path: Path) -> None:
    run = arcaps.train("digits", run=tmp_path / "run", **QUICK)
    for state in run.states():
        state.unlink()
    before = {path.name: path.read_bytes() for path in run.path.iterdir() if path.is_file()}
    arcaps.train(resume=run.path, **RESUME)
    assert {path.name: path.read_bytes() for path in run.path.iterdir() if path.is_file()} == before
    with pytest.raises(ArcapsError, match="has no checkpoints any more"):
        arcaps.train(resume=run.path, epochs=2, **RESUME)


def test_damaged_checkpoints_do_not_start_over(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        arcaps.train("digits", run=tmp_path / "run", max_minutes=0.0, **QUICK)
    for state in Run(tmp_path / "run").states():
        state.write_bytes(state.read_bytes()[:-100])
    with pytest.raises(ArcapsError, match=r"all checkpoints of .* are damaged"):
        arcaps.train(resume=tmp_path / "run", **RESUME)


def test_a_finished_run_is_extended(tmp_path: Path) -> None:
    options = {**QUICK, "schedule": "constant", "average": 0.0}
    run = arcaps.train("digits", run=tmp_path / "run", **options)
    arcaps.train(resume=run.path, epochs=2, **RESUME)
    whole = arcaps.train("digits", run=tmp_path / "whole", **{**options, "epochs": 2})
    assert [line["loss"] for line in run.metrics] == [line["loss"] for line in whole.metrics]
    assert run.recipe.epochs == 2
    assert (run.path / "result-1-epochs.json").exists()
    with pytest.raises(ArcapsError, match=r"epochs is 1, and .* has 2: give at least as many"):
        arcaps.train(resume=run.path, epochs=1, **RESUME)
    for wrong in (None, "3"):
        with pytest.raises(ArcapsError, match=r"epochs is .*: give a whole number"):
            arcaps.train(resume=run.path, epochs=wrong, **RESUME)
    with pytest.raises(ArcapsError, match="keeps its recipe"):
        arcaps.train(resume=run.path, dim=8, **RESUME)


def test_a_look_at_the_memory_does_not_change_the_weights() -> None:
    recipe = find_recipe("digits", dim=4, caps=2, stem_channels=4)
    splits = load_splits(recipe)
    plain, checked = (build_model(recipe, splits, images_per_step=images) for images in (None, 10))
    assert all(torch.equal(plain.state_dict()[name], value) for name, value in checked.state_dict().items())


def test_a_lost_end_of_the_metrics_is_not_filled_with_zeros(tmp_path: Path) -> None:
    run = arcaps.train("digits", run=tmp_path / "run", **QUICK)
    (run.path / "metrics.jsonl").write_text(json.dumps(run.metrics[0])[:-9])
    arcaps.train(resume=run.path, epochs=2, **RESUME)
    assert [line["epoch"] for line in run.metrics] == [2]


def test_a_run_without_its_data_file_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = arcaps.train("digits", run=tmp_path / "run", **QUICK)
    (run.path / "data.json").unlink()
    evaluate_run(run.path)
    assert "has no data.json: images are split as a new run would do it" in caplog.text


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16])
def test_a_model_predicts_and_is_evaluated_with_what_users_have(kind: torch.dtype, tmp_path: Path) -> None:
    model = arcaps.load("digits").to(kind)
    few = arcaps.load_data("digits").test[:20]
    Image.fromarray(few.images[0, 0].numpy()).save(tmp_path / "0.png")
    scores = model.for_inference()(model.preprocessing(few.images).to(kind)).scores
    expected = [model.class_names[number] for number in scores.argmax(-1).tolist()]
    arrays = few.images[:, 0].numpy()
    pictures: list[Any] = [few.images, arrays[..., None], [Image.fromarray(arrays[0])]]
    for images in [*pictures, tmp_path / "0.png", tmp_path]:
        found = [one.label for one in model.predict(images, batch_size=7)]
        assert found == expected[: len(found)]
    plain = TensorDataset(few.images, few.labels)
    accuracy = arcaps.evaluate(model, few).accuracy
    for data in (plain, DataLoader(plain, batch_size=3), DataLoader(cast("Any", few))):
        assert arcaps.evaluate(model, data).accuracy == accuracy


def in_reverse(dataset: Dataset) -> Dataset:
    """The same images, with the classes in the reverse order."""
    last = len(dataset.class_names) - 1
    return replace(dataset, labels=last - dataset.labels, class_names=dataset.class_names[::-1])


def test_evaluation_matches_classes_by_name() -> None:
    model, test = arcaps.load("digits"), arcaps.load_data("digits").test
    whole = arcaps.evaluate(model, test)
    assert arcaps.evaluate(model, in_reverse(test)).accuracy == whole.accuracy > 0.9
    above = test[test.labels >= 5]
    above = replace(above, labels=above.labels - 5, class_names=tuple("56789"))
    assert torch.equal(arcaps.evaluate(model, above).confusion[5:], whole.confusion[5:])
    named = replace(test, class_names=tuple(f"digit {n}" for n in range(10)))
    assert arcaps.evaluate(model, named).accuracy == whole.accuracy  # the model's classes have no names
    model.class_names = ["zero", *"123456789"]
    assert arcaps.evaluate(model, test).accuracy == whole.accuracy  # the data set's have none
    with pytest.raises(ArcapsError, match="are not classes of the model"):
        arcaps.evaluate(model, named)
    more = replace(test, class_names=tuple(map(str, range(11))), labels=test.labels + 1)
    with pytest.raises(ArcapsError, match="'10' are not classes of the model"):
        arcaps.evaluate(arcaps.load("digits"), more)


def test_parts_of_data_from_memory_match_classes_by_name(tmp_path: Path) -> None:
    digits = arcaps.load_data("digits")
    assert digits.train is not None
    few, options = digits.train.take(torch.arange(200)), {**QUICK, "epochs": 1}
    for name, test in (("one", digits.test), ("two", in_reverse(digits.test))):
        arcaps.train("digits", data=Data(few, None, test), run=tmp_path / name, **options)
    one, two = (Run(tmp_path / name).result for name in ("one", "two"))
    assert one is not None
    assert two is not None
    assert one.test["confusion"] == two.test["confusion"]


def test_a_file_of_the_run_that_broke_since_can_be_left_out(tmp_path: Path) -> None:
    write_digits(tmp_path / "images", ["a", "b"], 12)
    run = arcaps.train("folder", data=tmp_path / "images", run=tmp_path / "run", **{**QUICK, "limit": None})
    count = evaluate_run(run.path).count
    assert run.data is not None
    (tmp_path / "images" / next(iter(run.data["data"]["test"]["files"]))).write_bytes(b"")
    with pytest.raises(ArcapsError, match="--skip-broken leaves them out"):
        evaluate_run(run.path)
    assert evaluate_run(run.path, skip_broken=True).count == count - 1


def test_early_stopping(tmp_path: Path) -> None:
    options = {**QUICK, "epochs": 50, "learning_rate": 0.0, "patience": 2, "average": 0.0}
    run = arcaps.train("digits", run=tmp_path / "run", **options)
    best = min(run.metrics, key=lambda line: line["validation_error"])
    assert len(run.metrics) == best["epoch"] + 2 < 50
    assert run.result is not None


def test_fine_tuning_with_other_classes(finished: Path, tmp_path: Path) -> None:
    write_digits(tmp_path / "images", ["a", "b"], 12)
    options = {**QUICK, "limit": None, "learning_rate": 0.0, "average": 0.0, "weight_decay": 0.0}
    options |= {name: value for name, value in Run(finished).recipe.options.items() if name not in options}
    run = arcaps.train("folder", data=tmp_path / "images", start_from=finished, run=tmp_path / "run", **options)
    before, after = Run(finished).model().state_dict(), run.model().state_dict()
    assert torch.equal(before["primary.conv.weight"], after["primary.conv.weight"])
    assert run.model().class_names == ["a", "b"]
    with pytest.raises(ArcapsError, match="have no layer of the same name and shape"):
        arcaps.train("digits", model="conv_net", start_from=finished, run=tmp_path / "other", silent=True, limit=50)


@pytest.mark.parametrize("kind", ["dataset", "torch", "loader", "data"])
def test_data_from_memory(kind: str, tmp_path: Path) -> None:
    digits = arcaps.load_data("digits")
    assert digits.train is not None
    few = digits.train.take(torch.arange(200))
    plain = TensorDataset(few.images, few.labels)
    given: Any = {
        "dataset": few,
        "torch": plain,
        "loader": DataLoader(plain, 10),
        "data": Data(few, None, digits.test),
    }[kind]
    run = arcaps.train("digits", data=given, run=tmp_path / "run", **QUICK)
    assert run.result is not None
    assert run.result.test["count"] == (1000 if kind == "data" else 20)


def test_training_outside_the_main_thread(tmp_path: Path) -> None:
    done: list[Run] = []
    thread = threading.Thread(target=lambda: done.append(arcaps.train("digits", run=tmp_path / "run", **QUICK)))
    thread.start()
    thread.join()
    assert done[0].result is not None


def test_a_users_own_module_is_evaluated() -> None:
    test = arcaps.load_data("digits").test
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    found = arcaps.evaluate(module, test)
    scores = module(test.images.float() / 255)
    assert found.accuracy == pytest.approx((scores.argmax(-1) == test.labels).float().mean().item())


def test_evaluation_leaves_the_mode_of_every_part() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten())
    module.append(torch.nn.Linear(2 * 26 * 26, 10))
    module[1].eval()  # a frozen BatchNorm in a network that trains
    arcaps.evaluate(module, arcaps.load_data("digits").test[:20])
    assert [part.training for part in module] == [True, False, True, True]


def test_predict_takes_arrays_files_and_pictures(finished: Path, tmp_path: Path) -> None:
    image = arcaps.load_data("digits").test.images[0]
    Image.fromarray(image[0].numpy()).save(tmp_path / "0.png")
    (tmp_path / "broken.png").write_bytes(b"no")
    array = image[0].numpy()
    file, broken = tmp_path / "0.png", tmp_path / "broken.png"
    images: list[Any] = [array, image, Image.fromarray(array), file, str(file), broken]
    found = arcaps.predict(finished, images)
    for one in found[:-1]:
        assert one.scores == pytest.approx(found[0].scores, abs=1e-6)
    assert found[-1].label == ""
    assert "broken.png" in found[-1].problem
    assert arcaps.predict(Run(finished).model(), array)[0].label == found[0].label
    assert len(arcaps.predict(finished, np.stack([array, array])[:, None].transpose(0, 2, 3, 1)[0])) == 1
    with pytest.raises(ArcapsError, match="there are no images to predict"):
        arcaps.predict(finished, [])
    with pytest.raises(ArcapsError, match=r"is not a run folder: .* or a pretrained model: digits, mnist"):
        arcaps.predict(tmp_path / "none.safetensors", array)


def test_a_failed_report_does_not_cost_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr("arcaps.reports.run.write_report", fail)
    run = arcaps.train("digits", run=tmp_path / "run", **{**QUICK, "report": True})
    assert run.result is not None


@pytest.mark.slow
def test_the_report_takes_no_more_images_at_once_than_the_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    forward = arcaps.ARCapsNet.forward

    def counting(self: Any, images: Any, labels: Any = None) -> Any:
        seen.append(len(images))
        return forward(self, images, labels)

    monkeypatch.setattr("arcaps.ARCapsNet.forward", counting)
    run = arcaps.train("digits", run=tmp_path / "run", micro_batch=2, **{**QUICK, "report": True})
    assert (run.path / "figures" / "reconstructions.png").exists()
    assert max(seen) == 8  # four for each image in a training step


def test_hooks_and_log_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("arcaps.training.display.SECONDS_BETWEEN_LINES", 0.0)
    caplog.set_level(logging.INFO, "arcaps")
    steps, epochs = [], []

    def on_step(trainer: Trainer) -> None:
        steps.append(trainer.step)

    def on_epoch(trainer: Trainer, line: Any) -> None:
        epochs.append(line["epoch"])

    arcaps.train("digits", run=tmp_path / "run", **QUICK, on_step=on_step, on_epoch=on_epoch)
    assert steps == [1, 2, 3, 4]
    assert epochs == [1]
    assert "step 3 of 4" in caplog.text
    assert caplog.records[0].getMessage().startswith("digits, train: 200 training, 500 validation, 1,000 test images")


def test_the_precision_of_a_run_is_stored(finished: Path) -> None:
    assert Run(finished).config["settings"]["precision"] == "float32"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "has format 2, this one reads up to 1"),
        ({"format": "x"}, "has format 'x'"),
        ({"recipe": {"name": "x"}}, "cannot be used by this arcaps: the recipe has no about"),
        ({"recipe": None}, "is damaged: its recipe is None"),
        ({"settings": 3}, "is damaged: its settings is 3"),
    ],
)
def test_a_folder_of_another_format(finished: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**Run(finished).config, **change}))
    with pytest.raises(ArcapsError, match=message):
        _ = Run.open(tmp_path).recipe


def test_a_folder_of_version_0_1_gives_the_same_answers(finished: Path, tmp_path: Path) -> None:
    config = Run(finished).config
    recipe = config.pop("recipe")
    flat = {key: value for key, value in recipe["augmentation"].items() if key != "border"}
    new = ("augmentation", "image_size", "channels", "fit", "invert", "skip_broken", "warm_up", "patience")
    config["recipe"] = {**{key: value for key, value in recipe.items() if key not in new}, **flat, "frame": None}
    del config["format"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((finished / "model.safetensors").read_bytes())
    assert Run(tmp_path).recipe == Run(finished).recipe
    found = arcaps.training.inference.evaluate_run(tmp_path, precision="float32")
    result = Run(finished).result
    assert result is not None
    assert json.loads(json.dumps(found.as_dict())) == result.test


@pytest.fixture
def masks() -> Iterator[Data]:
    """Digits, and for each pixel whether it is ink."""
    import tests.plugins.segmenter  # noqa: F401 (registers the model)

    def with_masks(part: Dataset) -> Dataset:
        part = part.take(torch.arange(100))
        ink = part.images[:, 0] // 128
        return Dataset(part.name, part.images, (part.labels > 4).long(), ("paper", "ink"), masks=ink)

    digits = arcaps.load_data("digits")
    assert digits.train is not None
    recipe = replace(RECIPES["digits"], name="toy", model="toy_segmenter", options=Options())
    register_recipe(replace(recipe, batch_size=10, epochs=2, average=0.0))
    yield Data(with_masks(digits.train), None, with_masks(digits.test))
    del RECIPES["toy"]


def test_a_users_segmenter_trains_resumes_and_is_evaluated(masks: Data, tmp_path: Path) -> None:
    whole = arcaps.train("toy", data=masks, run=tmp_path / "whole", width=4, silent=True)
    report, result = (whole.path / "report.md").read_text(), whole.result
    assert result is not None
    assert f"Test: {result.summary}, by the model of epoch {result.epoch}, which has the lowest" in report
    assert "| ink |" in report
    with pytest.raises(Stopped):
        arcaps.train("toy", data=masks, run=tmp_path / "run", width=4, max_minutes=0.0, **RESUME)
    run = arcaps.train(resume=tmp_path / "run", data=masks, **RESUME)
    assert run.result == whole.result
    assert run.result is not None
    assert run.result.test["pixels"] == 100 * 28 * 28
    assert run.result.test["pixel_error"] < 0.2
    model = arcaps.load(run.model_file())
    assert model.config["width"] == 4
    assert arcaps.evaluate(model, masks.test).error == run.result.test["pixel_error"]


def test_inverted_images_are_recognised_where_the_user_says_so(tmp_path: Path) -> None:
    """In version 0.1 there was no such option: black digits on white were a silent wrong answer."""
    write_digits(tmp_path / "digits", list("0123456789"), 2)
    for file in (tmp_path / "digits").rglob("*.png"):
        Image.fromarray(255 - np.asarray(Image.open(file).resize((56, 56)))).save(file)
    found = {
        invert: arcaps.training.inference.evaluate_run("digits", data=tmp_path / "digits", invert=invert).accuracy
        for invert in (False, True)
    }
    assert found[True] >= 0.8 > found[False] + 0.3
    labels = {
        invert: [one.label == Path(one.image).parent.name for one in arcaps.predict("digits", tmp_path, invert=invert)]
        for invert in (False, True)
    }
    assert {invert: sum(right) / 20 for invert, right in labels.items()} == found
    with pytest.raises(ArcapsError, match="give --data"):
        arcaps.open_run(arcaps.train("digits", run=tmp_path / "run", **QUICK).path).data(invert=True)


def test_prediction_warns_of_images_of_a_single_colour(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "arcaps")
    empty, full = torch.zeros(1, 28, 28, dtype=torch.uint8), arcaps.load_data("digits").test.images[0]
    arcaps.predict("digits", [full, empty])
    assert "images of a single colour (1): 1" in caplog.text
