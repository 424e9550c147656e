"""Hand-written forward and backward passes.

Each is the faster twin of a plain function, named in its docstring; tests hold the two equal, gradients too. A second
derivative is taken through the plain twin. Under torch.compile, torch.export and torch.func the callers use the plain
functions (`compat.needs_plain_functions`).
"""

from arcaps.kernels.attention import RoutedVotes
from arcaps.kernels.channels import ChannelProduct
from arcaps.kernels.random import dropout_mask, random_bytes
from arcaps.kernels.squares import Squares
from arcaps.kernels.votes import ConvolvedVotes
from arcaps.kernels.windows import Windows

__all__ = ["ChannelProduct", "ConvolvedVotes", "RoutedVotes", "Squares", "Windows", "dropout_mask", "random_bytes"]
