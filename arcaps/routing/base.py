"""What every routing is."""

from abc import ABC
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.capsules import Routed
from arcaps.competition import over_outputs
from arcaps.errors import ArcapsError
from arcaps.functional import mix_votes, softmax_of_present, widened, without_autocast
from arcaps.registry import Named
from arcaps.votes import ConvVotes

Compete = Callable[[Tensor], Tensor]
"""Logits `(..., out_caps, in_caps)` become the shares that each output gets of each input."""

NEEDS = ("presence", "inputs", "compete")


class Routing(nn.Module, Named, ABC, kind="routing"):
    """The votes for one output capsule become one vector.

    A routing maps votes `(..., out_caps, in_caps, dim)` to capsules `(..., out_caps, dim)` and the coefficients
    `(..., out_caps, in_caps)` that mixed them, as a `Routed` or a plain pair. It works on any leading axes and knows
    nothing of images. Its constructor takes `(in_caps, out_caps, dim)`, then its options by keyword.

    What it needs besides votes it names in `needs`, and gets by keyword:

    | name     | what it gets                                                                                     |
    |----------|--------------------------------------------------------------------------------------------------|
    | presence | `(..., in_caps)` in 0..1, or None where all inputs are there                                     |
    | inputs   | `(..., in_caps, in_dim)`, the capsules that voted; its constructor gets `in_dim=` by keyword too |
    | compete  | a function from logits to the shares that each output gets of each input (`Competition`)         |

    The law of presence: an input with presence 0 is as if it were not there, presence 1 everywhere is as if none were
    given; where all inputs are absent, capsules and coefficients are 0 (`testing.assert_absent_inputs_are_ignored`).
    A routing that does not need presence gets votes that are multiplied by it.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """Of `presence`, `inputs`, `compete`."""
    gives_presence: ClassVar[bool] = False
    """Whether it says of each output capsule how sure it is to be there."""
    divides: Literal["inputs", "outputs", "neither"] = "inputs"
    """Over which axis the coefficients sum to 1, where all inputs are there. "outputs": each input divides itself."""
    logits_are_densities: ClassVar[bool] = False
    """Whether the logits are logarithms of densities, which change with the scale of the votes: a leak, whose logit is
    0, would get all of the inputs or nothing of them."""
    from_the_layer: ClassVar[frozenset[str]] = frozenset({"in_dim"})
    forward: Callable[..., Routed | tuple[Tensor, Tensor]]
    """Mix the votes; return the capsules and the coefficients. It takes votes, and the keywords that `needs` names."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if wrong := set(cls.needs) - set(NEEDS):
            raise ArcapsError(f"{cls.__name__} needs {', '.join(sorted(wrong))}: there are {', '.join(NEEDS)}")

    def __init__(self, in_caps: int, out_caps: int, dim: int) -> None:
        super().__init__()
        self.in_caps, self.out_caps, self.dim = in_caps, out_caps, dim

    def route(
        self, votes: ConvVotes, capsules: Float[Tensor, "batch height width in_caps in_dim"]
    ) -> Routed | tuple[Tensor, Tensor]:
        """Route the votes of capsules that are all there: the call of a layer with conv votes.

        A routing that can do without the votes in their usual order overrides it, for speed alone: the result is that
        of `forward`.
        """
        without = {"presence": None, "compete": over_outputs}
        return self(votes(capsules), **{name: without[name] for name in sorted(self.needs)})


def in_float32(forward: Callable[..., Routed]) -> Callable[..., Routed]:
    """Let the forward pass of a routing compute in float32 or better, whatever autocast and the votes are in.

    Capsules and coefficients are returned in the number format of the votes; presence is not rounded, since classes
    whose presence is nearly the same would become equal.
    """

    @wraps(forward)
    def computed(self: Routing, votes: Tensor, **given: Any) -> Routed:
        wide = torch.promote_types(votes.dtype, torch.float32)
        given = {name: value.to(wide) if isinstance(value, Tensor) else value for name, value in given.items()}
        with without_autocast(votes):
            found = forward(self, votes.to(wide), **given)
        return Routed(found.capsules.to(votes.dtype), found.coefficients.to(votes.dtype), found.presence)

    return computed


def mix_by_logits(
    votes: Float[Tensor, "*where out inp dim"],
    logits: Float[Tensor, "*where out inp"],
    *,
    over: str = "inputs",
    presence: Float[Tensor, "*where inp"] | None = None,
    compete: Compete = over_outputs,
) -> Routed:
    """Mix the votes by the softmax of logits over the inputs, or by what each output gets of each input.

    over="inputs":   c[n, m] = a[m] exp(b[n, m]) / sum over k of a[k] exp(b[n, k])
    over="outputs":  c[n, m] = a[m] compete(b)[n, m]
    s[n] = sum over m of c[n, m] v[n, m]

    The softmax is computed in float32 or better.
    """
    dtype, logits = logits.dtype, widened(logits)
    if over == "inputs":
        coefficients = softmax_of_present(logits, None if presence is None else presence.unsqueeze(-2))
    else:
        coefficients = compete(logits)
        coefficients = coefficients if presence is None else coefficients * presence.unsqueeze(-2)
    coefficients = coefficients.to(dtype)
    return Routed(mix_votes(votes, coefficients), coefficients)


def check_iterations(name: str, iterations: int) -> None:
    """Refuse a number of iterations that is not whole, or outside 1 to 1000."""
    if not isinstance(iterations, int) or isinstance(iterations, bool) or not 1 <= iterations <= 1000:
        raise ArcapsError(f"{name} routing with {iterations!r} iterations: give a whole number from 1 to 1000")


def list_routings() -> list[str]:
    """The names of all routings, those of your own too."""
    return sorted(Routing.known)
