"""The native threads that recode JPEG files beside other work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastio import _native
from fastio.packed.codebook import default_codebook
from fastio.packed.layout import WHOLE_FILE
from tests.pictures import cmyk_jpeg, jpeg, oriented_jpeg, png
from tests.support import until

FILES = [jpeg(60, 80, seed=1), png(), oriented_jpeg(8), b"", cmyk_jpeg(), jpeg(200, 300, seed=2)]


def recoding(folder: Path, files: list[bytes] = FILES, max_pixels: int = 1 << 40) -> Any:
    """Some files and one that does not exist, to be recoded."""
    paths = [folder / f"{number}.jpg" for number in range(len(files) + 1)]
    for path, data in zip(paths, files, strict=False):
        path.write_bytes(data)
    opened = _native.FileSet(keep_open=False, max_open=4)
    opened.add([str(path) for path in paths])
    count = len(paths)
    return _native.Recoding(
        opened,
        np.arange(count, dtype=np.int32),
        np.zeros(count, np.int64),
        np.full(count, WHOLE_FILE, np.int64),
        default_codebook(),
        max_pixels,
    )


def start_both(job: Any) -> None:
    job.start_idle(2)
    job.start_resting(2, 0.5)


@pytest.mark.parametrize(
    "start",
    [lambda job: job.start_idle(1), lambda job: job.start_resting(3, 1.0), start_both],
    ids=["idle", "resting", "both"],
)
def test_records_are_those_of_the_encoder(tmp_path: Path, start: Callable[[Any], None]) -> None:
    job = recoding(tmp_path)
    start(job)
    until(lambda: bool(job.wait(1.0)))
    data, lengths, heights, widths, orientations, crcs = job.take()
    begin = 0
    for place, file in enumerate([*FILES, b""]):
        record = data[begin : begin + lengths[place]].tobytes()
        begin += lengths[place]
        expected = None
        if place in (0, 2, 5):
            jpeg_bytes = np.frombuffer(file, np.uint8)
            expected = _native.blocks_encode(jpeg_bytes, default_codebook())
        if expected is None:
            assert record == b""
            continue
        assert (record, heights[place], widths[place], orientations[place]) == expected
        assert _native.crc32c(np.frombuffer(record, np.uint8)) == crcs[place]
    assert begin == len(data)


def test_larger_images_stay_as_they_are(tmp_path: Path) -> None:
    job = recoding(tmp_path, max_pixels=60 * 80)
    job.start_resting(1, 1.0)
    until(lambda: bool(job.wait(1.0)))
    assert [length > 0 for length in job.take()[1]] == [True, False, True] + [False] * 4


def test_no_images_are_done_at_once(tmp_path: Path) -> None:
    nothing = np.zeros(0, np.int64)
    opened = _native.FileSet(keep_open=False, max_open=4)
    file = nothing.astype(np.int32)
    job = _native.Recoding(opened, file, nothing, nothing, default_codebook(), 1)
    assert job.wait(0.0)
    assert len(job.take()[0]) == 0


def test_images_that_are_not_done_are_not_given(tmp_path: Path) -> None:
    job = recoding(tmp_path)
    assert not job.wait(0.0)
    with pytest.raises(RuntimeError, match="not all images are done"):
        job.take()
    job.stop()
    job.start_resting(1, 1.0)
    assert not job.wait(0.0)


def test_impossible_arguments_are_refused(tmp_path: Path) -> None:
    job = recoding(tmp_path)
    with pytest.raises(ValueError, match="threads must be at least 1"):
        job.start_idle(0)
    for share in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="share must be in"):
            job.start_resting(1, share)
    opened = _native.FileSet(keep_open=False, max_open=4)
    one = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="must have numbers of files"):
        _native.Recoding(opened, one.astype(np.int32), one, one, default_codebook(), 1)
    with pytest.raises(ValueError, match="offset"):
        _native.Recoding(opened, one[:0].astype(np.int32), one, one, default_codebook(), 1)
