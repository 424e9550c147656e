"""One batched warp, for augmentation, for affNIST and for the analysis: an affine map, and bending.

Conventions, everywhere in arcaps:

- pixel centres are at whole numbers, x to the right, y down; the transformation is about the middle of the image;
- a positive `angle`, in degrees, turns the picture counter-clockwise, as one sees it;
- `shear` moves each point to the right by `shear` times its y;
- a positive `shift_x` moves the picture to the right, a positive `shift_y` moves it down, in pixels;
- `bend` moves the points of a coarse grid over the image, in pixels, and all between them smoothly;
- the order is flip, scale, shear, rotate, shift, bend;
- values between pixels are bilinear, in masks nearest; outside the image lies black ("zeros"), the nearest pixel
  ("border") or the mirrored image ("reflection").
"""

from dataclasses import dataclass, fields
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from arcaps.settings import Augmentation, Border

Mode = Literal["bilinear", "nearest"]
Numbers = Float[Tensor, " count"]
KNOTS = 5
"""Points of the grid that bending moves, in x and in y: on an MNIST digit about seven pixels apart."""


@dataclass(frozen=True)
class Transform:
    """A transformation for each of `count` images. The module says what each number means."""

    angle: Numbers
    shear: Numbers
    scale_x: Numbers
    scale_y: Numbers
    shift_x: Numbers
    shift_y: Numbers
    flip: Bool[Tensor, " count"]
    bend: Float[Tensor, "count 2 knots knots"]
    """How far each point of the grid moves in x and y; without points (0 knots) the image is not bent."""

    @classmethod
    def make(
        cls,
        count: int,
        *,
        angle: float | Numbers = 0.0,
        shear: float | Numbers = 0.0,
        scale_x: float | Numbers = 1.0,
        scale_y: float | Numbers = 1.0,
        shift_x: float | Numbers = 0.0,
        shift_y: float | Numbers = 0.0,
        flip: bool | Bool[Tensor, " count"] = False,
    ) -> "Transform":
        """The identity, but for what is given, as one number for all images or one for each."""

        def for_each(value: float | Tensor) -> Tensor:
            return torch.as_tensor(value, dtype=torch.float64).expand(count)

        return cls(
            for_each(angle),
            for_each(shear),
            for_each(scale_x),
            for_each(scale_y),
            for_each(shift_x),
            for_each(shift_y),
            torch.as_tensor(flip).expand(count),
            torch.zeros(count, 2, 0, 0),
        )

    def __len__(self) -> int:
        return len(self.angle)

    def take(self, indices: Int[Tensor, " some"] | slice) -> "Transform":
        """The transformations with these numbers."""
        return Transform(*(getattr(self, field.name)[indices] for field in fields(self)))

    def clone(self) -> "Transform":
        """A copy with numbers of its own for each image."""
        return Transform(*(getattr(self, field.name).clone() for field in fields(self)))

    def put(self, indices: slice, other: "Transform") -> None:
        """Set the transformations with these numbers."""
        for field in fields(self):
            getattr(self, field.name)[indices] = getattr(other, field.name)

    def linear(self) -> Float[Tensor, "count 2 2"]:
        """The 2x2 matrix of each transformation, acting on (x, y) from the middle of the image."""
        cosine, sine = self.angle.deg2rad().cos(), self.angle.deg2rad().sin()
        one, zero = torch.ones_like(cosine), torch.zeros_like(cosine)
        mirror = 1 - 2 * self.flip.to(cosine.dtype)
        rotate = stack_rows([cosine, sine], [-sine, cosine])
        shear = stack_rows([one, self.shear], [zero, one])
        scale = stack_rows([self.scale_x * mirror, zero], [zero, self.scale_y])
        return rotate @ shear @ scale

    def shift(self) -> Float[Tensor, "count 2"]:
        """The shift in x and y."""
        return torch.stack([self.shift_x, self.shift_y], dim=-1)


def stack_rows(*rows: list[Numbers]) -> Float[Tensor, "count 2 2"]:
    """A matrix for each image from its elements."""
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def warp(
    images: Float[Tensor, "count channels height width"],
    transform: Transform,
    *,
    size: tuple[int, int] | None = None,
    border: Border = "zeros",
    mode: Mode = "bilinear",
) -> Float[Tensor, "count channels new_height new_width"]:
    """Each image after its transformation, in a frame of `size` (its own, unless told) with the same middle."""
    height, width = images.shape[2:]
    new_height, new_width = (height, width) if size is None else size
    rows = torch.arange(new_height, dtype=torch.float64, device=images.device) - (new_height - 1) / 2
    columns = torch.arange(new_width, dtype=torch.float64, device=images.device) - (new_width - 1) / 2
    back = torch.linalg.inv(transform.linear()).to(images.device)
    shift = transform.shift().to(images.device)
    x = (columns[None, :] - shift[:, :1])[:, None, :]
    y = (rows[None, :] - shift[:, 1:])[:, :, None]
    if transform.bend.numel():
        bend = F.interpolate(
            transform.bend.to(images.device), (new_height, new_width), mode="bicubic", align_corners=True
        )
        x, y = x - bend[:, 0], y - bend[:, 1]
    # where each new pixel comes from, from the middle of the old image: x' = a x + b y
    source_x = back[:, 0, 0, None, None] * x + back[:, 0, 1, None, None] * y
    source_y = back[:, 1, 0, None, None] * x + back[:, 1, 1, None, None] * y
    grid = torch.stack([source_x * (2 / width), source_y * (2 / height)], dim=-1).to(images.dtype)
    return F.grid_sample(images, grid, mode=mode, padding_mode=border, align_corners=False)


def warp_masks(
    masks: UInt8[Tensor, "count height width"],
    transform: Transform,
    *,
    size: tuple[int, int] | None = None,
    border: Border = "zeros",
) -> UInt8[Tensor, "count new_height new_width"]:
    """Masks moved as `warp` moves their images: each pixel has the class of the nearest one, and 0 outside."""
    return warp(masks[:, None].float(), transform, size=size, border=border, mode="nearest")[:, 0].to(torch.uint8)


def sample_transforms(
    augmentation: Augmentation, count: int, image_size: tuple[int, int], generator: torch.Generator
) -> Transform:
    """Sample a transformation for each image.

    As many random values are drawn whatever the settings, but for `elastic` and `augmented`, whose values are drawn
    last and only where they are used.
    """
    values = 2 * torch.rand(7, count, dtype=torch.float64, generator=generator) - 1
    height, width = image_size
    knots = KNOTS if augmentation.elastic else 0
    bend = 2 * torch.rand(count, 2, knots, knots, generator=generator) - 1
    bend *= augmentation.elastic * torch.tensor([width, height])[:, None, None]
    if augmentation.augmented < 1:
        changed = torch.rand(count, generator=generator) < augmentation.augmented
        values, bend = values * changed, bend * changed[:, None, None, None]
    return Transform(
        angle=augmentation.rotation * values[0],
        shear=augmentation.shear * values[1],
        scale_x=1 + augmentation.scale * values[2],
        scale_y=1 + augmentation.scale * values[3],
        shift_x=augmentation.shift * width * values[4],
        shift_y=augmentation.shift * height * values[5],
        flip=(values[6] > 0) & augmentation.flip,
        bend=bend,
    )


def augment(
    images: Float[Tensor, "count channels height width"], augmentation: Augmentation, generator: torch.Generator
) -> Float[Tensor, "count channels height width"]:
    """Each image after a random transformation."""
    transform = sample_transforms(augmentation, len(images), (images.shape[2], images.shape[3]), generator)
    return warp(images, transform, border=augmentation.border)
