"""A dataset that is overwritten stays complete until the new one is."""

from __future__ import annotations

import errno
import json
import os
import shutil
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastio
from fastio import (
    OptionError,
    PackError,
    Scalar,
    Schema,
    SchemaError,
    SourceChanged,
    Writer,
    gc,
    pack,
)
from fastio.pack import packer
from fastio.pack.journal import Journal
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME, write_manifest
from tests.children import run_code
from tests.pictures import write_folder
from tests.support import contents, without_ids

OLD, NEW = list(range(25)), list(range(100, 130))
SHARD_SIZE = 80
SINGLE = Schema({"label": Scalar("int64")}, "single")

# Overwrites copies of a dataset, each in a forked process that is killed before another change.
KILLS = """
import json, os, shutil, signal, sys
from pathlib import Path
from fastio.pack import pack
from tests.children import killed_at

root, arguments, options = Path(sys.argv[1]), *map(json.loads, sys.argv[2:])
for number in range(1, 1000):
    out = root / f"{number:03}"
    shutil.copytree(root / "old", out)
    child = os.fork()
    if not child:
        killed_at(number)
        pack(*arguments, out, **options)
        os._exit(0)
    if os.waitpid(child, 0)[1] != signal.SIGKILL:
        break
"""


def rows(path: Path | str) -> list[int]:
    with fastio.Dataset(path) as dataset:
        return [int(row) for row in dataset]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    pack(OLD, tmp_path / "out", shard_size=SHARD_SIZE)
    return tmp_path / "out"


def test_a_kill_at_any_point_leaves_the_old_or_the_new_dataset(tmp_path: Path) -> None:
    root = tmp_path / "out"
    pack(OLD, root / "old", shard_size=SHARD_SIZE)
    pack([1, 2], root / "old", shard_size=8, append=True)
    pack(NEW, tmp_path / "expected", shard_size=SHARD_SIZE)
    expected = without_ids(contents(tmp_path / "expected"))
    given = json.dumps([NEW]), json.dumps({"shard_size": SHARD_SIZE, "overwrite": True})
    done = run_code(KILLS, root, *given)
    assert done.returncode == 0, done.stderr
    *killed, last = sorted(root.glob("[0-9]*"))
    assert without_ids(contents(last)) == expected
    found = []
    for out in killed:
        found.append(rows(out))
        assert found[-1] in ([*OLD, 1, 2], NEW)
        with fastio.Dataset(out) as dataset:
            assert not [check.problem for check in dataset.verify() if check.problem]
        assert rows_of_version_one(out) == (NEW if found[-1] == NEW else OLD)
        discarded, again = (Path(shutil.copytree(out, f"{out}{end}")) for end in ("-gc", "-again"))
        gc(discarded, unfinished=True)
        assert rows(discarded) == found[-1]
        if found[-1] == NEW:
            assert without_ids(contents(discarded)) == expected
        else:
            assert contents(discarded) == contents(root / "old")
        pack(NEW, again, shard_size=SHARD_SIZE, overwrite=True)
        assert without_ids(contents(again)) == expected
        if (out / JOURNAL_NAME).exists():
            assert (out / JOURNAL_NAME).stat().st_size
            pack(NEW, out, shard_size=SHARD_SIZE, resume=True)
            assert without_ids(contents(out)) == expected
        elif found[-1] != NEW:  # it has not begun
            there = {name: data for name, data in contents(out).items() if ".tmp" not in name}
            assert there == contents(root / "old")
    assert found[0] == [*OLD, 1, 2]
    assert found[-1] == NEW
    assert len(found) > 20


def test_a_kill_leaves_a_journal_in_the_place_of_that_of_an_interrupted_overwrite(
    tmp_path: Path,
) -> None:
    root = tmp_path / "out"
    pack(OLD, root / "old", shard_size=SHARD_SIZE)
    before = contents(root / "old")
    with pytest.raises(SchemaError):
        pack([1, 2, "x"], root / "old", overwrite=True, shard_size=8)
    given = json.dumps([NEW]), json.dumps({"shard_size": SHARD_SIZE, "overwrite": True})
    done = run_code(KILLS, root, *given)
    assert done.returncode == 0, done.stderr
    *killed, last = sorted(root.glob("[0-9]*"))
    assert rows(last) == NEW
    for out in killed:
        now = rows(out)
        assert now in (OLD, NEW)
        if now == OLD:
            assert (out / JOURNAL_NAME).stat().st_size
            gc(out, unfinished=True)
            assert contents(out) == before
    assert len(killed) > 20


class Flaky:
    """An iterable that may raise an error before the first shard is full."""

    error: BaseException | None = None

    def __iter__(self) -> Iterator[int]:
        for number in NEW:
            yield number
            if self.error is not None:
                raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("bad"), OSError("gone")])
def test_an_overwrite_without_a_shard_is_resumed(old: Path, error: BaseException) -> None:
    before = contents(old)
    flaky = Flaky()
    flaky.error = error
    for options in ({"overwrite": True}, {"resume": True}):
        with pytest.raises((type(error), fastio.FastioError)):
            pack(flaky, old, schema=SINGLE, **options)
        assert contents(old).items() >= before.items()
        assert gc(old).unfinished
    flaky.error = None
    assert pack(flaky, old, schema=SINGLE, resume=True).rows == len(NEW)
    assert rows(old) == NEW
    assert not (old / JOURNAL_NAME).exists()


def test_an_overwrite_without_a_shard_is_resumed_in_a_store() -> None:
    url = "memory://overwrite/data"
    pack(OLD, url, shard_size=SHARD_SIZE)
    flaky = Flaky()
    flaky.error = ValueError("bad")
    for options in ({"overwrite": True}, {"resume": True}):
        with pytest.raises((ValueError, fastio.FastioError)):
            pack(flaky, url, schema=SINGLE, **options)
        assert rows(url) == OLD
    flaky.error = None
    pack(flaky, url, schema=SINGLE, resume=True)
    assert rows(url) == NEW
    assert not gc(url).unfinished


def test_a_first_bad_sample_leaves_an_overwrite_to_be_discarded(old: Path) -> None:
    before = contents(old)
    with pytest.raises(SchemaError):
        pack(["x", 1], old, overwrite=True, schema=SINGLE)
    assert gc(old).unfinished
    gc(old, unfinished=True)
    assert contents(old) == before


def test_a_disk_without_room_for_the_journal_leaves_everything(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = contents(old)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_append", full)
        with pytest.raises(PackError, match="make room, then try again"):
            pack(NEW, old, overwrite=True)
    assert contents(old) == before


def rows_of_version_one(path: Path) -> list[int]:
    with fastio.open(path, version=1) as dataset:
        return [int(row) for row in dataset]


def images(folder: Path) -> Any:
    return write_folder(folder / "images")


def sounds(folder: Path) -> Any:
    for number in range(6):
        path = folder / f"sounds/{number % 2}/{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(bytes(800))
    return folder / "sounds"


def table(folder: Path) -> Any:
    columns = {"x": np.arange(4000.0), "word": [f"word {n}" for n in range(4000)]}
    pq.write_table(pa.table(columns), folder / "table.parquet", row_group_size=500)
    return folder / "table.parquet"


def texts(folder: Path) -> Any:
    (folder / "texts.txt").write_text("some words\n" * 4000)
    return folder / "texts.txt"


class Samples:
    """A Python dataset, which worker processes read."""

    def __len__(self) -> int:
        return 90

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return np.full(100, row), row


class Stream:
    """An iterable, which one thread reads."""

    def __iter__(self) -> Iterator[dict[str, int]]:
        return ({"x": n} for n in range(90))


KINDS: list[tuple[Callable[[Path], Any], dict[str, Any]]] = [
    (images, {"shard_size": 2500}),
    (images, {"shard_size": 2500, "workers": 4}),
    (sounds, {"shard_size": 2500}),
    (table, {"shard_size": 20_000}),
    (texts, {"shard_size": 20_000, "tokenizer": "bytes", "document": "line"}),
    (lambda folder: Samples(), {"shard_size": 8000, "workers": 2}),
    (lambda folder: Stream(), {"shard_size": 160}),
]


@pytest.mark.parametrize(("source", "options"), KINDS)
def test_a_full_disk_leaves_the_old_dataset_and_a_pack_to_be_resumed(
    old: Path, tmp_path: Path, source: Callable[[Path], Any], options: dict[str, Any]
) -> None:
    data = source(tmp_path)
    pack(data, tmp_path / "expected", **options)
    before = contents(old)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packer, "write_manifest", full)
        with pytest.raises(PackError, match=r"make room, then continue with resume \(--resume\)"):
            pack(data, old, overwrite=True, **options)
    assert contents(old).items() >= before.items()
    assert rows(old) == OLD
    finished = {path: path.stat() for path in old.glob("shard*")}
    pack(data, old, resume=True, **options)
    assert without_ids(contents(old)) == without_ids(contents(tmp_path / "expected"))
    for path in old.glob("shard*"):
        assert path.stat().st_mtime_ns == finished[path].st_mtime_ns


def test_a_bad_sample_leaves_the_old_dataset(old: Path) -> None:
    before = contents(old)
    with pytest.raises(SchemaError):
        pack([1, 2, "x"], old, overwrite=True, shard_size=8)
    assert contents(old).items() >= before.items()
    report = gc(old)
    assert report.unfinished
    assert report.files == 0
    with pytest.raises(OptionError, match=r"resume \(--resume\) alone continues an"):
        pack([1, 2], old, overwrite=True, resume=True)
    with pytest.raises(PackError, match="contains an unfinished append, pack or gc"):
        pack([1, 2], old, append=True)
    gc(old, unfinished=True)
    assert contents(old) == before


def test_what_a_failed_overwrite_has_left_is_deleted_before_the_next_one(old: Path) -> None:
    """Otherwise a full disk would stay full."""
    with pytest.raises(SchemaError):
        pack([1, 2, "x"], old, overwrite=True, shard_size=8)
    left = set(contents(old))
    seen = []

    def samples() -> Iterator[int]:
        seen.append(set(contents(old)))
        yield 1

    pack(samples(), old, overwrite=True, schema=SINGLE)
    assert not {name for name in left & seen[-1] if "-" in name.removeprefix("shard-")}
    assert rows(old) == [1]


@pytest.mark.parametrize("damage", [b"", b"ARROW1" + bytes(1000)])
def test_a_damaged_dataset_is_overwritten(old: Path, damage: bytes) -> None:
    (old / MANIFEST_NAME).write_bytes(damage)
    before = contents(old)
    write_and_discard(old)
    assert contents(old) == before
    pack(NEW, old, overwrite=True)
    assert rows(old) == NEW
    assert set(without_ids(contents(old))) == {MANIFEST_NAME, "shard-000000.arrow"}


def newer_format(path: Path) -> None:
    data = path.read_bytes()
    text = b'"format_version": 1'
    assert text in data
    path.write_bytes(data.replace(text, text[:-1] + b"9"))


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("gone")


@pytest.mark.parametrize("damage", [newer_format, torn, dangling])
def test_an_interrupted_overwrite_of_an_unreadable_dataset(
    old: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(old / MANIFEST_NAME)
    before = set(os.listdir(old))
    flaky = Flaky()
    with pytest.raises(SchemaError):
        pack([1, 2, "x"], old, overwrite=True, shard_size=8)
    left = set(os.listdir(old)) - before
    assert len(left) == 3  # the journal and two shards
    discarded = shutil.copytree(old, tmp_path / "discarded", symlinks=True)
    assert gc(discarded, unfinished=True).files == 2
    assert set(os.listdir(discarded)) == before
    flaky.error = ValueError("bad")
    with pytest.raises((ValueError, PackError)):
        pack(flaky, old, overwrite=True, schema=SINGLE)
    assert set(os.listdir(old)) == before | {JOURNAL_NAME}
    flaky.error = None
    pack(flaky, old, schema=SINGLE, resume=True)
    assert rows(old) == NEW
    assert set(without_ids(contents(old))) == {MANIFEST_NAME, "shard-000000.arrow"}


def test_old_files_may_be_deleted_by_others_meanwhile(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*arguments: Any) -> None:
        write_manifest(*arguments)
        (old / "shard-000000.arrow").unlink()

    monkeypatch.setattr(packer, "write_manifest", write)
    pack(NEW, old, overwrite=True)
    assert rows(old) == NEW


def test_a_reader_goes_on_while_a_writer_overwrites(old: Path) -> None:
    with fastio.Dataset(old) as reader, fastio.Dataset(old) as late:
        assert list(reader) == OLD
        with Writer(old, SINGLE, overwrite=True, shard_size=8) as writer:
            for number in NEW:
                writer.write(number)
                assert list(reader) == OLD
            assert rows(old) == OLD
        assert rows(old) == NEW
        with pytest.raises(SourceChanged, match="was replaced"):
            list(late)
    assert len(contents(old)) == len(NEW) + 1


def test_an_error_in_a_writer_leaves_the_old_dataset(old: Path) -> None:
    before = contents(old)
    write_and_discard(old)
    assert contents(old) == before


def write_and_discard(path: Path) -> None:
    writer = Writer(path, SINGLE, overwrite=True, shard_size=8)
    for number in NEW:
        writer.write(number)
    writer.discard()
