"""Contact sheets: images with their labels, before and after augmentation."""

import torch
from einops import rearrange
from PIL import Image, ImageDraw, ImageFont

from arcaps.data.dataset import Dataset
from arcaps.data.warp import augment
from arcaps.settings import Augmentation

GAP = 6
TEXT = 13


def contact_sheet(
    dataset: Dataset,
    *,
    count: int = 60,
    columns: int = 12,
    augmentation: Augmentation | None = None,
    seed: int = 0,
    font_file: str | None = None,
) -> Image.Image:
    """A picture of `count` images, drawn at random and in the order of their classes, each above its label.

    With an `augmentation`, each image is to the left of what the augmentation made of it.
    `font_file` is a TrueType font for the labels; the one inside Pillow has few letters besides English ones.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(dataset), generator=generator)[:count]
    chosen = chosen[dataset.groups()[chosen].sort(stable=True).indices]
    shown = [dataset.images[chosen]]
    if augmentation is not None:
        shown.append(augment(shown[0].float(), augmentation, generator).round().clamp(0, 255).to(torch.uint8))
        columns = max(1, columns // 2)
    tiles = rearrange(torch.stack(shown), "k n c h w -> n h (k w) c").expand(-1, -1, -1, 3).numpy()

    height, width = tiles.shape[1:3]
    zoom = -(-56 // height)
    height, width = zoom * height, zoom * width
    rows = -(-len(tiles) // columns)
    sheet = Image.new(
        "RGB", (GAP + columns * (width + GAP), 2 * GAP + 2 * TEXT + rows * (height + TEXT + 2 * GAP)), "white"
    )
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.truetype(font_file, TEXT - 3) if font_file else ImageFont.load_default(TEXT - 2)
    title = f"{dataset.name}: {len(tiles)} of {len(dataset):,}"
    draw.text((GAP, GAP), title if augmentation is None else f"{title}; right: augmented", "black", font)
    for place, tile in enumerate(tiles):
        x = GAP + place % columns * (width + GAP)
        y = 2 * GAP + TEXT + place // columns * (height + TEXT + 2 * GAP)
        sheet.paste(Image.fromarray(tile.copy()).resize((width, height), Image.Resampling.NEAREST), (x, y))
        draw.text((x, y + height + 1), shorten(label_of(dataset, int(chosen[place])), width, font), "black", font)
    return sheet


def label_of(dataset: Dataset, number: int) -> str:
    """The class of an image, or its classes."""
    if not dataset.several_labels:
        return dataset.class_names[int(dataset.labels[number])]
    return " ".join(dataset.class_names[label] for label in dataset.labels[number].nonzero().flatten().tolist())


def shorten(text: str, width: int, font: "ImageFont.FreeTypeFont | ImageFont.ImageFont") -> str:
    """The part of the text that fits into this number of pixels."""
    while font.getlength(text) > width and len(text) > 1:
        text = text[:-2] + "."
    return text
