"""Probes of tables and tokens: their layout, and the rate of loading rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fastio.diagnose.facts import TableFacts, Trial
from fastio.diagnose.options import Use
from fastio.diagnose.probes.data import Data, native_file, rows_of
from fastio.diagnose.probes.rates import Attempts, Measure, Part, in_turns, loader_part, room
from fastio.pack import pack
from fastio.sources import open as open_data
from fastio.sources.table.files import table_kind
from fastio.views.windows import TokenWindows

_TEXT_BYTES = 64 << 20  # of files that are read into memory as a whole
_TRIED_ROWS = 200_000
_WINDOW = 1024  # tokens
_TURNS = 2  # loaders of files take a while to begin


def table_facts(data: Data, use: Use, threads: int, attempts: Attempts) -> TableFacts | None:
    """Returns the layout of tables, and how fast their rows are loaded.

    Args:
        data: on this machine.
        use: how it is loaded.
        threads: that a loader is measured with.
        attempts: notes what cannot be measured.
    """
    if data.facts.packed:
        rows = min(_batch(use), max(1, data.facts.rows // 4))
        measure: Measure = partial(rows_part, open_data(data.part, resident=False), rows, threads)
        if data.facts.kind == "tokens":
            measure = partial(tokens_part, data, use, threads)
        rates = in_turns({"rows": measure}, attempts, _TURNS)
        return TableFacts("packed", threads=threads, rate=rates.get("rows"))
    files = [Path(path) for path in data.part]
    kind = table_kind(str(files[0])) or "unknown"
    layout = attempts("the layout", parquet_layout, files) if kind == "parquet" else None
    measures: dict[str, Measure] = {}
    if kind in ("parquet", "arrow") or sum(f.stat().st_size for f in files[:1]) < _TEXT_BYTES:
        listed = [str(path) for path in files]
        measures["rows"] = partial(rows_part, listed, _batch(use), threads)
    with room(use.scratch) as folder:
        tried = attempts("packing rows", trial, files, folder) if kind == "parquet" else None
        if tried is not None:
            few = min(_batch(use), max(1, tried.samples // 8))
            packed_rows = partial(
                rows_part, open_data(folder / "packed", resident=False), few, threads
            )
            measures["packed rows"] = packed_rows
        rates = in_turns(measures, attempts, _TURNS)
    rate, packed = rates.get("rows"), rates.get("packed rows")
    return replace(
        layout or TableFacts(kind),
        threads=threads,
        rate=rate,
        trial=replace(tried, rate=packed, before_rate=rate) if tried and packed else None,
    )


def parquet_layout(files: Sequence[Path]) -> TableFacts:
    """Returns the facts in the footers of Parquet files.

    Raises:
        OSError, pyarrow.ArrowInvalid: a file cannot be read.
    """
    rows: list[int] = []
    nbytes: list[int] = []
    compressions: set[str] = set()
    for path in files:
        about = pq.read_metadata(native_file(path))
        for number in range(about.num_row_groups):
            group = about.row_group(number)
            rows.append(group.num_rows)
            nbytes.append(group.total_byte_size)
        if about.num_row_groups:
            first = about.row_group(0)
            compressions |= {first.column(n).compression for n in range(first.num_columns)}
    schema = pq.read_schema(native_file(files[0]))
    text = [kind for kind in schema.types if pa.types.is_string(kind) or _is_large(kind)]
    return TableFacts(
        "parquet",
        columns=len(schema.names),
        row_groups=len(rows),
        group_rows=round(median(rows)) if rows else 0,
        group_bytes=round(median(nbytes)) if nbytes else 0,
        compressions=tuple(sorted(compressions)),
        text_columns=len(text),
    )


def rows_part(data: Any, batch_size: int, threads: int, seconds: float) -> Part | None:
    """Measures a shuffled loader of rows.

    Args:
        data: that the loader is given.
        batch_size: of the loader, and rows that come before those that count.
        threads: of the loader.
        seconds: to measure for.
    """
    from fastio.loader import Loader  # which imports torch

    loader = Loader(data, batch_size, True, num_workers=threads, distributed=False)
    return loader_part(loader, seconds, warm_samples=batch_size)


def tokens_part(data: Data, use: Use, threads: int, seconds: float) -> Part | None:
    """Measures a loader of token windows, in documents."""
    from fastio.loader import Loader  # which imports torch

    loader = Loader(
        TokenWindows(open_data(data.part, resident=False), _WINDOW),
        use.batch_size,
        True,
        num_workers=threads,
        distributed=False,
    )
    windows_a_document = len(loader) * use.batch_size / data.facts.rows
    part = loader_part(loader, seconds, warm_samples=_batch(use))
    return None if part is None else Part(part.samples / windows_a_document, part.seconds)


def trial(files: Sequence[Path], folder: Path) -> Trial | None:
    """Packs the first rows into a folder as a trial, or returns None if there are none.

    Raises:
        FastioError, OSError: they cannot be packed.
    """
    with pq.ParquetFile(native_file(files[0])) as file:
        batch: Any = next(file.iter_batches(batch_size=_TRIED_ROWS), None)
    if batch is None or not batch.num_rows:
        return None
    report = pack(pa.Table.from_batches([batch]), folder / "packed")
    share = report.bytes / report.rows / (files[0].stat().st_size / rows_of(files[:1]))
    return Trial("", None, report.rows, 0.0, share)


def _batch(use: Use) -> int:
    """Returns the batch size to measure with, large enough that rows and not batches dominate."""
    return max(use.batch_size, 4096)


def _is_large(kind: Any) -> bool:
    return bool(pa.types.is_large_string(kind))
