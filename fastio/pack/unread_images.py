"""Images that are not in memory yet, as a shard stores them.

They are encoded from their files, or copied from a packed dataset or a cache.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fastio import _native
from fastio.pack.images import ImageCell, ImageOptions, encode_file
from fastio.pack.items import ImageFile, RowImage
from fastio.packed import Dataset, StoredImage
from fastio.packed.image_lists import rows_and_indexes
from fastio.schema import CODEC_BLOCKS, CODEC_JPEG, CODEC_RAW, Image


def encode_unread(image: ImageFile | RowImage, field: Image, options: ImageOptions) -> ImageCell:
    """Returns an image that is not in memory yet as it is stored.

    An image of a packed dataset, or the record of one in a cache, is copied if encoding it would
    give the same bytes.

    Raises:
        ValueError, OSError: As for `encode_file`, or it cannot be read.
    """
    if isinstance(image, ImageFile):
        return encode_file(image.read(), field, options)
    if image.max_pixels is not None:
        options = replace(options, max_pixels=image.max_pixels)
    packed = image.dataset.packed
    if packed is not None:
        return _encode_packed(packed, image, field, options)
    turned = image.dataset.upright
    record = None if image.recoded is None else image.recoded.record(image.row)
    if record is None or record.height * record.width > options.max_pixels:
        return encode_file(image.read(), field, options, None if turned else 1)
    return _copied(record if turned else record._replace(orientation=1))


def _encode_packed(
    packed: Dataset, image: RowImage, field: Image, options: ImageOptions
) -> ImageCell:
    """Returns an image of a packed dataset as it is stored."""
    there = image.dataset
    if image.field in packed.schema.list_fields:
        rows, indexes = rows_and_indexes(np.array([image.row], np.int64))
        stored = packed.stored_image(image.field, int(rows[0]), index=int(indexes[0]))
    else:
        stored = packed.stored_image(image.field, image.row)
    fits = stored.height * stored.width <= options.max_pixels
    fits = fits and (stored.codec != CODEC_RAW or there.schema.fields[image.field] == field)
    if fits and _is_stored_alike(stored.codec, packed.codebook, options):
        # The image is not decoded, which would detect damage, so its checksum is compared.
        stored.check()
        return _copied(stored)
    # The file of a Pillow image may have an orientation that is not that of the image.
    return encode_file(image.read(), field, options, stored.orientation)


def _copied(stored: StoredImage) -> ImageCell:
    return ImageCell(stored.data.tobytes(), *stored[1:])


def _is_stored_alike(codec: int, codebook: _native.Codebook | None, options: ImageOptions) -> bool:
    """Returns whether encoding an image with these options would give what is stored."""
    if options.max_side or options.quality:
        return False
    if codec in (CODEC_BLOCKS, CODEC_JPEG):
        same = codec == CODEC_JPEG or (
            codebook is not None
            and options.codebook is not None
            and codebook.data == options.codebook.data
        )
        return same and options.codec == ("jpeg" if codec == CODEC_JPEG else "blocks")
    return codec == CODEC_RAW or options.codec != "raw"
