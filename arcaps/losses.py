"""The losses of section 3.5."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def margin_loss(
    scores: Float[Tensor, "batch classes"],
    targets: Int[Tensor, " batch"] | Float[Tensor, "batch classes"],
    *,
    present: float = 0.9,
    absent: float = 0.1,
    absent_weight: float = 0.5,
) -> Float[Tensor, ""]:
    """The margin loss (eq. 11), summed over the classes, averaged over the batch.

    `targets` are class numbers, or `(batch, classes)` with a 1 for every class that is there: an image may show
    several.

    | paper  | here            |
    |--------|-----------------|
    | T_n    | `targets`       |
    | m+     | `present`       |
    | m-     | `absent`        |
    | lambda | `absent_weight` |
    """
    if targets.ndim == 1:
        targets = F.one_hot(targets, scores.shape[-1]).to(scores.dtype)
    too_short = (present - scores).relu().square()
    too_long = (scores - absent).relu().square()
    return (targets * too_short + absent_weight * (1 - targets) * too_long).sum(-1).mean()


def reconstruction_loss(
    reconstruction: Float[Tensor, "batch channels height width"],
    images: Float[Tensor, "batch channels height width"],
) -> Float[Tensor, ""]:
    """The mean squared error over pixels and batch; the models weigh it by 0.3 (AR CapsNet) or 0.392 (CapsuleNet)."""
    return F.mse_loss(reconstruction, images)
