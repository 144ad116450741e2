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
from fastio import PackError, Scalar, Schema, SchemaError, SourceChanged, Writer, gc, pack
from fastio.pack import packer
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME
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


def rows(path: Path) -> list[int]:
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
        if found[-1] != NEW:
            assert rows_of_version_one(out) == OLD
        discarded, again = (Path(shutil.copytree(out, f"{out}{end}")) for end in ("-gc", "-again"))
        gc(discarded, unfinished=True)
        assert rows(discarded) == found[-1]
        if found[-1] == NEW:
            assert without_ids(contents(discarded)) == expected
        else:
            assert contents(discarded) == contents(root / "old")
        pack(NEW, again, shard_size=SHARD_SIZE, overwrite=True)
        assert without_ids(contents(again)) == expected
        if (out / JOURNAL_NAME).exists() and (out / JOURNAL_NAME).stat().st_size:
            pack(NEW, out, shard_size=SHARD_SIZE, resume=True)
            assert without_ids(contents(out)) == expected
    assert found[0] == [*OLD, 1, 2]
    assert found[-1] == NEW
    assert len(found) > 20


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
    with pytest.raises(PackError, match=r"resume \(--resume\) alone continues an interrupted over"):
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
