"""Batches: every image once, the same again after a restore, the same from several processes."""

import pytest
import torch

from arcaps import ArcapsError, Augmentation, Dataset, Loader, load_data
from arcaps.data import Batch

AUGMENTATION = Augmentation(rotation=20.0, shift=0.1, flip=True)


@pytest.fixture
def dataset() -> Dataset:
    """Each image tells its own number."""
    images = torch.arange(23, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).contiguous()
    return Dataset("numbers", images, torch.arange(23) % 3, ("a", "b", "c"))


def numbers(batch: Batch) -> list[int]:
    return [round(value) for value in (255 * batch.images[:, 0, 4, 4]).tolist()]


def test_every_image_comes_once_and_with_its_label(dataset: Dataset) -> None:
    loader = Loader(dataset, 5)
    assert len(loader) == 5
    orders = []
    for _ in range(2):
        batches = list(loader)
        assert [len(batch.labels) for batch in batches] == [5, 5, 5, 5, 3]
        orders.append([number for batch in batches for number in numbers(batch)])
        labels = [label for batch in batches for label in batch.labels.tolist()]
        assert labels == [number % 3 for number in orders[-1]]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(23))
    assert orders[0] != orders[1]
    assert orders[0] == [number for batch in Loader(dataset, 5) for number in numbers(batch)]
    assert orders[0] != [number for batch in Loader(dataset, 5, seed=1) for number in numbers(batch)]


def test_without_shuffling_the_order_stays(dataset: Dataset) -> None:
    assert [n for batch in Loader(dataset, 4, shuffle=False) for n in numbers(batch)] == list(range(23))


@pytest.mark.parametrize("seen", [0, 1, 4, 5, 7, 10, 12])
def test_a_restored_loader_goes_on_exactly(dataset: Dataset, seen: int) -> None:
    def stream(loader: Loader) -> list[torch.Tensor]:
        return [batch.images for _ in range(3) for batch in loader]

    whole = stream(Loader(dataset, 5, augmentation=AUGMENTATION))
    first = Loader(dataset, 5, augmentation=AUGMENTATION)
    taken = 0
    while taken < seen:
        for _ in first:
            taken += 1
            if taken == seen:
                break
    second = Loader(dataset, 5, augmentation=AUGMENTATION, seed=99)
    second.load_state_dict(first.state_dict())
    rest = stream(second)
    assert all(torch.equal(one, other) for one, other in zip(rest, whole[seen:], strict=False))


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_each_batch(dataset: Dataset, world: int) -> None:
    alone = list(Loader(dataset, 5, augmentation=AUGMENTATION))
    together = [list(Loader(dataset, 5, augmentation=AUGMENTATION, rank=rank, world=world)) for rank in range(world)]
    for index, batch in enumerate(alone):
        for rank in range(world):
            assert torch.equal(together[rank][index].images, batch.images[rank::world])
            assert torch.equal(together[rank][index].labels, batch.labels[rank::world])


def test_mistakes_are_named(dataset: Dataset) -> None:
    with pytest.raises(ArcapsError, match="a batch of 2 does not feed 3 processes"):
        Loader(dataset, 2, world=3)
    other = Loader(dataset.take(torch.arange(7)), 2)
    with pytest.raises(ArcapsError, match="saved loader had 23 images, numbers has 7"):
        other.load_state_dict(Loader(dataset, 2).state_dict())


def test_a_new_pass_begins_after_a_break(dataset: Dataset) -> None:
    """As with torch's DataLoader. In version 0.1 the next loop continued with the rest."""
    loader = Loader(dataset, 5)
    for _ in loader:
        break
    assert sorted(number for batch in loader for number in numbers(batch)) == list(range(23))
    ordered = Loader(dataset, 5, shuffle=False)
    first = next(iter(ordered))
    assert numbers(first) == numbers(next(iter(ordered))) == list(range(5))


def test_two_passes_at_once_do_not_disturb_each_other(dataset: Dataset) -> None:
    loader = Loader(dataset, 5)
    both = list(zip(loader, loader, strict=True))
    for side in range(2):
        assert sorted(number for pair in both for number in numbers(pair[side])) == list(range(23))


def test_a_state_from_the_middle_resumes_one_pass_and_then_starts_new_ones(dataset: Dataset) -> None:
    first = Loader(dataset, 5)
    for seen, _ in enumerate(first, start=1):
        if seen == 2:
            break
    second = Loader(dataset, 5)
    second.load_state_dict(first.state_dict())
    assert len(list(second)) == 3
    assert len(list(second)) == 5


def test_masks_move_with_their_images(dataset: Dataset) -> None:
    digits = load_data("digits").test.take(torch.arange(20))
    pixels = (digits.images > 127).byte() * 255
    with_masks = Dataset.from_arrays(pixels, digits.labels, masks=pixels[:, 0] // 255)
    for batch in Loader(with_masks, 7, augmentation=Augmentation(shift=0.2, flip=True, rotation=30.0)):
        assert batch.masks is not None
        assert set(batch.masks.unique().tolist()) == {0, 1}
        assert (batch.masks == (batch.images[:, 0] > 0.5)).float().mean() > 0.97
    plain = next(iter(Loader(with_masks, 7, shuffle=False)))
    assert plain.masks is not None
    assert torch.equal(plain.masks.float(), plain.images[:, 0])
    assert next(iter(Loader(dataset, 5))).masks is None


def test_several_labels_come_in_batches(dataset: Dataset) -> None:
    labels = torch.eye(3)[dataset.labels]
    several = Dataset.from_arrays(dataset.images, labels)
    batch = next(iter(Loader(several, 4, shuffle=False)))
    assert torch.equal(batch.labels, labels[:4])
