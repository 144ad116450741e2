"""Tables that are replaced or come damaged: one version, checked as far as formats let it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

import fastio
from fastio import ShardCorrupt, SourceChanged, StoreError
from fastio.sources.table.direct import TableDataset
from fastio.sources.table.files import find_tables
from fastio.sources.table.objects import StoreFile
from fastio.sources.table.options import TableOptions
from tests.web_server import Answer, Asked, WebServer

ROWS = 400


def file_of(kind: str, version: int, *, checksums: bool = True) -> bytes:
    """A table of one column of numbers and one of strings, which say their version."""
    table = pa.table(
        {
            "number": pa.array(np.full(ROWS, version, np.int64)),
            "text": [f"version {version} of {row}" for row in range(ROWS)],
        }
    )
    file = io.BytesIO()
    if kind == "parquet":
        pyarrow.parquet.write_table(
            table,
            file,
            row_group_size=100,
            compression="none",
            use_dictionary=False,
            write_page_checksum=checksums,
        )
    else:
        pyarrow.feather.write_feather(table, file, compression="uncompressed", chunksize=100)
    return file.getvalue()


def opened(files: Any) -> TableDataset:
    found = find_tables(files)
    assert found is not None
    return TableDataset(found, TableOptions(), memory=1 << 20, threads=1)


def read(dataset: TableDataset, number: int) -> set[int]:
    """The numbers of a row group, all of whose columns are read."""
    found: set[int] = set()
    for rows in dataset.read(dataset.groups[number], None, False):
        found.update(np.unique(rows.parts[0].values).tolist())
    return found


def store_of(dataset: TableDataset) -> Any:
    file = dataset._tables[0].file  # type: ignore[attr-defined]
    assert isinstance(file, StoreFile)
    return file.store


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer() as running:
        yield running


@pytest.mark.parametrize("versions", ["etag", "weak", "modified"])
@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_a_table_that_was_replaced_has_changed(server: WebServer, kind: str, versions: str) -> None:
    old, new = file_of(kind, 1), file_of(kind, 2)
    assert len(old) == len(new)
    server.objects[f"x.{kind}"], server.versions = old, versions
    url = f"{server.url}/x.{kind}"
    dataset = opened(url)
    assert read(dataset, 0) == {1}
    server.replace(f"x.{kind}", new)
    with pytest.raises(SourceChanged, match=rf"x\.{kind} was replaced"):
        read(dataset, 1)
    again = opened(url)
    assert read(again, 1) == {2}
    assert again.fingerprint != dataset.fingerprint


@pytest.mark.parametrize("in_place", [True, False], ids=["written over", "moved there"])
@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_a_local_table_that_was_replaced_has_changed(
    tmp_path: Path, kind: str, in_place: bool
) -> None:
    path = tmp_path / f"x.{kind}"
    path.write_bytes(file_of(kind, 1))
    dataset = opened(str(path))
    assert read(dataset, 0) == {1}
    status = path.stat()
    fresh = path if in_place else tmp_path / "fresh"
    fresh.write_bytes(file_of(kind, 2))
    os.utime(fresh, ns=(status.st_atime_ns, status.st_mtime_ns + in_place))
    fresh.replace(path)
    with pytest.raises(SourceChanged, match=rf"x\.{kind} was replaced or written to"):
        read(dataset, 1)


def flipping(part: bytes, times: int) -> Any:
    """Flips a bit behind some bytes of answers that have them."""
    left = times

    def lie(asked: Asked, answer: Answer) -> None:
        nonlocal left
        at = answer.body.find(part)
        if asked.method == "GET" and at >= 0 and left:
            left -= 1
            damaged = bytearray(answer.body)
            damaged[at + len(part) - 1] ^= 1
            answer.body = bytes(damaged)

    return lie


@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_a_footer_that_comes_damaged_is_fetched_again(server: WebServer, kind: str) -> None:
    """A flipped bit in a column's name is no error of its format."""
    server.objects[f"x.{kind}"] = file_of(kind, 1)
    server.lie = flipping(b"numbe", times=1)
    dataset = opened(f"{server.url}/x.{kind}")
    assert list(dataset.schema.fields) == ["number", "text"]
    assert store_of(dataset).transfers.refetched == 1


def test_a_footer_that_never_comes_twice_alike_is_an_error(server: WebServer) -> None:
    server.objects["x.parquet"] = file_of("parquet", 1)
    count = 0

    def lie(asked: Asked, answer: Answer) -> None:
        nonlocal count
        if asked.method == "GET":
            count += 1
            answer.body = count.to_bytes(2, "big") + answer.body[2:]

    server.lie = lie
    with pytest.raises(StoreError, match=r"x\.parquet: each of \d requests .* returned different"):
        opened(f"{server.url}/x.parquet")


def test_a_damaged_footer_at_rest_is_named_at_once(server: WebServer) -> None:
    server.objects["x.parquet"] = file_of("parquet", 1)[:-8] + b"\xff\xff\xff\x00PAR1"
    with pytest.raises(ShardCorrupt, match=r"x\.parquet cannot be read"):
        opened(f"{server.url}/x.parquet")
    assert sum(asked.method == "GET" for asked in server.asked) == 2


@pytest.mark.parametrize(
    "part", [b"version 1 of 150", (bytes((1,)) + bytes(7)) * 5], ids=["text", "number"]
)
def test_a_page_with_a_checksum_that_comes_damaged_is_fetched_again(
    server: WebServer, part: bytes
) -> None:
    server.objects["x.parquet"] = file_of("parquet", 1)
    dataset = opened(f"{server.url}/x.parquet")
    server.lie = flipping(part, times=1)
    assert read(dataset, 1) == {1}
    assert store_of(dataset).transfers.refetched == 1


@pytest.mark.parametrize(
    "part", [b"version 1 of 150", (bytes((1,)) + bytes(7)) * 5], ids=["text", "number"]
)
def test_a_page_that_is_damaged_at_rest_is_named(server: WebServer, part: bytes) -> None:
    data = bytearray(file_of("parquet", 1))
    data[data.find(part) + len(part) - 1] ^= 1
    server.objects["x.parquet"] = bytes(data)
    dataset = opened(f"{server.url}/x.parquet")
    group = 0 if part[0] == 1 else 1
    with pytest.raises(ShardCorrupt, match=rf"x\.parquet, row group {group}"):
        read(dataset, group)
    assert store_of(dataset).transfers.refetched == 0


@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_a_loader_names_the_change(server: WebServer, kind: str) -> None:
    server.objects[f"x.{kind}"] = file_of(kind, 1)
    with fastio.Loader(f"{server.url}/x.{kind}", 10, num_workers=1) as loader:
        for batch in loader:
            assert set(batch["number"].tolist()) == {1}
        server.replace(f"x.{kind}", file_of(kind, 2))
        with pytest.raises(SourceChanged, match=rf"x\.{kind} was replaced"):
            list(loader)
