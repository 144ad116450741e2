"""Tables and text are divided into units before they are read; each is packed by itself."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastio
from fastio.errors import PackError, SchemaError, ShardCorrupt, SourceChanged
from fastio.pack import api, packer
from fastio.pack.journal import Plan
from fastio.pack.packer import Packer
from fastio.pack.tables import TableEncoder
from fastio.pack.tokens.readers import PlainText
from fastio.pack.units import ShardWriter, pack_unit
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME
from fastio.sources.table.arrow import ArrowTable
from fastio.sources.table.cuts import cut
from fastio.sources.table.text_files import JsonTable
from tests.support import contents, pack_stopped

TEXTS = [f"{number} " * (number % 37) for number in range(3000)]


def write_parquet(folder: Path, rows: int = 90) -> Path:
    """Files with several row groups, as small as nobody writes them."""
    folder.mkdir()
    words = pa.array([f"w{number % 11}" for number in range(len(TEXTS))]).dictionary_encode()
    table = pa.table({"text": TEXTS, "word": words, "x": np.arange(len(TEXTS))})
    for number in range(3):
        path = folder / f"{number}.parquet"
        pq.write_table(table.slice(number * 1000, 1000), path, row_group_size=rows)
    return folder


def write_arrow(folder: Path) -> Path:
    folder.mkdir()
    table = pa.table({"text": TEXTS, "x": np.arange(len(TEXTS))})
    with pa.ipc.new_file(folder / "a.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=70)
    return folder


def write_lines(folder: Path, count: int = len(TEXTS)) -> Path:
    """JSON lines: with a mark of UTF-8, empty lines, a long one, and no line break at the end."""
    folder.mkdir()
    lines = [json.dumps({"text": text, "x": n}) for n, text in enumerate(TEXTS[:count])]
    long, half = count * 2 // 5, count // 2
    lines[long] = json.dumps({"text": "long " * 9000, "x": long})
    data = "\r\n".join(lines[:half]) + "\n\n" + "\n".join(lines[half:])
    (folder / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + data.encode())
    return folder


def write_csv(folder: Path) -> Path:
    folder.mkdir()
    for number in range(20):
        rows = "".join(f'"{text}\n",{number}\n' for text in TEXTS[number * 150 :][:150])
        (folder / f"{number:02}.csv").write_text("text,x\n" + rows)
    return folder


def memory(folder: Path) -> pa.Table:
    return pa.table({"text": TEXTS, "x": np.arange(len(TEXTS))})


SOURCES: list[tuple[Callable[[Path], Any], dict[str, Any]]] = [
    (write_parquet, {}),
    (write_parquet, {"filters": [("x", ">", 1700)]}),
    (write_parquet, {"filters": [("word", "!=", "w3")], "columns": ["x"]}),
    (write_parquet, {"tokenizer": "bytes", "columns": ["word"]}),
    (write_arrow, {}),
    (write_lines, {}),
    (write_lines, {"tokenizer": "bytes"}),
    (write_lines, {"tokenizer": "bytes", "columns": ["x"]}),
    (write_csv, {}),
    (memory, {}),
    (memory, {"tokenizer": "bytes"}),
]
CASES = pytest.mark.parametrize(("make", "options"), SOURCES)


def lines_of(source: Any, out: Path, **options: Any) -> list[Any]:
    """The lines of the journal of a pack that stops before its manifest."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packer, "write_manifest", stop)
        with pytest.raises(KeyboardInterrupt):
            fastio.pack(source, out, **options)
    return [json.loads(line) for line in (out / JOURNAL_NAME).read_text().splitlines()]


@CASES
def test_each_unit_packed_by_itself_gives_the_shards_of_the_whole(
    tmp_path: Path, make: Callable[[Path], Any], options: dict[str, Any]
) -> None:
    source, made = make(tmp_path / "source"), []
    encoder_of = api._encoder_of

    def kept(rows: Any, *more: Any) -> Any:
        made.append(rows)
        return encoder_of(rows, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "_encoder_of", kept)
        lines = lines_of(source, tmp_path / "out", shard_size=5000, workers=3, **options)
    plan = Plan(**lines[1]["plan"])
    assert plan.unit_bytes is not None
    (tmp_path / "alone").mkdir()
    encoder = TableEncoder(made[0], 5000, 1)
    count = encoder.units(plan)
    assert count == len(lines) - 2 > 3
    for number in reversed(range(count)):
        encoder = TableEncoder(made[0], 5000, 1)
        writer = ShardWriter(tmp_path / "alone", encoder.schema, 1, "")
        unit = pack_unit(encoder, plan, number, writer)
        assert unit.end.samples == lines[2 + number]["end"]["samples"]
        assert unit.end.left_out == lines[2 + number]["end"]["left_out"]
    found = {name: data for name, data in contents(tmp_path / "out").items() if "shard" in name}
    assert contents(tmp_path / "alone") == found


@CASES
def test_a_pack_that_was_stopped_in_the_middle_gives_the_same_bytes(
    tmp_path: Path, make: Callable[[Path], Any], options: dict[str, Any]
) -> None:
    source = make(tmp_path / "source")
    expected = fastio.pack(source, tmp_path / "expected", shard_size=5000, **options)
    pack_stopped(4, source, tmp_path / "out", shard_size=5000, **options)
    report = fastio.pack(source, tmp_path / "out", shard_size=5000, resume=True, **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")
    assert (report.rows, report.tokens and report.tokens.empty) == (
        expected.rows,
        expected.tokens and expected.tokens.empty,
    )


@pytest.mark.parametrize("change", ["chunks", "more rows"])
def test_a_pack_is_not_resumed_with_data_in_memory_that_is_divided_otherwise(
    tmp_path: Path, change: str
) -> None:
    def table(rows: int, chunk: int) -> pa.Table:
        words = pa.array([f"word {number % 500}" for number in range(rows)])
        numbers, texts = np.arange(rows), (TEXTS + TEXTS)[:rows]
        return pa.concat_tables(
            pa.table(
                {
                    "text": texts[at : at + chunk],
                    "word": words[at : at + chunk].dictionary_encode(),  # of each chunk
                    "x": numbers[at : at + chunk],
                }
            )
            for at in range(0, rows, chunk)
        )

    other = table(3000, 100) if change == "chunks" else table(4000, 3000)
    pack_stopped(4, table(3000, 3000), tmp_path / "out", shard_size=5000)
    with pytest.raises(PackError, match="cannot resume"):
        fastio.pack(other, tmp_path / "out", shard_size=5000, resume=True)
    fastio.pack(table(3000, 3000), tmp_path / "out", shard_size=5000, resume=True)
    with fastio.open(tmp_path / "out") as dataset:
        assert [sample["x"] for sample in dataset] == list(range(3000))


def test_all_rows_are_packed_in_order_and_shards_have_about_the_size(tmp_path: Path) -> None:
    fastio.pack(write_lines(tmp_path / "lines"), tmp_path / "out", shard_size=5000)
    with fastio.open(tmp_path / "out") as dataset:
        assert [sample["x"] for sample in dataset] == list(range(len(TEXTS)))
        sizes = dataset.manifest.shard_bytes
    assert 2000 < np.median(sizes) < 12_000


@pytest.mark.parametrize("step", [1, 7, 100, 1000, 10**6])
@pytest.mark.parametrize("document", ["line", "blank-line", "file"])
def test_the_parts_of_a_text_file_have_each_document_once(
    tmp_path: Path, step: int, document: Any
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(
        b"\xef\xbb\xbfone\ntwo\n\n \t\n\nthree\r\n\r\n" + b"four\nfive\n" * 9 + b"\n\nend"
    )
    table = PlainText(str(path), document, "text")
    (whole,) = [list(table.batches({"text": pa.large_utf8()}, 0, 100))]
    expected = [text for _, batch in whole for text in batch.column(0).to_pylist()]
    spans = table.spans(["text"], step)
    assert spans is not None
    assert len(spans.places) > 1 or step > 50 or document == "file"
    found = [
        text
        for place in spans.places.tolist()
        for _, batch in table.span({"text": pa.large_utf8()}, tuple(place), 100)
        for text in batch.column(0).to_pylist()
    ]
    assert found == expected


def test_units_have_whole_row_groups_and_one_that_is_large_has_several_shards(
    tmp_path: Path,
) -> None:
    folder = write_parquet(tmp_path / "source", rows=1000)
    lines = lines_of(folder, tmp_path / "out", shard_size=5000)
    assert [line["end"]["samples"] for line in lines[2:]] == [1000, 1000, 1000]
    assert all(len(line["entries"]) > 2 for line in lines[2:])


def test_what_can_only_be_read_from_its_beginning_is_read_so_unless_there_is_much_of_it(
    tmp_path: Path,
) -> None:
    data = gzip.compress(b"".join(b'{"text": "%d"}\n' % n for n in range(5000)), mtime=0)
    options: dict[str, Any] = {"tokenizer": "bytes", "shard_size": 5000}
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "00.jsonl.gz").write_bytes(data)
    one = lines_of(folder, tmp_path / "one", **options)
    assert one[1]["plan"]["unit_bytes"] is None
    assert len(one) > 5
    for number in range(1, 20):
        (folder / f"{number:02}.jsonl.gz").write_bytes(data)
    many = lines_of(folder, tmp_path / "many", **options)
    assert len(many) == 2 + 20


def test_a_bad_line_is_named_by_its_number_in_the_file(tmp_path: Path) -> None:
    lines = [json.dumps({"text": text, "x": 1}) for text in TEXTS]
    lines[2500] = "{nonsense"
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(ShardCorrupt, match="line 2501 is not JSON"):
        fastio.pack(tmp_path / "a.jsonl", tmp_path / "out", tokenizer="bytes", shard_size=5000)
    lines[2500] = json.dumps({"text": "a", "x": None})
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(SchemaError, match=r"1 null in rows 24[0-9]{2} to 25[0-9]{2},"):
        fastio.pack(tmp_path / "a.jsonl", tmp_path / "more", shard_size=5000)
    (tmp_path / "b.txt").write_bytes(b"line\n" * 2500 + b"\xff\n" + b"line\n" * 100)
    with pytest.raises(ShardCorrupt, match=r"b\.txt line 2501 is not UTF-8"):
        fastio.pack(
            tmp_path / "b.txt",
            tmp_path / "text",
            tokenizer="bytes",
            document="line",
            shard_size=500,
        )


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("tokens", [{}, {"tokenizer": "bytes"}])
def test_a_file_that_is_truncated_while_it_is_packed_is_an_error(
    tmp_path: Path, name: str, tokens: dict[str, Any]
) -> None:
    path = write_lines(tmp_path / "lines") / "a.jsonl"
    if name == "a.parquet":
        path = write_parquet(tmp_path / "tables") / "1.parquet"
    commit = Packer._commit

    def truncate(self: Packer[Any, Any], unit: Any) -> None:
        commit(self, unit)
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size // 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Packer, "_commit", truncate)
        with pytest.raises((SourceChanged, ShardCorrupt)):
            fastio.pack(path.parent, tmp_path / "out", shard_size=3000, workers=1, **tokens)
    assert not (tmp_path / "out" / MANIFEST_NAME).exists()


def test_only_empty_documents_are_named_as_such(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [""] * 7}), tmp_path / "a.parquet")
    with pytest.raises(PackError, match="has no documents but 7 empty ones"):
        fastio.pack(tmp_path / "a.parquet", tmp_path / "out", tokenizer="bytes")


@pytest.mark.parametrize("empties", [0, 1, 5])
def test_empty_documents_are_counted_once_also_in_a_stream_that_is_resumed(
    tmp_path: Path, empties: int
) -> None:
    texts = ["", *["a" * 50, *[""] * empties] * 30]
    options: dict[str, Any] = {"tokenizer": "bytes", "shard_size": 200}
    lines_of(iter(texts), tmp_path / "out", **options)
    report = fastio.pack(iter(texts), tmp_path / "out", resume=True, **options)
    assert report.tokens is not None
    assert report.tokens.empty == 1 + 30 * empties
    fastio.pack(iter(texts), tmp_path / "expected", **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


def test_units_do_not_depend_on_where_a_file_lies(tmp_path: Path) -> None:
    import fsspec

    source = write_lines(tmp_path / "lines") / "a.jsonl"
    with fsspec.open("memory://cuts/a.jsonl", "wb") as file:
        file.write(source.read_bytes())
    fastio.pack(source, tmp_path / "local", shard_size=5000)
    fastio.pack("memory://cuts/a.jsonl", tmp_path / "stored", shard_size=5000)
    assert contents(tmp_path / "local") == contents(tmp_path / "stored")


@pytest.mark.parametrize("step", [1, 1000, 20_000, 10**9])
def test_units_consist_of_all_parts_in_order(tmp_path: Path, step: int) -> None:
    # Parts of a byte are parts of a line: of 300 lines there are enough.
    folder = write_lines(tmp_path / "lines", 300 if step == 1 else len(TEXTS))
    tables = [JsonTable(str(folder / "a.jsonl")) for _ in range(3)]
    found = cut(tables, ["text"], step)
    assert found is not None
    parts = [part for unit in range(len(found)) for part in found.parts(unit)]
    size = (folder / "a.jsonl").stat().st_size
    ends = {}
    for table, (begin, end, _) in parts:
        assert begin == ends.get(table, 0)
        ends[table] = end
    assert ends == dict.fromkeys(range(3), size)
    assert sorted(table for table, _ in parts) == [table for table, _ in parts]
    sizes = [found.nbytes(unit) for unit in range(len(found))]
    assert max(sizes) <= 2 * step + size * (step < size) or len(found) == 1


def test_an_arrow_file_that_is_open_can_be_sent_to_another_process(tmp_path: Path) -> None:
    table = ArrowTable(str(write_arrow(tmp_path / "source") / "a.arrow"))
    sent = pickle.loads(pickle.dumps(table))
    batches = [list(each.batches({"x": pa.int64()}, 0, 100)) for each in (table, sent)]
    assert [batch for _, batch in batches[0]] == [batch for _, batch in batches[1]]
