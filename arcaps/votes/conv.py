"""Votes by kernels of their own: of each input channel (`conv`), or of each capsule in the window (`window`)."""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.capsules import Capsules
from arcaps.errors import ArcapsError
from arcaps.init import glorot_uniform_
from arcaps.kernels import ConvolvedVotes
from arcaps.votes.base import Overlap, Votes
from arcaps.votes.patches import make_patches, make_windows, positions_may_come_last, votes_of_patches


class KernelVotes(Votes):
    """Votes that are products of patches and kernels: one kernel for each vote, shared by all positions."""

    @property
    def area(self) -> tuple[int, int]:
        """Height and width of what one vote is made from."""
        return self.kernel

    @property
    def patch_dim(self) -> int:
        return self.area[0] * self.area[1] * self.in_dim

    def make_parameters(self, count: int, bias: bool) -> None:
        """Make this number of kernels, each to all output channels, and start them."""
        self.weight = nn.Parameter(torch.empty(count, *self.area, self.in_dim, self.out_caps, self.out_dim))
        self.bias = nn.Parameter(torch.empty(count, self.out_caps, self.out_dim)) if bias else None
        self.reset_parameters()

    fused: bool = False
    """Whether the weights start as one kernel from an input channel to the votes of all pairs."""

    def reset_parameters(self) -> None:
        """Glorot uniform for the kernels from one input to all output channels, zero biases."""
        area = self.area[0] * self.area[1]
        outputs = self.out_caps * self.out_dim * (self.inputs if self.fused else 1)
        glorot_uniform_(self.weight, area * self.in_dim, area * outputs)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @property
    def kernels(self) -> Float[Tensor, "inp patch out dim"]:
        """The weights, with what a kernel sees as one axis."""
        return self.weight.flatten(1, 3)

    def of_patches(
        self, patches: Float[Tensor, "batch new_height new_width inp patch"]
    ) -> Float[Tensor, "batch new_height new_width out inp dim"]:
        return votes_of_patches(patches, self.kernels, self.bias)


class ConvVotes(KernelVotes, name="conv"):
    """The paper's convolutional transform: `s~[n, m] = Conv(u[m])`, a kernel for each pair (m, n) of channels (eq. 5).

    It is a convolution of each input channel.

    | paper            | here                                                                     |
    |------------------|--------------------------------------------------------------------------|
    | m, N^(l-1)       | input channel, `in_caps`                                                 |
    | n, N^l           | output channel, `out_caps`                                               |
    | D^(l-1), D^l     | `in_dim`, `out_dim`                                                      |
    | s~^(l,n)_(w,h,:,m) | `votes[batch, h, w, n, m]`                                             |

    An absent capsule is like padding: poses are multiplied by their presence. A vote is as present as the most
    present capsule in its window. With `fused` the kernels start smaller, as in the authors' code, where one tensor
    holds the kernels of all pairs: the fan-out of Glorot's formula is `in_caps` times as large.
    """

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
        *,
        fused: bool = False,
    ) -> None:
        super().__init__(in_caps, in_dim, out_caps, out_dim, kernel, stride, padding, bias)
        self.fused = fused
        self.make_parameters(self.inputs, bias)

    @property
    def inputs(self) -> int:
        return self.in_caps

    def patches(
        self, capsules: Float[Tensor, "batch height width in_caps in_dim"]
    ) -> Float[Tensor, "batch new_height new_width inp patch"]:
        """What each kernel sees; with `kernels` it makes the votes."""
        self.check(capsules)
        return make_patches(capsules, self.kernel, stride=self.stride, padding=self.padding)

    def forward(
        self, capsules: Float[Tensor, "batch height width in_caps in_dim"]
    ) -> Float[Tensor, "batch new_height new_width out inp dim"]:
        """The votes of the poses: as convolutions, with the positions last in memory, where there are many."""
        if not positions_may_come_last(capsules):
            return super().forward(capsules)
        self.check(capsules)
        height, width = self.new_size(capsules.shape[1], capsules.shape[2])
        if height * width == 1:
            return super().forward(capsules)
        channels = rearrange(capsules, "b h w m d -> m b h w d")
        votes = ConvolvedVotes.apply(channels, self.weight, self.bias, self.stride, self.padding)
        return rearrange(votes, "m n e (b h w) -> b h w n m e", h=height, w=width)

    def presence(self, capsules: Capsules) -> Float[Tensor, "batch new_height new_width inp"] | None:
        if capsules.presence is None:
            return None
        maps = rearrange(capsules.presence, "b h w m -> b m h w")
        most = F.max_pool2d(maps, self.kernel, self.stride, self.padding)
        return rearrange(most, "b m h w -> b h w m")

    def seen(self, capsules: Capsules) -> Float[Tensor, "batch height width in_caps in_dim"]:
        return capsules.poses if capsules.presence is None else capsules.poses * capsules.presence.unsqueeze(-1)


class WindowVotes(KernelVotes, name="window"):
    """One vote of each capsule in the window, with a matrix of its own: `inputs = kh * kw * in_caps`, in this order.

    With a kernel as large as the image it is the transform of CapsuleNet ("Dynamic routing between capsules", 2017).
    A padded place is an input with presence 0.

    With `shared` all places of the window have the same matrices, one for each channel: the votes of an entity do not
    depend on where in the window it is. With `coordinates` each vote says where its input is: `(i + 1/2) / kh` is added
    to one of its elements and `(j + 1/2) / kw` to another, here the first two. Both are those of matrix capsules' class
    layer ("Matrix capsules with EM routing", 2018).
    """

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
        *,
        shared: bool = False,
        coordinates: bool = False,
    ) -> None:
        super().__init__(in_caps, in_dim, out_caps, out_dim, kernel, stride, padding, bias)
        self.shared, self.coordinates = shared, coordinates
        if coordinates and out_dim < 2:
            raise ArcapsError(f"coordinates need votes of two elements or more, not {out_dim}: give a larger dim")
        self.make_parameters(in_caps if shared else self.inputs, bias)

    @property
    def places(self) -> int:
        """How many places of the window share their matrices."""
        return self.kernel[0] * self.kernel[1] if self.shared else 1

    @property
    def coordinate_elements(self) -> tuple[int, int]:
        """The elements of a vote to which row and column are added."""
        return 0, 1

    def of_patches(
        self, patches: Float[Tensor, "batch new_height new_width inp patch"]
    ) -> Float[Tensor, "batch new_height new_width out inp dim"]:
        patches = rearrange(patches, "b h w (place m) d -> b h w place m d", place=self.places)
        votes = rearrange(self.vote(patches), "b h w place n m e -> b h w n (place m) e")
        return self.with_coordinates(votes) if self.coordinates else votes

    def vote(
        self, patches: Float[Tensor, "batch h w place inp in_dim"]
    ) -> Float[Tensor, "batch h w place out inp dim"]:
        """The votes of what is in the windows, without coordinates."""
        # shared places are moved beside the channels: the elements stay together
        return votes_of_patches(patches, self.kernels, self.bias, positions_last=not self.shared)

    def with_coordinates(self, votes: Float[Tensor, "batch h w out inp dim"]) -> Float[Tensor, "batch h w out inp dim"]:
        """The votes, with the middle of each input's place in the window added to two elements."""
        element = torch.arange(self.out_dim, device=votes.device)
        shift = votes.new_zeros(*self.kernel, self.in_caps, self.out_dim)
        for axis, (side, chosen) in enumerate(zip(self.kernel, self.coordinate_elements, strict=True)):
            middle = (torch.arange(side, device=votes.device, dtype=votes.dtype) + 0.5) / side
            shape = (side, 1, 1, 1) if axis == 0 else (1, side, 1, 1)
            shift = shift + middle.view(shape) * (element == chosen)
        return votes + shift.flatten(0, 2)

    @property
    def inputs(self) -> int:
        return self.kernel[0] * self.kernel[1] * self.in_caps

    @property
    def area(self) -> tuple[int, int]:
        return (1, 1)

    def patches(
        self, capsules: Float[Tensor, "batch height width in_caps in_dim"]
    ) -> Float[Tensor, "batch new_height new_width inp patch"]:
        """The capsules in each window."""
        self.check(capsules)
        return self.gather(capsules)

    def gather(
        self, values: Float[Tensor, "batch height width in_caps size"]
    ) -> Float[Tensor, "batch new_height new_width inp size"]:
        """What is in each window; zeros at padded places."""
        if self.kernel == values.shape[1:3] and not any(self.padding):
            return rearrange(values, "b i j m d -> b 1 1 (i j m) d")
        windows = make_windows(values, self.kernel, stride=self.stride, padding=self.padding)
        return rearrange(windows, "m b h w i j d -> b h w (i j m) d")

    def presence(self, capsules: Capsules) -> Float[Tensor, "batch new_height new_width inp"] | None:
        presence = capsules.presence
        if presence is None and not any(self.padding):
            return None
        if presence is not None:
            return self.gather(presence.unsqueeze(-1)).squeeze(-1)
        inside = self.gather(torch.ones_like(capsules.poses[:1, ..., :1])).squeeze(-1)
        return inside.expand(capsules.poses.shape[0], -1, -1, -1)

    def overlap(self, height: int, width: int) -> Overlap:
        children = height * width * self.in_caps
        device = self.weight.device
        numbers = torch.arange(1, children + 1, dtype=torch.float64, device=device)
        child = self.gather(numbers.view(1, height, width, self.in_caps, 1))[0, ..., 0].long() - 1
        return Overlap(torch.where(child < 0, children, child), children)
