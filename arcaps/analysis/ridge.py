"""Ridge regression with cross-validation; the strength is chosen by the leave-one-out error."""

import torch
from jaxtyping import Float
from torch import Tensor

from arcaps.errors import ArcapsError

STRENGTHS = torch.logspace(-4, 3, 22, dtype=torch.float64)
"""The strengths tried, in units of the mean square of the singular values. Weaker ones fit directions in which the
features hardly vary, and the prediction for a held-out image that does vary there is far off."""


def ridge_predictions(
    features: Float[Tensor, "count features"],
    targets: Float[Tensor, "count targets"],
    *,
    folds: int = 5,
    components: int | None = None,
    seed: int = 0,
) -> tuple[Float[Tensor, "count targets"], Float[Tensor, "folds targets"]]:
    """Predict each target from the features by ridge regression, each image from a fit on other images.

    The images are split into `folds`; each fold is predicted from the others. The strength of the ridge is chosen on
    those others alone, for each target separately, by the leave-one-out error, which has a closed form. With
    `components`, the features are first reduced to that number of principal components, also of the others alone.
    Returns the predictions and the strengths.
    """
    exact, wanted = features.double(), targets.double()
    if len(exact) < 2 * folds:
        raise ArcapsError(f"a class has {len(exact)} images: give at least {2 * folds} of each class for {folds} folds")
    order = torch.randperm(len(exact), generator=torch.Generator().manual_seed(seed))
    predictions = torch.empty_like(wanted)
    chosen = []
    for fold in range(folds):
        held_out = order[fold::folds]
        others = torch.ones(len(exact), dtype=torch.bool)
        others[held_out] = False
        prediction, strength = ridge(exact[others], wanted[others], exact[held_out], components)
        predictions[held_out] = prediction
        chosen.append(strength)
    return predictions, torch.stack(chosen)


def ridge(
    features: Float[Tensor, "count features"],
    targets: Float[Tensor, "count targets"],
    new: Float[Tensor, "new features"],
    components: int | None = None,
) -> tuple[Float[Tensor, "new targets"], Float[Tensor, " targets"]]:
    """Fit on `features`, predict for `new`; the strength is chosen by the leave-one-out error of the fit."""
    middle, level = features.mean(0), targets.mean(0)
    left, scales, right = decompose(features - middle, components)
    if not len(scales):
        return level.expand(len(new), -1), STRENGTHS[-1].expand(targets.shape[1])
    rotated = left.T @ (targets - level)
    squares = scales.square()
    shrink = squares / (squares + STRENGTHS.unsqueeze(-1) * squares.mean())
    fitted = left @ (shrink.unsqueeze(-1) * rotated)
    leverage = 1 / len(features) + shrink @ left.square().T
    errors = ((targets - level - fitted) / (1 - leverage).clamp_min(1e-9).unsqueeze(-1)).square().mean(1)
    best = errors.argmin(0)
    weights = right @ (shrink[best].T / scales.unsqueeze(-1) * rotated)
    return level + (new - middle) @ weights, STRENGTHS[best]


def decompose(
    matrix: Float[Tensor, "rows columns"], components: int | None = None
) -> tuple[Float[Tensor, "rows kept"], Float[Tensor, " kept"], Float[Tensor, "columns kept"]]:
    """The singular value decomposition, the largest values first, without those that are zero.

    By the eigenvalues of the smaller of the two Gram matrices, which is faster than an SVD; values below a millionth
    of the largest are lost, and no ridge would keep them.
    """
    wide = matrix.shape[1] > matrix.shape[0]
    values, vectors = torch.linalg.eigh(matrix @ matrix.T if wide else matrix.T @ matrix)
    values, vectors = values.flip(0), vectors.flip(1)
    kept = min(components or len(values), int((values > 1e-12 * values[0].clamp_min(1e-300)).sum()))
    scales, vectors = values[:kept].sqrt(), vectors[:, :kept]
    other = (matrix.T if wide else matrix) @ vectors / scales
    return (vectors, scales, other) if wide else (other, scales, vectors)
