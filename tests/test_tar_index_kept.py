"""An index of tars that somebody altered is refused by name, and made anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fastio import CacheError, TarDataset
from fastio.sources.tar import kept
from fastio.sources.tar.kept import index_bytes, read_index
from tests.tars import npy, write_tar

KEY = b"fastio.tars"
# Numbers of the extensions of `index`, in its columns' names.
CLS, TXT, EMB = range(3)


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    files = []
    for number in range(4):
        files.append((f"{number}.cls", str(number).encode()))
        files.append((f"{number}.txt", b"text"))
        if number:
            files.append((f"{number}.emb.npy", npy(np.full(3, number, np.float32))))
    write_tar(tmp_path / "x.tar", files)
    return tmp_path / "x.tar"


@pytest.fixture
def batch(tar: Path) -> pa.RecordBatch:
    return TarDataset(tar, incomplete="keep", cache=tar.parent / "cache").index.batch


def kept_as(path: Path, batch: pa.RecordBatch, **options: Any) -> str:
    """A file with a batch."""
    chosen = pa.ipc.IpcWriteOptions(**options)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, batch.schema, options=chosen) as writer,
    ):
        writer.write_batch(batch)
    return str(path)


def described(batch: pa.RecordBatch, change: Callable[[Any], object]) -> pa.RecordBatch:
    """A batch whose description is changed in place."""
    about = json.loads(batch.schema.metadata[KEY])
    change(about)
    return batch.replace_schema_metadata({KEY: json.dumps(about).encode()})


def with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    columns = [
        column if each == name else old
        for each, old in zip(batch.schema.names, batch.columns, strict=True)
    ]
    fields = [
        pa.field(each, new.type, nullable=False)
        for each, new in zip(batch.schema.names, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, batch.schema.metadata))


def test_an_index_as_it_was_written_is_read(batch: pa.RecordBatch, tmp_path: Path) -> None:
    index = read_index(kept_as(tmp_path / "index", batch))
    assert [index.key(row) for row in range(4)] == ["0", "1", "2", "3"]
    assert index.offsets("emb.npy")[0] == -1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda about: about.update(version=2), "another version"),
        (lambda about: about.pop("tars"), "'tars' is not a list"),
        (lambda about: about.update(extensions={}), "'extensions' is not a list"),
        (lambda about: about.update(schema=None), "'schema' is not a dict"),
        (lambda about: about.update(fingerprint="\ud800" * 16), "fingerprint"),
        (lambda about: about["tars"][0].pop(), "not described by 4"),
        (lambda about: about["tars"][0].__setitem__(0, 7), "name or version is not a string"),
        (lambda about: about["tars"][0].__setitem__(0, "\ud800"), "name or version"),
        (lambda about: about["tars"][0].__setitem__(2, 10**30), "impossible numbers"),
        (lambda about: about["tars"][0].__setitem__(2, -1), "impossible numbers"),
        (lambda about: about["tars"][0].__setitem__(2, 3), "other rows"),
        (lambda about: about["tars"][0].__setitem__(3, 512), "not lie inside"),
        (lambda about: about["tars"].append(about["tars"][0]), "a tar twice"),
        (lambda about: about["extensions"][0].__setitem__(0, 1), "whose name is none"),
        (lambda about: about["extensions"][0].__setitem__(0, "a/b"), "whose name is none"),
        (lambda about: about["extensions"][0].__setitem__(0, "txt"), "extension twice"),
        (lambda about: about["extensions"][0].__setitem__(0, "txt2"), "fields|cannot hold"),
        (lambda about: about["extensions"][2].__setitem__(1, "1"), "impossible numbers"),
        (lambda about: about["extensions"][2].__setitem__(1, 0), "counted wrongly"),
        (lambda about: about["extensions"].pop(), "fields"),
        (lambda about: about["schema"]["fields"][0].update(name="x"), "fields"),
        (lambda about: about["schema"]["fields"][0].update(dtype="bool"), "cannot hold"),
        (lambda about: about["schema"]["fields"][1].update(type="image"), "cannot hold|schema"),
        (lambda about: about["schema"]["fields"][2].update(shape=[1e308]), "too small"),
        (lambda about: about["schema"]["fields"][2].update(shape=[float("inf")]), "schema"),
    ],
)
def test_a_description_with_other_parts_is_refused(
    batch: pa.RecordBatch, tmp_path: Path, change: Callable[[Any], object], what: str
) -> None:
    path = kept_as(tmp_path / "index", described(batch, change))
    with pytest.raises(CacheError, match=what):
        read_index(path)


@pytest.mark.parametrize("text", [b"", b"\xff", b"[]", b"[" * 100_000, b"9" * 5000])
def test_a_description_that_is_no_json_object_is_refused(
    batch: pa.RecordBatch, tmp_path: Path, text: bytes
) -> None:
    path = kept_as(tmp_path / "index", batch.replace_schema_metadata({KEY: text}))
    with pytest.raises(CacheError, match="description"):
        read_index(path)


@pytest.mark.parametrize(
    ("name", "row", "value", "what"),
    [
        (f"offset.{TXT}", 1, -2, "inside"),
        (f"offset.{TXT}", 1, 2**62, "inside"),
        (f"offset.{TXT}", 1, -1, "missing|states|counted"),
        (f"offset.{EMB}", 0, 512, "counted"),
        (f"length.{TXT}", 1, -13, "inside"),
        (f"length.{TXT}", 3, 2**63 - 1, "inside"),
        (f"length.{EMB}", 0, 4, "missing"),
        (f"state.{CLS}", 0, 1, "states"),
        (f"state.{CLS}", 0, 2, "values|counted"),
        (f"state.{CLS}", 0, 3, "states"),
    ],
)
def test_a_number_that_is_out_of_range_is_refused(
    batch: pa.RecordBatch, tmp_path: Path, name: str, row: int, value: int, what: str
) -> None:
    numbers = batch.column(name).to_numpy().copy()
    numbers[row] = value
    path = kept_as(tmp_path / "index", with_column(batch, name, pa.array(numbers)))
    with pytest.raises(CacheError, match=what):
        read_index(path)


@pytest.mark.parametrize("ends", [[-1, 1, 2, 3, 4], [0, 3, 2, 3, 4], [0, 1, 2, 3, 5]])
def test_ends_of_keys_that_do_not_ascend_in_them_are_refused(
    batch: pa.RecordBatch, tmp_path: Path, ends: list[int]
) -> None:
    # Written as they should be, and altered in the file: pyarrow moves ends that begin elsewhere.
    data = Path(kept_as(tmp_path / "index", batch)).read_bytes()
    sound = np.arange(5, dtype=np.int64).tobytes()
    assert data.count(sound) == 1
    path = tmp_path / "altered"
    path.write_bytes(data.replace(sound, np.array(ends, np.int64).tobytes()))
    with pytest.raises(CacheError):
        read_index(str(path))


def test_columns_that_are_missing_or_of_another_type_are_refused(
    batch: pa.RecordBatch, tmp_path: Path
) -> None:
    others = [
        batch.select([name for name in batch.schema.names if name != f"state.{CLS}"]),
        with_column(batch, f"length.{TXT}", batch.column(f"length.{TXT}").cast(pa.int32())),
        with_column(batch, "key", pa.array(["0", "1", "2", "3"])),
    ]
    for other in others:
        with pytest.raises(CacheError, match="has the columns"):
            read_index(kept_as(tmp_path / "index", other))


def test_nulls_and_compressed_columns_are_refused(batch: pa.RecordBatch, tmp_path: Path) -> None:
    name = f"length.{TXT}"
    nulls = with_column(batch, name, pa.array([1, None, 1, 1], pa.int64()))
    with pytest.raises(CacheError, match="nulls"):
        read_index(kept_as(tmp_path / "index", nulls))
    with pytest.raises(CacheError, match="compressed"):
        read_index(kept_as(tmp_path / "index", batch, compression="zstd"))


def test_a_broken_index_with_the_right_hash_is_made_anew(
    tar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(index: Any) -> pa.Buffer:
        sink = pa.BufferOutputStream()
        other = described(index.batch, lambda about: about["extensions"][0].__setitem__(0, 1))
        with pa.ipc.new_file(sink, other.schema) as writer:
            writer.write_batch(other)
        return sink.getvalue()

    with monkeypatch.context() as patched:
        patched.setattr(kept, "index_bytes", broken)
        TarDataset(tar, fields=["txt"], cache=tmp_path / "cache")
    assert TarDataset(tar, fields=["txt"], cache=tmp_path / "cache")[3] == {"txt": "text"}
    (path,) = (tmp_path / "cache").glob("data/*/*/*")
    assert path.read_bytes() == index_bytes(read_index(str(path))).to_pybytes()
