"""Votes of windows that share their matrices, coordinates, and votes of matrices."""

from functools import partial

import pytest
import torch

from arcaps import ArcapsError, ClassCaps, ConvCaps, MatrixVotes, Routing, WindowVotes, testing

same = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def test_a_matrix_vote_is_the_product_of_two_matrices() -> None:
    votes = MatrixVotes(2, 9, 3, 9, 3, 2, "valid", False).double()
    capsules = torch.randn(2, 7, 5, 2, 9).double()
    found = votes(capsules)
    assert found.shape == (2, 3, 2, 3, 18, 9)
    for h, w, i, j, m, n in [(0, 0, 0, 0, 0, 0), (2, 1, 1, 2, 1, 2), (1, 0, 2, 0, 0, 1)]:
        inp = (i * 3 + j) * 2 + m
        pose = capsules[:, 2 * h + i, 2 * w + j, m].view(2, 3, 3)
        same(found[:, h, w, n, inp].view(2, 3, 3), pose @ votes.weight[inp, :, n])


def test_a_matrix_vote_is_a_window_vote_with_a_kronecker_product() -> None:
    matrix, window = (cls(2, 4, 3, 4, 3, 1, "same", True).double() for cls in (MatrixVotes, WindowVotes))
    assert matrix.bias is not None
    assert window.bias is not None
    with torch.no_grad():
        for inp in range(18):
            for n in range(3):
                kron = torch.kron(torch.eye(2).double(), matrix.weight[inp, :, n].contiguous())
                window.weight[inp, 0, 0, :, n] = kron
        window.bias.normal_()
        matrix.bias.copy_(window.bias)
    capsules = torch.randn(2, 4, 5, 2, 4).double()
    same(matrix(capsules), window(capsules))


@pytest.mark.parametrize("cls", [WindowVotes, MatrixVotes])
def test_shared_votes_are_those_of_one_place_everywhere(cls: type[WindowVotes]) -> None:
    shared, own = (cls(2, 4, 3, 4, (3, 2), 1, "valid", True, shared=one).double() for one in (True, False))
    assert len(shared.weight) == 2
    assert len(own.weight) == 12
    assert own.bias is not None
    assert shared.bias is not None
    with torch.no_grad():
        shared.bias.normal_()
        own.weight.copy_(shared.weight.repeat(6, *[1] * (own.weight.ndim - 1)))
        own.bias.copy_(shared.bias.repeat(6, 1, 1))
    capsules = torch.randn(2, 5, 4, 2, 4).double()
    same(shared(capsules), own(capsules))


@pytest.mark.parametrize(("cls", "row", "column"), [(WindowVotes, 0, 1), (MatrixVotes, 1, 3)])
def test_coordinates_are_added_to_two_elements(cls: type[WindowVotes], row: int, column: int) -> None:
    plain, placed = (cls(2, 4, 3, 4, (4, 2), 1, "valid", coordinates=one).double() for one in (False, True))
    plain.load_state_dict(placed.state_dict())
    capsules = torch.randn(2, 4, 2, 2, 4).double()
    added = (placed(capsules) - plain(capsules))[:, 0, 0].unflatten(2, (4, 2, 2))  # batch, out, i, j, inp, dim
    rows = torch.tensor([0.125, 0.375, 0.625, 0.875]).double().view(4, 1, 1)
    columns = torch.tensor([0.25, 0.75]).double().view(1, 2, 1)
    same(added[..., row], rows.expand(2, 3, 4, 2, 2))
    same(added[..., column], columns.expand(2, 3, 4, 2, 2))
    others = [element for element in range(4) if element not in (row, column)]
    assert (added[..., others] == 0).all()


def test_a_layer_of_shared_votes_does_not_ask_where_an_entity_is() -> None:
    options = {"votes": "window(shared=True)", "routing": "score"}
    layer = ClassCaps(2, 4, 3, 4, in_size=(5, 6), **options).double()
    capsules = torch.zeros(1, 5, 6, 2, 4).double()
    capsules[:, 1, 2] = torch.randn(2, 4)
    moved = capsules.roll((2, 1), (1, 2))
    same(layer(moved).poses, layer(capsules).poses)


@pytest.mark.parametrize("votes", ["matrix", "matrix(shared=True)", "window(shared=True, coordinates=True)"])
@pytest.mark.parametrize("routing", ["dynamic", "variational"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_with_every_competition(votes: str, routing: str, dtype: torch.dtype) -> None:
    leaking = () if Routing.find(routing).logits_are_densities else ("outputs(leak=True)", "overlap(leak=True)")
    for competition in ("outputs", "overlap", "image", *leaking):
        layer = ConvCaps(2, 4, 3, 4, stride=2, votes=votes, routing=routing, competition=competition).to(dtype)
        capsules = torch.randn(2, 5, 6, 2, 4, dtype=dtype)
        assert layer(capsules).poses.shape == (2, 3, 3, 3, 4)
        testing.assert_batch_independent(layer, capsules)
        testing.assert_finite_gradients(layer, capsules)
        testing.assert_finite_gradients(layer, torch.zeros_like(capsules))


def test_mistakes_are_named() -> None:
    with pytest.raises(ArcapsError, match="from dimension 8 to 16: give both the same square"):
        ConvCaps(2, 8, 3, 16, votes="matrix")
    with pytest.raises(ArcapsError, match="from dimension 8 to 8: give both the same square"):
        ConvCaps(2, 8, 3, 8, votes="matrix")
    with pytest.raises(ArcapsError, match="coordinates need votes of two elements or more, not 1"):
        ConvCaps(2, 8, 3, 1, votes="window(coordinates=True)")
