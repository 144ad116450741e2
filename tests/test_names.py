"""Lists of names of files find and compare names as sets of strings do, in little memory."""

from __future__ import annotations

import tracemalloc

import pytest
import xxhash

from fastio.runtime.texts import FileSizes, Names

NAMES = ["shard-000001.arrow", "", "été", "\udcff", "shard-000000.arrow", "a" * 300]


def test_names_come_back_and_are_found_after_each_addition() -> None:
    names = Names(NAMES[:3])
    assert names.find(NAMES[3]) is None
    for name in NAMES[3:]:
        names.append(name)
        assert names.find(name) == len(names) - 1
    assert list(names) == NAMES
    assert names[-2:] == NAMES[-2:]
    assert [names.find(name) for name in NAMES] == list(range(len(NAMES)))
    assert names.find("shard-000001") is None
    with pytest.raises(IndexError):
        names[len(NAMES)]


def test_names_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda data: 2**64 - 1)
    names = Names(NAMES)
    assert [names.find(name) for name in NAMES] == list(range(len(NAMES)))
    assert names.find("other") is None


def test_a_comparison_finds_what_is_missing_and_what_is_more() -> None:
    names = Names(NAMES)
    missing, others = names.compared([*NAMES[::-1], "x", "y"])
    assert missing is None
    assert list(others) == ["x", "y"]
    missing, others = names.compared(NAMES[:1] + NAMES[3:])
    assert missing == NAMES[1]
    assert list(others) == []
    assert Names().compared([])[0] is None


def test_sizes_are_a_mapping() -> None:
    sizes = {name: 2**40 + number for number, name in enumerate(NAMES)}
    found = FileSizes(sizes.items())
    assert dict(found) == sizes
    assert len(found) == len(sizes)
    assert "other" not in found
    assert found.get("other") is None
    assert found.keys() - {""} == sizes.keys() - {""}


def test_a_name_takes_less_than_60_bytes_also_when_it_is_searched() -> None:
    tracemalloc.start()
    try:
        names = Names(f"shard-{number:06d}.arrow" for number in range(20_000))
        assert names.find("shard-019999.arrow") == 19_999
        assert tracemalloc.get_traced_memory()[0] < 60 * len(names)
    finally:
        tracemalloc.stop()
