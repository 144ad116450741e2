"""Files in memory have the bytes of their parts, however many there are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastio.cache import memory_file

PARTS: list[Any] = [
    b"",
    b"first",
    memoryview(b"second"),
    bytearray(b"third"),
    np.arange(5, dtype=np.int64),
    memoryview(b""),
]


def whole(parts: Sequence[Any]) -> bytes:
    return b"".join(memoryview(part).tobytes() for part in parts)


@pytest.mark.parametrize("times", [0, 1, 400])
def test_a_file_has_the_bytes_of_its_parts(times: int) -> None:
    parts = PARTS * times
    file = memory_file(parts)
    assert file.size == len(whole(parts))
    assert Path(file.path).read_bytes() == whole(parts)
    file.close()


@pytest.mark.parametrize("most", [1, 7, 12])
def test_what_a_system_call_did_not_write_is_written(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev

    def partly(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
        return real(descriptor, [memoryview(b"".join(views))[:most]], offset)

    monkeypatch.setattr(os, "pwritev", partly)
    file = memory_file(PARTS)
    assert Path(file.path).read_bytes() == whole(PARTS)
    file.close()
