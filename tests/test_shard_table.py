"""Descriptions of shards are kept in little memory, and come back as they were added."""

from __future__ import annotations

import tracemalloc

import pytest

from fastio.packed import ShardEntry, ShardTable


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


def test_a_shard_takes_less_than_200_bytes() -> None:
    tracemalloc.start()
    try:
        table = ShardTable(map(entry, range(20_000)))
        assert tracemalloc.get_traced_memory()[0] < 200 * len(table)
    finally:
        tracemalloc.stop()


def test_columns_have_the_values_of_all_shards() -> None:
    entries = [entry(number) for number in range(9)]
    columns = ShardTable(entries).columns()
    for name in ("name", "rows", "bytes", "xxh3", "head_bytes", "head_xxh3", "columns_xxh3"):
        assert columns[name].to_pylist() == [getattr(each, name) for each in entries]
        columns[name].validate(full=True)
    assert columns["image.bytes"].to_pylist() == [each.of_fields["image.bytes"] for each in entries]
