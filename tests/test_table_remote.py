"""Tables in stores: what pyarrow reads of the same files here, and no more bytes than it takes."""

from __future__ import annotations

import datetime
import glob
import gzip
import json
import pickle
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.json
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import fastio
from fastio import (
    DatasetNotFound,
    Loader,
    OptionError,
    SchemaError,
    ShardCorrupt,
    SourceChanged,
    SourceNotFound,
    StoreError,
)
from fastio.cli import main
from fastio.sources.table.direct import TableDataset
from fastio.sources.table.files import _regular, find_tables
from fastio.sources.table.options import TableOptions
from tests.servers import S3, FaultProxy, http_folder
from tests.support import open_loader, packing_ends_after

ROWS = 900


def table_of(rows: int = ROWS, first: int = 0) -> pa.Table:
    rng = np.random.default_rng(first)
    numbers = np.arange(first, first + rows)
    days = [datetime.date(2024, 1, 1 + int(n) % 28) for n in numbers]
    return pa.table(
        {
            "number": numbers,
            "x": pa.array(
                [None if n % 7 == 0 else float(n) for n in numbers.tolist()], pa.float32()
            ),
            "small": rng.integers(-100, 100, rows).astype(np.int8),
            "flag": rng.integers(0, 2, rows).astype(bool),
            "day": pa.array(days),
            "text": [f"row {n} é" for n in numbers],
            "bytes": pa.array([bytes([n % 256]) * (n % 4) for n in numbers.tolist()], pa.binary()),
            "list": [list(range(n % 5)) for n in numbers.tolist()],
            "pair": pa.array([[n, n + 1] for n in numbers.tolist()], pa.list_(pa.int32(), 2)),
            "word": pa.array([f"w{n % 7}" for n in numbers.tolist()]).dictionary_encode(),
            "wide": pa.array([rng.bytes(64).hex() for _ in range(rows)]),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of each kind, in folders of their own."""
    root = tmp_path_factory.mktemp("remote tables")
    whole = table_of()
    for number in range(3):
        part = whole.slice(number * 300, 300)
        for kind in ("parquet", "arrow", "csv", "jsonl", "gz"):
            (root / kind).mkdir(exist_ok=True)
        pa.parquet.write_table(part, root / f"parquet/{number}.parquet", row_group_size=90)
        with pa.ipc.new_file(root / f"arrow/{number}.arrow", part.schema) as writer:
            writer.write_table(part.unify_dictionaries(), max_chunksize=70)
        plain = part.select(["number", "small", "flag", "text"])
        pa.csv.write_csv(plain, root / f"csv/{number}.csv")
        (root / f"gz/{number}.csv.gz").write_bytes(
            gzip.compress((root / f"csv/{number}.csv").read_bytes())
        )
        lines = plain.to_pandas().to_json(orient="records", lines=True)
        (root / f"jsonl/{number}.jsonl").write_text(lines)
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    with http_folder(folder) as url:
        yield url


def rows_of(source: Any, **options: Any) -> list[dict[str, Any]]:
    """All samples, as Python values, by their number."""
    given: dict[str, Any] = {"num_workers": 2, **options}
    found: list[dict[str, Any]] = []
    with open_loader(source, 64, **given) as batches:
        for batch in batches:
            columns = {n: v.tolist() if hasattr(v, "tolist") else v for n, v in batch.items()}
            names = list(columns)
            found += [
                dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ]
    for row in found:
        for name in [name for name in row if name.endswith("_length")]:
            row[name.removesuffix("_length")] = row[name.removesuffix("_length")][: row.pop(name)]
    return sorted(found, key=lambda row: row["number"]) if found and "number" in found[0] else found


def urls(server: str, kind: str) -> list[str]:
    suffix = {"gz": "csv.gz"}.get(kind, kind)
    return [f"{server}/{kind}/{number}.{suffix}" for number in range(3)]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "jsonl", "gz"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_over_http_are_those_of_the_files_here(
    folder: Path, server: str, kind: str, shuffle: bool
) -> None:
    found = rows_of(urls(server, kind), shuffle=shuffle)
    wanted = rows_of(str(folder / kind))
    assert str(found) == str(wanted)  # NaN equals NaN there
    assert [row["number"] for row in found] == list(range(ROWS))


def test_a_single_file_and_its_values(folder: Path, server: str) -> None:
    whole = pa.parquet.read_table(folder / "parquet/1.parquet").to_pylist()
    found = rows_of(f"{server}/parquet/1.parquet")
    for name in ("number", "small", "flag", "text", "bytes", "list", "pair"):
        assert [row[name] for row in found] == [row[name] for row in whole]


@pytest.mark.parametrize("source", ["data", "data/", "data/*.parquet", "data/**/[01].parquet"])
def test_folders_and_patterns_of_a_bucket(
    folder: Path, s3: S3, source: str, tmp_path: Path
) -> None:
    bucket = f"tables-{abs(hash(source)) % 10**9}"
    url = s3.bucket(bucket)
    names = {"data/0.parquet": 0, "data/1.parquet": 1, "data/b c/1.parquet": 2}
    for name, number in names.items():
        s3.put(bucket, name, (folder / f"parquet/{number}.parquet").read_bytes())
    s3.put(bucket, "data/_tmp/9.parquet", b"nothing")
    s3.put(bucket, "other/7.parquet", b"nothing")
    found = rows_of(f"{url}/{source}", storage_options=s3.options(), fields=["number"])
    rows = 600 if source == "data/*.parquet" else 900
    assert [row["number"] for row in found] == list(range(rows))
    report = fastio.pack(
        f"{url}/{source}", tmp_path / "out", storage_options=s3.options(), columns=["number"]
    )
    assert report.rows == rows
    assert fastio.open(tmp_path / "out")[rows - 1]["number"] == rows - 1


def test_memory_and_what_is_not_there(folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/tables/a/0.parquet", (folder / "parquet/0.parquet").read_bytes())
    try:
        assert len(rows_of("memory://tables/a/0.parquet")) == 300
        assert len(rows_of("memory://tables/a")) == 300
        assert len(rows_of("memory://tables/a/*.parquet")) == 300
        with pytest.raises(SourceNotFound, match=r"memory://tables/a/\*\.csv matches no object"):
            rows_of("memory://tables/a/*.csv")
        with pytest.raises(SourceNotFound, match=r"memory://tables/a/1\.parquet"):
            rows_of("memory://tables/a/1.parquet")
    finally:
        memory.rm("/tables", recursive=True)


FILTERS = [
    [("number", ">=", 250), ("number", "<", 420)],
    [("text", "==", "row 311 é")],
    [[("number", "<", 3)], [("small", ">", 90)]],
    [("x", "!=", 11.0)],
    [("number", "<", 0)],
]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_filters_leave_what_pyarrow_leaves(
    folder: Path, server: str, filters: Any, kind: str
) -> None:
    found = rows_of(urls(server, kind), filters=filters, columns=["number", "small"])
    wanted = pa.parquet.read_table(folder / "parquet", filters=filters)
    assert [row["number"] for row in found] == wanted["number"].to_pylist()
    assert [row["small"] for row in found] == wanted["small"].to_pylist()


def test_only_the_columns_that_are_wanted_are_fetched(folder: Path, server: str) -> None:
    """A small column of several files: their footers, and of each row group a range."""

    def footer(number: int) -> int:
        return min(64 << 10, (folder / f"parquet/{number}.parquet").stat().st_size)

    def row_group(number: int, group: int, name: str) -> int:
        metadata = pa.parquet.read_metadata(folder / f"parquet/{number}.parquet")
        place = metadata.schema.names.index(name)
        return int(metadata.row_group(group).column(place).total_compressed_size)

    with FaultProxy(server) as proxy:
        names = urls(proxy.url, "parquet")
        rows_of(names, fields=["number"])
        footers = sum(map(footer, range(3)))
        column = sum(row_group(n, g, "number") for n in range(3) for g in range(4))
        # Footers have no checksums, and http has none for them: they come twice, to be compared.
        # Of the first file, also the first values of its column of bytes are read.
        looked_at = row_group(0, 0, "bytes")
        assert proxy.sent() == 2 * footers + column + looked_at
        gets = proxy.answers(method="GET")
        assert len(gets) == 2 * 3 + 3 * 4 + 1
        proxy.forget()
        rows_of(names, columns=["number"], filters=[("number", ">=", 880)])
        assert len(proxy.answers(method="GET")) == 2 * 3 + 2  # footers; counted, and read


def test_broken_answers_are_mended(server: str, folder: Path) -> None:
    with FaultProxy(server) as proxy:
        for fault in ("reset", "truncate", "status"):
            proxy.fail(fault, next=4)
        found = rows_of(urls(proxy.url, "parquet"), fields=["number", "text"])
        assert [row["number"] for row in found] == list(range(ROWS))
        assert sum(proxy.struck().values()) == 12


def opened(files: Any, **options: Any) -> TableDataset:
    found = find_tables(files)
    assert found is not None
    return TableDataset(found, TableOptions(**options), memory=1 << 20, threads=2)


def read_all(dataset: TableDataset) -> int:
    return sum(rows.count for group in dataset.groups for rows in dataset.read(group, None, False))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_an_object_that_became_shorter_is_named(folder: Path, kind: str) -> None:
    memory = fsspec.filesystem("memory")
    data = (folder / f"{kind}/0.{kind}").read_bytes()
    memory.pipe_file(f"/changing/0.{kind}", data)
    try:
        dataset = opened(f"memory://changing/0.{kind}", columns=("number", "wide"))
        assert read_all(dataset) == 300
        memory.pipe_file(f"/changing/0.{kind}", data[: len(data) // 4])
        with pytest.raises(SourceChanged, match=rf"memory://changing/0\.{kind} was replaced"):
            read_all(dataset)
    finally:
        memory.rm("/changing", recursive=True)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_object_is_named(folder: Path, kind: str, keep: float) -> None:
    memory = fsspec.filesystem("memory")
    data = (folder / f"{kind}/0.{kind}").read_bytes()
    memory.pipe_file(f"/short/0.{kind}", data[: int(len(data) * keep)])
    try:
        with pytest.raises(ShardCorrupt, match=rf"memory://short/0\.{kind}"):
            opened(f"memory://short/0.{kind}")
    finally:
        memory.rm("/short", recursive=True)


def test_damaged_footers_of_arrow_files_are_named(folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    data = (folder / "arrow/0.arrow").read_bytes()
    length = int.from_bytes(data[-10:-6], "little")
    rng = np.random.default_rng(0)
    try:
        for _ in range(60):
            broken = bytearray(data)
            for place in rng.integers(len(data) - 10 - length, len(data) - 6, 4):
                broken[place] = rng.integers(256)
            memory.pipe_file("/broken/0.arrow", bytes(broken))
            with suppress(ShardCorrupt, SchemaError):
                read_all(opened("memory://broken/0.arrow"))
    finally:
        memory.rm("/broken", recursive=True)


def test_row_groups_are_fetched_before_they_are_read(server: str) -> None:
    with FaultProxy(server) as proxy:
        dataset = opened(urls(proxy.url, "parquet"), columns=("number", "text"))
        proxy.forget()
        assert all(dataset.ahead(group) for group in dataset.groups[:3])
        wanted = [rows.count for g in dataset.groups[:3] for rows in dataset.read(g, None, False)]
        assert sum(wanted) == 90 * 3
        assert len(proxy.answers(method="GET")) == 3
        dataset = pickle.loads(pickle.dumps(dataset))
        assert read_all(dataset) == ROWS


def test_a_row_group_that_cannot_be_asked_for_is_an_error_of_its_batch(
    folder: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ShardCorrupt("its footer says what cannot be")

    with Loader(
        fastio.open(urls(server, "parquet"), columns=["number"]), 100, timeout=30
    ) as loader:
        monkeypatch.setattr("fastio.sources.table.parquet.chunk_range", broken)
        with pytest.raises(ShardCorrupt, match="footer"):
            list(loader)


# Packing


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "jsonl", "gz"])
def test_packing_from_urls_gives_the_bytes_of_packing_here(
    folder: Path, server: str, kind: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"shard_size": 20_000}
    here = sorted(str(path) for path in (folder / kind).iterdir())
    fastio.pack(here, tmp_path / "here", workers=1, **options)
    fastio.pack(urls(server, kind), tmp_path / "there", workers=3, **options)
    assert bytes_of(tmp_path / "here") == bytes_of(tmp_path / "there")


def test_packing_from_a_url_can_be_resumed(folder: Path, server: str, tmp_path: Path) -> None:
    source = urls(server, "parquet")
    options: dict[str, Any] = {"shard_size": 20_000, "columns": ["number", "wide"]}
    fastio.pack(source, tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt), packing_ends_after(2):
        fastio.pack(source, tmp_path / "out", **options)
    fastio.pack(source, tmp_path / "out", resume=True, **options)
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


# What is meant


@pytest.mark.parametrize(
    "pattern",
    [
        "*.parquet", "**/*.parquet", "a/**/*.parquet", "a/?.parquet", "[ab]/*.parquet",
        "[!a]/*.parquet", "a/b[.parquet", "**/.hidden/*.parquet", "a*/*.parquet", "**/b/*.csv",
        "a/x+y.parquet*", "a/[]].parquet",
    ],
)  # fmt: skip
def test_patterns_mean_what_glob_means(tmp_path: Path, pattern: str) -> None:
    names = [
        "0.parquet", "a/1.parquet", "a/10.parquet", "a/b/2.parquet", "b/3.parquet", "b/.4.parquet",
        ".hidden/5.parquet", "a/.hidden/6.parquet", "a/b[.parquet", "c/b/7.csv", "ab/8.parquet",
        "a/x+y.parquet", "a/].parquet",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(b"")
    wanted = sorted(glob.glob(pattern, root_dir=tmp_path, recursive=True))
    regular = re.compile(_regular(pattern))
    assert sorted(name for name in names if regular.fullmatch(name)) == wanted


def test_files_here_and_there_in_one_list(folder: Path, server: str) -> None:
    here = [folder / "parquet/0.parquet", f"{server}/parquet/1.parquet"]
    assert [row["number"] for row in rows_of(here)] == list(range(600))


def test_a_folder_that_cannot_be_listed(tmp_path: Path) -> None:
    (tmp_path / "parquet").mkdir()
    (tmp_path / "parquet" / "index.html").write_text("<html><title>Welcome</title></html>")
    with http_folder(tmp_path, python=True) as server:
        with pytest.raises((DatasetNotFound, StoreError), match=server):
            Loader(f"{server}/parquet")
        with pytest.raises(StoreError, match=server):
            Loader(f"{server}/parquet/*.parquet")


def test_a_half_written_dataset_is_no_folder_of_tables(folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/half/shard-000000.arrow", (folder / "arrow/0.arrow").read_bytes())
    memory.pipe_file("/half/pack.journal", b"{}")
    try:
        with pytest.raises(DatasetNotFound):
            Loader("memory://half")
    finally:
        memory.rm("/half", recursive=True)


def test_options_are_the_source_s_or_the_destination_s(
    folder: Path, s3: S3, tmp_path: Path
) -> None:
    s3.bucket("tables-options")
    s3.put("tables-options", "0.parquet", (folder / "parquet/0.parquet").read_bytes())
    source = "s3://tables-options/0.parquet"
    report = fastio.pack(
        source, "memory://packed-options", source_options=s3.options(), storage_options={}
    )
    assert report.rows == 300
    fsspec.filesystem("memory").rm("/packed-options", recursive=True)
    arguments = ["pack", source, str(tmp_path / "out"), "--quiet"]
    result = CliRunner().invoke(main, [*arguments, "--source-options", json.dumps(s3.options())])
    assert result.exit_code == 0, result.output
    assert len(fastio.open(tmp_path / "out")) == 300
    with pytest.raises(OptionError, match="source_options can only be used with a URL"):
        fastio.pack(folder / "parquet", tmp_path / "no", source_options={})


@pytest.mark.parametrize("shuffle", [False, True])
def test_row_groups_are_fetched_before_their_turn(tmp_path: Path, shuffle: bool) -> None:
    """One thread decodes, and several requests for row groups are under way."""
    table = pa.table({"x": np.random.default_rng(0).random(160_000)})
    pa.parquet.write_table(table, tmp_path / "x.parquet", row_group_size=10_000)
    with http_folder(tmp_path) as url, FaultProxy(url) as proxy:
        with Loader(
            f"{proxy.url}/x.parquet", batch_size=1000, shuffle=shuffle, num_workers=1
        ) as loader:
            proxy.gather(4)  # requests that are made one after the other are never met
            found = np.concatenate([batch["x"].numpy() for batch in loader])
        assert np.array_equal(np.sort(found), np.sort(table["x"].to_numpy()))
        assert proxy.met()
