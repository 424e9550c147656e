"""An exported file answers as the model does."""

import importlib
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from arcaps import ArcapsError, Classifier, Dataset, Exported, Routing, create_model, export_decoder, export_onnx, load
from arcaps.cli import main
from arcaps.export.convolutions import has_convolution_form
from arcaps.export.onnx import ALLOWED, flatten
from arcaps.models.capsules import CapsuleClassifier
from arcaps.weights import weight_names
from tests.export.conftest import SMALL, as_taken, taught

Tensors = dict[str, torch.Tensor]
EXACT = ("scores", "reconstruction")


def all_parts(model: Classifier, images: torch.Tensor) -> Tensors:
    """Everything that the model answers, by the names of the file."""
    with torch.no_grad():
        output = model(images)
    return flatten(output, ("scores", "capsules", "reconstruction", "logits", "coefficients"))


def assert_parity(model: Classifier, path: Path, images: torch.Tensor) -> None:
    """Export; compare every output with the model's, at several sizes of the batch."""
    exported = export_onnx(model, path)
    # a presence is a sigmoid of sums of logarithms over all votes, which runtimes round differently
    exact = ("reconstruction",) if model.config.get("score", model.name) in ("presence", "matrix_capsules") else EXACT
    for count in (1, 2, 7, len(images)):
        expected = all_parts(model, images[:count])
        answers = exported.run(images[:count].numpy())
        assert answers.keys() == expected.keys()
        for name, tensor in expected.items():
            limit = 1e-5 if name in exact else 1e-4
            assert answers[name].shape == tuple(tensor.shape), name
            assert np.abs(answers[name] - tensor.numpy()).max() <= limit, name
    best = all_parts(model, images)["scores"]
    assert best.std(0).max() > 1e-3, "the model answers the same for all images: parity proves nothing"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(Classifier.known))
def test_every_model_exports(name: str, digits: Dataset, tmp_path: Path) -> None:
    model = taught(name)
    images = as_taken(model, model.preprocessing(digits.images[::10]))
    assert_parity(model, tmp_path / "model.onnx", images)


def test_small_constants_are_not_left_out(digits: Dataset, tmp_path: Path) -> None:
    """On the black border of a digit all votes are equal: their variance is the constant that is added to it."""
    torch.manual_seed(0)
    model = create_model("matrix_capsules", stem_channels=8, primary_caps=4, caps=4).eval()
    images = model.preprocessing(digits.images[:20])
    answers = export_onnx(model, tmp_path / "model.onnx").run(images.numpy())
    for name, tensor in all_parts(model, images).items():
        assert np.abs(answers[name] - tensor.numpy()).max() <= 1e-4, name


@pytest.mark.slow
@pytest.mark.parametrize("routing", sorted(Routing.known))
def test_every_routing_exports(routing: str, digits: Dataset, tmp_path: Path) -> None:
    model = taught("ar_capsnet", routing=routing)
    images = as_taken(model, model.preprocessing(digits.images[::10]))
    assert_parity(model, tmp_path / "model.onnx", images)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"layers": 0},
        {"layers": 3},
        {"decoder": False},
        {"images_at_once": 2},
        {"activation": "squash"},
        {"layout": "code"},
        {"routing": "attention(heads=2, scale=True)"},
        {"routing": "attention(scale=True)", "activation": "capsule(across=True)"},
        {"activation": "capsule(compression=2)"},
        {"activation": "capsule(norm=True)", "stages": (6,), "strides": (1,)},
        {"image_size": (20, 24), "channels": 3, "classes": 5},
        {"routing": "dynamic(iterations=2)", "activation": "squash_variant"},
    ],
    ids=str,
)
def test_every_option_exports(options: dict[str, Any], digits: Dataset, tmp_path: Path) -> None:
    model = taught("ar_capsnet", **options)
    images = as_taken(model, model.preprocessing(digits.images[::10]))
    assert_parity(model, tmp_path / "model.onnx", images)


@pytest.mark.slow
@pytest.mark.parametrize("name", weight_names())
def test_pretrained_weights_export_exactly(name: str, digits: Dataset, tmp_path: Path) -> None:
    model = load(name)
    exported = export_onnx(model, tmp_path / "model.onnx")
    images = as_taken(model, model.preprocessing(digits.images))
    expected, found = all_parts(model, images), exported.run(images.numpy())
    for part, tensor in expected.items():
        assert np.abs(found[part] - tensor.numpy()).max() < 1e-5, part
    assert (found["scores"].argmax(-1) == expected["scores"].argmax(-1).numpy()).all()


@pytest.mark.parametrize(("package", "module"), [("onnx", "onnx"), ("onnxscript", "onnx"), ("onnxruntime", "session")])
def test_a_missing_package_is_named(package: str, module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"arcaps.export.{module}", raising=False)
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(ArcapsError, match=re.escape(f"needs the package {package}: pip install 'arcaps[onnx]'")):
        importlib.import_module(f"arcaps.export.{module}").Exported.open(tmp_path / "model.onnx")


def test_attention_is_exported_as_convolutions(trained: Classifier, tmp_path: Path) -> None:
    export_onnx(trained, tmp_path / "model.onnx")
    kinds = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert not kinds & {"Einsum", "Gather", "GatherND"}
    assert has_convolution_form(trained)
    assert not has_convolution_form(create_model("capsule_net", **SMALL["capsule_net"]))
    assert not has_convolution_form(create_model("ar_capsnet", **SMALL["ar_capsnet"], routing="dynamic"))


@pytest.mark.slow
def test_the_file_is_one_file_that_says_nothing_of_this_machine(trained: Classifier, tmp_path: Path) -> None:
    export_onnx(trained, tmp_path / "model.onnx")
    export_onnx(trained, tmp_path / "again.onnx")
    content = (tmp_path / "model.onnx").read_bytes()
    assert content == (tmp_path / "again.onnx").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.onnx", "model.onnx"]
    for trace in (str(Path.home()).encode(), b"site-packages", b".py", str(tmp_path).encode()):
        assert trace not in content or trace == b"/", trace


def test_the_file_says_what_is_needed_to_use_it(trained: Classifier, tmp_path: Path) -> None:
    exported = export_onnx(trained, tmp_path / "model.onnx")
    assert exported.class_names == trained.class_names
    assert exported.input_shape == (1, 28, 28)
    assert exported.metadata["architecture"] == "ar_capsnet"
    assert exported.metadata["preprocessing"]["divide_by"] == 255.0
    assert exported.metadata["config"]["dim"] == 8
    assert "ar_capsnet" in repr(exported)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "size"), [("float16", 0.6), ("int8", 0.5)])
def test_lower_precision(
    precision: str, size: float, trained: Classifier, digits: Dataset, training_digits: Dataset, tmp_path: Path
) -> None:
    export_onnx(trained, tmp_path / "model.onnx")
    path = tmp_path / "small.onnx"
    exported = export_onnx(trained, path, precision=precision, calibration=training_digits)
    assert path.stat().st_size < size * (tmp_path / "model.onnx").stat().st_size
    images = trained.preprocessing(digits.images)
    expected = all_parts(trained, images)["scores"].numpy()
    answers = exported(images.numpy()).scores
    assert np.abs(answers - expected).max() < (2e-3 if precision == "float16" else ALLOWED["int8"])
    assert (answers.argmax(-1) != expected.argmax(-1)).sum() <= (1 if precision == "float16" else 15)
    alone = np.concatenate([exported(images[n : n + 1].numpy()).scores for n in range(20)])
    assert np.abs(alone - answers[:20]).max() <= 1e-6


@pytest.mark.slow
def test_nothing_is_said(
    trained: Classifier, training_digits: Dataset, tmp_path: Path, capfd: Any, caplog: Any
) -> None:
    with caplog.at_level(logging.WARNING):
        for precision in ("float32", "int8"):
            export_onnx(trained, tmp_path / "model.onnx", precision=precision, calibration=training_digits)
    assert not caplog.records
    assert "".join(capfd.readouterr()) == ""


def test_the_decoder_alone(trained: Classifier, tmp_path: Path) -> None:
    import onnxruntime

    export_decoder(trained, tmp_path / "decoder.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "decoder.onnx")
    capsules = torch.rand(5, 10, 8)
    assert isinstance(trained, CapsuleClassifier)
    assert trained.decoder is not None
    with torch.no_grad():
        expected = trained.decoder(capsules).numpy()
    assert np.abs(session.run(None, {"capsules": capsules.numpy()})[0] - expected).max() < 1e-6
    with pytest.raises(ArcapsError, match="decoder alone"):
        Exported.open(tmp_path / "decoder.onnx")


def test_a_file_that_does_not_answer_as_the_model_is_not_kept(
    trained: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arcaps.export.onnx.ALLOWED", {"float32": 1e-12})
    with pytest.raises(ArcapsError, match="differ from the model's by"):
        export_onnx(trained, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_mistakes_are_named(trained: Classifier, digits: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(ArcapsError, match="did you mean 'float16'"):
        export_onnx(trained, path, precision="float61")
    with pytest.raises(ArcapsError, match="int8 needs training images"):
        export_onnx(trained, path, precision="int8")
    with pytest.raises(ArcapsError, match="unknown part 'capsule'"):
        export_onnx(trained, path, parts=("scores", "capsule"))
    with pytest.raises(ArcapsError, match="do not fit the model: give images of 1x28x28"):
        export_onnx(trained, path, precision="int8", calibration=digits.pad((40, 40)))
    with pytest.raises(ArcapsError, match="has no decoder"):
        export_decoder(create_model("strong_conv_net", **SMALL["strong_conv_net"]), path)
    exported = export_onnx(trained, path, parts=("scores",))
    assert exported.outputs == ["scores"]
    with pytest.raises(ArcapsError, match=re.escape("takes images (batch, 1, 28, 28), got (2, 1, 20, 20)")):
        exported(np.zeros((2, 1, 20, 20), np.float32))
    with pytest.raises(ArcapsError, match="takes images as float32, got uint8"):
        exported(np.zeros((2, 1, 28, 28), np.uint8))
    path.write_text("no")
    with pytest.raises(ArcapsError, match="is not an ONNX file"):
        Exported.open(path)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "other",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10), path)
    with pytest.raises(ArcapsError, match="not one that arcaps wrote"):
        Exported.open(path)


def test_it_answers_from_image_files(trained: Classifier, digits: Dataset, tmp_path: Path) -> None:
    file = tmp_path / "digit.png"
    Image.fromarray(digits.images[0, 0].numpy()).save(file)
    export_onnx(trained, tmp_path / "model.onnx")
    (answer,) = Exported.open(tmp_path / "model.onnx", threads=1).predict([file])
    expected = all_parts(trained, trained.preprocessing(digits.images[:1]))["scores"][0]
    assert answer["class"] == trained.class_names[int(expected.argmax())]
    assert list(answer["scores"].values()) == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.slow
def test_the_command(
    trained: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained.save(tmp_path / "model.safetensors")
    files = [str(tmp_path / name) for name in ("model.safetensors", "small.onnx", "decoder.onnx")]
    monkeypatch.setattr(
        "sys.argv", ["arcaps", "export", files[0], "--to", files[1], "--decoder", files[2], "--precision", "int8"]
    )
    with pytest.raises(SystemExit, match="does not say what it was tested on: give --data"):
        main()
    monkeypatch.setattr("sys.argv", [*__import__("sys").argv, "--data", "digits"])
    main()
    assert "small.onnx: 0." in capsys.readouterr().out
    assert Exported.open(files[1]).precision == "int8"
    assert json.loads(json.dumps(Exported.open(files[1]).metadata))["parameters"] == trained.parameter_count()
