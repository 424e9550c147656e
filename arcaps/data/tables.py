"""CSV files of paths and labels, from any spreadsheet."""

import codecs
import csv
import io
import logging
from collections.abc import Iterator
from pathlib import Path

from arcaps.data.examples import Example, class_name, find_part
from arcaps.errors import ArcapsError

logger = logging.getLogger("arcaps")

HEADINGS = {
    "path": {"path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img"},
    "label": {"label", "class", "class_name", "category", "target"},
    "part": {"part", "split", "set", "subset", "partition"},
}
"""What the columns may be called, in capital or small letters."""
MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""What files of each encoding begin with; UTF-32 before UTF-16, whose mark it begins with."""
DELIMITERS = ",;\t|"
MAX_BYTES = 2**28
FORM = "give a line path,label or path,label,part for each image"

Row = tuple[int, list[str]]
"""The number of the line and its cells."""


def from_csv(path: Path) -> list[Example]:
    """The images that a CSV file names."""
    rows = read_rows(path)
    if not rows:
        raise ArcapsError(f"{path} names no images: {FORM}")
    try:
        columns = find_columns(rows[0][1])
    except ArcapsError as error:
        raise ArcapsError(f"{path}, line {rows[0][0]}: {error}") from None
    if columns is None:
        columns = {"path": 0, "label": 1, "part": 2}
        if is_heading(path, rows):
            known = "; ".join(f"{column}: {', '.join(sorted(names))}" for column, names in HEADINGS.items())
            cells = ",".join(rows[0][1])
            raise ArcapsError(f"{path}, line {rows[0][0]}: {cells!r} are not headings that are known. Use {known}")
        wrong = next((row for row in rows if len(row[1]) not in (2, 3)), None)
        if wrong is not None:
            raise ArcapsError(f"{path}, line {wrong[0]}: {','.join(wrong[1])!r} is not path,label: {FORM}")
    else:
        rows = rows[1:]
        if not rows:
            raise ArcapsError(f"{path} has headings and no images: {FORM}")
    examples = [to_example(path, row, columns) for row in rows]
    without = [line for (line, _), example in zip(rows, examples, strict=True) if example.part is None]
    if 0 < len(without) < len(rows):
        logger.warning(
            "%s: %d rows name no part, such as line %d: they are for training", path, len(without), without[0]
        )
    return examples


def to_example(path: Path, row: Row, columns: dict[str, int]) -> Example:
    """One row as an example."""
    line, cells = row
    values = {name: cells[index].strip() if index < len(cells) else "" for name, index in columns.items()}
    for name in ("path", "label"):
        if not values[name]:
            raise ArcapsError(f"{path}, line {line}: {','.join(cells)!r} has no {name}: {FORM}")
    try:
        part = find_part(values["part"]) if values.get("part") else None
    except ArcapsError as error:
        raise ArcapsError(f"{path}, line {line}: {error}") from None
    file = values["path"]
    if "\\" in file and not exists(path.parent / file):
        file = file.replace("\\", "/")  # written on Windows
    return Example(path.parent / file, Path(file).as_posix(), class_name(values["label"]), part)


def read_rows(path: Path) -> list[Row]:
    """The rows that are not empty, by the delimiter that the file uses."""
    text = read_text(path)
    first, _, rest = text.partition("\n")
    if first.strip().lower().startswith("sep=") and len(first.strip()) == 5:  # Excel's own hint
        return list(parse(path, "\n" + rest, first.strip()[4]))
    line = next((line for line in text.splitlines() if line.strip()), "")
    headed = [d for d in DELIMITERS if is_headed([cell.strip('" ') for cell in line.split(d)])]
    counts = {d: line.count(d) for d in DELIMITERS}
    # a comma may be part of a file name, so that another delimiter counts first where the line has one
    plain = [d for d in ";\t|," if counts[d] in (1, 2)]
    return list(parse(path, text, (headed or plain or [","])[0]))


def parse(path: Path, text: str, delimiter: str) -> Iterator[Row]:
    """Rows of cells; a quotation mark that is never closed is refused."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise ArcapsError(f"{path}, line {reader.line_num}: {error}: check the quotation marks") from None


def read_text(path: Path) -> str:
    """The text of a file, in the encoding that it begins with, else UTF-8."""
    if path.stat().st_size > MAX_BYTES:
        raise ArcapsError(f"{path} has {path.stat().st_size / 2**20:.0f} MB: a CSV file of image paths is smaller")
    content = path.read_bytes()
    if content.startswith(b"PK"):
        raise ArcapsError(f"{path} is a spreadsheet or an archive, not a CSV file: save it as 'CSV UTF-8'")
    encoding = next((known for mark, known in MARKS.items() if content.startswith(mark)), "utf-8")
    if b"\0" in content and encoding in ("utf-8", "utf-8-sig"):
        raise ArcapsError(f"{path} is not a text file: give a folder of images, or a CSV file ('CSV UTF-8')")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ArcapsError(f"{path}, line {line}: this is not {encoding} text: save it as 'CSV UTF-8'") from None
    if "\0" in text:
        raise ArcapsError(f"{path} is not a text file: give a folder of images, or a CSV file ('CSV UTF-8')")
    return text


def find_columns(cells: list[str]) -> dict[str, int] | None:
    """Which column holds what, if these cells are headings."""
    names = [cell.strip().lower().replace(" ", "_") for cell in cells]
    found = {column: [index for index, name in enumerate(names) if name in known] for column, known in HEADINGS.items()}
    if not found["path"] or not found["label"]:
        return None
    for column, places in found.items():
        if len(places) > 1:
            both = ", ".join(cells[index].strip() for index in places)
            raise ArcapsError(f"the headings {both} all mean the {column}: leave one of them")
    return {column: places[0] for column, places in found.items() if places}


def is_headed(cells: list[str]) -> bool:
    """Whether cells are headings, even if several mean the same."""
    try:
        return find_columns(cells) is not None
    except ArcapsError:
        return True


def is_heading(path: Path, rows: list[Row]) -> bool:
    """Whether the first row names no file, while others do."""
    there = [exists(path.parent / cells[0].strip()) for _, cells in rows[:20]]
    return not there[0] and any(there)


def exists(path: Path) -> bool:
    """Whether a path exists; a name that no file can have does not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
