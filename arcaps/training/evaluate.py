"""How good a model is on a data set."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.data import Batch, Dataset, Loader
from arcaps.data.classes import follow_classes
from arcaps.data.dataset import as_dataset
from arcaps.errors import ArcapsError
from arcaps.mode import evaluation_mode
from arcaps.models import Classification, Model, Output
from arcaps.models.own import answer_scores
from arcaps.training.distributed import Processes


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """The number format of that name; "auto" is bfloat16 on GPUs that compute in it, else float32.

    On CPUs it is float32 also where bfloat16 is faster (1.5 to 1.8 times with AVX-512 BF16), so that a result does not
    depend on the processor.
    """
    if name == "auto":
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if fast else torch.float32
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if name not in known:
        raise ArcapsError(f"unknown precision {name!r}: there are auto, {', '.join(known)}")
    return known[name]


def require_fit(model: Any, dataset: Dataset) -> None:
    """Refuse images of another shape than the model's."""
    if not hasattr(model, "image_size"):  # a user's own module
        return
    if (dataset.channels, *dataset.image_size) != (model.channels, *model.image_size):
        wanted = "x".join(map(str, (model.channels, *model.image_size)))
        given = "x".join(map(str, (dataset.channels, *dataset.image_size)))
        raise ArcapsError(
            f"the model takes images of {wanted}, {dataset.name} has {given}: give dataset.fit(model.preprocessing)"
        )


@torch.no_grad()
def class_scores(
    model: Any,
    dataset: Dataset,
    *,
    device: torch.device | None = None,
    precision: torch.dtype = torch.float32,
    batch_size: int = 250,
    shifts: int = 0,
) -> Float[Tensor, "count classes"]:
    """The model's scores for every image; with `shifts`, their mean over the image shifted by up to so many pixels."""
    require_fit(model, dataset)
    device = device or next(model.parameters()).device
    model = model.for_inference()
    scores = []
    for pixels in dataset.images.split(batch_size):
        views = shifted(model.preprocessing(pixels.to(device)), shifts)
        with torch.autocast(device.type, precision, enabled=precision != torch.float32):
            scores.append(torch.stack([model(view).scores.float().cpu() for view in views]).mean(0))
    return torch.cat(scores)


def shifted(
    images: Float[Tensor, "batch channels height width"], shifts: int
) -> Iterator[Float[Tensor, "batch channels height width"]]:
    """The images shifted by every number of pixels up to `shifts`, in both directions, with black at the border."""
    height, width = images.shape[-2:]
    framed = F.pad(images, (shifts,) * 4)
    for top in range(2 * shifts + 1):
        for left in range(2 * shifts + 1):
            yield framed[..., top : top + height, left : left + width]


def own_output(answer: Any, model: nn.Module, classes: int) -> Output:
    """What a user's own module answered, if it has a score for each class of the data set."""
    scores = answer_scores(answer, type(model).__name__)
    if scores.shape[1] != classes:
        found = f"{type(model).__name__} answers with {scores.shape[1]} scores"
        raise ArcapsError(f"{found}, and the data set has {classes} classes: give one score for each class")
    return Output(scores)


def move_batch(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on a device."""
    moved: dict[str, Any] = {
        name: value.to(device) for name, value in batch._asdict().items() if isinstance(value, Tensor)
    }
    return batch._replace(**moved)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    dataset: Any,
    *,
    processes: Processes | None = None,
    precision: torch.dtype = torch.float32,
    batch_size: int = 250,
) -> Any:
    """Evaluate a model on a data set; several processes share the images, and all get the whole evaluation.

    A model of arcaps makes an evaluation of its own kind, for a classifier a `Classification`. A module of your own is
    called with floats from 0 to 1 and answers with scores, or logits, `(batch, classes)`. `dataset` may also be a torch
    data set or a DataLoader. Its classes and those of a model of arcaps are matched by name.
    """
    if not isinstance(model, nn.Module):
        raise ArcapsError(f"model is {model!r}: give a module; arcaps.open_run(path).model is that of a run folder")
    dataset = as_dataset(dataset, getattr(model, "class_names", None))
    require_fit(model, dataset)
    own = isinstance(model, Model)
    evaluation: Any = Classification(dataset.name, dataset.class_names)
    answering, preprocessing = model, dataset.preprocessing
    if isinstance(model, Model):
        dataset = follow_classes(dataset, model.class_names)
        evaluation, answering, preprocessing = (
            model.new_evaluation(dataset.name),
            model.for_inference(),
            model.preprocessing,
        )
    first = next(model.parameters(), torch.empty(0))
    device, numbers = first.device, first.dtype
    rank, world = (0, 1) if processes is None else (processes.rank, processes.world)
    loader = Loader(dataset, max(batch_size, world), preprocessing=preprocessing, shuffle=False, rank=rank, world=world)
    with evaluation_mode(answering):
        for batch in loader:
            batch = move_batch(batch, device)
            if len(batch.images):
                with torch.autocast(device.type, precision, enabled=precision != torch.float32):
                    output = answering(batch.images.to(numbers))
                evaluation.update(output if own else own_output(output, model, len(dataset.class_names)), batch)
    if processes is not None and world > 1:
        evaluation.sums = {name: processes.sum(value.to(device)).cpu() for name, value in evaluation.sums.items()}
    return evaluation
