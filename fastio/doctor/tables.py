"""Probes of tables and tokens: how they are laid out, and how fast rows come."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fastio.doctor.attempt import Attempts
from fastio.doctor.data import Data, rows_of
from fastio.doctor.facts import TableFacts, Trial
from fastio.doctor.rates import SECONDS, loader_rate, room
from fastio.doctor.use import Use
from fastio.formats import TokenWindows
from fastio.formats.tables import table_kind
from fastio.loader import Loader
from fastio.pack import pack

_TEXT_BYTES = 64 << 20  # of files that are read into memory as a whole
_TRIED_ROWS = 200_000
_WINDOW = 1024  # tokens


def table_facts(data: Data, use: Use, threads: int, attempts: Attempts) -> TableFacts | None:
    """How tables are laid out, and how fast their rows come.

    Args:
        data: on this machine.
        use: how it is loaded.
        threads: that a loader is measured with.
        attempts: notes what cannot be measured.
    """
    if data.facts.packed:
        return TableFacts(
            "packed", threads=threads, rate=attempts("rows", packed_rate, data, use, threads)
        )
    files = [Path(path) for path in data.part]
    kind = table_kind(str(files[0])) or "unknown"
    layout = attempts("the layout", parquet_layout, files) if kind == "parquet" else None
    facts = layout or TableFacts(kind)
    rate = None
    if kind in ("parquet", "arrow") or sum(f.stat().st_size for f in files[:1]) < _TEXT_BYTES:
        rate = attempts("rows", file_rate, files, use, threads)
    tried = attempts("packing rows", trial, files, use, threads) if kind == "parquet" else None
    return TableFacts(
        facts.format,
        facts.columns,
        facts.row_groups,
        facts.group_rows,
        facts.group_bytes,
        facts.compressions,
        facts.text_columns,
        threads,
        rate,
        tried,
    )


def parquet_layout(files: Sequence[Path]) -> TableFacts:
    """What the footers say.

    Raises:
        OSError, pyarrow.ArrowInvalid: a file cannot be read.
    """
    rows: list[int] = []
    nbytes: list[int] = []
    compressions: set[str] = set()
    for path in files:
        about = pq.read_metadata(path)
        for number in range(about.num_row_groups):
            group = about.row_group(number)
            rows.append(group.num_rows)
            nbytes.append(group.total_byte_size)
        if about.num_row_groups:
            first = about.row_group(0)
            compressions |= {first.column(n).compression for n in range(first.num_columns)}
    schema = pq.read_schema(files[0])
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


def file_rate(files: Sequence[Path], use: Use, threads: int) -> float | None:
    """Rows a second of a loader of the files as they are."""
    loader = Loader([str(path) for path in files], _batch(use), True, threads=threads)
    return loader_rate(loader, SECONDS, warm_samples=_batch(use))


def packed_rate(data: Data, use: Use, threads: int) -> float | None:
    """Rows a second of a packed dataset; of tokens documents, as windows of them come."""
    windows = TokenWindows(_WINDOW) if data.facts.kind == "tokens" else None
    loader = Loader(
        data.part,
        min(_batch(use), max(1, data.facts.rows // 4)) if windows is None else use.batch_size,
        True,
        transforms=windows,
        threads=threads,
        resident=False,
    )
    windows_a_row = 1.0 if windows is None else len(loader) * use.batch_size / data.facts.rows
    rate = loader_rate(loader, SECONDS, warm_samples=_batch(use))
    return None if rate is None else rate / windows_a_row


def trial(files: Sequence[Path], use: Use, threads: int) -> Trial | None:
    """Packs the first rows for a try, and measures a loader of them; None where there are none.

    Raises:
        FastioError, OSError: they cannot be packed.
    """
    with pq.ParquetFile(files[0]) as file:
        batch: Any = next(file.iter_batches(batch_size=_TRIED_ROWS), None)
    if batch is None or not batch.num_rows:
        return None
    with room(use.scratch) as folder:
        report = pack(pa.Table.from_batches([batch]), folder / "packed")
        rows = min(_batch(use), max(1, report.rows // 8))
        loader = Loader(folder / "packed", rows, True, threads=threads, resident=False)
        rate = loader_rate(loader, SECONDS, warm_samples=rows)
    share = report.bytes / report.rows / (files[0].stat().st_size / rows_of(files[:1]))
    return Trial("", None, report.rows, rate or 0.0, share)


def _batch(use: Use) -> int:
    """Rows of a batch: as asked for, but not so few that batches alone are measured."""
    return max(use.batch_size, 4096)


def _is_large(kind: Any) -> bool:
    return bool(pa.types.is_large_string(kind))
