"""The formats of table files, by the endings of their names."""

from __future__ import annotations

import os

from fastio.store import is_remote

KINDS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".tsv": "csv",
    ".tsv.gz": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonl.gz": "jsonl",
    ".ndjson.gz": "jsonl",
}
_TABLE_PACKAGES = ("pandas", "polars", "pyarrow")
_TAB_SEPARATED = (".tsv", ".tsv.gz")


def of_table_package(value: object) -> bool:
    """Returns whether an object is one of pandas, polars or pyarrow, such as a table in memory."""
    return type(value).__module__.partition(".")[0] in _TABLE_PACKAGES


def table_kind(path: str | os.PathLike[str]) -> str | None:
    """Returns "parquet", "arrow", "csv", "jsonl" or "lance" by a name; None for other names."""
    name = _bare(path)
    if name.endswith(".lance"):
        return "lance"
    return next((kind for suffix, kind in KINDS.items() if name.endswith(suffix)), None)


def separator_of(path: str | os.PathLike[str]) -> str:
    """Returns what separates the values of a line of a CSV file, by its name."""
    return "\t" if _bare(path).endswith(_TAB_SEPARATED) else ","


def _bare(path: str | os.PathLike[str]) -> str:
    """Returns the name of a file in lower case, without the query of a URL."""
    name = os.path.basename(os.fspath(path)).lower()
    return name.partition("?")[0] if is_remote(path) else name
