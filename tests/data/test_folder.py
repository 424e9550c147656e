"""A user's own images."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from arcaps import ArcapsError, Data, load_data, load_folder


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
    with pytest.raises(ArcapsError, match=r"line 1: 'pets/cat/00\.png' is not path,label"):
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
    assert "3 of 30 files cannot be read (--skip-broken leaves them out)" in message
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


def test_files_that_are_not_read_are_named_by_extension(tmp_path: Path) -> None:
    """The folders are not empty: the way out is another format, not another folder."""
    (tmp_path / "cat").mkdir()
    for name in ("1.heic", "2.heic", ".hidden"):
        (tmp_path / "cat" / name).write_bytes(b"x")
    with pytest.raises(ArcapsError, match=r"no images in cat: .* \.heic \(2\): convert them to PNG or JPEG"):
        load_folder(tmp_path)


def test_classes_one_folder_deeper_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("cat", "dog"):
        for number in range(4):
            write(tmp_path / "whole" / "all" / name / f"{number}.png")
    load_folder(tmp_path / "whole")
    assert f"(cat, dog): give {tmp_path / 'whole' / 'all'}" in caplog.text
    caplog.clear()
    load_folder(tmp_path / "whole" / "all")
    assert "give" not in caplog.text


def test_other_mistakes_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArcapsError, match="no images in empty"):
        load_folder(tmp_path)
    with pytest.raises(ArcapsError, match="has no sub-folders with images"):
        load_folder(tmp_path / "empty")
    with pytest.raises(ArcapsError, match="neither a folder nor a CSV"):
        load_folder(tmp_path / "none")


DIGITS = load_data("digits").test


def write_digits(folder: Path, count: int = 5, classes: str = "012") -> Path:
    """Real digits in a folder per class."""
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number, image in enumerate(DIGITS.images[DIGITS.labels == int(name)][:count]):
            Image.fromarray(image[0].numpy()).save(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([(1600, 1200)], (48, 64)), ([(300, 900)], (64, 21)), ([(90, 80), (30, 40)], (64, 64)), ([(64, 20)], (20, 64))],
)
def test_photographs_become_small(
    sizes: list[tuple[int, int]], expected: tuple[int, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """100 of them wanted gigabytes in version 0.1."""
    caplog.set_level("INFO", "arcaps")
    for number in range(4):
        write(tmp_path / "a" / f"{number}.jpg", number, sizes[number % len(sizes)])
    assert load_folder(tmp_path).test.image_size == expected
    assert ("--image-size gives another size" in caplog.text) == (max(map(max, sizes)) > 64)
    assert load_folder(tmp_path, image_size=7).test.image_size == (7, 7)


def test_too_many_pixels_are_refused_before_they_are_taken(tmp_path: Path) -> None:
    folder = write_digits(tmp_path)
    needed = r"15 images of 400000x400000 with 1 channels need 2,400\.0 GB"
    with pytest.raises(ArcapsError, match=needed + ", and .* GB are free: give a smaller --image-size"):
        load_folder(folder, image_size=400_000)


def test_originals_are_not_kept(tmp_path: Path) -> None:
    """Twelve photographs of 2 megapixels would be 69 MB."""
    (tmp_path / "a").mkdir()
    Image.effect_noise((1600, 1200), 50).convert("RGB").save(tmp_path / "a" / "0.jpg")
    for number in range(1, 12):
        (tmp_path / "a" / f"{number}.jpg").write_bytes((tmp_path / "a" / "0.jpg").read_bytes())
    tracemalloc.start()
    load_folder(tmp_path, image_size=32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 25e6


def test_grey_and_inverted_where_asked(tmp_path: Path) -> None:
    folder = write_digits(tmp_path)
    plain, inverted, colour = load_folder(folder), load_folder(folder, invert=True), load_data(folder, channels=3)
    assert torch.equal(inverted.test.images, 255 - plain.test.images)
    assert inverted.test.preprocessing.invert
    assert torch.equal(colour.test.images, plain.test.images.expand(-1, 3, -1, -1))
    with pytest.raises(ArcapsError, match="channels is 2: give 1"):
        load_folder(folder, channels=2)


def test_a_frame_keeps_the_pixels_of_own_images(tmp_path: Path) -> None:
    data = load_folder(write_digits(tmp_path), image_size=40, fit="pad")
    assert torch.equal(data.test.images, load_folder(tmp_path).test.pad((40, 40)).images)


def test_all_images_for_the_test(tmp_path: Path) -> None:
    data = load_folder(write_digits(tmp_path), test=1.0)
    assert data.train is None
    assert data.validation is None
    assert len(data.test) == 15
    for wrong in ({"test": 0.0}, {"test": 0.5, "validation": 0.5}, {"validation": -1.0}):
        with pytest.raises(ArcapsError, match="give parts above 0"):
            load_folder(tmp_path, **wrong)  # type: ignore[arg-type]


def test_single_colours_and_copies_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_digits(tmp_path)
    Image.new("L", (28, 28), 7).save(folder / "0" / "blank.png")
    (folder / "1" / "copy.png").write_bytes((folder / "0" / "0.png").read_bytes())
    load_folder(folder)
    assert "images of a single colour (1): 0/blank.png" in caplog.text
    assert "1 images are in two classes: " in caplog.text


def test_a_copy_in_the_test_part_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_digits(tmp_path / "train")
    write_digits(tmp_path / "test", 2)
    load_folder(tmp_path)
    assert "6 images are in two parts: " in caplog.text
    assert "results would be too good" in caplog.text


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (["train/a", "train/b", "test/a", "test/c"], "no training images of c"),
        (["train/a", "trian/a", "test/a"], "has the parts test, train beside trian"),
        (["train/a", "valdation/a"], "has the parts train beside valdation"),
        (["test/a", "validation/a"], "no images to train on"),
        (["train", "test"], "train have no sub-folders with images"),
        (["train/a", "test"], "the test part, test, has no sub-folders with images"),
        (["train/a", "train"], "beside its class folders"),
    ],
)
def test_parts_that_are_not_right_are_named(folders: list[str], message: str, tmp_path: Path) -> None:
    for folder in folders:
        for number in range(4):
            write(tmp_path / folder / f"{number}.png", number)
    with pytest.raises(ArcapsError, match=message):
        load_folder(tmp_path)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("train", "car", "plane"):
        for number in range(4):
            write(tmp_path / name / f"{number}.png", number)
    assert load_folder(tmp_path).test.class_names == ("car", "plane", "train")


def test_folders_beside_the_parts_without_images_do_not_matter(tmp_path: Path) -> None:
    write_digits(tmp_path / "train")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "notes.txt").touch()
    assert load_folder(tmp_path).test.class_names == ("0", "1", "2")


def test_a_folder_with_the_name_of_a_collection_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_digits(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArcapsError, match=r"give \./digits for the folder, or arcaps:digits for the data set"):
        load_data("digits")
    assert len(load_data("./digits", test=1.0).test) == 15
    assert len(load_data(Path("digits"), test=1.0).test) == 15
    assert len(load_data("arcaps:digits").test) == 1000
    (tmp_path / "mnist").mkdir()  # a data directory here, say
    with pytest.raises(ArcapsError, match="unknown data set 'mnits'"):
        load_data("mnits")
    with pytest.raises(ArcapsError, match="neither a folder nor a CSV file"):
        load_data("./nowhere")


ROWS = [f"{name}/{number}.png,{name}" for name in "012" for number in range(5)]


@pytest.mark.parametrize(
    "content",
    [
        "\n".join(["path,label", *ROWS]).encode("utf-8-sig"),
        "\r\n".join(["Path;Label", *(row.replace(",", ";") for row in ROWS)]).encode("utf-8-sig"),
        "\r\n".join(["File name\tClass", *(row.replace(",", "\t") for row in ROWS)]).encode("utf-16"),
        "\r\n".join(["sep=;", "image;category", *(row.replace(",", ";") for row in ROWS)]).encode(),
        "\n".join(["id,split,class,filename", *(f"7,,{r.split(',')[1]},{r.split(',')[0]}" for r in ROWS)]).encode(),
        "\n".join(row.replace("/", "\\") for row in ROWS).encode(),
        "\n".join(f'"{row.split(",")[0]}","{row.split(",")[1]}"' for row in ROWS).encode(),
        "\n\n".join(row.replace(",", " ; ") for row in ROWS).encode(),
    ],
    ids=["bom", "semicolons", "utf-16", "sep", "headings", "windows", "quoted", "spaces"],
)
def test_tables_from_any_spreadsheet(content: bytes, tmp_path: Path) -> None:
    write_digits(tmp_path)
    table = tmp_path / "table.csv"
    table.write_bytes(content)
    assert torch.equal(load_folder(table).test.images, load_folder(tmp_path).test.images)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "names no images"),
        (b"path,label\n", "has headings and no images"),
        (b"bild,klasse\n0/0.png,0\n0/1.png,0", "'bild,klasse' are not headings that are known. Use path: "),
        (b"0/0.png,0,trian\n", "line 1: unknown part 'trian': did you mean 'train'"),
        (b"0/0.png,0,test\n", "no images to train on"),
        (b"0/0.png\n", "line 1: '0/0.png' is not path,label"),
        (b"0/0.png,\n", "line 1: .* has no label"),
        (b"path,label\n,0\n", "line 2: .* has no path"),
        (b"0/0.png,0\n0/0.png,1\n", r"more than one label to 1 files: 0/0.png \(0, 1\)"),
        (b"0/0.png,0,train\n./0/../0/0.png,0,test\n", r"more than one part to 1 files: 0/0.png \(test, train\)"),
        (b'"0/0.png,0\n0/1.png,0\n', "check the quotation marks"),
        (b"\xff\xfe\x00", "this is not utf-16 text: save it as 'CSV UTF-8'"),
        (b"K\xe4se/0.png,K\xe4se\n", "this is not utf-8 text: save it as 'CSV UTF-8'"),
        (b"a\0b,c", "is not a text file"),
        (b"PK\x03\x04", "is a spreadsheet or an archive"),
        (b"0/0.png,0,train\n1/0.png,1,test\n0/1.png,0,train\n", "no training images of 1"),
        (b"9/9.png,0\n9/8.png,0\n9/7.png,0\n", "3 of 3 files cannot be read"),
    ],
)
def test_mistakes_in_tables_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    write_digits(tmp_path)
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(ArcapsError, match=message):
        load_folder(tmp_path / "table.csv")


def test_rows_that_stand_twice_and_rows_without_a_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_digits(tmp_path)
    table = tmp_path / "table.csv"
    table.write_text("\n".join([*ROWS, ROWS[0], ROWS[0]]))
    data = load_folder(table)
    assert data.train is not None
    assert data.validation is not None
    assert sum(map(len, (data.train, data.validation, data.test))) == 15
    assert "names 1 files more than once: 0/0.png" in caplog.text
    table.write_text("\n".join(row + (",test" if number % 5 == 0 else ",") for number, row in enumerate(ROWS)))
    assert len(load_folder(table).test) == 3
    assert "12 rows name no part, such as line 2: they are for training" in caplog.text


def describe(data: Data) -> dict[str, Any]:
    """As it comes back from a file."""
    return dict(json.loads(json.dumps(data.describe())))


def test_a_split_is_found_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In version 0.1 one image more made another split: images of the test had been trained on."""
    folder = write_digits(tmp_path, 10)
    before = load_folder(folder)
    stored = describe(before)
    again = load_folder(folder, seed=7, split=stored)
    assert again.describe() == before.describe()
    assert not caplog.text
    Image.new("RGB", (90, 90)).save(folder / "0" / "added.png")
    with_more = load_folder(folder, split=stored)
    assert with_more.describe() == before.describe()
    assert "files 1 added, and not used, (0/added.png)" in caplog.text
    with pytest.raises(ArcapsError, match=r"added.*start a new run"):
        load_folder(folder, split=stored, on_change="error")
    (folder / "0" / "added.png").unlink()
    caplog.clear()

    assert before.test.files is not None
    gone, altered = before.test.files[0], before.test.files[1]
    (folder / gone).unlink()
    Image.fromarray(255 - np.asarray(Image.open(folder / altered))).save(folder / altered)
    after = load_folder(folder, split=stored)
    assert after.test.files == before.test.files[1:]
    assert f"files 1 removed ({gone})" in caplog.text
    assert f"files 1 altered ({altered})" in caplog.text
    with pytest.raises(ArcapsError, match="does not name files"):
        load_folder(folder, split=describe(load_data("digits")))


def test_files_that_break_late_are_left_out_of_every_part(tmp_path: Path) -> None:
    folder = write_digits(tmp_path, 10)
    whole = (folder / "1" / "3.png").read_bytes()
    (folder / "1" / "3.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArcapsError, match=r"1/3\.png is a damaged image"):
        load_folder(folder)
    data = load_folder(folder, skip_broken=True)
    parts = [part for part in data if part is not None]
    assert sum(map(len, parts)) == 29
    files = {name: image for part in parts for name, image in zip(part.files or (), part.images, strict=True)}
    assert "1/3.png" not in files
    for name, image in files.items():
        assert np.array_equal(np.asarray(Image.open(folder / name)), image[0].numpy())
