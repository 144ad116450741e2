"""Fields of fixed width side by side in the column ".record" of a shard."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fastio import Array, Scalar, Schema, Text, Writer
from fastio.packed import Manifest
from fastio.schema import RECORD_COLUMN

FIELDS = {
    "flag": Scalar("bool"),
    "name": Text(),
    "x": Array("float64", (2, 3)),
    "n": Scalar("int16"),
}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A dataset of ten rows with records."""
    rng = np.random.default_rng(0)
    with Writer(tmp_path / "out", Schema(FIELDS, records=True)) as writer:
        for n in range(10):
            x = rng.standard_normal((2, 3))
            writer.write({"flag": n % 3 == 0, "name": f"row {n}", "x": x, "n": -n})
    return tmp_path / "out"


def shard(folder: Path) -> pa.RecordBatch:
    return pa.ipc.open_file(pa.memory_map(str(folder / "shard-000000.arrow"))).get_batch(0)


def test_a_writer_puts_fixed_width_fields_side_by_side(written: Path) -> None:
    batch = shard(written)
    assert batch.schema.names == [RECORD_COLUMN, "name"]
    layout = Schema(FIELDS, records=True).record_layout
    assert layout is not None
    records = np.frombuffer(batch.column(0).buffers()[1], layout.dtype)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(records["x"], rng.standard_normal((10, 2, 3)))
    np.testing.assert_array_equal(records["n"], -np.arange(10))
    np.testing.assert_array_equal(records["flag"], np.arange(10) % 3 == 0)
    assert batch.column("name").to_pylist()[9] == "row 9"


def test_bytes_between_fields_are_zero(written: Path) -> None:
    layout = Schema(FIELDS, records=True).record_layout
    assert layout is not None
    records = np.frombuffer(shard(written).column(0).buffers()[1], np.uint8)
    records = records.reshape(10, layout.nbytes).copy()
    for name, offset in layout.offsets.items():
        records[:, offset : offset + layout.dtype[name].itemsize] = 0
    assert not records.any()


def test_a_shard_tells_that_there_are_records(written: Path) -> None:
    about = json.loads(shard(written).schema.metadata[b"fastio"])
    assert about["schema"]["records"] is True


def test_the_manifest_says_that_there_are_records(written: Path) -> None:
    assert Manifest(written).schema == Schema(FIELDS, records=True)
