"""Lists of names of files find and compare names as sets of strings do, many of them in files."""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path
from typing import Any

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


def test_many_names_take_no_memory_also_when_they_are_searched(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        names = Names((f"shard-{number:06d}.arrow" for number in range(10_000)), tmp_path)
        assert names.find("shard-009999.arrow") == 9_999
        missing, others = names.compared([*names[:7_500], *names[7_501:], "x"])
        assert (missing, list(others)) == ("shard-007500.arrow", ["x"])
        del missing, others
        assert tracemalloc.get_traced_memory()[0] < 10 * len(names)
    finally:
        tracemalloc.stop()
    assert list(tmp_path.iterdir()) == []  # temporary files have no names


def test_names_in_files_come_back_and_are_found() -> None:
    expected = [f"{number:05d}-{'x' * (number % 50)}" for number in range(10_000)]
    names = Names(expected)
    assert list(names) == expected
    assert [names[number] for number in range(0, 10_000, 7)] == expected[::7]
    assert [names.find(name) for name in expected] == list(range(10_000))
    assert names.find("x") is None
    names.append("x")
    assert names.find("x") == 10_000
    assert names.find(expected[-1]) == 9_999
    sizes = FileSizes((name, number) for number, name in enumerate(expected))
    assert sizes[expected[9_000]] == 9_000


def test_a_full_disk_is_an_error_of_the_list_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        Names(f"{number:09d}" for number in range(10_000))
