"""What every kind of votes is."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn

from arcaps.capsules import Capsules
from arcaps.compat import is_tracing
from arcaps.errors import ArcapsError
from arcaps.registry import Named


class Overlap(NamedTuple):
    """Which votes come from one input capsule, where each vote comes from a single one."""

    child: Int[Tensor, "new_height new_width inp"]
    """The number of the input capsule that votes there; `children` at a padded place."""
    children: int
    """How many input capsules there are."""


class Votes(nn.Module, Named, ABC, kind="votes"):
    """Every input capsule predicts every output capsule.

    A subclass defines `inputs`, `patch_dim`, `patches`, `of_patches` and `presence`; with `overlap` it serves every
    competition. Its constructor takes the arguments below by position or keyword, then its options by keyword only.

    The output has the size `ceil(size / stride)` with `padding="same"` (an odd kernel), and that of a valid
    convolution with `padding="valid"`.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_caps: int,
        in_dim: int,
        out_caps: int,
        out_dim: int,
        kernel: int | tuple[int, int] = 3,
        stride: int = 1,
        padding: str = "same",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_caps, self.in_dim, self.out_caps, self.out_dim = in_caps, in_dim, out_caps, out_dim
        self.kernel = (kernel, kernel) if isinstance(kernel, int) else (*kernel,)
        if len(self.kernel) != 2 or any(not isinstance(side, int) or side < 1 for side in self.kernel):
            raise ArcapsError(f"kernel {kernel}: give its side, or height and width, each at least 1")
        if not isinstance(stride, int) or stride < 1:
            raise ArcapsError(f"stride {stride}: give one whole number, at least 1")
        self.stride = stride
        if padding not in ("same", "valid"):
            raise ArcapsError(f"unknown padding {padding!r}: there are same, valid")
        if padding == "same" and not all(side % 2 for side in self.kernel):
            raise ArcapsError(
                f"kernel {self.kernel[0]}x{self.kernel[1]} has no middle: give odd sides, or padding='valid'"
            )
        self.padding = (self.kernel[0] // 2, self.kernel[1] // 2) if padding == "same" else (0, 0)

    @property
    @abstractmethod
    def inputs(self) -> int:
        """How many votes there are for one output capsule: the routing's `in_caps`."""

    @property
    @abstractmethod
    def patch_dim(self) -> int:
        """The length of what each vote is made from, a row of `patches`."""

    @abstractmethod
    def patches(
        self, capsules: Float[Tensor, "batch height width in_caps in_dim"]
    ) -> Float[Tensor, "batch new_height new_width inp patch"]:
        """What each vote is made from; a routing that needs `inputs` gets it."""

    @abstractmethod
    def of_patches(
        self, patches: Float[Tensor, "batch new_height new_width inp patch"]
    ) -> Float[Tensor, "batch new_height new_width out inp dim"]:
        """The votes of what `patches` found."""

    def forward(
        self, capsules: Float[Tensor, "batch height width in_caps in_dim"]
    ) -> Float[Tensor, "batch new_height new_width out inp dim"]:
        """The votes of the poses."""
        return self.of_patches(self.patches(capsules))

    @abstractmethod
    def presence(self, capsules: Capsules) -> Float[Tensor, "batch new_height new_width inp"] | None:
        """How sure the input of each vote is to be there; None where all are."""

    def seen(self, capsules: Capsules) -> Float[Tensor, "batch height width in_caps in_dim"]:
        """The poses that vote: as they are, where each vote comes from one capsule and has the presence of that."""
        return capsules.poses

    def overlap(self, height: int, width: int) -> Overlap | None:
        """Which votes come from one input capsule; None where a vote is made from several."""
        return None

    def check(self, capsules: Float[Tensor, "batch height width caps dim"]) -> None:
        """Refuse capsules of another shape than these votes were made for."""
        if capsules.shape[-2:] != (self.in_caps, self.in_dim) or capsules.ndim != 5:
            raise ArcapsError(
                f"expected capsules (batch, height, width, {self.in_caps}, {self.in_dim}), got {tuple(capsules.shape)}"
            )
        if not is_tracing() and min(self.new_size(capsules.shape[1], capsules.shape[2])) < 1:
            size, kernel = ("x".join(map(str, sides)) for sides in (capsules.shape[1:3], self.kernel))
            raise ArcapsError(f"{size} positions are fewer than the kernel's {kernel}: give a larger input")

    def new_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output, for an input of this size."""
        rows, columns = (
            (side + 2 * pad - size) // self.stride + 1
            for side, pad, size in zip((height, width), self.padding, self.kernel, strict=True)
        )
        return rows, columns

    @property
    def keeps_shape(self) -> bool:
        """Whether the output capsules have the shape of the input capsules, so that the two can be added."""
        same_size = self.stride == 1 and self.padding == (self.kernel[0] // 2, self.kernel[1] // 2)
        return same_size and (self.in_caps, self.in_dim) == (self.out_caps, self.out_dim)

    def signature(self) -> str:
        """The shapes, for a layer's `repr`: `8x16 -> 8x32, 3x3/2`, and the spec of votes other than `conv`."""
        kernel = "x".join(map(str, self.kernel))
        shapes = f"{self.in_caps}x{self.in_dim} -> {self.out_caps}x{self.out_dim}, {kernel}/{self.stride}"
        return shapes if self.spec == "conv" else f"{shapes}, {self.spec}"


def list_votes() -> list[str]:
    """The names of all votes, those of your own too."""
    return sorted(Votes.known)
