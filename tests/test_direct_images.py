"""Images of data that is much larger than memory: read directly, past the page cache."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from torch.utils.data import RandomSampler, Subset

import fastio
from fastio import ImageError, Loader
from fastio.stage import shuffling
from fastio.transforms import CenterCrop, RandomResizedCrop
from tests.children import in_fork, run_code
from tests.pictures import jpeg, pixels
from tests.tars import write_tar

ROWS = 40
CROP = [RandomResizedCrop(32)]
Images = npt.NDArray[np.uint8]


def image(row: int) -> Images:
    """An image of 90 to 150 KB."""
    return pixels(180 + row % 40, 190 - row % 7, seed=row)


@pytest.fixture(scope="module", params=["raw", "jpeg", "blocks", "tar"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images as packed with a codec, or in tars."""
    folder = tmp_path_factory.mktemp(f"direct-{request.param}") / "data"
    if request.param == "tar":
        folder.mkdir()
        for first in (0, ROWS // 2):
            rows = range(first, first + ROWS // 2)
            members = [(f"{r:03}.jpg", jpeg(400, 500, r, quality=98)) for r in rows]
            write_tar(folder / f"{first:03}.tar", members)
    else:
        samples = [{"image": image(row), "row": row} for row in range(ROWS)]
        fastio.pack(samples, folder, codec=request.param, shard_size="2MB")
    return folder


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose memory is a fraction of all data."""
    monkeypatch.setattr(shuffling, "total_memory", lambda: 1)


def is_direct(source: Any, **options: Any) -> bool:
    """Whether a loader of the source would read its images directly."""
    with Loader(source, **options) as loader:
        return bool(loader._feed.settings.engine.direct)


def files(data: Path) -> list[Path]:
    return sorted([*data.glob("shard-*"), *data.glob("*.tar")])


def images(source: Any, **options: Any) -> Images:
    """The crops of a shuffled epoch, as an array: a forked child cannot use torch's threads."""
    with Loader(source, 8, shuffle=True, seed=3, transforms=CROP, **options) as loader:
        return np.concatenate([crops(batch) for batch in loader])


def crops(batch: Any) -> Images:
    """The images of a batch."""
    return batch["jpg" if "jpg" in batch else "image"].numpy()  # type: ignore[no-any-return]


def rings() -> int:
    """How many io_urings this process has."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += "io_uring" in os.readlink(link)
    return found


def can_make_ring() -> bool:
    """Whether this process may use io_uring (system call 425 everywhere)."""
    ring = ctypes.CDLL(None).syscall(425, 1, ctypes.create_string_buffer(120))
    if ring >= 0:
        os.close(ring)
    return bool(ring >= 0)


@pytest.fixture
def usual(data: Path) -> Images:
    """The crops as they are read through the page cache."""
    return images(data)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_images_are_the_same_and_come_by_io_uring(
    data: Path, usual: Images, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    monkeypatch.setattr(shuffling, "total_memory", lambda: 1)
    before = rings()
    options: dict[str, Any] = {"transforms": CROP, "num_workers": num_workers}
    with Loader(data, 8, shuffle=True, seed=3, **options) as loader:
        found = [crops(batch) for batch in loader]
        assert (rings() > before) == can_make_ring()
    assert rings() == before
    assert np.array_equal(np.concatenate(found), usual)


@pytest.mark.usefixtures("little_memory")
def test_what_an_epoch_reads_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [{"image": image(row), "row": row} for row in range(ROWS)]
    fastio.pack(samples, tmp_path / "ds", codec="raw")
    dataset = fastio.open(tmp_path / "ds")
    assert dataset.shared_bytes > 4_000_000
    assert is_direct(dataset, shuffle=True)
    assert is_direct(dataset, shuffle=False)
    assert not is_direct(dataset, sampler=RandomSampler(range(ROWS)))
    assert not is_direct(dataset, shuffle=True, repeat=2)
    monkeypatch.setattr(shuffling, "total_memory", lambda: 1_000_000)
    assert is_direct(dataset)
    assert is_direct(Subset(dataset, range(ROWS // 2 + 5)))  # type: ignore[arg-type]
    assert not is_direct(Subset(dataset, range(8)))  # type: ignore[arg-type]
    monkeypatch.setattr(shuffling, "total_memory", lambda: 4_000_000)
    assert not is_direct(dataset)


@pytest.mark.usefixtures("little_memory")
def test_folders_of_images_are_read_through_the_page_cache(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for row in range(3):
        (tmp_path / "a" / f"{row}.jpg").write_bytes(jpeg(400, 500, row, quality=98))
    assert fastio.open(tmp_path).shared_bytes == 0
    assert not is_direct(tmp_path)


@pytest.mark.parametrize("direct", [False, True])
def test_damage_and_lost_bytes_are_the_usual_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    monkeypatch.setattr(shuffling, "total_memory", lambda: 1 if direct else 1 << 40)
    samples = [{"image": image(row), "row": row} for row in range(ROWS)]
    fastio.pack(samples, tmp_path / "ds", codec="raw")
    shard = files(tmp_path / "ds")[0]
    whole = shard.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    shard.write_bytes(damaged)
    with Loader(tmp_path / "ds", 8, on_error="skip", transforms=[CenterCrop(8)]) as loader:
        errors = []
        for _ in loader:
            errors += loader.batch.errors
        assert len(errors) == 1
        assert isinstance(errors[0], ImageError)
        assert "CRC-32C" in str(errors[0])
        os.truncate(shard, len(whole) // 2)
        with pytest.raises(fastio.FastioError, match=r"shard-000000\.arrow"):
            list(loader)


@pytest.mark.usefixtures("little_memory")
def test_a_child_that_is_forked_while_images_are_read_reads_them_too(
    data: Path, usual: Images
) -> None:
    with Loader(data, 8, shuffle=True, seed=3, transforms=CROP) as loader:
        run = iter(loader)
        found = [crops(next(run))]
        assert in_fork(lambda: np.array_equal(images(data), usual)) == 0
        found += [crops(batch) for batch in run]
    assert np.array_equal(np.concatenate(found), usual)


# Forbids io_uring_setup, as containers do, then reads an epoch.
FORBIDDEN = """
import ctypes, struct, sys
from pathlib import Path

import numpy as np
from fastio.stage import shuffling
from tests import test_direct_images as tests

number = 425
program = b"".join(
    struct.pack("HBBI", *step)
    for step in [
        (0x20, 0, 0, 0),  # the number of the system call
        (0x15, 0, 1, number),
        (0x06, 0, 0, 0x00050000 | 1),  # EPERM
        (0x06, 0, 0, 0x7FFF0000),  # allowed
    ]
)
memory = ctypes.create_string_buffer(program, len(program))
libc = ctypes.CDLL(None, use_errno=True)
described = struct.pack("HxxxxxxP", 4, ctypes.addressof(memory))
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, described) == 0  # PR_SET_SECCOMP

shuffling.total_memory = lambda: 1
assert not tests.can_make_ring()
np.save(sys.argv[2], tests.images(Path(sys.argv[1])))
"""


def test_where_io_uring_is_forbidden_images_come_through_the_page_cache(
    data: Path, usual: Images, tmp_path: Path
) -> None:
    child = run_code(FORBIDDEN, data, tmp_path / "found.npy")
    assert child.returncode == 0, child.stderr
    assert np.array_equal(np.load(tmp_path / "found.npy"), usual)
