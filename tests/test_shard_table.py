"""Descriptions of shards are kept in temporary files, and come back as they were added."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fastio.packed import Manifest, ShardEntry, ShardTable, write_manifest
from fastio.packed.shard_table import first_rows
from fastio.schema import CODEC_NAMES, Image, Schema

FEW, MANY = 9_000, 16_000  # more than have an index in memory; tracing makes each shard slow


def entry(number: int) -> ShardEntry:
    fields = {"image.offset": number, "image.bytes": 2**40 + number, "image.jpeg": 3}
    digests = f"{number:016x}", f"{2**64 - 1 - number:016x}", f"{number * 7:016x}"
    name = f"shard-{number:06d}.arrow"
    return ShardEntry(name, 10, 2**33, digests[0], number, 5, *digests[1:], fields)


def test_shards_come_back_as_they_were_added() -> None:
    entries = [entry(number) for number in range(30)]
    table = ShardTable(entries[:20])
    table.extend(entries[20:])
    assert list(table) == entries
    assert table[-1] == entries[-1]
    assert table[3:20:5] == entries[3:20:5]
    assert list(table.names) == [each.name for each in entries]
    with pytest.raises(IndexError):
        table[30]


def test_no_shards_are_an_empty_list() -> None:
    assert not ShardTable()
    assert list(ShardTable()) == []


def traced(work: Callable[[], object]) -> int:
    """The most bytes that Python and NumPy have allocated at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def copied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of FEW shards are copied in several parts, as those of many are."""
    monkeypatch.setattr("fastio.packed.shard_table._AT_ONCE", FEW // 3)


def test_the_memory_of_many_shards_is_that_of_few(tmp_path: Path, copied_in_parts: None) -> None:
    def written(count: int) -> None:
        table = ShardTable(map(entry, range(count)), tmp_path)
        assert table.total("bytes") == 2**33 * count
        found = table.columns()
        first = first_rows(np.from_dlpack(found["rows"]), tmp_path)
        assert first[count - 1].as_py() == 10 * (count - 1)

    few, many = (traced(lambda count=count: written(count)) for count in (FEW, MANY))
    assert many < few + 29 * (MANY - FEW)
    assert list(tmp_path.iterdir()) == []  # temporary files have no names


def test_a_manifest_of_many_shards_is_written_and_appended_to_in_the_same_memory(
    tmp_path: Path, copied_in_parts: None
) -> None:
    schema = Schema({"image": Image()})

    def write(name: str, count: int) -> None:
        folder = tmp_path / name
        folder.mkdir()
        write_manifest(folder, schema, {}, ShardTable(map(full, range(count)), folder))
        base = Manifest(folder)
        more = ShardTable(map(full, range(count, count + 100)), folder)
        write_manifest(folder, schema, {}, more, base=base)
        grown = Manifest(folder)
        assert (grown.shards, grown.version, grown.rows) == (count + 100, 2, 10 * count + 1000)
        assert grown.entry(count + 5) == full(count + 5)
        assert grown.entry(7) == full(7)

    few, many = (traced(lambda n=count: write(str(n), n)) for count in (FEW, MANY))
    assert many < few + 29 * (MANY - FEW)


def full(number: int) -> ShardEntry:
    """A shard of a manifest, whose numbers are possible."""
    fields = {"image.offset": 100, "image.bytes": 800}
    fields |= {f"image.{codec}": number % 7 for codec in CODEC_NAMES}
    digests = f"{number * 2**40 % 2**64:016x}", f"{2**64 - 1 - number:016x}", f"{number:016x}"
    name = f"shard-{number:06d}.arrow"
    return ShardEntry(name, 10, 1000, digests[0], 100, 100, *digests[1:], fields)


def test_columns_have_the_values_of_all_shards() -> None:
    entries = [entry(number) for number in range(9)]
    columns = ShardTable(entries).columns()
    for name in ("name", "rows", "bytes", "xxh3", "head_bytes", "head_xxh3", "columns_xxh3"):
        assert columns[name].to_pylist() == [getattr(each, name) for each in entries]
        columns[name].validate(full=True)
    assert columns["image.bytes"].to_pylist() == [each.of_fields["image.bytes"] for each in entries]


def test_columns_follow_those_of_the_shards_before() -> None:
    entries = [entry(number) for number in range(9)]
    before = ShardTable(entries[:4]).columns()
    columns = ShardTable(entries[4:]).columns(before)
    for name in ("name", "rows", "xxh3", "head_xxh3", "columns_xxh3"):
        assert columns[name].to_pylist() == [getattr(each, name) for each in entries]
        columns[name].validate(full=True)
