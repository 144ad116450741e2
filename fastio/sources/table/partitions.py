"""Partition columns: the values in folder names such as year=2024/month=03, as Hive writes them.

If a file has a column of the same name, the path's value is used, as in pyarrow.dataset.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastio.sources.table.objects import TableFile, Values

NULL = "__HIVE_DEFAULT_PARTITION__"
_INT32 = range(-(2**31), 2**31)
_INTEGER = re.compile(r"-?[0-9]+")


def values_of(folders: Iterable[str]) -> dict[str, str | None]:
    """Returns the partition values in the names of folders. Percent-encoding is decoded.

    Args:
        folders: The names, from the outermost folder to the innermost.
    """
    found: dict[str, str | None] = {}
    for folder in folders:
        name, mark, value = folder.partition("=")
        if mark and name:
            found[unquote(name)] = None if value == NULL else unquote(value)
    return found


@dataclass(frozen=True)
class Constants:
    """The partition columns of one file.

    Attributes:
        fields: The types of the columns: int32, or dictionary-encoded strings.
        values: The value of each column; None for null.
        words: For columns of strings, the sorted values of all files.
    """

    fields: Mapping[str, pa.DataType]
    values: Mapping[str, int | str | None]
    words: Mapping[str, pa.Array]

    def schema(self, of_file: pa.Schema) -> pa.Schema:
        """Adds the partition columns to a file's schema; they replace columns of one name."""
        names = [*dict.fromkeys([*of_file.names, *self.fields])]
        own = {name: of_file.field(name) for name in of_file.names if name not in self.fields}
        return pa.schema([own.get(n) or pa.field(n, self.fields[n]) for n in names])

    def to_read(self, columns: Sequence[str], of_file: pa.Schema) -> list[str]:
        """Returns the columns to read from the file; at least one, because it counts the rows."""
        return [name for name in columns if name not in self.fields] or of_file.names[:1]

    def add(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """Returns the wanted columns: those of the batch, and the partition columns."""
        arrays = [
            self._array(name, batch.num_rows) if name in self.fields else batch.column(name)
            for name in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def expression(self) -> Any:
        """Returns an expression that is true for all rows of the file."""
        conditions = [
            pc.field(name).is_null() if value is None else pc.field(name) == value
            for name, value in self.values.items()
        ]
        return reduce(lambda one, other: one & other, conditions)

    def _array(self, name: str, rows: int) -> pa.Array:
        value, words = self.values[name], self.words.get(name)
        if words is None:
            kind = self.fields[name]
            return pa.repeat(pa.scalar(value, kind), rows)
        if value is None:
            return pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()), words)
        codes = np.full(rows, words.index(value).as_py(), np.int32)
        return pa.DictionaryArray.from_arrays(pa.array(codes), words)


def constants_of(files: Sequence[TableFile]) -> list[Constants | None]:
    """Returns the partition columns of each file. Types are inferred from the values of all files.

    A column is int32 if all values parse as such, else strings. It is null for a file whose path
    does not have it.
    """
    names = [*dict.fromkeys(name for file in files for name in file.values)]
    if not names:
        return [None] * len(files)
    given = {name: _distinct(name, (file.values for file in files)) for name in names}
    numeric = {name for name, found in given.items() if found and all(map(_is_int32, found))}
    encoded = pa.dictionary(pa.int32(), pa.string())
    fields = {name: pa.int32() if name in numeric else encoded for name in names}
    words = {n: pa.array(sorted(given[n]), pa.string()) for n in names if n not in numeric}

    def typed(values: Values) -> dict[str, int | str | None]:
        found: dict[str, int | str | None] = {}
        for name in names:
            text = values.get(name)
            found[name] = int(text) if text is not None and name in numeric else text
        return found

    return [Constants(fields, typed(file.values), words) for file in files]


def _distinct(name: str, values: Iterable[Values]) -> set[str]:
    found = {each.get(name) for each in values}
    return {text for text in found if text is not None}


def _is_int32(text: str) -> bool:
    return _INTEGER.fullmatch(text) is not None and int(text) in _INT32
