"""Squared differences of the votes and the centres of their outputs: what Gaussians are fitted and compared by."""

from jaxtyping import Float
from torch import Tensor

from arcaps.compat import needs_plain_functions
from arcaps.functional import agreements, mix_votes
from arcaps.kernels import Distances, Spread, Squares
from arcaps.kernels.mixing import along_positions
from arcaps.kernels.squares import plain_squares


class SquaredDifferences:
    """`(v[n, m, d] - centre[n, d])^2`, of which two kinds of sums are wanted.

    Where the votes lie with the positions last in memory the squares are made as they are summed, and not kept.
    """

    def __init__(self, votes: Float[Tensor, "*where inp dim"], centre: Float[Tensor, "*where dim"]) -> None:
        self.votes, self.centre = votes, centre
        self.squares: Tensor | None = None
        if not along_positions(votes, centre):
            self.squares = plain_squares(votes, centre) if needs_plain_functions() else Squares.apply(votes, centre)

    def over_inputs(self, weights: Float[Tensor, "*where inp"]) -> Float[Tensor, "*where dim"]:
        """The sum over the inputs with these weights."""
        if self.squares is None:
            return Spread.apply(self.votes, self.centre, weights)
        return mix_votes(self.squares, weights)

    def over_elements(self, precision: Float[Tensor, "*where dim"]) -> Float[Tensor, "*where inp"]:
        """The sum over the elements with these weights."""
        if self.squares is None:
            return Distances.apply(self.votes, self.centre, precision)
        return agreements(self.squares, precision)
