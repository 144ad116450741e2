"""Indexes of a folder's JPEGs that a process leaves to the next one."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import shutil
import signal
import sqlite3
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastio
from fastio.cache import CacheFolder, default_cache
from fastio.cache.index import VERSION
from fastio.engine import jpeg_indexes
from tests import jpeg_index
from tests.test_jpeg_index import CROP, photo, same

COUNT = 12
_HEAD = struct.Struct("<QI")
_PATIENCE_S = 120.0  # for what is being stored when a loader is closed, however busy the machine is


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("originals") / "photos"
    (root / "a").mkdir(parents=True)
    for number in range(COUNT):
        (root / "a" / f"{number:02}.jpg").write_bytes(photo(number))
    return root


@pytest.fixture
def photos(originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of photos, and an empty cache folder of the user. Even few indexes are stored."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(jpeg_indexes, "_LEAST_BYTES", 1)
    monkeypatch.setattr(jpeg_indexes, "PATIENCE_S", _PATIENCE_S)
    return Path(shutil.copytree(originals, tmp_path / "photos"))


@pytest.fixture(scope="module")
def expected(originals: Path, tmp_path_factory: pytest.TempPathFactory) -> list[NDArray[np.uint8]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("unused")))
        return epochs(originals, 3)


def epochs(source: Any, count: int = 1, seed: int = 5, **options: Any) -> list[NDArray[np.uint8]]:
    """The images of some epochs, in the order of the rows."""
    transforms = {"image": CROP}
    with fastio.Loader(source, 4, transforms=transforms, seed=seed, num_workers=2, **options) as it:
        return [np.concatenate([batch[0].numpy() for batch in it]) for _ in range(count)]


def pieces() -> list[Path]:
    with default_cache() as cache:
        files = cache.folder().files
        return [
            Path(files.piece(key, number))
            for key in files.sources()
            for numbers in files.numbers(key)
            for number in numbers
        ]


def records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The (key, index) of a piece."""
    at = 0
    while at < len(data):
        key, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size + length
        yield key, data[at - length : at]


def change(
    edit: Callable[[bytes], bytes], path: str | Path | None = None, which: str = "%"
) -> None:
    """Replaces the kept indexes by others, whose hashes are right.

    Args:
        edit: Returns what is kept instead of the bytes of a piece.
        path: The folder of the cache; None for that of the user.
        which: The fingerprint of the indexes if the cache has other data too.
    """
    with default_cache() if path is None else fastio.Cache(path) as cache:
        folder = cache.folder()
        with folder.index.reading() as db:
            wanted = "SELECT url, fingerprint FROM sources WHERE fingerprint LIKE ?"
            ((url, key),) = db.execute(wanted, (which,)).fetchall()
        source = folder.source(url, key, 0, 0, 0)
        numbers = folder.ready(source)
        assert numbers
        for number in numbers:
            data = edit(folder.file(source, number).read_bytes())
            folder.drop(source, [number])
            assert folder.claim(source, {number: len(data)}) == {number: "mine"}
            assert folder.store(source, number, [data], misses=False)


def of_records(edit: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def edited(data: bytes) -> bytes:
        found = [(key, edit(index)) for key, index in records(data)]
        return b"".join(_HEAD.pack(key, len(index)) + index for key, index in found)

    return edited


def test_a_new_loader_begins_with_what_is_kept(
    photos: Path, expected: list[NDArray[np.uint8]]
) -> None:
    assert same(epochs(photos, 3), expected)
    assert default_cache().status().indexes >= 1
    assert same(epochs(photos, 3), expected)
    change(of_records(jpeg_index.shifted))
    assert not same(epochs(photos), expected[:1])  # it did begin with that


def mapped() -> set[str]:
    """The files that this process has mapped."""
    lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) > 5}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc/self/maps")
def test_indexes_are_used_from_the_files_of_the_cache(
    photos: Path, expected: list[NDArray[np.uint8]]
) -> None:
    """All processes of a machine have them in memory once, also those that were stored just now."""
    own = {"transforms": {"image": CROP}, "seed": 5, "num_workers": 2}
    with fastio.Loader(photos, 4, **own) as loader:  # type: ignore[arg-type]
        for _ in range(2):
            list(loader)
        deadline_s = time.monotonic() + _PATIENCE_S
        while not {str(path) for path in pieces()} & mapped():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    with fastio.Loader(photos, 4, **own) as loader:  # type: ignore[arg-type]
        next(iter(loader))
        assert {str(path) for path in pieces()} <= mapped()
    assert same(epochs(photos, 1), expected[:1])


def test_what_is_kept_is_an_index_for_each_file(photos: Path) -> None:
    epochs(photos, 6)
    with default_cache() as cache:
        status = cache.status()
    assert status.datasets == []
    assert status.indexes >= 1
    assert status.index_bytes == status.bytes > 0
    found: dict[int, bytes] = {}
    for path in pieces():
        found |= dict(records(path.read_bytes()))
    sizes = sorted(path.stat().st_size for path in (photos / "a").iterdir())
    assert sorted(key >> 32 for key in found) == sizes
    for key, index in found.items():
        values = jpeg_index.numbers(index)
        assert len(index) * 100 < key >> 32
        assert len(jpeg_index.points(values)) == values[jpeg_index.HEADER - 1]


def test_files_that_changed_do_not_meet_their_old_index(
    photos: Path, expected: list[NDArray[np.uint8]]
) -> None:
    epochs(photos, 2)
    files = sorted((photos / "a").iterdir())
    data = [file.read_bytes() for file in files]
    stamps = [file.stat() for file in files]
    for file, other, stamp in zip(files, [*data[1:], data[0]], stamps, strict=True):
        file.write_bytes(other)
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    moved = epochs(photos)
    for file, own in zip(files, data, strict=True):
        file.write_bytes(own)
    assert same(epochs(photos), expected[:1])
    shutil.rmtree(default_cache().path)
    for file, other in zip(files, [*data[1:], data[0]], strict=True):
        file.write_bytes(other)
    assert same(epochs(photos), moved)


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data[3:],
        lambda data: b"\xff" * len(data),
        lambda data: bytes(len(data)),
        lambda data: b"x",
        of_records(lambda index: index[:-2]),
        of_records(lambda index: index + b"\0"),
        of_records(lambda index: jpeg_index.write([1, *jpeg_index.numbers(index)[1:]])),
    ],
)
def test_what_is_kept_may_be_anything(
    photos: Path, expected: list[NDArray[np.uint8]], edit: Callable[[bytes], bytes]
) -> None:
    epochs(photos, 2)
    change(edit)
    assert same(epochs(photos, 3), expected)


def test_indexes_of_other_files_do_no_harm(photos: Path) -> None:
    epochs(photos, 2)

    def turned(data: bytes) -> bytes:
        keys, indexes = zip(*records(data), strict=True)
        turned = [*indexes[1:], indexes[0]]
        return b"".join(_HEAD.pack(k, len(i)) + i for k, i in zip(keys, turned, strict=True))

    change(turned)
    for images in epochs(photos, 3):
        assert images.shape == (COUNT, 3, 64, 64)


@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_damaged_piece_is_not_used(
    photos: Path, expected: list[NDArray[np.uint8]], at: int
) -> None:
    epochs(photos, 2)
    for path in pieces():
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
    assert same(epochs(photos, 3), expected)
    assert default_cache().status().damaged >= 1


def test_a_piece_that_was_cut_off_or_deleted_is_not_used(
    photos: Path, expected: list[NDArray[np.uint8]]
) -> None:
    for spoil in (lambda path: os.truncate(path, 30), os.unlink):
        epochs(photos, 2)
        for path in pieces():
            spoil(path)
        assert same(epochs(photos, 3), expected)


def test_many_saves_become_one_piece(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpeg_indexes, "_MOST_PIECES", 3)
    for number in range(9):
        (photos / "a" / f"new-{number}.jpg").write_bytes(photo(100 + number))
        epochs(photos, seed=number)
    assert len(pieces()) <= 3
    kept = {key for path in pieces() for key, _ in records(path.read_bytes())}
    assert len(kept) == COUNT + 9


def test_little_is_not_worth_a_piece(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpeg_indexes, "_LEAST_BYTES", 1 << 20)
    epochs(photos, 2)
    assert not default_cache().path.exists()


def test_a_cache_that_is_given_keeps_them(
    photos: Path, tmp_path: Path, expected: list[NDArray[np.uint8]]
) -> None:
    cache = fastio.Cache(tmp_path / "cache", pack="never")
    assert same(epochs(photos, 3, cache=cache), expected)
    assert cache.status().indexes >= 1
    assert not default_cache().path.exists()
    assert same(epochs(photos, 3, cache=cache), expected)
    removed = cache.clear(str(photos))
    assert removed.pieces >= 1
    assert cache.status().indexes == 0
    assert same(epochs(photos, 3, cache=cache), expected)
    cache.close()


def test_a_full_disk_is_a_warning(
    photos: Path, monkeypatch: pytest.MonkeyPatch, expected: list[NDArray[np.uint8]]
) -> None:
    def full(*_: Any, **__: Any) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CacheFolder, "store", full)
    with pytest.warns(RuntimeWarning, match="No space left") as told:
        assert same(epochs(photos, 3), expected)
    assert len(told) == 1
    monkeypatch.undo()


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_home_that_cannot_be_written_to_is_no_warning(
    photos: Path, monkeypatch: pytest.MonkeyPatch, expected: list[NDArray[np.uint8]], code: int
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(CacheFolder, "__init__", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(epochs(photos, 3), expected)


def test_a_home_that_is_no_folder_keeps_nothing(
    photos: Path, monkeypatch: pytest.MonkeyPatch, expected: list[NDArray[np.uint8]]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(epochs(photos, 3), expected)


def test_a_home_that_cannot_be_looked_into_does_not_end_the_epoch(
    photos: Path, monkeypatch: pytest.MonkeyPatch, expected: list[NDArray[np.uint8]]
) -> None:
    # As for a home of another user, the marker's stat fails, whoever runs this test.
    monkeypatch.setenv("XDG_CACHE_HOME", f"/tmp/{'x' * 300}")
    with pytest.warns(RuntimeWarning, match="File name too long"):
        assert same(epochs(photos, 3), expected)


def test_a_cache_of_another_version_is_a_warning(
    photos: Path, expected: list[NDArray[np.uint8]]
) -> None:
    epochs(photos)
    path = default_cache().path / "index.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 77")
    with pytest.warns(RuntimeWarning, match="version 77"):
        assert same(epochs(photos, 3), expected)


def _epochs_in_a_process(photos: Path, seed: int, found: Any) -> None:
    jpeg_indexes._LEAST_BYTES = 1
    jpeg_indexes.PATIENCE_S = _PATIENCE_S
    found.put((seed, epochs(photos, 2, seed=seed)))


def test_several_processes_keep_them_at_the_same_time(
    photos: Path, expected: list[NDArray[np.uint8]]
) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [
        context.Process(target=_epochs_in_a_process, args=(photos, seed, queue))
        for seed in (5, 5, 6, 7)
    ]
    for child in children:
        child.start()
    results = [queue.get(timeout=120) for _ in children]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    for seed, images in results:
        if seed == 5:
            assert same(images, expected[:2])
    with default_cache() as cache:
        assert cache.verify().damaged == []
    assert same(epochs(photos, 3), expected)


def _killed_while_it_stores(photos: Path, part: str) -> None:
    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    jpeg_indexes._LEAST_BYTES = 1
    jpeg_indexes.PATIENCE_S = _PATIENCE_S
    setattr(CacheFolder, part, die)
    epochs(photos, 1)


@pytest.mark.parametrize("part", ["claim", "write", "publish", "drop"])
def test_a_process_that_is_killed_while_it_stores(
    photos: Path, expected: list[NDArray[np.uint8]], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_killed_while_it_stores, args=(photos, part))
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    assert same(epochs(photos, 3), expected)
    with default_cache() as cache:
        assert cache.verify().damaged == []
        assert cache.status().indexes >= 1


def test_a_loader_in_a_forked_child(photos: Path, expected: list[NDArray[np.uint8]]) -> None:
    with fastio.Loader(photos, 4, transforms={"image": CROP}, seed=5, num_workers=2) as loader:
        first = np.concatenate([batch[0].numpy() for batch in loader])
        assert same([first], expected[:1])
        context = multiprocessing.get_context("fork")
        queue = context.Queue()

        def second() -> None:
            queue.put(np.concatenate([batch[0].numpy() for batch in loader]))

        child = context.Process(target=second)
        child.start()
        assert same([queue.get(timeout=120)], expected[1:2])
        child.join(60)
        assert child.exitcode == 0


def test_other_datasets_keep_nothing(photos: Path, tmp_path: Path) -> None:
    fastio.pack(photos, tmp_path / "packed", codec="jpeg")
    epochs(tmp_path / "packed", 2)
    assert not default_cache().path.exists()


def test_the_default_folder_is_that_of_the_format_and_the_one_of_the_docs() -> None:
    assert default_cache().path.name == f"indexes-{VERSION}"
    for page in ("cache.md", "tars.md"):
        text = (Path(__file__).parent.parent / "docs" / page).read_text()
        assert set(re.findall(r"fastio/indexes[-\w]*", text)) == {f"fastio/indexes-{VERSION}"}, page
