"""Competition: among whom an input capsule divides itself. Logits become shares.

A routing whose inputs divide themselves (`needs` names `compete`) gets one of these; compete(0) is its start.
"""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.errors import ArcapsError
from arcaps.functional import softmax, widened
from arcaps.registry import Named
from arcaps.votes import Overlap


def over_outputs(logits: Float[Tensor, "*where out inp"]) -> Float[Tensor, "*where out inp"]:
    """The softmax over the output capsules of one position: the share that each gets of an input."""
    return softmax(logits, -2)


class Competition(nn.Module, Named, ABC, kind="competition"):
    """Turns logits `(..., out_caps, in_caps)` into shares: what each output gets of each input.

    With `leak` there is one more output, with logit 0, whose share is dropped: an input need not go anywhere.
    Routings whose logits are densities (`em`, `variational`) refuse it: there the logit 0 means nothing. Shares are
    computed in float32 or better, and are in the number format of the logits.
    """

    needs_overlap = False
    """Whether each vote must come from a single input capsule."""

    def __init__(self, *, leak: bool = False) -> None:
        super().__init__()
        self.leak = leak

    @abstractmethod
    def forward(
        self,
        logits: Float[Tensor, "*where out inp"],
        overlap: Overlap | None = None,
        presence: Float[Tensor, "*where inp"] | None = None,
    ) -> Float[Tensor, "*where out inp"]:
        """The shares. `presence` is for competitions in which inputs at several positions take part."""

    def total(self, log_sum: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The logarithm of what all outputs ask for together, the leak too."""
        return torch.logaddexp(log_sum, torch.zeros_like(log_sum)) if self.leak else log_sum


class OutputCompetition(Competition, name="outputs"):
    """An input divides itself among the output capsules of one position: each window over it gets all of it.

    c[n, m] = exp(b[n, m]) / sum over outputs k of exp(b[k, m])

    With a leak the denominator is 1 + this sum.
    """

    def forward(
        self,
        logits: Float[Tensor, "*where out inp"],
        overlap: Overlap | None = None,
        presence: Float[Tensor, "*where inp"] | None = None,
    ) -> Float[Tensor, "*where out inp"]:
        if not self.leak:
            return over_outputs(logits)
        dtype, logits = logits.dtype, widened(logits)
        return (logits - self.total(logits.logsumexp(-2, keepdim=True))).exp().to(dtype)


class OverlapCompetition(Competition, name="overlap"):
    """An input capsule divides itself among all outputs of all windows over it (matrix capsules, 2018).

        c[w, n, i] = exp(b[w, n, i]) / sum over windows v over i and outputs k of exp(b[v, k, i])

    It needs votes that come from a single capsule each (`window`, `matrix`).
    """

    needs_overlap = True

    def forward(
        self,
        logits: Float[Tensor, "batch height width out inp"],
        overlap: Overlap | None = None,
        presence: Float[Tensor, "batch height width inp"] | None = None,
    ) -> Float[Tensor, "batch height width out inp"]:
        if overlap is None:
            raise ArcapsError("competition overlap needs votes that come from one capsule each: give votes='window'")
        dtype, logits = logits.dtype, widened(logits)
        asked = logits.logsumexp(-2).flatten(1)  # (batch, height width inp): what one window asks of a child
        child = overlap.child.flatten().expand_as(asked)  # its number
        places = (asked.shape[0], overlap.children + 1)  # the last one is for padded places
        most = asked.new_full(places, -torch.inf).scatter_reduce(1, child, asked.detach(), "amax")
        most = torch.where(most.isinf(), 0, most)  # a child that no window covers
        parts = (asked - most.gather(1, child)).exp()
        sums = asked.new_zeros(places).scatter_add(1, child, parts)
        log_sum = self.total(most + torch.where(sums > 0, sums, 1).log()).gather(1, child)
        shares = (logits - log_sum.view_as(logits[..., 0, :]).unsqueeze(-2)).exp()
        return (shares * (overlap.child < overlap.children).unsqueeze(-2)).to(dtype)


class ImageCompetition(Competition, name="image"):
    """An input channel divides itself among all outputs of all positions, as in DeepCaps' 3D routing.

    c[w, n, m] = exp(b[w, n, m]) / sum over positions v and outputs k of exp(b[v, k, m])
    """

    def forward(
        self,
        logits: Float[Tensor, "batch height width out inp"],
        overlap: Overlap | None = None,
        presence: Float[Tensor, "batch height width inp"] | None = None,
    ) -> Float[Tensor, "batch height width out inp"]:
        dtype, logits = logits.dtype, widened(logits)
        if presence is not None:  # what is absent takes no share from others
            logits = logits.masked_fill(presence.unsqueeze(-2) == 0, torch.finfo(logits.dtype).min)
        return (logits - self.total(logits.logsumexp((-4, -3, -2), keepdim=True))).exp().to(dtype)


def list_competitions() -> list[str]:
    """The names of all competitions, those of your own too."""
    return sorted(Competition.known)
