"""A flipped bit in a shard never gives another sample: it is noticed, or it changes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastio
from fastio import FastioError, ImageError, ShardCorrupt
from tests.pictures import jpeg, pixels

ROWS = 12
Sample = dict[str, Any]


@pytest.fixture(params=["blocks", "jpeg"])
def packed(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A JPEG by either codec, pixels, a number, an array and a string in each row; one shard."""
    samples = [
        {
            "photo": jpeg(40, 56, quality=60 + row),
            "raw": pixels(8, 9),
            "label": row,
            "box": np.arange(4, dtype=np.float32) + row,
            "text": f"row {row}",
        }
        for row in range(ROWS)
    ]
    fastio.pack(samples, tmp_path / "packed", codec=request.param)
    return tmp_path / "packed"


def load(path: Path, **options: Any) -> list[Any]:
    with fastio.Loader(path, ROWS, **options) as loader:
        return list(loader)


def same(a: list[Any], b: list[Any]) -> bool:
    """Whether two loads gave the same values."""
    return len(a) == len(b) and all(
        np.array_equal(np.asarray(x[name]), np.asarray(y[name]))
        for x, y in zip(a, b, strict=True)
        for name in x
    )


def flip(shard: Path, position: int, bit: int) -> None:
    """In place: a file that is written anew has to reach the disk each time."""
    with shard.open("r+b", buffering=0) as file:
        (byte,) = os.pread(file.fileno(), 1, position)
        os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), position)


def test_no_flipped_bit_gives_another_sample(packed: Path) -> None:
    shard = packed / "shard-000000.arrow"
    expected = load(packed)
    rng = np.random.default_rng(0)
    noticed = 0
    for position in rng.integers(0, shard.stat().st_size, 200).tolist():
        bit = int(rng.integers(8))
        flip(shard, position, bit)
        try:
            assert same(load(packed), expected), position
        except FastioError:
            noticed += 1
        flip(shard, position, bit)
    # What is left is the zeros between buffers and words of Arrow's metadata that nobody reads.
    assert noticed > 150


def test_a_damaged_image_is_named_and_the_rest_is_whole(packed: Path) -> None:
    shard = packed / "shard-000000.arrow"
    expected = load(packed)[0]
    with fastio.open(packed) as dataset:
        reader = dataset.shard(0)
        place = reader.extent("photo")[0] + int(reader.offsets("photo")[5]) + 400
    flip(shard, place, 3)
    with pytest.raises(ImageError, match=r"shard-000000\.arrow row 5.*CRC-32C"):
        load(packed)
    with fastio.open(packed) as dataset, pytest.raises(ImageError, match=r"row 5.*CRC-32C"):
        dataset[5]
    (skipped,) = load(packed, on_error="skip")
    assert skipped["label"].tolist() == [row for row in range(ROWS) if row != 5]
    assert skipped["photo"][5].equal(expected["photo"][6])
    (replaced,) = load(packed, on_error="replace")
    assert replaced["label"].tolist() == [*range(5), 6, *range(6, ROWS)]


@pytest.mark.parametrize("column", ["label", "box", "photo.orientation", "raw.height"])
def test_damaged_columns_are_named(packed: Path, column: str) -> None:
    shard = packed / "shard-000000.arrow"
    with fastio.open(packed) as dataset:
        value = dataset.shard(0).fixed(column)
        bytes_of = value.tobytes()
    position = shard.read_bytes().index(bytes_of)
    flip(shard, position, 0)
    with pytest.raises(ShardCorrupt, match=r"shard-000000\.arrow is damaged"):
        load(packed)


def test_large_columns_are_compared_in_the_background_of_the_first_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastio.packed.comparisons._CHECKED_BYTES", 0)
    fastio.pack(({"x": row} for row in range(ROWS)), tmp_path / "packed")
    shard = tmp_path / "packed" / "shard-000000.arrow"
    with fastio.open(tmp_path / "packed") as dataset:
        place = dataset.manifest.entry(0).head_bytes + 8 * 5
    flip(shard, place, 0)
    with (
        fastio.Loader(tmp_path / "packed", 4) as loader,
        pytest.raises(ShardCorrupt, match=r"shard-000000\.arrow .*columns have the XXH3 hash"),
    ):
        list(loader)
    flip(shard, place, 0)
    with fastio.Loader(tmp_path / "packed", 4) as loader:
        assert [row for batch in loader for row in batch["x"].tolist()] == list(range(ROWS))
