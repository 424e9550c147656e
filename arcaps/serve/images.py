"""From the bytes of a request to the input of a model."""

import numpy as np
from jaxtyping import Float32

from arcaps.export import Exported
from arcaps.image_files import ImageError, decode_image

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP"}
"""The types of image that are accepted, and Pillow's names of them."""
MAX_SCANS = 100
"""Scans of a JPEG file. Cameras and editors write 1 to 12. Each costs a pass over all pixels and as little as 14 bytes:
without a limit, a file of 2 MB could take minutes to decode."""
NAME = "your file"


def to_input(content: bytes, exported: Exported, max_pixels: int) -> Float32[np.ndarray, "channels height width"]:
    """Decode an image file within limits, and prepare it as `arcaps predict` does."""
    if not content:
        raise ImageError(NAME, "is empty: send the bytes of a PNG, JPEG or WebP file")
    if content.startswith(b"\xff\xd8") and content.count(b"\xff\xda") > MAX_SCANS:
        raise ImageError(NAME, f"is a JPEG image of more than {MAX_SCANS} scans: save it again as PNG or plain JPEG")
    pixels = decode_image(content, NAME, max_pixels=max_pixels, formats=FORMATS.values())
    return exported.prepare(pixels)[0]
