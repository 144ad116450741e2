"""Real photos through the block codec and back: set FASTIO_PHOTOS to a folder of JPEG files.

FASTIO_PHOTOS=~/photos tools/test tests/test_block_photos.py
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fastio import _native
from tests import block_reference as reference
from tests.block_samples import CODEBOOK

FOLDER = os.environ.get("FASTIO_PHOTOS", "")
if not FOLDER:
    pytest.skip("FASTIO_PHOTOS names no folder of photos", allow_module_level=True)

PHOTOS = sorted(p for p in Path(FOLDER).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))


def as_array(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def pixels(jpeg: bytes) -> NDArray[np.uint8]:
    with Image.open(io.BytesIO(jpeg)) as image:
        return np.asarray(image)


def test_there_are_photos() -> None:
    assert PHOTOS, f"{FOLDER} has no JPEG files"


@pytest.mark.parametrize("path", PHOTOS, ids=lambda path: path.name)
def test_a_photo_comes_back_with_its_coefficients_quantisers_and_metadata(path: Path) -> None:
    codebook = _native.Codebook(as_array(CODEBOOK))
    jpeg = path.read_bytes()
    encoded = _native.blocks_encode(as_array(jpeg), codebook)
    if encoded is None:
        pytest.skip("a block record cannot hold this file")
    record = bytes(encoded[0])
    exported = bytes(_native.blocks_export(as_array(record), codebook))
    # Pillow decodes both with a libjpeg of its own.
    np.testing.assert_array_equal(pixels(exported), pixels(jpeg))
    # The plain reader finds the same numbers in the record of either.
    again = _native.blocks_encode(as_array(exported), codebook)
    assert again is not None
    assert bytes(again[0]) == record
    header = reference.parse_header(record)
    assert (header.height, header.width) == pixels(jpeg).shape[:2]
