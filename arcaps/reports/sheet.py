"""The file of a contact sheet, with labels in the font of the figures."""

from pathlib import Path
from typing import Any

from arcaps import figures
from arcaps.data import Dataset, contact_sheet


def save_sheet(dataset: Dataset, path: Path, **options: Any) -> None:
    """Write a contact sheet to a PNG file. Options: those of `contact_sheet`."""
    contact_sheet(dataset, font_file=figures.font_file(), **options).save(path)
