"""Contact sheets: images of samples with captions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fastio.packed.pixels import pillow_image
from fastio.shown import shown

TILE = 192  # pixels, of a contact sheet
_GAP = 8
_CAPTION_HEIGHT = 18
_FONT_SIZE = 12
_PAPER = (250, 250, 250)
_INK = (30, 30, 30)
_ELLIPSIS = "..."


def contact_sheet(
    images: Iterable[NDArray[np.uint8]],
    captions: Sequence[str],
    tile: int = TILE,
) -> Image.Image:
    """Returns a sheet with the images side by side and a line of text below each.

    Args:
        images: uint8 (H, W, C) with C 1 or 3, of any sizes, read one by one. Larger images are
            shrunk to their tile with their aspect ratio kept; smaller ones keep their size.
        captions: one per image, at least one; captions that are too long are cut off.
        tile: height and width of a tile, in pixels.

    Returns:
        An RGB image.

    Raises:
        ValueError: there are no captions, or not as many as images.
    """
    if not captions:
        raise ValueError("there are no images to show")
    # This number of columns gives the sheet an aspect ratio of about 4:3.
    columns = min(len(captions), math.ceil(math.sqrt(len(captions) * 4 / 3)))
    rows = math.ceil(len(captions) / columns)
    step_x, step_y = tile + _GAP, tile + _CAPTION_HEIGHT + _GAP
    sheet = Image.new("RGB", (columns * step_x + _GAP, rows * step_y + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(_FONT_SIZE)
    for number, (pixels, caption) in enumerate(zip(images, captions, strict=True)):
        left = _GAP + number % columns * step_x
        top = _GAP + number // columns * step_y
        image = pillow_image(pixels).convert("RGB")
        image.thumbnail((tile, tile), Image.Resampling.LANCZOS)
        sheet.paste(image, (left + (tile - image.width) // 2, top + (tile - image.height) // 2))
        draw.text((left, top + tile + 2), _shorten(caption, font, tile), fill=_INK, font=font)
    return sheet


def _shorten(text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, width: int) -> str:
    """Returns the text, cut off at the end so that it is at most `width` pixels wide."""
    # Fonts have no glyphs for line ends and control characters.
    text = shown(" ".join(text.split()))
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + _ELLIPSIS) > width:
        text = text[:-1]
    return text + _ELLIPSIS
