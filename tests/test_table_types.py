"""Every type, with nulls, over files and row groups: values are those that pyarrow reads."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastio
from fastio import Loader

UTC = datetime.timezone.utc  # datetime.UTC is of Python 3.11


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low = -(2 ** (bits - 1)) if signed else 0
    return st.integers(low, low + 2**bits - 1)


TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    **{
        f"{'' if signed else 'u'}int{bits}": (
            pa.type_for_alias(f"{'' if signed else 'u'}int{bits}"),
            integers(bits, signed),
        )
        for bits in (8, 16, 32, 64)
        for signed in (True, False)
    },
    "float16": (pa.float16(), st.floats(width=16).map(np.float16)),
    "float32": (pa.float32(), st.floats(width=32)),
    "float64": (pa.float64(), st.floats()),
    "decimal": (
        pa.decimal128(12, 3),
        st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: decimal.Decimal(n).scaleb(-3)),
    ),
    "zoned": (
        pa.timestamp("us", "Europe/Paris"),
        st.datetimes(
            datetime.datetime(1901, 1, 1),
            datetime.datetime(2100, 1, 1),
            timezones=st.sampled_from([UTC, datetime.timezone(datetime.timedelta(hours=5))]),
        ),
    ),
    "naive": (pa.timestamp("ms"), st.integers(-(2**40), 2**40)),
    "date": (pa.date32(), st.dates()),
    "time32": (pa.time32("ms"), st.integers(0, 86_399_999)),
    "duration": (pa.duration("us"), st.integers(-(2**40), 2**40)),
    "text": (pa.string(), st.text(max_size=5)),
    "large_text": (pa.large_string(), st.text(max_size=5)),
    "bytes": (pa.binary(), st.binary(max_size=5)),
    "words": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "é", "", "bcd"])),
    "lists": (pa.list_(pa.int16()), st.lists(integers(16, True), max_size=4)),
    "large_lists": (
        pa.large_list(pa.float32()),
        st.lists(st.none() | st.floats(width=32), max_size=4),
    ),
    "bool_lists": (pa.list_(pa.bool_()), st.lists(st.booleans(), max_size=4)),
    "fixed": (
        pa.list_(pa.int8(), 3),
        st.lists(st.none() | integers(8, True), min_size=3, max_size=3),
    ),
    "fixed_floats": (
        pa.list_(pa.float64(), 2),
        st.lists(st.none() | st.floats(), min_size=2, max_size=2),
    ),
    "struct": (
        pa.struct({"a": pa.int32(), "b": pa.string()}),
        st.fixed_dictionaries({"a": st.none() | integers(32, True), "b": st.text(max_size=3)}),
    ),
}


# Of Parquet files, which Python 3.10 has no newer pyarrow for.
READS_NULL_LISTS = int(pa.__version__.split(".")[0]) >= 26


@st.composite
def files(draw: st.DrawFn, suffix: str) -> list[list[pa.Table]]:
    """Row groups of some files, of which some are empty, with rows in at least one."""
    names = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=4, unique=True))
    counts = draw(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=4))
    counts[draw(st.integers(0, len(counts) - 1))].append(draw(st.integers(1, 9)))
    kinds = {name: TYPES[name][0] for name in names}
    values = {
        name: TYPES[name][1]
        if suffix == "parquet" and name.startswith("fixed") and not READS_NULL_LISTS
        else st.none() | TYPES[name][1]
        for name in names
    }

    def group(rows: int) -> pa.Table:
        cut = draw(st.integers(0, 2))  # of rows in front, so that arrays begin behind their buffers
        found = {
            name: made(draw(st.lists(values[name], min_size=rows + cut, max_size=rows + cut)), kind)
            for name, kind in kinds.items()
        }
        return pa.table(found).slice(cut)

    return [[group(rows) for rows in groups] for groups in counts]


def made(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        encoded = pa.array(values, kind.value_type).dictionary_encode()
        return encoded.cast(kind)
    return pa.array(values, kind)


def write(groups: list[pa.Table], schema: pa.Schema, path: Path, draw: Any) -> None:
    if path.suffix == ".parquet":
        options = {
            "compression": draw(st.sampled_from(["none", "snappy", "zstd"])),
            "use_dictionary": draw(st.booleans()),
            "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        }
        with pa_parquet.ParquetWriter(path, schema, **options) as writer:
            for group in groups:
                writer.write_table(group)
        return
    # Of dictionaries an Arrow file has one for all batches, a stream may replace them.
    with pa.ipc.new_stream(str(path), schema) as writer:
        for group in groups:
            writer.write_table(group.combine_chunks())


def wanted(table: pa.Table) -> dict[str, tuple[list[Any], list[Any]]]:
    """Values, with 0 or nothing for nulls, and where they are, by the names of fields."""
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    for name in table.column_names:
        column = pa.concat_arrays(table.column(name).chunks)
        parts = {name: column}
        if pa.types.is_struct(column.type):
            children = zip(column.type, column.flatten(), strict=True)
            parts = {f"{name}_{part.name}": child for part, child in children}
        found |= {part: (plain(each), there(each)) for part, each in parts.items()}
    return found


def plain(column: pa.Array) -> list[Any]:
    """The values of a column as a field has them."""
    kind, types = column.type, pa.types
    if types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    empty: Any = 0
    if types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind):
        empty = ""
    elif types.is_binary(kind):
        empty = b""
    elif types.is_fixed_size_list(kind):
        empty = [0] * kind.list_size
    elif types.is_list(kind) or types.is_large_list(kind):
        empty = []
    rows = [empty if value is None else value for value in column.to_pylist()]
    if isinstance(empty, list):
        return [[0 if number is None else number for number in row] for row in rows]
    return rows


def there(column: pa.Array) -> list[Any]:
    """Where there are values: of lists of one length of each number, of others of each row."""
    if not pa.types.is_fixed_size_list(column.type):
        return column.is_valid().to_pylist()  # type: ignore[no-any-return]
    size = column.type.list_size
    return [
        [False] * size if row is None else [n is not None for n in row]
        for row in column.to_pylist()
    ]


def check(values: Any, valid: Any, wanted: tuple[list[Any], list[Any]], kind: Any) -> None:
    """Rows of a field, and of the field that says where they are, against what pyarrow reads."""
    assert np.asarray(valid).tolist() == wanted[1]
    if isinstance(values, list) and all(isinstance(value, (str, bytes)) for value in values):
        assert values == wanted[0]
        return
    for value, number in zip(values, wanted[0], strict=True):
        np.testing.assert_array_equal(np.asarray(value), np.array(number, kind.dtype), strict=True)


def spelled(values: Any, valid: Any, words: tuple[str, ...]) -> list[str]:
    """The strings that codes stand for."""
    pairs = zip(np.asarray(values).tolist(), np.asarray(valid).tolist(), strict=True)
    return [words[code] if is_there else "" for code, is_there in pairs]


def written(data: Any, folder: Path, suffix: str) -> pa.Table:
    """Files, of which the folder's name sorts as they were drawn; and all their rows."""
    groups = data.draw(files(suffix))
    schema = next(table for tables in groups for table in tables).schema
    for number, tables in enumerate(groups):
        write(tables, schema, folder / f"{number}.{suffix}", data.draw)
    tables = [table for tables in groups for table in tables]
    return pa.concat_tables(tables).unify_dictionaries()


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_rows_in_any_order_are_those_that_pyarrow_reads(
    suffix: str, data: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("types")
    table = written(data, folder, suffix)
    order = data.draw(st.permutations(range(table.num_rows)))
    rows = np.array(order[: data.draw(st.integers(1, table.num_rows))], np.int64)
    found = wanted(table.take(pa.array(rows)))
    with fastio.open(folder, nulls=dict.fromkeys(found, "mask")) as dataset:
        assert len(dataset) == table.num_rows
        for name, each in found.items():
            values, valid = dataset.gather(name, rows), dataset.gather(f"{name}_valid", rows)
            if name in dataset.schema.vocabularies:
                values = spelled(values, valid, dataset.schema.vocabularies[name])
            check(values, valid, each, dataset.schema.fields[name])


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@settings(deadline=None, max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_shuffled_batches_are_those_that_pyarrow_reads(
    suffix: str, data: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("types")
    table = written(data, folder, suffix)
    fields = wanted(table)
    batch_rows = data.draw(st.integers(1, table.num_rows))
    with (
        fastio.open(folder, nulls=dict.fromkeys(fields, "mask")) as dataset,
        Loader(dataset, batch_rows, shuffle=True, num_workers=2, ragged="list") as loader,
    ):
        seen: list[int] = []
        for batch in loader:
            rows = loader.batch.rows
            seen += rows.tolist()
            for name, each in wanted(table.take(pa.array(rows))).items():
                values, valid = batch[name], batch[f"{name}_valid"]
                if name in dataset.schema.vocabularies:
                    values = spelled(values, valid, dataset.schema.vocabularies[name])
                check(values, valid, each, dataset.schema.fields[name])
    assert sorted(seen) == list(range(table.num_rows))


def test_nulls_among_fixed_size_lists_are_read_or_the_reason_is_named(tmp_path: Path) -> None:
    lists = pa.array([None, [1, 2, 3]], pa.list_(pa.int8(), 3))
    pa_parquet.write_table(pa.table({"x": lists}), tmp_path / "x.parquet")
    with fastio.open(tmp_path, nulls={"x": "mask"}) as dataset:
        if READS_NULL_LISTS:
            assert dataset[0]["x_valid"].tolist() == [False] * 3
        else:
            with pytest.raises(fastio.ShardCorrupt, match="pyarrow before 26 cannot read nulls"):
                dataset[0]
