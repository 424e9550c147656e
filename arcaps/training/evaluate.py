"""How good a model is on a data set."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from arcaps.data import Dataset
from arcaps.errors import ArcapsError
from arcaps.models import Classification, Classifier
from arcaps.training.distributed import Processes


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """The number format of that name; "auto" is bfloat16 on GPUs that compute in it, else float32.

    On CPUs it is float32 also where they have bfloat16: a training step took 1.4 to 2.9 times as long in bfloat16 on
    a processor with AVX-512 BF16.
    """
    if name == "auto":
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if fast else torch.float32
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if name not in known:
        raise ArcapsError(f"unknown precision {name!r}: there are auto, {', '.join(known)}")
    return known[name]


def require_fit(model: Classifier, dataset: Dataset) -> None:
    """Refuse images of another shape than the model's."""
    if (dataset.channels, *dataset.image_size) != (model.channels, *model.image_size):
        wanted = "x".join(map(str, (model.channels, *model.image_size)))
        given = "x".join(map(str, (dataset.channels, *dataset.image_size)))
        raise ArcapsError(f"the model takes images of {wanted}, {dataset.name} has {given}")


@torch.no_grad()
def class_scores(
    model: Classifier,
    dataset: Dataset,
    *,
    device: torch.device | None = None,
    precision: torch.dtype = torch.float32,
    batch_size: int = 250,
) -> Float[Tensor, "count classes"]:
    """The model's scores for every image."""
    require_fit(model, dataset)
    device = device or next(model.parameters()).device
    model = model.for_inference()
    scores = []
    for pixels in dataset.images.split(batch_size):
        with torch.autocast(device.type, precision, enabled=precision != torch.float32):
            scores.append(model(model.preprocessing(pixels.to(device))).scores.float().cpu())
    return torch.cat(scores)


def evaluate(
    model: Classifier,
    dataset: Dataset,
    *,
    processes: Processes | None = None,
    precision: torch.dtype = torch.float32,
) -> Classification:
    """Test a model; several processes share the images and all get the whole outcome."""
    own = dataset
    if processes is not None and processes.world > 1:
        own = dataset.take(torch.arange(processes.rank, len(dataset), processes.world))
    predicted = class_scores(model, own, precision=precision).argmax(-1)
    return tally(own, predicted, processes)


def tally(dataset: Dataset, predicted: Int[Tensor, " count"], processes: Processes | None = None) -> Classification:
    """Count what was taken for what."""
    classes = len(dataset.class_names)
    confusion = (dataset.labels * classes + predicted).bincount(minlength=classes**2).view(classes, classes)
    if processes is not None:
        confusion = processes.sum(confusion.to(processes.device)).cpu()
    return Classification(dataset.name, dataset.class_names, confusion)
