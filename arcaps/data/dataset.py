"""A data set in memory: one uint8 tensor of images, their labels, and what else is known of each image."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, Subset, SubsetRandomSampler

from arcaps.data.warp import Transform
from arcaps.errors import ArcapsError
from arcaps.preprocessing import Preprocessing, is_number, is_whole, to_array

Labels: TypeAlias = Integer[Tensor, " count"] | Float[Tensor, "count classes"]
Example: TypeAlias = tuple[Any, ...]
"""An image, its class number or its row of 0 and 1, and its mask if there are masks."""
UNLABELLED = 255
"""In masks: a pixel that belongs to no class."""
PER_IMAGE = {"per_image": True}
"""A field with one entry for each image, or None."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images with their labels. Batches are made by indexing; `dataset[3]` is one image with its label."""

    name: str
    images: UInt8[Tensor, "count channels height width"] = field(metadata=PER_IMAGE)
    labels: Labels = field(metadata=PER_IMAGE)
    """The class number of each image; or, where an image may have several classes or none, a row of 0 and 1."""
    class_names: tuple[str, ...]
    transforms: Transform | None = field(default=None, metadata=PER_IMAGE)
    """How each image was made from its original, where arcaps made it (affNIST, regenerated)."""
    published_transforms: Float[Tensor, "count 6"] | None = field(default=None, metadata=PER_IMAGE)
    """affNIST's own `human_readable_transform`, as it is in its files."""
    masks: UInt8[Tensor, "count height width"] | None = field(default=None, metadata=PER_IMAGE)
    """The class number of each pixel; 255 for a pixel of no class."""
    files: tuple[str, ...] | None = field(default=None, metadata=PER_IMAGE)
    """The file of each image, from the folder that was loaded."""
    digests: tuple[str, ...] | None = field(default=None, metadata=PER_IMAGE)
    """The SHA-256 of each file."""
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    """How files become images like these. Its size and channels are always those of the images."""

    def __post_init__(self) -> None:
        check_data(**{known.name: getattr(self, known.name) for known in fields(self)})
        own = replace(self.preprocessing, size=self.image_size, channels=self.channels)
        object.__setattr__(self, "preprocessing", own)
        object.__setattr__(self, "class_names", tuple(map(str, self.class_names)))
        if not self.several_labels:  # bytes would be taken for a mask where labels are indices
            object.__setattr__(self, "labels", self.labels.long())

    @classmethod
    def from_arrays(
        cls,
        images: Tensor | NDArray[Any],
        labels: Tensor | NDArray[Any] | Sequence[Any],
        class_names: Sequence[str] | None = None,
        *,
        masks: Tensor | NDArray[Any] | None = None,
        name: str = "arrays",
    ) -> "Dataset":
        """A data set of your own arrays or tensors.

        Images are bytes, (count, height, width), or (count, channels, height, width), or with the channels last.
        Labels are class numbers from 0, or class names, or a row of 0 and 1 for each image, of which several may be 1.
        Without `class_names` the classes are named by their numbers.
        """
        pixels = bytes_of(name, "images", images)
        if pixels.ndim == 3:
            pixels = pixels[:, None]
        elif pixels.ndim == 4 and pixels.shape[1] not in (1, 3) and pixels.shape[3] in (1, 3):
            pixels = pixels.movedim(3, 1)
        values, names = number_labels(name, labels, class_names)
        own_masks = None if masks is None else bytes_of(name, "masks", masks)
        check_data(name, pixels, values, names, masks=own_masks)
        return cls(name, pixels.contiguous(), values, names, masks=own_masks)

    @classmethod
    def from_torch(
        cls, dataset: Any, class_names: Sequence[str] | None = None, *, name: str | None = None
    ) -> "Dataset":
        """A torch or torchvision data set, read once from its first example to its last.

        Each example is an image and a label. The image is a Pillow image, or a tensor or array of bytes, or floats
        that are bytes divided by 255, as `ToTensor` makes them. All images must have one size. A `Subset` has the class
        names of the data set that it is a part of.
        """
        whole = dataset
        while isinstance(whole, Subset):
            whole = whole.dataset
        title = name or type(whole).__name__
        images, labels = [], []
        for number in range(len(dataset)):
            example = dataset[number]
            if not isinstance(example, tuple | list) or len(example) < 2:
                raise ArcapsError(f"{title}: example {number} is not an image with a label: give (image, label)")
            images.append(torch.from_numpy(to_array(as_bytes(title, number, example[0])).copy()).permute(2, 0, 1))
            labels.append(example[1])
        shapes = sorted({tuple(image.shape) for image in images})
        if len(shapes) != 1:
            found = f"{len(shapes)} shapes, such as {shapes[:3]}" if shapes else "no images"
            raise ArcapsError(f"{title} has {found}: give images of one size, by a Resize in its transform")
        names = class_names if class_names is not None else getattr(whole, "classes", None)
        several = isinstance(labels[0], Tensor | np.ndarray) and np.ndim(labels[0]) == 1
        values = torch.stack([torch.as_tensor(label) for label in labels]) if several else labels
        return cls.from_arrays(torch.stack(images), values, names, name=title)

    def __len__(self) -> int:
        return len(self.images)

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice | Sequence[int] | Tensor) -> "Dataset": ...

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> "Example | Dataset":
        """One image with its label, and its mask if there are masks; for a slice or several numbers, a data set."""
        if isinstance(index, int | np.integer):
            if not -len(self) <= index < len(self):
                raise IndexError(f"{self.name} has {len(self)} images, there is no number {index}")
            label = self.labels[index] if self.several_labels else int(self.labels[index])
            return (self.images[index], label, *(() if self.masks is None else (self.masks[index],)))
        if isinstance(index, slice):
            return self.take(torch.arange(len(self))[index])
        indices = torch.as_tensor(index)
        return self.take(indices.nonzero().flatten() if indices.dtype == torch.bool else indices.long())

    def __iter__(self) -> Iterator[Example]:
        return (self[number] for number in range(len(self)))

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return self.images.shape[1]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width."""
        return self.images.shape[2], self.images.shape[3]

    @property
    def several_labels(self) -> bool:
        """Whether an image may have several classes, or none."""
        return self.labels.ndim == 2

    def class_counts(self) -> Int[Tensor, " classes"]:
        """The number of images of each class."""
        if self.several_labels:
            return self.labels.ne(0).sum(0)
        return self.labels.bincount(minlength=len(self.class_names))

    def take(self, indices: Int[Tensor, " some"]) -> "Dataset":
        """The images at these indices, in this order, with everything that is known of each."""
        chosen = {}
        for known in fields(self):
            value = getattr(self, known.name)
            if "per_image" in known.metadata and value is not None:
                chosen[known.name] = take(value, indices)
        return replace(self, **chosen)

    def split(self, fraction: float, *, seed: int = 0) -> tuple["Dataset", "Dataset"]:
        """Hold out a `fraction` of the images, class by class: what is left, and what is held out, each in order.

        Every class gives its part to within one image, and at least one image; the whole number is exact, unless a
        class is so small that its part would be none. An image with several classes counts for the rarest of them.
        """
        held_out = hold_out(self.groups(), fraction, seed)
        return self.take((~held_out).nonzero().flatten()), self.take(held_out.nonzero().flatten())

    def groups(self) -> Int[Tensor, " count"]:
        """The class of each image; of several, the rarest; without any, one number more."""
        if not self.several_labels:
            return self.labels
        rarity = self.class_counts().float().masked_fill(self.labels == 0, torch.inf)
        return rarity.argmin(-1).masked_fill((self.labels == 0).all(-1), len(self.class_names))

    def pad(self, size: tuple[int, int]) -> "Dataset":
        """The images in the middle of a larger black frame; masks get class 0 there."""
        if any(outer < inner for outer, inner in zip(size, self.image_size, strict=True)):
            raise ArcapsError(f"{self.name} has images of {self.image_size}: give a larger frame than {size}")
        return self.fit(replace(self.preprocessing, size=size, fit="pad"))

    def fit(self, preprocessing: Preprocessing) -> "Dataset":
        """The images with the size, channels and inversion of a model's preprocessing."""
        change = replace(preprocessing, invert=preprocessing.invert != self.preprocessing.invert)
        images, masks = change.batch_pixels(self.images), self.masks
        if masks is not None and change.size not in (None, self.image_size):
            masks = torch.stack([change.mask_pixels(mask) for mask in masks])
        return replace(self, images=images, masks=masks, preprocessing=preprocessing)

    def fingerprint(self) -> str:
        """The SHA-256 of images, labels, masks and class names: equal for equal data, whatever files they came from."""
        digest = hashlib.sha256("\0".join(self.class_names).encode())
        for tensor in (self.images, self.labels, self.masks):
            if tensor is not None:
                digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Plain values for JSON by which the same images can be found again: see `load_folder(split=)`."""
        known: dict[str, Any] = {
            "name": self.name,
            "count": len(self),
            "class_names": list(self.class_names),
            "class_counts": self.class_counts().tolist(),
            "image_size": list(self.image_size),
            "channels": self.channels,
            "fingerprint": self.fingerprint(),
        }
        if self.files is not None:
            known["files"] = dict(zip(self.files, self.digests or [""] * len(self), strict=True))
        return known


class Data(NamedTuple):
    """The parts of a collection. Where there is no `validation` part, split it off the training images."""

    train: Dataset | None
    validation: Dataset | None
    test: Dataset

    def map(self, change: Callable[[Dataset], Dataset]) -> "Data":
        """Every part that there is, after a change."""
        return Data(*(part if part is None else change(part) for part in self))  # type: ignore[arg-type]

    def describe(self) -> dict[str, Any]:
        """Plain values for JSON of every part: what a run stores to find the same split again."""
        return {name: None if part is None else part.describe() for name, part in self._asdict().items()}


def take(values: Any, indices: Int[Tensor, " some"]) -> Any:
    """The entries at these indices, of a tensor, of transformations or of a tuple."""
    if isinstance(values, Transform):
        return values.take(indices)
    return values[indices] if isinstance(values, Tensor) else tuple(values[number] for number in indices.tolist())


def hold_out(groups: Int[Tensor, " count"], fraction: float, seed: int) -> Bool[Tensor, " count"]:
    """Which images to hold out: a `fraction` of all, from every group its part to within one image, and at least one.

    Groups without images give none.
    """
    if not (is_number(fraction) and 0 <= fraction <= 1):
        raise ArcapsError(f"a part of {fraction} of the images cannot be held out: give a number from 0 to 1")
    if not is_whole(seed):
        raise ArcapsError(f"seed is {seed!r}: give a whole number")
    generator = torch.Generator().manual_seed(seed)
    shares = fraction * groups.bincount()
    quotas = shares.floor()
    missing = round(fraction * len(groups)) - int(quotas.sum())
    quotas[(shares - quotas).argsort(descending=True, stable=True)[:missing]] += 1
    held_out = torch.zeros(len(groups), dtype=torch.bool)
    for label, quota in enumerate(quotas.int().tolist()):
        members = (groups == label).nonzero().flatten()
        shuffled = members[torch.randperm(len(members), generator=generator)]
        held_out[shuffled[: max(1, quota)]] = True
    return held_out


def differences(stored: dict[str, Any], data: Data) -> list[str]:
    """What is different from data that `Data.describe` described: a sentence for each part that changed."""
    changes = []
    for name, part in data._asdict().items():
        before = stored.get(name)
        if (before is None) != (part is None):
            changes.append(f"the {name} part {'is new' if before is None else 'is gone'}")
        elif before is not None and before["fingerprint"] != part.fingerprint():
            changes.append(f"the {name} part had {before['count']} images and has {len(part)}, with other content")
    return changes


def as_dataset(data: Any, class_names: Sequence[str] | None = None) -> Dataset:
    """A data set from what PyTorch users have: a torch data set, a DataLoader, or one of arcaps itself.

    `class_names` are for data that do not name their classes.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, DataLoader):
        return as_dataset(examples_of(data), class_names)
    if isinstance(data, Subset) and isinstance(data.dataset, Dataset | Subset):
        return as_dataset(data.dataset, class_names)[data.indices]
    if isinstance(data, tuple) and any(isinstance(part, np.ndarray | Tensor) for part in data):
        raise ArcapsError("data is a tuple of arrays: give arcaps.Dataset.from_arrays(images, labels)")
    if isinstance(data, str) or not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        kind = type(data).__name__
        raise ArcapsError(f"data is {kind}: give a Dataset, a Data, a torch data set or a DataLoader")
    whole = data.dataset if isinstance(data, Subset) else data
    return Dataset.from_torch(data, None if hasattr(whole, "classes") else class_names)


def examples_of(loader: DataLoader[Any]) -> Any:
    """The data set of a DataLoader, or the part of it that its sampler chooses."""
    batches = loader.batch_sampler
    sampler = batches.sampler if type(batches) is BatchSampler else loader.sampler if batches is None else batches
    if type(sampler) is SubsetRandomSampler:
        return Subset(loader.dataset, torch.as_tensor(sampler.indices).tolist())
    every = type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == len(sampler.data_source)
    if type(sampler) is SequentialSampler or every or not hasattr(loader.dataset, "__len__"):
        return loader.dataset
    kind = type(sampler).__name__
    raise ArcapsError(f"data is a DataLoader with a {kind}: give its data set, or a Subset of it in place of a sampler")


def bytes_of(name: str, what: str, values: Tensor | NDArray[Any]) -> Tensor:
    """Values as uint8; whole numbers from 0 to 255 are converted, anything else is refused."""
    try:
        tensor = torch.as_tensor(np.ascontiguousarray(values) if isinstance(values, np.ndarray) else values)
    except (TypeError, ValueError, RuntimeError):
        kind = type(values).__name__
        raise ArcapsError(f"{name}: {what} are {kind}, not numbers: give an array or a tensor of bytes") from None
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        way = "give bytes from 0 to 255; for floats from 0 to 1, (255 * images).round() as uint8"
        raise ArcapsError(f"{name}: {what} are {tensor.dtype}: {way}")
    if tensor.dtype != torch.uint8 and tensor.numel() and not 0 <= tensor.min() <= tensor.max() <= 255:
        raise ArcapsError(f"{name}: {what} go from {tensor.min()} to {tensor.max()}: give bytes from 0 to 255")
    return tensor.to(torch.uint8)


def as_bytes(name: str, number: int, image: Any) -> Any:
    """The image of an example; floats that are bytes divided by 255 become these bytes again."""
    if not isinstance(image, Tensor | np.ndarray) or image.dtype in (torch.uint8, np.uint8):
        return image
    values = 255 * torch.as_tensor(image).double()
    if not ((values - values.round()).abs() < 1e-2).all() or values.min() < 0 or values.max() > 255:
        way = "leave Normalize and random changes out of its transform; arcaps has its own"
        raise ArcapsError(f"{name}: image {number} does not hold bytes, nor bytes divided by 255: {way}")
    whole = values.round().to(torch.uint8)
    return whole if isinstance(image, Tensor) else whole.numpy()


def number_labels(
    name: str, labels: Tensor | NDArray[Any] | Sequence[Any], class_names: Sequence[str] | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as class numbers, or as rows of 0 and 1, with the names of the classes."""
    if isinstance(class_names, str):
        raise ArcapsError(f"{name}: the class names are {class_names!r}: give a list of names")
    plain = labels if isinstance(labels, Tensor) else np.asarray(labels)
    if isinstance(plain, np.ndarray) and plain.dtype.kind in "US":
        names = tuple(sorted(set(plain.tolist()))) if class_names is None else tuple(class_names)
        strangers = sorted(set(plain.tolist()) - set(names))
        if strangers:
            raise ArcapsError(f"{name}: the labels {', '.join(strangers)} are not among the classes {', '.join(names)}")
        return torch.tensor([names.index(label) for label in plain.tolist()]), names
    if isinstance(plain, np.ndarray) and plain.dtype.kind not in "biuf":
        raise ArcapsError(f"{name}: labels are {plain.dtype}: give class numbers from 0, or class names")
    values = torch.as_tensor(plain).detach().cpu()
    if values.ndim == 2:
        names = tuple(map(str, range(values.shape[1]))) if class_names is None else tuple(class_names)
        return values.float(), names
    if values.is_floating_point() or values.dtype == torch.bool:
        raise ArcapsError(f"{name}: labels are {values.dtype}: give class numbers from 0 as whole numbers")
    values = values.long()
    count = int(values.max()) + 1 if values.numel() else 0
    return values, tuple(map(str, range(count))) if class_names is None else tuple(class_names)


def check_data(
    name: str, images: Tensor, labels: Tensor, class_names: Sequence[str], masks: Tensor | None = None, **others: Any
) -> None:
    """Refuse what is not a data set: other kinds of numbers, other shapes, other lengths, labels of no class."""
    if images.dtype != torch.uint8:
        raise ArcapsError(f"{name}: images are {images.dtype}: give bytes from 0 to 255, torch.uint8")
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise ArcapsError(f"{name}: images are {tuple(images.shape)}: give (count, channels, height, width)")

    for what, value in {"labels": labels, "masks": masks, **others}.items():
        per_image = Dataset.__dataclass_fields__[what].metadata == PER_IMAGE
        if per_image and value is not None and len(value) != len(images):
            raise ArcapsError(f"{name} has {len(images)} images and {len(value)} {what}: give one for each image")
    if len(set(class_names)) < len(class_names):
        raise ArcapsError(f"{name}: the class names are {class_names!r}: give a list, each name once")
    check_labels(name, labels, len(class_names))
    if masks is not None:
        check_masks(name, masks, (images.shape[2], images.shape[3]), len(class_names))


def check_labels(name: str, labels: Tensor, classes: int) -> None:
    """Refuse labels that are not classes of the data set."""
    if labels.ndim == 2:
        if labels.shape[1] != classes:
            raise ArcapsError(f"{name}: labels have {labels.shape[1]} columns for {classes} classes: give one for each")
        if not ((labels == 0) | (labels == 1)).all():
            raise ArcapsError(
                f"{name}: the labels of several classes are not all 0 or 1: give 1 where a class is there"
            )
        return
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        found = f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise ArcapsError(
            f"{name}: labels are {found}: give a class number for each image, or (count, classes) of 0 and 1"
        )
    labels = labels.long()  # torch finds no smallest number among unsigned ones of 16 bits and more
    if labels.numel() and not 0 <= labels.min() <= labels.max() < classes:
        found = f"labels go from {labels.min()} to {labels.max()}, and there are {classes} class names"
        raise ArcapsError(f"{name}: {found}: give labels from 0 to {classes - 1}")


def check_masks(name: str, masks: Tensor, size: tuple[int, int], classes: int) -> None:
    """Refuse masks that do not fit the images or name classes that there are not."""
    if masks.dtype != torch.uint8 or tuple(masks.shape[1:]) != size:
        found = f"{masks.dtype} of shape {tuple(masks.shape)}"
        raise ArcapsError(f"{name}: masks are {found}: give bytes, one for each pixel of {size[0]}x{size[1]}")
    used = masks.flatten().bincount(minlength=256)[classes:UNLABELLED]
    if used.any():
        wrong = classes + int(used.nonzero()[0])
        raise ArcapsError(f"{name}: a mask has class {wrong}: give 0 to {classes - 1}, or {UNLABELLED} for no class")
