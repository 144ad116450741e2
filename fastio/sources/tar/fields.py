"""Chooses the fields of a dataset of tars, and finds the samples that have all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastio.errors import SchemaError
from fastio.schema import Field, Image, Text
from fastio.sources.tar.headers import KEY_FIELD, STATE_MISSING, STATE_THERE
from fastio.sources.tar.index import TarIndex
from fastio.sources.tar.values import JPEG_EXTENSIONS

_EITHER = ";"


@dataclass(frozen=True)
class Column:
    """One field of the samples.

    Attributes:
        name: The extensions joined by ";", with "_" in place of dots; or KEY_FIELD.
        field: The type of the contents.
        extensions: A sample's value is the file of the first of these that it has. Empty for keys.
    """

    name: str
    field: Field
    extensions: tuple[str, ...]

    def pick(self, index: TarIndex, kind: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Returns `offsets`, `lengths`, `values` or `states` of rows of the index, int64 (n,).

        Each row's entry is that of the extension that it has.
        """
        first, *others = (getattr(index, kind)(name)[rows] for name in self.extensions)
        if others:
            first = np.choose(self.choice(index, rows), [first, *others])
        picked: NDArray[Any] = first
        return picked

    def choice(self, index: TarIndex, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the number of the extension that each row has: int64 (n,), 0 if it has none."""
        there = [index.offsets(name)[rows] >= 0 for name in self.extensions]
        chosen: NDArray[np.int64] = np.argmax(there, axis=0).astype(np.int64)
        return chosen

    def is_jpeg(self, index: TarIndex, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns whether each row's file is a JPEG by its extension: bool (n,)."""
        jpegs = np.array([name.rpartition(".")[2] in JPEG_EXTENSIONS for name in self.extensions])
        chosen: NDArray[np.bool_] = jpegs[self.choice(index, rows)]
        return chosen

    def states(self, index: TarIndex) -> NDArray[np.uint8] | None:
        """Returns each row's state, uint8 (rows,), a `STATE_...`; None if all are there."""
        found = [index.extensions[name] for name in self.extensions]
        if not found or (len(found) == 1 and not found[0].missing and not found[0].no_integer):
            return None
        return self.pick(index, "states", np.arange(len(index)))


def choose_columns(index: TarIndex, wanted: Sequence[str] | None) -> list[Column]:
    """Returns the requested fields, or all fields.

    If all are taken, image extensions of which every sample has exactly one (for example either
    jpg or png) become one field, "jpg;png".

    Args:
        index: The index of the tars.
        wanted: Names of fields: KEY_FIELD, an extension, or several extensions joined by ";", of
            which the first that a sample has is used. If None, all.

    Raises:
        SchemaError: If there is no such field, or if its extensions hold different types.
    """
    if wanted is None:
        groups: list[tuple[str, ...]] = [(name,) for name in index.extensions]
        partial = _alternatives(index)
        if partial:
            first = groups.index((partial[0],))
            groups = [group for group in groups if group[0] not in partial]
            groups.insert(first, partial)
        columns = [Column(KEY_FIELD, Text(), ()), *(_column(index, group) for group in groups)]
    else:
        columns = [_wanted_column(index, name) for name in wanted]
    names = [column.name for column in columns]
    for column in columns:
        if names.count(column.name) > 1:
            raise SchemaError(
                f"there are several fields {column.name!r} (dots in extensions become "
                "underscores): choose one with fields"
            )
    return columns


def _wanted_column(index: TarIndex, name: str) -> Column:
    if name == KEY_FIELD:
        return Column(KEY_FIELD, Text(), ())
    # If two extensions have the same field name, the first one gets it.
    by_name = {field_name(extension): extension for extension in reversed(index.extensions)}
    asked = [
        part if part in index.extensions else by_name.get(part) for part in name.split(_EITHER)
    ]
    found = tuple(part for part in asked if part is not None)
    if not found:
        there = ", ".join([KEY_FIELD, *map(field_name, index.extensions)])
        raise SchemaError(f"no sample has a field {name!r}; the fields are {there}")
    return _column(index, found, field_name(name))


def _column(index: TarIndex, extensions: tuple[str, ...], name: str | None = None) -> Column:
    kinds = {extension: index.extensions[extension].field for extension in extensions}
    if len(set(kinds.values())) > 1:
        raise SchemaError(f"the extensions of one field have different types: {kinds}")
    joined = field_name(_EITHER.join(extensions))
    return Column(name or joined, kinds[extensions[0]], extensions)


def field_name(extension: str) -> str:
    """Returns the name of an extension's field. Dots in field names have another meaning."""
    return extension.replace(".", "_") or "_"


def _alternatives(index: TarIndex) -> tuple[str, ...]:
    """Returns image extensions of which every sample has exactly one; () if there are none."""
    partial = tuple(
        name
        for name, extension in index.extensions.items()
        if isinstance(extension.field, Image) and extension.missing
    )
    if len(partial) < 2:
        return ()
    counts = np.sum([index.offsets(name) >= 0 for name in partial], axis=0)
    return partial if (counts == 1).all() else ()


def complete_rows(
    index: TarIndex, columns: Sequence[Column]
) -> tuple[NDArray[np.int64] | None, tuple[Column, int, int] | None]:
    """Finds the samples that have all fields.

    Returns:
        int64, their rows in the index, or None for all rows. And for the first other sample: a
        field that it lacks, its row, and the number of samples that lack this field; or None.
    """
    good: NDArray[np.bool_] | None = None
    first: tuple[Column, int, int] | None = None
    for column in columns:
        states = column.states(index)
        if states is None or not states.any():
            continue
        bad = np.flatnonzero(states != STATE_THERE)
        if first is None or bad[0] < first[1]:
            first = column, int(bad[0]), len(bad)
        good = (states == STATE_THERE) & (True if good is None else good)
    return None if good is None else np.flatnonzero(good), first


def lacks(index: TarIndex, column: Column, row: int) -> str:
    """Returns a clause that says what is wrong with the field of a row that lacks it."""
    (state,) = column.pick(index, "states", np.array([row]))
    endings = " or ".join(f".{name}" for name in column.extensions)
    return f"it has no {endings}" if state == STATE_MISSING else f"its {endings} holds no int64"


def row_name(index: TarIndex, at: int) -> str:
    """Returns the name of a row of the index in messages: its tar and its key."""
    (tar,) = index.tar_numbers(np.array([at]))
    return f"{index.tars[int(tar)].name} sample {index.key(at)!r}"
