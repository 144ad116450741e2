"""Rules of tables: packing, row groups, compression, text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fastio.diagnose.costs import expected
from fastio.diagnose.facts import Facts
from fastio.diagnose.findings import Finding
from fastio.diagnose.findings import packing as packing_advice
from fastio.diagnose.options import Use

_SMALL_GROUP = 4096  # rows: each costs a read and some Python
_LARGE_GROUP_BYTES = 512 << 20
_NATIVE = {"SNAPPY", "UNCOMPRESSED"}  # that the native decoder knows


def packing(facts: Facts, use: Use) -> Iterator[Finding]:
    """Suggests packing, because packed rows are gathered instead of decoded."""
    tables, before = facts.tables, expected(facts, use)
    if tables is None or tables.trial is None or before is None or not tables.trial.rate:
        return
    if before.waits_for(cold=True) == "compute" or not before.prep_s:
        return
    as_it_is = tables.trial.before_rate or 1 / before.prep_s
    after = replace(
        before,
        prep_s=before.prep_s * as_it_is / tables.trial.rate,
        fetch_s=before.fetch_s * tables.trial.bytes_share,
    )
    yield Finding(
        "decode",
        "you wait for threads that decode Parquet",
        packing_advice(facts.data.path if facts.data else None),
        before.gain_of(after),
        (
            f"{tables.trial.rate:,.0f} rows/s from {tables.trial.samples:,} of them in a trial "
            f"pack, {as_it_is:,.0f} as they are",
            f"{tables.trial.bytes_share:.2f} x the bytes; any row from anywhere when shuffled",
        ),
    )


def text_files(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports CSV and JSONL files, which are parsed at each opening and kept in memory."""
    if facts.tables is None or facts.tables.format not in ("csv", "jsonl"):
        return
    yield Finding(
        "decode",
        f"{facts.tables.format.upper()} files are parsed and held in memory as a whole",
        packing_advice(facts.data.path if facts.data else None),
    )


def row_groups(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports row groups that are too small or too large."""
    tables = facts.tables
    if tables is None or tables.format != "parquet" or not tables.row_groups:
        return
    small = tables.group_rows < _SMALL_GROUP and tables.row_groups > 8
    if not small and tables.group_bytes < _LARGE_GROUP_BYTES:
        return
    size = f"{tables.group_rows:,} rows, {tables.group_bytes / 1e6:,.1f} MB"
    yield Finding(
        "files",
        f"row groups of {size}: {'each costs a read' if small else 'memory holds few of them'}",
        "write them with row groups of 50,000 to 200,000 rows (row_group_size=), or pack",
    )


def compression(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports compression that only pyarrow can decode."""
    tables = facts.tables
    others = sorted(set(tables.compressions) - _NATIVE) if tables else []
    if not others:
        return
    yield Finding(
        "decode",
        f"columns compressed by {', '.join(others)} are decoded by pyarrow, not natively",
        'write them with compression="snappy", or pack',
    )


def text_columns(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports strings that become Python objects."""
    tables = facts.tables
    if tables is None or not tables.text_columns:
        return
    yield Finding(
        "transform",
        f"{tables.text_columns} columns of strings come as lists of Python strings",
        "dictionary-encode them (numbers and a vocabulary), or leave them out: columns=",
    )


TABLE_RULES = (packing, text_files, row_groups, compression, text_columns)
