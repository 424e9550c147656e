"""How the features of a layer are reduced for a read-out."""

import torch
from jaxtyping import Float
from torch import Tensor


def pool(maps: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch features"] | None:
    """The mean over the positions of maps or capsules; None for features without positions.

    Maps are (batch, channels, height, width), capsules (batch, height, width, caps, dim), class capsules (batch,
    classes, dim), the features of a dense layer (batch, features).
    """
    if maps.ndim == 5:
        return maps.mean((1, 2)).flatten(1)
    return maps.mean((2, 3)) if maps.ndim == 4 else None


def sketch(
    features: Float[Tensor, "batch features"], width: int, seed: int = 0
) -> Float[Tensor, "batch width_or_fewer"]:
    """At most `width` features: more are reduced by a random projection (a count sketch).

    Each feature is added, with a random sign, to one of the `width` numbers. Distances are kept on average, as by a
    Gaussian projection, without a matrix.
    """
    number = features.shape[1]
    if number <= width:
        return features
    generator = torch.Generator().manual_seed(seed)
    place = torch.randint(width, (number,), generator=generator).to(features.device)
    sign = (2 * torch.randint(2, (number,), generator=generator) - 1).to(features)
    return features.new_zeros(len(features), width).index_add_(1, place, features * sign)
