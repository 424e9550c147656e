"""What PyTorch users do with a model: compile, trace, export, transform, differentiate twice."""

import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import arcaps
from arcaps import ArcapsError, Model
from arcaps.dropout import Dropout

SMALL: dict[str, Any] = {"image_size": 12, "dim": 4, "caps": 2, "primary_dim": 4, "stem_channels": 4, "classes": 3}
IMAGES, LABELS = torch.rand(4, 1, 12, 12, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])


def small(**options: Any) -> Any:
    return arcaps.create_model("ar_capsnet", **{**SMALL, **options})


@pytest.fixture
def untyped() -> Iterator[None]:
    """Without the run-time check of shapes, which torch.compile cannot follow."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


class Scores(nn.Module):
    """As users wrap a model: the scores alone."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).scores


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["ar_capsnet", "strong_conv_net"])
def test_jit_trace(name: str) -> None:
    """In version 0.1: only tensors can be output from traced functions."""
    options = SMALL if name == "ar_capsnet" else {"image_size": 12, "classes": 3, "widths": (4, 4, 4, 4)}
    model = arcaps.create_model(name, **options).eval()
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(model, IMAGES[:1]), file)
    file.seek(0)
    loaded = torch.jit.load(file)
    torch.testing.assert_close(loaded(IMAGES)[0], model(IMAGES).scores)
    wrapped = torch.jit.trace(Scores(model), IMAGES[:2])
    torch.testing.assert_close(wrapped(IMAGES), model(IMAGES).scores)


@pytest.mark.usefixtures("untyped")
def test_export_is_saved_and_loaded() -> None:
    """In version 0.1 the output could not be stored."""
    model = small(decoder=False).eval()
    file = io.BytesIO()
    torch.export.save(torch.export.export(model, (IMAGES,)), file)
    file.seek(0)
    answer = torch.export.load(file).module()(IMAGES)
    torch.testing.assert_close(answer.scores, model(IMAGES).scores)
    assert answer.reconstruction is None
    assert answer.coefficients.keys() == {"conv_caps.0", "class_caps"}


def train_step(model: Any, compiled: Any) -> Tensor:
    output = compiled(IMAGES, LABELS)
    loss = sum(model.losses(output, SimpleNamespace(images=IMAGES, labels=LABELS)).values())
    loss.backward()
    return loss.detach()


@pytest.mark.slow
@pytest.mark.usefixtures("untyped")
def test_a_compiled_training_step_is_the_same() -> None:
    """In version 0.1 compilation failed in the backward pass of the routing."""
    model, compiled = small(dropout=0.0), small(dropout=0.0)
    compiled.load_state_dict(model.state_dict())
    losses = (
        train_step(model, model),
        train_step(compiled, torch.compile(compiled, backend="aot_eager", fullgraph=True)),
    )
    torch.testing.assert_close(*losses)
    for (name, ours), theirs in zip(model.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=name, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("untyped")
def test_compiled_dropout_draws_each_time() -> None:
    """In version 0.1 compilation failed in dropout."""
    dropping = small(dropout=0.5, channel_dropout=0.5)
    step = torch.compile(dropping, backend="aot_eager", fullgraph=True)
    assert len({train_step(dropping, step).item() for _ in range(3)}) == 3


@pytest.mark.parametrize("routing", arcaps.list_routings())
def test_double_backward(routing: str) -> None:
    model = small(routing=routing).eval()
    images = IMAGES.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(images).scores.square().sum(), images, create_graph=True)
    gradient.square().sum().backward()
    assert images.grad is not None
    assert images.grad.isfinite().all()
    assert images.grad.any()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_of_each_image_by_vmap() -> None:
    model = small().eval()
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())

    def loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        scores = torch.func.functional_call(model, (parameters, buffers), (image[None],)).scores
        return arcaps.margin_loss(scores, label[None])

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, IMAGES, LABELS)
    arcaps.margin_loss(model(IMAGES).scores, LABELS).backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(each[name].mean(0), parameter.grad, msg=name, rtol=1e-3, atol=1e-6)


def test_dropout_under_vmap_is_another_for_each_image() -> None:
    dropout = Dropout(0.5)
    dropped = torch.func.vmap(dropout, randomness="different")(torch.ones(4, 200))
    assert len({tuple(row.tolist()) for row in dropped}) == 4
    assert dropped.mean().item() == pytest.approx(1, abs=0.2)
    same = torch.func.vmap(dropout, randomness="same")(torch.ones(4, 200))
    assert torch.equal(same, same[:1].expand(4, -1))


def test_batch_norm_inside_torch_func_says_what_to_do() -> None:
    model = small().train()

    def scores(image: Tensor) -> Tensor:
        return model(image[None]).scores[0]

    with pytest.raises(ArcapsError, match="replace_all_batch_norm_modules_"):
        torch.func.vmap(scores, randomness="different")(IMAGES)
    torch.func.replace_all_batch_norm_modules_(model)
    assert torch.func.vmap(scores, randomness="different")(IMAGES).shape == (4, 3)
