"""The routings in plain loops over outputs, inputs and iterations: slow, and easy to compare with the papers.

Votes are `(out, inp, dim)`, presence `(inp,)`. Each returns capsules, coefficients and, where there is one, presence.
"""

from collections.abc import Callable
from math import log, pi

import torch
from torch import Tensor


def softmax(values: list[Tensor]) -> list[Tensor]:
    """Exponentials as parts of their sum."""
    total = add([value.exp() for value in values])
    return [value.exp() / total for value in values]


def add(values: list[Tensor]) -> Tensor:
    """The sum, one after the other."""
    total = torch.zeros_like(values[0])
    for value in values:
        total = total + value
    return total


def divide(logits: list[list[Tensor]]) -> list[list[Tensor]]:
    """The softmax over the outputs of `logits[n][m]`."""
    outputs, inputs = len(logits), len(logits[0])
    columns = [softmax([logits[n][m] for n in range(outputs)]) for m in range(inputs)]
    return [[columns[m][n] for m in range(inputs)] for n in range(outputs)]


def table(values: list[list[Tensor]]) -> Tensor:
    """Nested lists as one tensor."""
    return torch.stack([torch.stack(row) for row in values])


def zeros(votes: Tensor) -> list[list[Tensor]]:
    """Logits that are all 0."""
    return [[votes.new_zeros(()) for _ in row] for row in votes]


def agreement(
    votes: Tensor,
    presence: Tensor,
    *,
    reference: Callable[[Tensor], Tensor],
    keep: float,
    tau: float,
    iterations: int,
    bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """The family of routings by agreement."""
    outputs, inputs, _ = votes.shape
    logits = zeros(votes)
    for iteration in range(iterations):
        c = divide(logits)
        capsules = [bias[n] + add([presence[m] * c[n][m] * votes[n, m] for m in range(inputs)]) for n in range(outputs)]
        if iteration < iterations - 1:
            for n in range(outputs):
                for m in range(inputs):
                    logits[n][m] = keep * logits[n][m] + votes[n, m] @ reference(capsules[n]) / tau
    return torch.stack(capsules), table(c) * presence


def variance_of_all(votes: Tensor, presence: Tensor) -> Tensor:
    """The variance of the votes for all outputs together, each with the weight of its input."""
    outputs, inputs, _ = votes.shape
    pairs = [(n, m) for n in range(outputs) for m in range(inputs)]
    total = outputs * add(list(presence))
    mean = add([presence[m] * votes[n, m] for n, m in pairs]) / total
    return add([presence[m] * (votes[n, m] - mean) ** 2 for n, m in pairs]) / total


def em(
    votes: Tensor,
    presence: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    inverse_temperatures: list[float],
    mass_scale: float = 1.0,
    damping: float = 1.0,
    floor: float = 1e-4,
    relative: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """EM routing, with densities that are not logarithms."""
    outputs, inputs, dim = votes.shape
    r = divide(zeros(votes))
    unit = variance_of_all(votes, presence) + 1e-7 if relative else torch.ones_like(votes[0, 0])
    centre = torch.zeros_like(votes[:, 0])
    for step, inverse_temperature in enumerate(inverse_temperatures):
        new_centre, variance, activation = [], [], []
        for n in range(outputs):
            w = [r[n][m] * presence[m] for m in range(inputs)]
            mass = add(w)
            mean = add([w[m] * votes[n, m] for m in range(inputs)]) / mass
            mu = damping * mean + (1 - damping) * centre[n]
            var = add([w[m] * (votes[n, m] - mu) ** 2 for m in range(inputs)]) / mass + floor * unit
            cost = add([mass_scale * mass * (beta_u[n] + 0.5 * (var[d] / unit[d]).log()) for d in range(dim)])
            new_centre.append(mu)
            variance.append(var)
            activation.append(1 / (1 + (-inverse_temperature * (beta_a[n] - cost)).exp()))
        centre = torch.stack(new_centre)
        if step < len(inverse_temperatures) - 1:
            logits = zeros(votes)
            for n in range(outputs):
                for m in range(inputs):
                    exponent = ((votes[n, m] - centre[n]) ** 2 / variance[n]).sum()
                    logits[n][m] = activation[n].log() - 0.5 * (exponent + (variance[n].log() + log(2 * pi)).sum())
            r = divide(logits)
    return centre, table(r) * presence, torch.stack(activation)


def self_routing(
    votes: Tensor, presence: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Self-routing; `weight[m, :, n]` is the vector of input m for output n."""
    outputs, count, _ = votes.shape
    logits = [[weight[m, :, n] @ inputs[m] + bias[m, n] for m in range(count)] for n in range(outputs)]
    r = divide(logits)
    capsules, activation = [], []
    for n in range(outputs):
        total = add([presence[m] * r[n][m] for m in range(count)])
        capsules.append(add([presence[m] * r[n][m] * votes[n, m] for m in range(count)]) / total)
        activation.append(total / presence.sum())
    return torch.stack(capsules), table(r) * presence, torch.stack(activation)


def heinsen(
    votes: Tensor, presence: Tensor, inputs: Tensor, parameters: dict[str, Tensor], *, iterations: int
) -> tuple[Tensor, Tensor]:
    """Heinsen's routing with the parameters of a `HeinsenRouting`, by name, with the capsules normalised."""
    outputs, count, _ = votes.shape
    p = parameters
    scale = count**-0.5

    def normalise(x: Tensor) -> Tensor:
        return (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()

    f = [(p["activity_weight"][m] @ inputs[m] * scale + p["activity_bias"][m]).sigmoid() for m in range(count)]
    r = divide(zeros(votes))
    for iteration in range(iterations):
        phi = zeros(votes)
        for n in range(outputs):
            for m in range(count):
                use = presence[m] * f[m] * r[n][m]
                ignore = presence[m] * f[m] - use
                phi[n][m] = p["beta_use"][n, m] * use - p["beta_ignore"][n, m] * ignore
        capsules = [normalise(add([phi[n][m] * votes[n, m] * scale for m in range(count)])) for n in range(outputs)]
        if iteration < iterations - 1:
            logits = zeros(votes)
            for n in range(outputs):
                predicted = (capsules[n] @ p["predict"]) * p["predict_scale"][n] + p["predict_bias"][n]
                for m in range(count):
                    product = inputs[m] @ predicted * p["similarity_weight"][n, m] + p["similarity_bias"][n, m]
                    logits[n][m] = product.sigmoid().log()
            r = divide(logits)
    return torch.stack(capsules), table(phi)
