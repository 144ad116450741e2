"""Probes of tables and tokens: how they are laid out, and how fast rows come."""

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
from fastio.diagnose.probes.attempt import Attempts
from fastio.diagnose.probes.data import Data, rows_of
from fastio.diagnose.probes.rates import Measure, Part, in_turns, loader_part, room
from fastio.diagnose.use import Use
from fastio.formats import TokenWindows
from fastio.formats.tables import table_kind
from fastio.pack import pack

_TEXT_BYTES = 64 << 20  # of files that are read into memory as a whole
_TRIED_ROWS = 200_000
_WINDOW = 1024  # tokens
_TURNS = 2  # loaders of files take a while to begin


def table_facts(data: Data, use: Use, threads: int, attempts: Attempts) -> TableFacts | None:
    """How tables are laid out, and how fast their rows come.

    Args:
        data: on this machine.
        use: how it is loaded.
        threads: that a loader is measured with.
        attempts: notes what cannot be measured.
    """
    if data.facts.packed:
        rates = in_turns({"rows": partial(packed_part, data, use, threads)}, attempts, _TURNS)
        return TableFacts("packed", threads=threads, rate=rates.get("rows"))
    files = [Path(path) for path in data.part]
    kind = table_kind(str(files[0])) or "unknown"
    layout = attempts("the layout", parquet_layout, files) if kind == "parquet" else None
    measures: dict[str, Measure] = {}
    if kind in ("parquet", "arrow") or sum(f.stat().st_size for f in files[:1]) < _TEXT_BYTES:
        measures["rows"] = partial(file_part, files, use, threads)
    with room(use.scratch) as folder:
        tried = attempts("packing rows", trial, files, folder) if kind == "parquet" else None
        if tried is not None:
            measures["packed rows"] = partial(trial_part, tried, folder, use, threads)
        rates = in_turns(measures, attempts, _TURNS)
    rate, packed = rates.get("rows"), rates.get("packed rows")
    return replace(
        layout or TableFacts(kind),
        threads=threads,
        rate=rate,
        trial=replace(tried, rate=packed, before_rate=rate) if tried and packed else None,
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


def file_part(files: Sequence[Path], use: Use, threads: int, seconds: float) -> Part | None:
    """Rows of a loader of the files as they are."""
    from fastio.loader import Loader  # which imports torch

    loader = Loader(
        [str(path) for path in files], _batch(use), True, threads=threads, distributed=False
    )
    return loader_part(loader, seconds, warm_samples=_batch(use))


def packed_part(data: Data, use: Use, threads: int, seconds: float) -> Part | None:
    """Rows of a packed dataset; of tokens documents, as windows of them come."""
    from fastio.loader import Loader  # which imports torch

    windows = TokenWindows(_WINDOW) if data.facts.kind == "tokens" else None
    loader = Loader(
        data.part,
        min(_batch(use), max(1, data.facts.rows // 4)) if windows is None else use.batch_size,
        True,
        transforms=windows,
        threads=threads,
        resident=False,
        distributed=False,
    )
    windows_a_row = 1.0 if windows is None else len(loader) * use.batch_size / data.facts.rows
    part = loader_part(loader, seconds, warm_samples=_batch(use))
    return None if part is None else Part(part.samples / windows_a_row, part.seconds)


def trial(files: Sequence[Path], folder: Path) -> Trial | None:
    """Packs the first rows in a folder for a try; None where there are none.

    Raises:
        FastioError, OSError: they cannot be packed.
    """
    with pq.ParquetFile(files[0]) as file:
        batch: Any = next(file.iter_batches(batch_size=_TRIED_ROWS), None)
    if batch is None or not batch.num_rows:
        return None
    report = pack(pa.Table.from_batches([batch]), folder / "packed")
    share = report.bytes / report.rows / (files[0].stat().st_size / rows_of(files[:1]))
    return Trial("", None, report.rows, 0.0, share)


def trial_part(tried: Trial, folder: Path, use: Use, threads: int, seconds: float) -> Part | None:
    """Rows of a loader of those that were packed for a try."""
    from fastio.loader import Loader  # which imports torch

    rows = min(_batch(use), max(1, tried.samples // 8))
    packed = folder / "packed"
    loader = Loader(packed, rows, True, threads=threads, resident=False, distributed=False)
    return loader_part(loader, seconds, warm_samples=rows)


def _batch(use: Use) -> int:
    """Rows of a batch: as asked for, but not so few that batches alone are measured."""
    return max(use.batch_size, 4096)


def _is_large(kind: Any) -> bool:
    return bool(pa.types.is_large_string(kind))
