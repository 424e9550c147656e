"""Hand-written forward and backward passes.

Each is the faster twin of a plain function, named in its docstring; tests hold the two equal, gradients too. A second
derivative is taken through the plain twin. Under torch.compile, torch.export and torch.func the callers use the plain
functions (`compat.needs_plain_functions`).
"""

from arcaps.kernels.attention import RoutedVotes
from arcaps.kernels.channels import ChannelProduct
from arcaps.kernels.mixing import Agreements, ElementsLast, MixedVotes, PositionsLast, SumWithVector
from arcaps.kernels.norms import LayerNorm
from arcaps.kernels.random import dropout_mask, random_bytes
from arcaps.kernels.squares import Distances, Spread, Squares
from arcaps.kernels.votes import ConvolvedVotes, PatchVotes
from arcaps.kernels.windows import Windows

__all__ = [
    "Agreements",
    "ChannelProduct",
    "ConvolvedVotes",
    "Distances",
    "ElementsLast",
    "LayerNorm",
    "MixedVotes",
    "PatchVotes",
    "PositionsLast",
    "RoutedVotes",
    "Spread",
    "Squares",
    "SumWithVector",
    "Windows",
    "dropout_mask",
    "random_bytes",
]
