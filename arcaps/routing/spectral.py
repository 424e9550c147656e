"""Spectral routing: the capsule is the direction that the votes have in common."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.capsules import Routed
from arcaps.errors import ArcapsError
from arcaps.functional import agreements, mix_votes, smallest_length, sum_over, unit, with_elements_last
from arcaps.routing.base import Routing, in_float32
from arcaps.schedule import Scheduled


def first_eigenvector(gram: Float[Tensor, "*where size size"]) -> Float[Tensor, "*where size"]:
    """The eigenvector of the largest eigenvalue of each positive matrix, with either sign."""
    if not torch.compiler.is_exporting():
        return torch.linalg.eigh(gram)[1][..., -1]
    return eigenvector_by_squaring(gram)


def eigenvector_by_squaring(
    gram: Float[Tensor, "*where size size"], squarings: int = 20
) -> Float[Tensor, "*where size"]:
    """The same by products alone, for exported programs: ONNX has no eigenvectors.

    The square of a matrix, again and again, tends to a multiple of `u u^T`; its column with the largest diagonal
    element is the eigenvector. After 20 squarings two eigenvalues are as one if they differ by less than a part in a
    million.
    """
    for _ in range(squarings):
        largest = gram.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None]
        gram = gram / torch.where(largest > 0, largest, 1)
        gram = gram @ gram
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    column = diagonal.argmax(-1, keepdim=True).unsqueeze(-2).expand(*gram.shape[:-1], 1)
    return unit(gram.gather(-1, column).squeeze(-1))


@torch.no_grad()
def principal_direction(rows: Float[Tensor, "*where inp dim"]) -> Float[Tensor, "*where dim"]:
    """The first right singular vector of each matrix, without gradient; its sign is that of the sum of the rows.

    It is the first eigenvector of the smaller one of the two Gram matrices `Y Y^T` and `Y^T Y`. The largest element of
    the rows is 1. Elements below the resolution of the number format count as 0: their squares may be so small that the
    solver answers NaN, or fails.
    """
    rows = torch.where(rows.abs() > torch.finfo(rows.dtype).eps, rows, 0)
    if rows.shape[-2] < rows.shape[-1]:
        direction = unit((rows.mT @ first_eigenvector(rows @ rows.mT).unsqueeze(-1)).squeeze(-1))
    else:
        direction = first_eigenvector(rows.mT @ rows)
    agreement = (direction * rows.sum(-2)).sum(-1, keepdim=True)
    return torch.where(agreement < 0, -direction, direction)


def spectral_routing(
    votes: Float[Tensor, "*where out inp dim"],
    bias: Float[Tensor, " out"],
    *,
    eta: float | Float[Tensor, ""] = 20.0,
    presence: Float[Tensor, "*where inp"] | None = None,
) -> Routed:
    """Take the principal direction of the votes for each output, and how much of them it explains.

        Y[n]    = the matrix of inp rows a[m] v[n, m], with singular values S_0 >= S_1 >= ...
        s[n]    = u[n], the first right singular vector of Y[n]: a unit vector, with u . (sum of the rows) >= 0
        A[n]    = sigmoid(eta (S_0^2 / sum over k of S_k^2 - b[n]))
        c[n, m] = (Y[n] u[n])_m^2 / S_0^2

    After "Spectral capsule networks" (Bahadori, 2018), known to us from its abstract and from public code written
    after it. What is ours: the sign of u, which a singular vector leaves open; the coefficients, each input's part of
    the principal direction, which sum to 1 over the inputs; and the gradient. The derivative of a singular vector is
    infinite where S_0 = S_1, so u is found without gradient, and one power step `u = unit(Y^T Y u)` carries it: the
    value is the same, the gradient is bounded. A ratio of singular values has no such problem, and its gradient is
    exact. Votes that are all 0 have no direction: the capsule, the coefficients and the presence are then 0, with
    gradient 0.
    """
    rows = votes if presence is None else votes * presence[..., None, :, None]
    largest = rows.detach().abs().amax((-2, -1), keepdim=True)
    rows = rows / torch.where(largest > smallest_length(rows.dtype), largest, torch.inf)  # nothing here has a scale
    direction = torch.empty_like(rows[..., 0, :]).copy_(principal_direction(with_elements_last(rows)))
    along = agreements(rows, direction)
    direction = unit(mix_votes(rows, along))  # the power step
    squares = agreements(rows, direction).square()
    first, total = sum_over(squares, -1), sum_over(agreements(rows.square(), torch.ones_like(direction)), -1)
    ratio = first / torch.where(total > 0, total, 1)
    sure = (eta * (ratio - bias)).sigmoid() * (total > 0)
    coefficients = squares / torch.where(first > 0, first, 1).unsqueeze(-1)
    return Routed(direction, coefficients, sure)


class SpectralRouting(Routing, Scheduled, name="spectral"):
    """Spectral routing with a learned threshold `b[n]`, which starts at `bias`.

    `eta` is the steepness of the presence: one number, or two between which it grows linearly in the course of the
    training. The range is ours; the source anneals it too.
    """

    needs = frozenset({"presence"})
    gives_presence = True

    def __init__(
        self,
        in_caps: int,
        out_caps: int,
        dim: int,
        *,
        eta: float | int | tuple[float | int, float | int] = (1.0, 20.0),
        bias: float = 0.1,
    ) -> None:
        super().__init__(in_caps, out_caps, dim)
        first, last = eta if isinstance(eta, tuple | list) else (eta, eta)
        if min(first, last) <= 0:
            raise ArcapsError(f"spectral routing with eta {eta}: give a positive number, or two")
        self.first_eta, self.last_eta = float(first), float(last)
        self.bias = nn.Parameter(torch.full((out_caps,), float(bias)))

    @property
    def eta(self) -> Float[Tensor, ""]:
        """The steepness at this moment of the training."""
        return self.first_eta + (self.last_eta - self.first_eta) * self.progress

    @in_float32
    def forward(
        self, votes: Float[Tensor, "*where out inp dim"], *, presence: Float[Tensor, "*where inp"] | None = None
    ) -> Routed:
        return spectral_routing(votes, self.bias, eta=self.eta, presence=presence)
