"""A user's own images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from arcaps import ArcapsError, load_data, load_folder


def write(path: Path, colour: object = 128, size: tuple[int, int] = (12, 10), mode: str = "L") -> None:
    """An image file of one colour; the size is width, height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """20 cats that are dark and 10 dogs that are bright."""
    for number in range(20):
        write(tmp_path / "pets" / "cat" / f"{number:02}.png", number)
    for number in range(10):
        write(tmp_path / "pets" / "dog" / f"{number:02}.jpg", 200)
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("not an image")
    return tmp_path / "pets"


def test_a_folder_per_class(folder: Path) -> None:
    data = load_folder(folder)
    assert data.train is not None
    assert data.validation is not None
    assert data.train.class_names == ("cat", "dog")
    assert data.train.image_size == (10, 12)
    assert data.train.channels == 1
    assert [part.labels.bincount().tolist() for part in (data.train, data.validation, data.test)] == [
        [16, 8],
        [2, 1],
        [2, 1],
    ]
    shades = [image.float().mean().item() for part in (data.train, data.validation, data.test) for image in part.images]
    assert sorted(shade for shade in shades if shade < 100) == list(range(20))  # each cat once
    for part in (data.train, data.validation, data.test):
        assert torch.equal(part.images.float().mean((1, 2, 3)) > 100, part.labels == 1)


def test_the_split_depends_on_the_seed_alone(folder: Path) -> None:
    one, same, other = (load_folder(folder, seed=seed).test.images for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(load_data(str(folder)).test.images, one)


def test_a_divided_folder_stays_divided(tmp_path: Path) -> None:
    for part, count in {"train": 5, "val": 2, "Test": 3}.items():
        for name in ("a", "b"):
            for number in range(count):
                write(tmp_path / part / name / f"{number}.png")
    data = load_folder(tmp_path)
    assert data.train is not None
    assert data.validation is not None
    assert [len(data.train), len(data.validation), len(data.test)] == [10, 4, 6]


def test_a_csv(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    lines = [f"pets/cat/{number:02}.png,Cat" for number in range(20)] + [
        f"pets/dog/{number:02}.jpg,Dog" for number in range(10)
    ]
    table.write_text("\n".join(["path,label", *lines]) + "\n")
    data = load_folder(table)
    assert data.test.class_names == ("Cat", "Dog")
    assert torch.equal(data.test.images, load_folder(folder).test.images)
    table.write_text("\n".join(f"{line},{'test' if number % 3 else 'train'}" for number, line in enumerate(lines)))
    assert len(load_folder(table).test) == 20
    table.write_text("pets/cat/00.png\n")
    with pytest.raises(ArcapsError, match=r"image 1: 'pets/cat/00\.png' is not path,label"):
        load_folder(table)


def test_colour_and_aspect_ratio(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "wide" / f"{number}.png", (250, 0, 0), (40, 20), "RGB")
        write(tmp_path / "tall" / f"{number}.png", 100, (20, 40))
    data = load_folder(tmp_path, image_size=(16, 16))
    assert data.train is not None
    assert data.train.channels == 3
    wide = data.train.images[data.train.labels == 1][0]
    assert wide[0, 4:12].eq(250).all()
    assert not wide[0, :4].any()
    assert not wide[0, 12:].any()
    assert not wide[1].any()
    tall = data.train.images[data.train.labels == 0][0]
    assert tall[:, :, 4:12].eq(100).all()
    assert not tall[:, :, :4].any()
    grey = load_folder(tmp_path, channels=1)
    assert grey.test.images.shape[1:] == (1, 64, 64)


def test_transparency_16_bits_and_photographs_on_their_side(tmp_path: Path) -> None:
    write(tmp_path / "a" / "0.png", (255, 255, 255, 0), mode="RGBA")
    Image.fromarray(np.full((10, 12), 0x80FF, np.uint16)).save(tmp_path / "a" / "1.png")
    write(tmp_path / "a" / "2.png", 1, mode="1")
    data = load_folder(tmp_path, channels=1)
    assert data.train is not None
    assert data.validation is not None
    parts = torch.cat([data.train.images, data.validation.images, data.test.images])
    assert sorted(parts.float().mean((1, 2, 3)).tolist()) == [0, 128, 255]

    upright = tmp_path / "turned" / "a"
    upright.mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    for number in range(3):
        Image.new("L", (12, 10)).save(upright / f"{number}.jpg", exif=exif)
    assert load_folder(tmp_path / "turned").test.image_size == (12, 10)


def test_broken_files_are_all_listed_or_skipped(folder: Path) -> None:
    (folder / "cat" / "03.png").write_bytes(b"")
    (folder / "cat" / "04.png").write_bytes(b"this is no image")
    whole = (folder / "dog" / "05.jpg").read_bytes()
    (folder / "dog" / "05.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArcapsError) as caught:
        load_folder(folder)
    message = str(caught.value)
    assert message.startswith("3 of 30 files cannot be read (--skip-broken leaves them out)")
    assert "03.png is empty" in message
    assert "04.png is not an image" in message
    assert "05.jpg is a damaged image" in message
    data = load_folder(folder, skip_broken=True)
    assert data.train is not None
    assert data.validation is not None
    assert sum(map(len, (data.train, data.validation, data.test))) == 27


def test_a_class_with_too_few_images_is_named(folder: Path) -> None:
    write(folder / "emu" / "0.png")
    with pytest.raises(ArcapsError, match=r"too few images to divide: emu \(1\); give each class at least 3"):
        load_folder(folder)


def test_other_mistakes_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArcapsError, match="no images in empty"):
        load_folder(tmp_path)
    with pytest.raises(ArcapsError, match="has no sub-folders with images"):
        load_folder(tmp_path / "empty")
    with pytest.raises(ArcapsError, match="neither a folder nor a CSV"):
        load_folder(tmp_path / "none")
