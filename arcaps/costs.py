"""What a model costs, before it is run: shapes, parameters, multiply-adds and memory, layer by layer.

A training step is run on torch's "meta" device, whose tensors have shapes and no contents: it takes no time and no
memory, and what it counts is what the code does, not a formula beside it. The multiply-adds are those of the algorithm
as written down, all votes first, then the routing: a routing that takes a short cut through memory may need more.
"""

import copy
import weakref
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from arcaps.capsules import Capsules
from arcaps.compat import TorchDispatchMode, storage_key, tensors_in
from arcaps.data import Batch
from arcaps.errors import ArcapsError
from arcaps.layers import ConvCaps
from arcaps.models import ARCapsNet, Model, OwnNetwork, create_model
from arcaps.models.base import blocks
from arcaps.routing import Routing


@dataclass(frozen=True)
class LayerInfo:
    """One layer. Memory and shapes are those of the whole batch, multiply-adds those of one image."""

    name: str
    layer: str
    output_shape: tuple[int, ...]
    parameters: int
    multiply_adds: int
    activation_bytes: int
    """What this layer keeps for the backward pass."""


@dataclass(frozen=True)
class ModelInfo:
    """A model's cost, layer by layer and in total, in float32."""

    model: str
    config: dict[str, Any]
    batch_size: int
    layers: list[LayerInfo]
    trainable_parameters: int
    parameters_with_statistics: int
    """With BatchNorm's running means and variances, as Keras counts them."""
    multiply_adds: int
    """Of one image, forward. A training step takes about three times as many, and those that are made again."""
    repeated_multiply_adds: int
    """Of one image: what a training step computes a second time to save memory (`images_at_once`)."""
    activation_bytes: int
    peak_training_bytes: int
    """The most bytes of tensors alive at any moment of a training step: weights, gradients, optimiser state,
    activations and what the step needs for a while. The Python process comes on top, and what its allocator holds
    without need."""
    warnings: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of all tensors alive, as they come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.alive: dict[int, weakref.finalize[..., torch.UntypedStorage]] = {}

    def track(self, values: Any) -> None:
        """Count the storages of all tensors in `values` that are not counted yet, until they die."""
        for tensor in tensors_in(values):
            storage = tensor.untyped_storage()
            key, size = storage_key(tensor), storage.nbytes()
            if key not in self.alive:
                self.now += size
                self.alive[key] = weakref.finalize(storage, self.forget, key, size)
        self.peak = max(self.peak, self.now)

    def forget(self, key: int, size: int) -> None:
        """A storage died."""
        del self.alive[key]
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.track(result)
        return result


def count_multiply_adds(model: Model, images: Tensor, labels: Tensor) -> dict[str, int]:
    """The multiply-adds of one image in each layer."""
    plain = copy.deepcopy(model)
    for module in plain.modules():
        if isinstance(module, Routing):
            module.route = partial(Routing.route, module)  # type: ignore[method-assign]
    with FlopCounterMode(display=False) as counter:
        plain(images, labels)
    flops = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    return {name: flops.get(f"{type(plain).__name__}.{name}", 0) // 2 // len(images) for name, _ in blocks(plain)}


def count_layers(model: Model, images: Tensor, labels: Tensor) -> list[LayerInfo]:
    """Run the model forward and note what each layer adds to the counts."""
    rows: list[LayerInfo] = []
    multiply_adds = count_multiply_adds(model, images, labels)
    names = {module: name for name, module in blocks(model)}
    kept = LiveMemory()
    weights = {storage_key(tensor) for tensor in model.state_dict().values()}
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        if storage_key(tensor) not in weights:
            saved.append(tensor)
            kept.track(tensor)
        return tensor

    def note(module: nn.Module, _: Any, output: Any) -> None:
        rows.append(
            LayerInfo(
                name=names[module],
                layer=repr(module),
                output_shape=tuple(getattr(output.poses if isinstance(output, Capsules) else output, "shape", ())),
                parameters=sum(parameter.numel() for parameter in module.parameters()),
                multiply_adds=multiply_adds[names[module]],
                activation_bytes=kept.now - sum(row.activation_bytes for row in rows),
            )
        )

    handles = [module.register_forward_hook(note) for module in names]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(images, labels)
    for handle in handles:
        handle.remove()
    return rows


def peak_of_training_step(model: Model, images: Tensor, labels: Tensor) -> int:
    """The most bytes alive at once in a training step with RMSprop, once the optimiser has its state."""
    optimiser = torch.optim.RMSprop(model.parameters(), foreach=False)
    memory = LiveMemory()
    masks = torch.empty(len(images), *images.shape[2:], dtype=torch.uint8, device="meta")
    batch = Batch(images, labels, len(images), masks)

    def step() -> None:
        optimiser.zero_grad()
        sum(model.loss(batch).values(), torch.zeros((), device="meta")).backward()
        optimiser.step()

    step()
    optimiser.zero_grad()
    memory.track([images, labels, list(model.parameters()), list(model.buffers()), list(optimiser.state.values())])
    with memory:
        step()
    return memory.peak


def training_bytes(name: str, batch_size: int, **options: Any) -> int | None:
    """The most bytes of tensors in a training step of a model by name; None where it does not run on "meta"."""
    try:
        with torch.device("meta"):
            model = create_model(name, **options)
            images = torch.empty(batch_size, model.channels, *model.image_size)
            labels = torch.empty(batch_size, dtype=torch.long)
        return peak_of_training_step(model.train(), images, labels)
    except ArcapsError:
        raise
    except Exception as error:  # a model of a user may need the values of its tensors
        return 2**63 if "overflow" in str(error) else None


def better_strides(model: ARCapsNet) -> str:
    """The advice that brings the class layer down to 8x8 positions, or as near as the image's shorter side allows."""
    layers, now = len(model.config["strides"]), model.config["strides"].count(2)
    strided = now
    while -(-max(model.image_size) // 2 ** (strided + 1)) > 8 and min(model.image_size) >= 2 ** (strided + 3):
        strided += 1
    if strided == now:
        return "give smaller images"
    strides = (2,) * strided + (1,) * (layers - strided)
    return f"stride more layers, layers={len(strides)} with strides={strides}"


def warnings_for(model: Model, layers: list[LayerInfo]) -> list[str]:
    """What an experienced user would remark, with the setting to change."""
    total = sum(row.parameters for row in layers)
    share = {row.name: row.parameters / total for row in layers}
    found = []
    if isinstance(model, ARCapsNet) and share["class_caps"] > 0.5 and prod(model.class_caps.in_size) > 100:
        sees = "x".join(map(str, model.class_caps.in_size))
        found.append(
            f"the class layer holds {share['class_caps']:.0%} of the parameters, because it sees {sees} positions: "
            + better_strides(model)
        )
    if share.get("decoder", 0) > 0.5:
        found.append(f"the decoder holds {share['decoder']:.0%} of the parameters: decoder=False leaves it out")
    return found


def info(model: Model, *, batch_size: int = 100) -> ModelInfo:
    """What `model` costs in a training step with `batch_size` images. Nothing is computed, so any size is quick."""
    if batch_size < 1:
        raise ArcapsError(f"batch_size is {batch_size}: give at least 1")
    if batch_size > 10**9:
        raise ArcapsError(f"batch_size is {batch_size}: give at most 1e9")
    with torch.device("meta"):
        own = isinstance(model, OwnNetwork)
        twin = copy.deepcopy(model).to("meta").train() if own else create_model(model.name, **model.config)
        images = torch.empty(batch_size, model.channels, *model.image_size)
        labels = torch.empty(batch_size, dtype=torch.long)
    layers = count_layers(twin, images, labels)
    repeated = {name for name, layer in blocks(twin) if isinstance(layer, ConvCaps) and layer.images_at_once}
    return ModelInfo(
        model=model.name,
        config=model.config,
        batch_size=batch_size,
        layers=layers,
        trainable_parameters=model.parameter_count(),
        parameters_with_statistics=model.parameter_count(statistics=True),
        multiply_adds=sum(row.multiply_adds for row in layers),
        repeated_multiply_adds=sum(row.multiply_adds for row in layers if row.name in repeated),
        activation_bytes=sum(row.activation_bytes for row in layers),
        peak_training_bytes=peak_of_training_step(twin, images, labels),
        warnings=warnings_for(model, layers),
    )
