"""The losses, in float32 or better.

Targets are class numbers, or a 1 for every class that is there: an image may show several.
"""

from abc import ABC, abstractmethod
from math import isfinite

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from arcaps.compat import is_transformed
from arcaps.errors import ArcapsError
from arcaps.functional import widened
from arcaps.registry import Named

Targets = Int[Tensor, " batch"] | Float[Tensor, "batch classes"]


def as_several(targets: Targets, scores: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch classes"]:
    """Targets as `(batch, classes)`: a 1 for every class that is there."""
    if targets.ndim == 2:
        return targets.to(scores.dtype)
    if is_transformed():  # where one_hot, which looks at the values, is refused
        return (targets.unsqueeze(-1) == torch.arange(scores.shape[-1], device=targets.device)).to(scores.dtype)
    return F.one_hot(targets, scores.shape[-1]).to(scores.dtype)


def margin_loss(
    scores: Float[Tensor, "batch classes"],
    targets: Targets,
    *,
    present: float = 0.9,
    absent: float = 0.1,
    absent_weight: float = 0.5,
) -> Float[Tensor, ""]:
    """The margin loss (eq. 11), summed over the classes, averaged over the batch.

        L_n = T_n max(0, m+ - ||u_n||)^2 + lambda (1 - T_n) max(0, ||u_n|| - m-)^2

    | paper    | here            |
    |----------|-----------------|
    | T_n      | `targets`       |
    | ||u_n||  | `scores`        |
    | m+       | `present`       |
    | m-       | `absent`        |
    | lambda   | `absent_weight` |

    Equation 11 of "Attention routing between capsules" (2019), after "Dynamic routing between capsules" (2017).
    """
    scores = widened(scores)
    targets = as_several(targets, scores)
    too_short = (present - scores).relu().square()
    too_long = (scores - absent).relu().square()
    return (targets * too_short + absent_weight * (1 - targets) * too_long).sum(-1).mean()


def spread_loss(scores: Float[Tensor, "batch classes"], targets: Targets, *, margin: float) -> Float[Tensor, ""]:
    """The spread loss ("Matrix capsules with EM routing", 2018), averaged over the batch.

        L = sum over classes i that are not there of max(0, m - (a_t - a_i))^2

    `a_t` is the score of the class that is there; of several, the mean of their losses.
    """
    scores = widened(scores)
    targets = as_several(targets, scores)
    short = (margin - (scores.unsqueeze(-1) - scores.unsqueeze(-2))).relu().square()  # (batch, t, i)
    pairs = targets.unsqueeze(-1) * (1 - targets).unsqueeze(-2)
    return ((short * pairs).sum((-2, -1)) / targets.sum(-1).clamp_min(1)).mean()


def reconstruction_loss(
    reconstruction: Float[Tensor, "batch channels height width"],
    images: Float[Tensor, "batch channels height width"],
) -> Float[Tensor, ""]:
    """The mean squared error over pixels and batch; the models weigh it by 0.3 (AR CapsNet) or 0.392 (CapsuleNet)."""
    return F.mse_loss(widened(reconstruction), widened(images))


class Loss(nn.Module, Named, ABC, kind="loss"):
    """What the scores of a batch cost. The constructor takes options by keyword alone.

    A subclass names the keywords of `forward` that it uses, and takes the others as `**_`.
    """

    @abstractmethod
    def forward(
        self,
        scores: Float[Tensor, "batch classes"],
        targets: Targets,
        *,
        logits: Float[Tensor, "batch classes"] | None = None,
        progress: float = 1.0,
    ) -> Float[Tensor, ""]:
        """The mean over the batch. `progress` goes from 0 to 1 in the course of a training."""


def require_finite(kind: str, **values: float) -> None:
    """Refuse settings that are not finite numbers."""
    for name, value in values.items():
        if not isinstance(value, int | float) or not isfinite(value):
            raise ArcapsError(f"{name} of loss {kind} is {value!r}: give a number")


class MarginLoss(Loss, name="margin"):
    """The paper's margin loss: `margin_loss`."""

    def __init__(self, *, present: float = 0.9, absent: float = 0.1, absent_weight: float = 0.5) -> None:
        super().__init__()
        require_finite("margin", present=present, absent=absent, absent_weight=absent_weight)
        self.present, self.absent, self.absent_weight = present, absent, absent_weight

    def forward(self, scores: Float[Tensor, "batch classes"], targets: Targets, **_: object) -> Float[Tensor, ""]:
        return margin_loss(scores, targets, present=self.present, absent=self.absent, absent_weight=self.absent_weight)


class SpreadLoss(Loss, name="spread"):
    """The spread loss, whose margin grows from `low` to `high` in the course of the training."""

    def __init__(self, *, low: float = 0.2, high: float = 0.9) -> None:
        super().__init__()
        require_finite("spread", low=low, high=high)
        self.low, self.high = low, high

    def forward(
        self, scores: Float[Tensor, "batch classes"], targets: Targets, *, progress: float = 1.0, **_: object
    ) -> Float[Tensor, ""]:
        return spread_loss(scores, targets, margin=self.low + (self.high - self.low) * progress)


class CrossEntropy(Loss, name="cross_entropy"):
    """Minus the logarithm of the right class's probability; of several classes, the mean.

    L = - sum over n of T_n log p_n / sum over n of T_n,   p = softmax(logits)
    """

    def forward(
        self,
        scores: Float[Tensor, "batch classes"],
        targets: Targets,
        *,
        logits: Float[Tensor, "batch classes"] | None = None,
        **_: object,
    ) -> Float[Tensor, ""]:
        if logits is None:
            raise ArcapsError("loss cross_entropy needs logits, and this score has none: give score='linear'")
        logits = widened(logits)
        if targets.ndim == 2:
            targets = targets.to(logits.dtype) / targets.sum(-1, keepdim=True).clamp_min(1)
        return F.cross_entropy(logits, targets)


def list_losses() -> list[str]:
    """The names of all losses, those of your own too."""
    return sorted(Loss.known)
