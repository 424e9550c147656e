"""A user's plug-in: EM routing ("Matrix capsules with EM routing", 2018). Nothing in arcaps knows of it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcaps import Routed, Routing


class ToyEMRouting(Routing, name="toy_em"):
    """Each output capsule is a Gaussian over the votes for it; an input divides itself by their likelihoods."""

    needs = frozenset({"presence", "compete"})
    divides = "outputs"

    def __init__(self, in_caps: int, out_caps: int, dim: int, *, iterations: int = 2, floor: float = 1e-2) -> None:
        super().__init__(in_caps, out_caps, dim)
        self.iterations, self.floor = iterations, floor
        self.cost_of_use = nn.Parameter(torch.zeros(out_caps))
        self.threshold = nn.Parameter(torch.zeros(out_caps))

    def forward(self, votes: Tensor, *, presence: Tensor | None = None, compete=lambda z: z.softmax(-2)) -> Routed:  # type: ignore[no-untyped-def]
        there = votes.new_ones(votes.shape[-2]) if presence is None else presence.unsqueeze(-2)
        shares = compete(votes.new_zeros(votes.shape[:-1]))
        for step in range(self.iterations):
            weights = shares * there
            mass = weights.sum(-1, keepdim=True)
            parts = (weights / mass.clamp_min(1e-9)).unsqueeze(-1)
            mean = (parts * votes).sum(-2, keepdim=True)
            variance = (parts * (votes - mean).square()).sum(-2, keepdim=True) + self.floor
            cost = (self.cost_of_use.unsqueeze(-1) + variance.squeeze(-2).log() / 2).mean(-1)
            logit = (1 - 0.95 ** (step + 1)) * (self.threshold - cost * mass.squeeze(-1) * self.out_caps / self.in_caps)
            fit = -((votes - mean).square() / variance + variance.log()).sum(-1) / 2
            shares = compete(F.logsigmoid(logit).unsqueeze(-1) + fit) if step + 1 < self.iterations else shares
        return Routed(mean.squeeze(-2), weights, logit.sigmoid() * (mass.squeeze(-1) > 0))
