"""Classes of data and of models, matched by name."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from arcaps.data.dataset import UNLABELLED, Dataset
from arcaps.errors import ArcapsError


def match_classes(
    dataset: Dataset,
    class_names: Sequence[str],
    *,
    allow_missing: bool = False,
    rename: dict[str, str] | None = None,
) -> Dataset:
    """The data set with the classes of a model, matched by name: label k means `class_names[k]`.

    A class of the data set that the model does not have is refused, and so is a class of the model that the data set
    does not have, unless `allow_missing`. `rename` gives the model's names for names of the data set.
    """
    wanted = tuple(map(str, class_names))
    own = [(rename or {}).get(name, name) for name in dataset.class_names]
    used = dataset.class_counts() > 0
    if dataset.masks is not None:
        used |= dataset.masks.flatten().bincount(minlength=256)[: len(own)] > 0
    stranger = [name for name, there in zip(own, used.tolist(), strict=True) if there and name not in wanted]
    missing = [name for name in wanted if name not in own]
    for names, what in ((stranger, "are not classes of the model"), ([] if allow_missing else missing, "are missing")):
        if names:
            listed = f"{dataset.name}: {', '.join(map(repr, names))} {what}"
            both = f"the model has {', '.join(map(repr, wanted))}; the data set has {', '.join(map(repr, own))}"
            raise ArcapsError(f"{listed}: {both}. Give images of the model's classes under the model's names")
    if len(set(own)) < len(own):
        twice = sorted({name for name in own if own.count(name) > 1})
        raise ArcapsError(f"{dataset.name} has several classes called {', '.join(twice)}: give each its own name")
    numbers = torch.tensor([wanted.index(name) if name in wanted else -1 for name in own])
    known = numbers >= 0
    masks = dataset.masks
    if masks is not None:
        table = torch.full((256,), UNLABELLED, dtype=torch.uint8)
        table[: len(own)] = numbers.masked_fill(~known, UNLABELLED).to(torch.uint8)
        masks = table[masks.long()]
    if dataset.several_labels:
        labels = torch.zeros(len(dataset), len(wanted), dtype=dataset.labels.dtype)
        labels[:, numbers[known]] = dataset.labels[:, known]
    else:
        labels = numbers[dataset.labels]
    return replace(dataset, labels=labels, masks=masks, class_names=wanted)


def follow_classes(dataset: Dataset, class_names: Sequence[str]) -> Dataset:
    """The data set with the classes of a model or of training images, matched by name where both have names.

    Numbers in order from 0 are what classes are called where nobody named them: then label k stays class k, unless the
    data set's names are among the others.
    """
    wanted = tuple(map(str, class_names))
    if wanted == dataset.class_names or not wanted:
        return dataset
    unnamed = any(names == tuple(map(str, range(len(names)))) for names in (wanted, dataset.class_names))
    if unnamed and not set(dataset.class_names) <= set(wanted) and len(dataset.class_names) <= len(wanted):
        return dataset
    return match_classes(dataset, wanted, allow_missing=True)
