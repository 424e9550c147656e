"""affNIST (regenerated): MNIST digits under random affine transformations, in frames of 40x40.

It is made here, by the kind of transformations that the original affNIST names, and must not be mistaken for it. Each
image's exact transformation is known.
"""

from dataclasses import replace

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from arcaps.data.dataset import Dataset
from arcaps.data.warp import Transform, warp
from arcaps.errors import ArcapsError

REGENERATED = "affNIST (regenerated)"
SIZE = (40, 40)


def regenerate(digits: Dataset, *, versions: int = 32, seed: int = 0, chunk: int = 500) -> Dataset:
    """Versions of each digit: rotation within 20 degrees, shear within 0.2, scales of 0.8 to 1.2, then a shift.

    Rotation, shear and the two scales are uniform and independent; the shift is uniform among those that keep all ink
    inside the frame. The versions of a digit are side by side: image `i` comes from digit `i // versions`. The same
    digits and seed give the same bytes.
    """
    generator = torch.Generator().manual_seed(seed)
    count = versions * len(digits)
    images = torch.empty(count, 1, *SIZE, dtype=torch.uint8)
    transforms = Transform.make(count).clone()
    for start in range(0, count, chunk):
        part = slice(start, min(start + chunk, count))
        originals = digits.images[torch.arange(part.start, part.stop) // versions]
        transform = draw(originals, generator)
        transforms.put(part, transform)
        images[part] = warp(originals.double(), transform, size=SIZE).round_().to(torch.uint8)
    labels = digits.labels.repeat_interleave(versions)
    return Dataset(f"{REGENERATED} of {digits.name}", images, labels, digits.class_names, transforms)


def draw(originals: UInt8[Tensor, "count 1 height width"], generator: torch.Generator) -> Transform:
    """A random transformation for each image that keeps its ink inside the frame."""
    count = len(originals)
    values = torch.rand(count, 6, dtype=torch.float64, generator=generator).T
    transform = Transform.make(
        count,
        angle=20 * (2 * values[0] - 1),
        shear=0.2 * (2 * values[1] - 1),
        scale_x=0.8 + 0.4 * values[2],
        scale_y=0.8 + 0.4 * values[3],
    )
    lowest, highest = ink_box(originals, transform.linear())
    # the nearest pixels outside the frame, where a value would be cut off
    outside = torch.tensor([SIZE[1] + 1, SIZE[0] + 1], dtype=torch.float64) / 2
    room = (outside - highest) - (-outside - lowest)
    if (room < 0).any():
        raise ArcapsError(f"the ink of {int((room < 0).any(1).sum())} images is larger than the {SIZE} frame")
    shift = (-outside - lowest) + room * values[4:].T
    return replace(transform, shift_x=shift[:, 0], shift_y=shift[:, 1])


def ink_box(
    images: UInt8[Tensor, "count 1 height width"], linear: Float[Tensor, "count 2 2"]
) -> tuple[Float[Tensor, "count 2"], Float[Tensor, "count 2"]]:
    """The least and greatest x and y, from the middle, that any ink reaches after a linear map.

    Each pixel is as wide as its bilinear footprint: one pixel to each side.
    """
    height, width = images.shape[2:]
    y, x = torch.meshgrid(
        torch.arange(height, dtype=torch.float64) - (height - 1) / 2,
        torch.arange(width, dtype=torch.float64) - (width - 1) / 2,
        indexing="ij",
    )
    places = torch.stack([x.flatten(), y.flatten()])
    moved = linear @ places
    empty = (images == 0).flatten(1).unsqueeze(1)
    footprint = linear.abs().sum(-1)
    lowest = moved.masked_fill(empty, torch.inf).amin(-1) - footprint
    highest = moved.masked_fill(empty, -torch.inf).amax(-1) + footprint
    blank = empty.all(-1)
    return lowest.masked_fill(blank, 0.0), highest.masked_fill(blank, 0.0)
