"""What exports to folders and to tars share: rows in order, their names, and images as files."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TypeVar

from PIL import Image as PillowImage

from fastio import _native
from fastio.errors import ImageError
from fastio.pack.pipeline import OrderedPipeline
from fastio.pack.progress import progress_bar
from fastio.packed import Dataset, StoredImage, decode_image
from fastio.packed.pixels import pillow_image
from fastio.schema import CODEC_BLOCKS, CODEC_JPEG, CODEC_RAW, Image

R = TypeVar("R")

# The fields that hold a sample's class, the first of which counts.
CLASS_FIELDS = ("label", "class")
_LEAST_DIGITS = 6
_DEPTH_PER_WORKER = 16
_BUDGET_BYTES = 256 << 20
# Extensions that differ from the lower-case name of Pillow's format.
_SUFFIXES = {"JPEG": ".jpg", "MPO": ".jpg", "TIFF": ".tif", "JPEG2000": ".jp2"}


def digits_of(rows: int) -> int:
    """Returns the number of digits of row numbers in names, so that names sort as rows do."""
    return max(_LEAST_DIGITS, len(str(rows - 1)))


@contextmanager
def made_in_order(
    make: Callable[[int, Callable[[int], None]], R],
    size: Callable[[R], int],
    rows: Sequence[int],
    workers: int,
    units: str | None,
) -> Iterator[Iterator[R]]:
    """Applies a function to rows in threads, and yields the results in the order of the rows.

    Args:
        make, size, workers: See `OrderedPipeline`.
        rows: The row numbers.
        units: What a progress bar on stderr counts; None for no bar.
    """
    pipeline = OrderedPipeline(make, size, workers, workers * _DEPTH_PER_WORKER, _BUDGET_BYTES)

    def results(advance: Callable[[int], None]) -> Iterator[R]:
        submitted = (done for row in rows for done in pipeline.submit(row, 0))
        for done in chain(submitted, pipeline.drain()):
            yield done
            advance(1)

    try:
        with progress_bar("exporting", units, len(rows), units is not None) as advance:
            yield results(advance)
    finally:
        pipeline.close()


def image_file(
    dataset: Dataset, field: str, row: int, hold: Callable[[int], None]
) -> tuple[bytes, str]:
    """Returns a stored image as the bytes of a file, and the file's extension.

    Raises:
        ImageError, ShardCorrupt: It is damaged.
    """
    stored = dataset.stored_image(field, row)
    hold(stored.data.nbytes)
    kind = dataset.schema.fields[field]
    assert isinstance(kind, Image)
    try:
        stored.check()
        return _image_file(stored, kind, dataset.codebook)
    except ValueError as error:
        raise ImageError(dataset.path, row, dataset.sample_name(row), error) from error


def _image_file(
    stored: StoredImage, kind: Image, codebook: _native.Codebook | None
) -> tuple[bytes, str]:
    if stored.codec == CODEC_BLOCKS:
        if codebook is None:
            raise ValueError("it is stored as blocks, but the manifest has no codebook")
        return _native.blocks_export(stored.data, codebook), ".jpg"
    if stored.codec == CODEC_RAW:
        return _png(stored, kind), ".png"
    data = stored.data.tobytes()
    if stored.codec == CODEC_JPEG:
        return data, ".jpg"
    return data, _suffix(data)


def _png(stored: StoredImage, kind: Image) -> bytes:
    file = io.BytesIO()
    pillow_image(decode_image(*stored[:5], kind.mode)).save(file, "PNG")
    return file.getvalue()


def _suffix(data: bytes) -> str:
    """Returns the extension for an image file by its contents; ValueError if it is unknown."""
    try:
        with PillowImage.open(io.BytesIO(data)) as image:
            kind = image.format or ""
    except Exception as error:  # Pillow's plugins raise errors of any type
        raise ValueError(f"not an image that Pillow knows: {error}") from error
    return _SUFFIXES.get(kind, f".{kind.lower()}")
