"""Native slots asked too early or for too much: undefined behaviour before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastio import _native
from tests.pictures import jpeg


def submit(engine: _native.Engine, path: Path, rows: int, out: Any) -> _native.Slot:
    files = _native.FileSet(keep_open=False)
    files.add([str(path)])
    chain = _native.Chain()
    chain.center_crop(20, 20)
    numbers = np.zeros(rows, np.int64)
    small, bytes_ = numbers.astype(np.int32), numbers.astype(np.uint8)
    reads = _native.ImageReads(small, numbers, numbers - 1, bytes_, bytes_, small, small)
    return engine.submit(files, [(chain, True, None, out)], 0, 0, reads, 0, numbers, None, 3)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg(600, 600))
    return path


def test_a_slot_in_work_is_not_to_be_read(photo: Path) -> None:
    engine = _native.Engine(1)
    slot = submit(engine, photo, 200, None)
    with pytest.raises(RuntimeError, match="wait"):
        slot.failures()
    with pytest.raises(RuntimeError, match="wait"):
        slot.take(0)
    slot.cancel()
    while not slot.wait(1.0):
        pass
    slot.failures()


def test_a_slot_whose_images_lie_in_the_batch_has_none_to_take(photo: Path) -> None:
    engine = _native.Engine(1)
    slot = submit(engine, photo, 2, np.empty((2, 20, 20, 3), np.uint8))
    while not slot.wait(1.0):
        pass
    assert slot.failures() == []
    assert slot.take(0) is None
    with pytest.raises(IndexError):
        slot.take(2)


@pytest.mark.parametrize("timeout_s", [-1.0, 0.0, float("nan"), float("inf"), 1e300, -1e300])
def test_any_number_is_a_timeout(photo: Path, timeout_s: float) -> None:
    engine = _native.Engine(1)
    slot = submit(engine, photo, 1, None)
    slot.wait(timeout_s)
    engine.close()
    assert slot.wait(timeout_s)


def test_memory_that_does_not_fit_is_refused(photo: Path) -> None:
    engine = _native.Engine(1)
    for out in (
        np.empty((1, 20, 20, 3), np.uint8),
        np.empty((2, 20, 20, 1), np.uint8),
        np.empty((2, 20, 20, 3), np.float32),
        np.empty((2, 20, 60), np.uint8),
    ):
        with pytest.raises(ValueError, match="wrong shape or type"):
            submit(engine, photo, 2, out)
    read_only = np.empty((2, 20, 20, 3), np.uint8)
    read_only.flags.writeable = False
    apart = np.empty((2, 20, 20, 6), np.uint8)[..., ::2]
    for refused in (read_only, apart):
        with pytest.raises(TypeError):
            submit(engine, photo, 2, refused)
