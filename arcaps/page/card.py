"""What the page knows of a model: `model.json`, and the examples that go with it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from arcaps.data import Dataset
from arcaps.data.warp import Transform, warp
from arcaps.errors import ArcapsError
from arcaps.models import Classifier, Output
from arcaps.models.capsules import CapsuleClassifier
from arcaps.routing import Routing

TITLES = {
    "ar_capsnet": "AR CapsNet",
    "capsule_net": "CapsuleNet",
    "conv_net": "ConvNet",
    "dense_head": "Dense head",
    "efficient_capsnet": "Efficient-CapsNet",
    "matrix_capsules": "Matrix capsules",
    "strong_conv_net": "StrongConvNet",
}
LOOKED_AT = 1000
"""Test images that are answered, to find examples and mistakes."""
MOST_EXAMPLES, MOST_MISTAKES = 20, 14
MNIST_BOX = 20 / 28
"""MNIST scales a digit to a box of this part of its image, and puts the centre of mass into the middle."""
MNIST_NOTICE = (
    "The example digits are from the MNIST database of handwritten digits by Yann LeCun, Corinna Cortes and "
    "Christopher J. C. Burges, under the Creative Commons Attribution-Share Alike 3.0 licence (CC BY-SA 3.0)."
)
MNIST_NAMES = ("mnist", "digits", "affnist")


@dataclass(frozen=True)
class Facts:
    """What is known of a model beyond its file."""

    data: str = ""
    """The name of the data set that it was trained on."""
    accuracy: float | None = None
    tested: int = 0
    """How many images the accuracy was measured on."""
    rotation: float = 0.0
    """The augmentation of its training: degrees, either way. The page's paths go a little further."""
    shift: float = 0.0
    """The same: a part of the image's side, either way."""
    notice: str | None = None
    """The licence of the examples."""

    @property
    def is_mnist(self) -> bool:
        """Whether the images are digits of MNIST, or made from them."""
        return self.data.split(",")[0].split("-")[0].strip("+") in MNIST_NAMES


@dataclass(frozen=True)
class Examples:
    """Images that a visitor can choose, first those that the model gets right, then its mistakes."""

    images: UInt8[Tensor, "count channels height width"]
    right: list[dict[str, int]] = field(default_factory=list)
    """The label and the answer of each image that the model gets right."""
    wrong: list[dict[str, int]] = field(default_factory=list)
    accuracy: float | None = None
    tested: int = 0


@torch.no_grad()
def choose_examples(model: Classifier, dataset: Dataset | None) -> Examples:
    """One or two images of each class that the model is surest of in the middle, and its surest mistakes."""
    if dataset is None:
        return Examples(torch.zeros(0, model.channels, *model.image_size, dtype=torch.uint8))
    if (dataset.channels, *dataset.image_size) != (model.channels, *model.image_size):
        wanted = "x".join(map(str, (model.channels, *model.image_size)))
        raise ArcapsError(f"the images of {dataset.name} do not fit the model: give images of {wanted}")
    count = min(LOOKED_AT, len(dataset))
    looked_at = dataset.take(torch.arange(count) * len(dataset) // count)
    scores = torch.cat([model(model.preprocessing(part)).scores for part in looked_at.images.split(50)])
    answers, labels = scores.argmax(-1), looked_at.labels
    correct = answers == labels
    chosen: list[int] = []
    per_class = max(1, min(2, MOST_EXAMPLES // model.classes))
    for turn in range(per_class):
        for label in range(model.classes):
            members = (correct & (labels == label)).nonzero().flatten()
            surest = members[scores[members, label].argsort(descending=True)]
            if len(surest) and len(chosen) < MOST_EXAMPLES:
                chosen.append(int(surest[(len(surest) * (turn + 1)) // (per_class + 2)]))
    wrong = (~correct).nonzero().flatten()
    wrong = wrong[scores[wrong].max(-1).values.argsort(descending=True)][:MOST_MISTAKES]

    def describe(indices: Sequence[int]) -> list[dict[str, int]]:
        return [{"label": int(labels[index]), "answer": int(answers[index])} for index in indices]

    places = torch.tensor([*chosen, *wrong.tolist()], dtype=torch.long)
    return Examples(
        looked_at.images[places],
        describe(chosen),
        describe(wrong.tolist()),
        float(correct.float().mean()),
        count,
    )


@torch.no_grad()
def choose_first(model: Classifier, examples: Examples, angle: float, shift: float) -> int:
    """The number of the example that the page opens with.

    Its capsule moves far in each of three ways, turned, sideways and up and down, and the answer stays right. Only the
    surest example of each class is looked at.
    """
    count = min(len(examples.right), model.classes)
    labels = torch.tensor([example["label"] for example in examples.right[:count]], dtype=torch.long)
    images = model.preprocessing(examples.images[:count])
    if count == 0 or (still := model(images).capsules) is None:
        return 0
    every, both_ways = torch.arange(count), torch.tensor([-1.0, 1.0], dtype=torch.float64)
    farthest, right = [], torch.ones(count, dtype=torch.bool)
    for turn, right_by, down_by in ((angle, 0.0, 0.0), (0.0, shift, 0.0), (0.0, 0.0, shift)):
        way = Transform.make(2, angle=both_ways * turn, shift_x=both_ways * right_by, shift_y=both_ways * down_by)
        both = [model(warp(images, way.take(torch.tensor([side] * count)))) for side in (0, 1)]
        capsules = torch.stack([output.capsules for output in both if output.capsules is not None])
        farthest.append((capsules - still)[:, every, labels].norm(dim=-1).max(0).values)
        right &= torch.stack([output.scores.argmax(-1) == labels for output in both]).all(0)
    return int((torch.stack(farthest).min(0).values * right).argmax())


@torch.no_grad()
def make_card(model: Classifier, facts: Facts, examples: Examples, precision: str) -> dict[str, Any]:
    """Everything the page needs to know, as plain values."""
    height, width = model.image_size
    noise = torch.randint(256, (8, model.channels, height, width), dtype=torch.uint8)
    output = model(model.preprocessing(examples.images if len(examples.images) else noise))
    known = facts.accuracy is not None
    angle = max(20.0, 1.5 * facts.rotation)
    shift = max(2.0, float(round(1.1 * facts.shift * max(height, width))))
    card = {
        "arcaps": version("arcaps"),
        "title": TITLES.get(model.name, model.name),
        "architecture": model.name,
        "parameters": model.parameter_count(),
        "precision": precision,
        "class_names": model.class_names,
        "channels": model.channels,
        "height": height,
        "width": width,
        "divide_by": model.preprocessing.divide_by,
        "fit": model.preprocessing.fit,
        "invert": model.preprocessing.invert,
        "box": MNIST_BOX * min(28, height, width) if facts.is_mnist and model.channels == 1 else 0,
        "data": facts.data,
        "accuracy": facts.accuracy if known else examples.accuracy,
        "tested": facts.tested if known else examples.tested,
        "notice": facts.notice or (MNIST_NOTICE if facts.is_mnist else None),
        "reach": {"angle": angle, "shift": shift},
        "first": choose_first(model, examples, angle, shift),
        "examples": examples.right,
        "mistakes": examples.wrong,
        "score": "softmax",
        "dim": 0,
        "range": 1.5,
        "decoder": False,
        "ranking": [],
        "layers": [],
    }
    if isinstance(model, CapsuleClassifier) and output.capsules is not None:
        card |= describe_capsules(model, output)
    return card


def describe_capsules(model: CapsuleClassifier, output: Output) -> dict[str, Any]:
    """The part of the card that is about capsules."""
    assert output.capsules is not None
    dim = output.capsules.shape[-1]
    largest = float(output.capsules.abs().max())
    reach = max(1.5 * largest, 0.1)
    return {
        "score": model.score.name,
        "dim": dim,
        "range": reach,
        "decoder": model.decoder is not None,
        "ranking": rank_dimensions(model, output.capsules, reach / 3) if model.decoder is not None else [],
        "layers": [describe_layer(name, tensor, model) for name, tensor in output.coefficients.items()],
    }


def describe_layer(name: str, coefficients: Tensor, model: CapsuleClassifier) -> dict[str, Any]:
    """The shape of a layer's coefficients, and what they add up to."""
    layer = dict(model.routing_layers())[name]
    last = model.class_caps if name == "class_caps" else None
    sums = what_adds_up(coefficients, layer.routing)
    if last is not None:  # it has no positions, unless each is an input of its own
        coefficients = coefficients[:, None, None]
    height, width, out, inp = coefficients.shape[1:]
    places = inp // layer.votes.in_caps
    positions = last is not None and places > 1
    if last is not None and positions:
        height, width = last.in_size
        inp //= places
    across = getattr(layer.activation, "across", False)
    return {
        "name": name,
        "height": height,
        "width": width,
        "out": out,
        "inp": inp,
        "window": 1 if positions else places,  # the inputs of one output are (window, capsules)
        "sums": sums,
        "positions": positions,  # the inputs are (height, width, inp)
        "classes": last is not None and last.layout == "text" and not across,  # each output is a class
    }


def what_adds_up(coefficients: Float[Tensor, "*batch out inp"], routing: Routing) -> str:
    """Over which axis the coefficients sum to 1: "inputs", "outputs", "neither"; "less": over the outputs, at most."""
    if routing.divides == "neither":
        return "neither"
    totals = coefficients.sum(-1 if routing.divides == "inputs" else -2)
    if torch.allclose(totals, torch.ones(()), atol=1e-3):
        return routing.divides
    return "less" if routing.divides == "outputs" and float(totals.max()) <= 1.001 else "neither"


def rank_dimensions(
    model: CapsuleClassifier, capsules: Float[Tensor, "count classes dim"], step: float
) -> list[list[int]]:
    """For each class the dimensions of its capsule, the one that changes the decoder's picture most first."""
    assert model.decoder is not None
    dim = capsules.shape[-1]
    moves = torch.cat([torch.zeros(1, dim), step * torch.eye(dim), -step * torch.eye(dim)])
    ranking = []
    for label in range(model.classes):
        own = capsules[:, label]
        typical = own[own.norm(dim=-1).argmax()]
        inputs = torch.zeros(len(moves), model.classes, dim)
        inputs[:, label] = typical + moves
        still, *moved = model.decoder(inputs)
        change = (torch.stack(moved) - still).square().flatten(1).mean(-1).unflatten(0, (2, dim)).sum(0)
        ranking.append(change.argsort(descending=True).tolist())
    return ranking
