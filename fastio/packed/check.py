"""Every image of a dataset decoded, to find the damaged ones."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
from PIL import Image as PillowImage

from fastio import _native
from fastio.errors import FastioError
from fastio.packed.packed import Dataset, StoredImage
from fastio.packed.pixels import JPEG_START, decode_image, open_image, to_pixels
from fastio.runtime.ahead import in_order
from fastio.runtime.memory import MAX_PIXELS
from fastio.schema import CODEC_BLOCKS, CODEC_JPEG, Image, Images

_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class BadImage:
    """An image that is damaged: its row, its shard and row there, its field, and what is wrong."""

    row: int
    shard: str
    local_row: int
    field: str
    problem: str


@dataclass(frozen=True)
class ImagesCheck:
    """What checking some consecutive rows found.

    Attributes:
        rows: The number of rows.
        bad: The damaged images in them.
        not_decoded: The number of images that were not checked.
    """

    rows: int
    bad: list[BadImage] = field(default_factory=list)
    not_decoded: int = 0


def check_images(dataset: Dataset, workers: int = 1) -> Iterator[ImagesCheck]:
    """Decodes every image, compares it with its checksum and size, and yields results in order.

    The images of a shard that cannot be opened are only counted: `Dataset.verify` names it.

    Raises:
        ManifestInvalid: The codebook is damaged.
    """
    _ = dataset.codebook  # if it is not sound, that is said once
    spans = row_spans(dataset.shard_bounds().tolist())
    yield from in_order(lambda span: _check_rows(dataset, *span), spans, workers)


def row_spans(bounds: Sequence[int]) -> Iterator[tuple[int, range]]:
    """Yields (number of a part, rows of the part whose images are decoded together).

    Args:
        bounds: The first row of each part (shard, tar, ...), followed by the number of all rows.
    """
    for part, (first, end) in enumerate(pairwise(bounds)):
        for begin in range(first, end, _ROWS_AT_ONCE):
            yield part, range(begin, min(begin + _ROWS_AT_ONCE, end))


def check_file(data: bytes, max_pixels: int = MAX_PIXELS) -> None:
    """Decodes all of an image file; raises ValueError with the reason if it is damaged."""
    if data.startswith(JPEG_START):
        # Pillow passes over damage inside of a JPEG.
        *_, components, _, kind, _ = _native.jpeg_probe(np.frombuffer(data, np.uint8), max_pixels)
        if components in (1, 3) and kind in ("baseline", "progressive"):
            return
    with open_image(data, max_pixels) as image:
        to_pixels(image, "RGB")
    try:
        # Decoding alone passes over some damage that a PNG's own checksums tell.
        with PillowImage.open(io.BytesIO(data)) as image:
            image.verify()
    except Exception as error:  # Pillow's plugins let parsers' errors of every kind through
        raise ValueError(f"it is damaged: {error or type(error).__name__}") from error


def _check_rows(dataset: Dataset, shard: int, rows: range) -> ImagesCheck:
    try:
        dataset.shard(shard)
    except (FastioError, OSError):
        return ImagesCheck(len(rows), not_decoded=len(rows) * len(dataset.schema.pictured))
    first = int(dataset.manifest.first_row[shard])
    name = dataset.manifest.name(shard)
    bad = []
    for row in rows:
        for spoken, kind, stored in _stored(dataset, row):
            try:
                _check_image(dataset, kind, stored())
            except Exception as error:  # MemoryError too: it is the image's
                problem = str(error) or type(error).__name__
                bad.append(BadImage(row, name, row - first, spoken, problem))
    return ImagesCheck(len(rows), bad)


def _stored(dataset: Dataset, row: int) -> Iterator[tuple[str, Image, Callable[[], StoredImage]]]:
    """Yields what messages call each image of a row, its type, and what reads it."""
    for name, kind in dataset.schema.fields.items():
        if isinstance(kind, Image):
            yield name, kind, partial(dataset.stored_image, name, row)
        elif isinstance(kind, Images):
            count = int(dataset.image_counts(name, np.array([row], np.int64))[0])
            for index in range(count):
                read = partial(dataset.stored_image, name, row, index=index)
                yield f"{name}[{index}]", kind.each, read


def _check_image(dataset: Dataset, kind: Image, stored: StoredImage) -> None:
    """Raises ValueError, with a reason, unless an image is whole."""
    stored.check()
    size = _decoded_size(stored, dataset, kind)
    if size != (stored.height, stored.width):
        raise ValueError(f"it is {size[0]} x {size[1]}, expected {stored.height} x {stored.width}")
    if not 1 <= stored.orientation <= 8:
        raise ValueError(f"EXIF orientation must be 1 to 8, got {stored.orientation}")


def _decoded_size(stored: StoredImage, dataset: Dataset, kind: Image) -> tuple[int, int]:
    """Returns height and width, after every part of the image was decoded."""
    codebook = dataset.codebook
    if stored.codec == CODEC_BLOCKS and codebook is not None:
        height, width = _native.blocks_check(stored.data, codebook, dataset.max_pixels)
        return height, width
    if stored.codec == CODEC_JPEG:
        height, width, *_, index = _native.jpeg_probe(stored.data, dataset.max_pixels)
        if stored.jpeg_index not in (b"", index):
            raise ValueError("its index is not that of the JPEG")
        return height, width
    limit = dataset.max_pixels
    # Decoded without its orientation, because the columns have the stored height and width.
    pixels = decode_image(*stored[:4], 1, kind.mode, codebook, max_pixels=limit)
    return pixels.shape[0], pixels.shape[1]
