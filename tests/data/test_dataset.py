"""Data sets, and the digits that come with the package."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, RandomSampler, Subset, SubsetRandomSampler, WeightedRandomSampler

from arcaps import ArcapsError, Data, Dataset, Preprocessing, contact_sheet, load_data
from arcaps.data import differences, match_classes
from arcaps.data.catalogue import MNIST, assemble
from arcaps.data.dataset import as_dataset
from arcaps.data.digits import first_of_each
from arcaps.data.sources import data_directory, stored_file
from arcaps.figures import font_file


def test_class_numbers_of_any_kind_are_indices() -> None:
    images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    for kind in (torch.uint8, torch.int32, torch.int64):  # indexed by bytes, a tensor takes them for a mask
        dataset = Dataset("kind", images, torch.tensor([1, 2, 3, 3], dtype=kind), tuple("abcd"))
        assert dataset.labels.dtype == torch.int64
        assert match_classes(dataset, tuple("dcba")).labels.tolist() == [2, 1, 0, 0]


def test_the_embedded_digits_are_balanced() -> None:
    data = load_data("digits")
    assert data.train is not None
    assert data.train.images.shape == (5000, 1, 28, 28)
    assert data.test.images.shape == (1000, 1, 28, 28)
    assert data.train.labels.bincount().tolist() == [500] * 10
    assert data.test.labels.bincount().tolist() == [100] * 10
    digest = hashlib.sha256(data.train.images.numpy().tobytes() + data.test.images.numpy().tobytes()).hexdigest()
    assert digest == "d5602e32c9349c2be3d65d2347fda02646b6b2920ab50433fa03e206ba70747e"


def test_the_embedded_digits_are_small_and_say_where_they_come_from() -> None:
    folder = Path(str(files("arcaps.data") / "digits_of_mnist"))
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1.1e6
    assert "CC BY-SA 3.0" in (folder / "NOTICE").read_text()


@pytest.mark.skipif(not stored_file(MNIST, data_directory()).exists(), reason="MNIST has not been fetched here")
def test_the_embedded_digits_are_the_first_of_mnist() -> None:
    mnist, digits = assemble(MNIST, data_directory()), load_data("digits")
    for whole, part, number in ((mnist.train, digits.train, 500), (mnist.test, digits.test, 100)):
        assert whole is not None
        assert part is not None
        chosen = whole.take(first_of_each(whole.labels, number))
        assert torch.equal(chosen.images, part.images)
        assert torch.equal(chosen.labels, part.labels)


def test_a_split_holds_out_a_part_of_every_class() -> None:
    train = load_data("digits").train
    assert train is not None
    rest, held_out = train.split(0.1, seed=3)
    assert held_out.labels.bincount().tolist() == [50] * 10
    assert rest.labels.bincount().tolist() == [450] * 10
    pixels = {image.numpy().tobytes() for image in rest.images}
    assert not any(image.numpy().tobytes() in pixels for image in held_out.images)
    assert torch.equal(train.split(0.1, seed=3)[1].images, held_out.images)
    assert not torch.equal(train.split(0.1, seed=4)[1].images, held_out.images)


def test_a_split_of_uneven_classes_is_exact_in_total() -> None:
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate((5923, 6742, 5958, 6131, 35))])
    images = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    rest, held_out = Dataset("uneven", images, labels, tuple("abcde")).split(0.1)
    assert len(held_out) == round(0.1 * len(labels))
    assert len(rest) + len(held_out) == len(labels)
    parts = held_out.labels.bincount() - 0.1 * labels.bincount()
    assert parts.abs().max() < 1


def test_padding_puts_the_image_in_the_middle() -> None:
    test = load_data("digits").test
    padded = test.pad((40, 41))
    assert padded.images.shape == (1000, 1, 40, 41)
    assert torch.equal(padded.images[:, :, 6:34, 6:34], test.images)
    assert padded.images.sum() == test.images.sum()
    with pytest.raises(ArcapsError, match="give a larger frame"):
        test.pad((20, 40))


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ArcapsError, match="unknown data set 'cifar': did you mean 'cifar10'"):
        load_data("cifar")


def test_a_contact_sheet_shows_images_and_their_labels() -> None:
    test = load_data("digits").test
    sheet = contact_sheet(test, count=24, columns=6)
    assert sheet.size == (6 + 6 * 62, 12 + 26 + 4 * (56 + 13 + 12))
    first = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:24]
    digit = test.images[first[test.labels[first].sort(stable=True).indices[0]], 0]
    shown = sheet.crop((6, 25, 62, 81)).convert("L").resize((28, 28), 0)
    assert np.array_equal(np.asarray(shown), digit.numpy())


def test_labels_of_a_contact_sheet_may_be_in_other_alphabets() -> None:
    """With the font inside Pillow, Cyrillic letters are all the same box."""
    images = torch.zeros(1, 28, 28, dtype=torch.uint8)
    sheets = [
        np.asarray(contact_sheet(Dataset.from_arrays(images, [name]), font_file=font_file())).tobytes()
        for name in ("кот", "пёс")
    ]
    assert sheets[0] != sheets[1]


def few(count: int = 6) -> Dataset:
    """The first digits of the test set."""
    return load_data("digits").test.take(torch.arange(count))


def test_a_data_set_is_like_one_of_torch() -> None:
    digits = few()
    image, label = digits[2]
    assert torch.equal(image, digits.images[2])
    assert label == int(digits.labels[2])
    assert [label for _, label in digits] == digits.labels.tolist()
    assert torch.equal(digits[-1][0], digits.images[5])
    assert torch.equal(digits[1:4].images, digits.images[1:4])
    assert torch.equal(digits[[4, 0]].labels, digits.labels[[4, 0]])
    assert torch.equal(digits[digits.labels == 7].labels, digits.labels[digits.labels == 7])
    with pytest.raises(IndexError, match="has 6 images, there is no number 6"):
        digits[6]
    batch, labels = next(iter(torch.utils.data.DataLoader(digits, 4)))  # type: ignore[arg-type]
    assert torch.equal(batch, digits.images[:4])
    assert torch.equal(labels, digits.labels[:4])


def test_arrays_become_a_data_set() -> None:
    digits = few()
    flat, numbers = digits.images[:, 0].numpy(), digits.labels.numpy()
    for images in (flat, flat[:, None], flat[..., None], torch.from_numpy(flat), flat.astype(np.int64)):
        found = Dataset.from_arrays(images, numbers, digits.class_names)
        assert torch.equal(found.images, digits.images)
        assert torch.equal(found.labels, digits.labels)
        assert found.fingerprint() == digits.fingerprint()
    colour = np.repeat(flat[..., None], 3, -1)
    assert Dataset.from_arrays(colour, numbers).images.shape == (6, 3, 28, 28)
    assert Dataset.from_arrays(flat, numbers).class_names == tuple(map(str, range(numbers.max() + 1)))
    named = Dataset.from_arrays(flat, ["b", "a", "b", "c", "a", "a"])
    assert named.class_names == ("a", "b", "c")
    assert named.labels.tolist() == [1, 0, 1, 2, 0, 0]


PIXELS = np.zeros((4, 8, 8), np.uint8)


@pytest.mark.parametrize("kind", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int16])
def test_labels_of_any_whole_numbers_are_indices(kind: torch.dtype) -> None:
    images = torch.from_numpy(PIXELS)[:, None]
    found = Dataset("x", images, torch.tensor([0, 1, 2, 1]).to(kind), ("a", "b", "c"))
    assert found.labels.dtype == torch.int64
    assert found.labels.tolist() == [0, 1, 2, 1]
    with pytest.raises(ArcapsError, match="labels go from 0 to 3, and there are 3 class names"):
        Dataset("x", images, torch.tensor([0, 1, 3, 1]).to(kind), ("a", "b", "c"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((PIXELS / 255, [0, 1, 0, 1]), r"images are torch\.float64: give bytes"),
        ((PIXELS.astype(np.int32) + 300, [0, 1, 0, 1]), "images go from 300 to 300: give bytes from 0 to 255"),
        ((PIXELS.astype(bool), [0, 1, 0, 1]), r"torch\.bool: give bytes"),
        ((PIXELS, [0, 1, 0]), "has 4 images and 3 labels"),
        ((PIXELS, [0, 1, 0, -1]), "labels go from -1 to 1"),
        ((PIXELS, [0, 1, 0, 5], ("a", "b")), "labels go from 0 to 5, and there are 2 class names"),
        ((PIXELS, [0.0, 1.0, 0.5, 1.0]), "give class numbers from 0 as whole numbers"),
        ((PIXELS, ["a", "b", "c", "a"], ("a", "b")), "the labels c are not among the classes a, b"),
        ((PIXELS, [None] * 4), "give class numbers from 0, or class names"),
        ((PIXELS[0], [0] * 8), "give .count, channels, height, width."),
        ((PIXELS, np.eye(4)[:, :3] * 0.5), "not all 0 or 1"),
        ((PIXELS, np.eye(4)[:, :3], ("a", "b")), "labels have 3 columns for 2 classes"),
        ((PIXELS, np.zeros((4, 2, 2), int)), "give a class number for each image"),
    ],
)
def test_arrays_that_are_not_right_are_named(arguments: Any, message: str) -> None:
    with pytest.raises(ArcapsError, match=message):
        Dataset.from_arrays(*arguments)


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (PIXELS[:3], "4 images and 3 masks"),
        (PIXELS[:, :4], "one for each pixel of 8x8"),
        (PIXELS + 2, "a mask has class 2: give 0 to 1, or 255 for no class"),
    ],
)
def test_masks_that_are_not_right_are_named(masks: Any, message: str) -> None:
    with pytest.raises(ArcapsError, match=message):
        Dataset.from_arrays(PIXELS, [0, 1, 0, 1], masks=masks)
    assert Dataset.from_arrays(PIXELS, [0, 1, 0, 1], masks=PIXELS + 255).masks is not None


class TorchDigits(torch.utils.data.Dataset[tuple[Any, Any]]):
    """As a data set of torchvision gives them."""

    classes: ClassVar[list[str]] = list("0123456789")

    def __init__(self, change: Callable[[torch.Tensor], Any]) -> None:
        self.change, self.digits = change, few()

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, label = self.digits[index][:2]
        return self.change(image), label


@pytest.mark.parametrize(
    "change",
    [lambda image: image, lambda image: image / 255, lambda image: Image.fromarray(image[0].numpy())],
    ids=["bytes", "ToTensor", "Pillow"],
)
def test_torch_data_sets(change: Any) -> None:
    found = Dataset.from_torch(TorchDigits(change))
    assert found.fingerprint() == few().fingerprint()
    assert found.name == "TorchDigits"


class NamedDigits(TorchDigits):
    classes: ClassVar[list[str]] = [f"digit {n}" for n in range(10)]


def test_a_subset_of_a_torch_data_set_is_no_more_than_its_examples() -> None:
    whole, chosen = NamedDigits(lambda image: image), [5, 3, 4]
    part: Any = Subset(cast("Any", whole), chosen)
    torch_part = DataLoader(part, 2, shuffle=True)
    sampled = DataLoader(cast("Any", whole), 2, sampler=SubsetRandomSampler(chosen))
    of_ours: Any = Subset(cast("Any", few()), chosen)
    of_a_part: Any = Subset(Subset(cast("Any", whole), [0, 5, 3, 4]), range(1, 4))
    for data in (part, torch_part, sampled, of_ours, DataLoader(of_ours), of_a_part):
        found = as_dataset(data)
        assert torch.equal(found.images, few().images[chosen])
        assert torch.equal(found.labels, few().labels[chosen])
    assert as_dataset(part).class_names == as_dataset(of_a_part).class_names == tuple(NamedDigits.classes)
    assert as_dataset(of_ours).class_names == few().class_names


def test_a_data_set_around_another_is_read_itself() -> None:
    class Black(TorchDigits):
        dataset = few()

    assert not as_dataset(Black(torch.zeros_like)).images.any()


def test_a_loader_that_takes_some_images_more_often_is_refused() -> None:
    whole: Any = TorchDigits(lambda image: image)
    with pytest.raises(ArcapsError, match="with a WeightedRandomSampler: give its data set, or a Subset"):
        as_dataset(DataLoader(whole, sampler=WeightedRandomSampler([1.0] * len(whole), len(whole))))
    with pytest.raises(ArcapsError, match="with a RandomSampler: give its data set"):
        as_dataset(DataLoader(whole, sampler=RandomSampler(whole, num_samples=2)))


def test_torch_data_sets_that_are_not_right_are_named() -> None:
    with pytest.raises(ArcapsError, match="leave Normalize and random changes out"):
        Dataset.from_torch(TorchDigits(lambda image: image / 255 - 0.1307))
    sizes = iter(range(20, 28))
    with pytest.raises(ArcapsError, match=r"has 6 shapes.*Resize"):
        Dataset.from_torch(TorchDigits(lambda image: image[:, : next(sizes)]))
    with pytest.raises(ArcapsError, match="example 0 is not an image with a label"):
        Dataset.from_torch([torch.zeros(1, 4, 4)])
    with pytest.raises(ArcapsError, match=r"give arcaps\.Dataset\.from_arrays\(images, labels\)"):
        as_dataset((np.zeros((9, 28, 28), np.uint8), np.zeros(9, np.int64)))


def test_several_labels_and_masks_go_with_their_images() -> None:
    digits = few(20)
    labels = torch.zeros(20, 10)
    labels[torch.arange(20), digits.labels] = 1
    labels[torch.arange(20), (digits.labels + 3) % 10] = 1
    whole = Dataset.from_arrays(digits.images, labels, masks=(digits.images[:, 0] > 127).byte())
    assert whole.several_labels
    order = torch.tensor([5, 3])
    taken = whole.take(order)
    assert torch.equal(taken.labels, labels[order])
    assert taken.masks is not None
    assert whole.masks is not None
    assert torch.equal(taken.masks, whole.masks[order])
    assert len(whole[0]) == 3
    framed = whole.pad((40, 40))
    assert framed.masks is not None
    assert torch.equal(framed.masks[:, 6:34, 6:34], whole.masks)
    assert framed.masks.sum() == whole.masks.sum()
    scaled = whole.fit(Preprocessing((56, 56), 1))
    assert scaled.masks is not None
    assert torch.equal(scaled.masks, whole.masks.repeat_interleave(2, 1).repeat_interleave(2, 2))
    assert contact_sheet(whole, count=4).size[0] > 0


def test_a_split_of_several_labels_holds_out_every_class() -> None:
    generator = torch.Generator().manual_seed(0)
    chances = torch.linspace(0.05, 0.5, 8)
    labels = (torch.rand(1000, 8, generator=generator) < chances).float()
    images = torch.zeros(1000, 1, 2, 2, dtype=torch.uint8)
    rest, held_out = Dataset.from_arrays(images, labels).split(0.2)
    assert (len(rest), len(held_out)) == (800, 200)
    assert held_out.class_counts() / labels.sum(0) == pytest.approx(0.2, abs=0.06)


def test_classes_are_matched_by_name() -> None:
    """In version 0.1 output k was compared with the k-th class of any data set."""
    digits = few(50)
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    order = sorted(range(10), key=words.__getitem__)
    labels = torch.tensor([order.index(label) for label in digits.labels.tolist()])
    other = replace(digits, labels=labels, class_names=tuple(words[number] for number in order))
    assert torch.equal(match_classes(other, words).labels, digits.labels)
    assert match_classes(other, words).class_names == tuple(words)
    with pytest.raises(ArcapsError, match=r"'five', 'four'.* are not classes of the model: the model has '0', '1'"):
        match_classes(other, digits.class_names)
    renamed = match_classes(other, digits.class_names, rename=dict(zip(words, "0123456789", strict=True)))
    assert torch.equal(renamed.labels, digits.labels)
    with pytest.raises(ArcapsError, match="'ten' are missing"):
        match_classes(other, [*words, "ten"])
    assert torch.equal(match_classes(other, ["ten", *words], allow_missing=True).labels, digits.labels + 1)
    with pytest.raises(ArcapsError, match="several classes called 9"):
        match_classes(digits, "0123456789", rename={"8": "9"}, allow_missing=True)
    with pytest.raises(ArcapsError, match="give a list, each name once"):
        replace(digits, class_names=(*"012345678", "9", "9"))
    several = Dataset.from_arrays(digits.images, torch.nn.functional.one_hot(labels), other.class_names)
    assert torch.equal(match_classes(several, words).labels.argmax(-1), digits.labels)


def test_a_fingerprint_is_of_the_content() -> None:
    digits = few()
    assert digits.fingerprint() == replace(few(), name="other").fingerprint()
    changed = digits.images.clone()
    changed[0, 0, 0, 0] = 1
    others = [
        replace(digits, images=changed),
        replace(digits, labels=digits.labels.flip(0)),
        replace(digits, class_names=tuple("abcdefghij")),
        digits.take(torch.arange(5)),
    ]
    assert len({digits.fingerprint(), *(other.fingerprint() for other in others)}) == 5
    data = Data(None, None, digits)
    assert differences(data.describe(), data) == []
    assert differences(data.describe(), Data(digits, None, others[0])) == [
        "the train part is new",
        "the test part had 6 images and has 6, with other content",
    ]
