"""Files written past the page cache have the bytes of any other, or are left to the usual way."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from fastio.cache import Aligned, Buffers, CacheFolder
from fastio.cache.direct import write_direct
from fastio.cache.held import Access, HeldFolder

MIB = 1 << 20


def aligned(data: bytes) -> Aligned:
    with Buffers().take(len(data)) as memory:
        memory[: len(data)] = data
        return Aligned.of(memory, len(data))


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 2 * MIB, 2 * MIB + 1, 5 * MIB - 7])
def test_a_file_has_the_bytes_of_the_memory(size: int, tmp_path: Path) -> None:
    expected = np.random.default_rng(size).bytes(size)
    if not write_direct(HeldFolder.top(tmp_path, Access()), "file", aligned(expected)):
        pytest.skip("this file system has no direct writes")
    assert (tmp_path / "file").read_bytes() == expected


def test_memory_is_used_again() -> None:
    buffers = Buffers()
    with buffers.take(10) as first, buffers.take(3 * MIB) as second:
        assert first.nbytes >= 10
        assert second.nbytes >= 3 * MIB
        first[:10], second[:10] = b"a" * 10, b"b" * 10
        assert bytes(first[:10]) == b"a" * 10
    with buffers.take(3 * MIB) as again:
        assert again is second


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without direct writes."""
    opened = os.open

    def refuse(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.usefixtures("refusing")
def test_where_there_are_no_direct_writes_pieces_are_written_as_usual(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "cache", 10 * MIB)
    source = folder.source("memory://a", "0" * 16, 10, 1, 10)
    assert folder.claim(source, {0: 6}) == {0: "mine"}
    written = folder.write(source, 0, aligned(b"abcdef"))
    assert (written.size, written.xxh3) == (6, xxhash.xxh3_64_hexdigest(b"abcdef"))
    assert folder.publish(source, {0: written}) == {0}
    assert folder.file(source, 0).read_bytes() == b"abcdef"
    folder.close()


def test_a_full_disk_is_an_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CacheFolder(tmp_path / "cache", 10 * MIB)
    source = folder.source("memory://a", "0" * 16, 10, 1, 10)
    folder.claim(source, {0: 6})

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            folder.write(source, 0, aligned(b"abcdef"))
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []
    folder.close()
