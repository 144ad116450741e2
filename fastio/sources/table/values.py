"""Converts Arrow arrays to NumPy arrays, without copies where possible, with checked casts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.errors import SchemaError
from fastio.packed.grouping import starts_of
from fastio.packed.ipc import number_dtype
from fastio.schema import Array, Field, Text
from fastio.sources.table.leaves import Leaf, is_binary, is_text, is_vocabulary
from fastio.sources.table.reading import Origin

# Rows that are copied at a time, so that the strided target stays in the CPU cache.
_TILE_ROWS = 1024


@dataclass(frozen=True)
class Ragged:
    """Rows of differing lengths in one array.

    Attributes:
        values: (n,), the values of all rows; uint8 for text and byte strings.
        offsets: int64 (rows + 1,): row i is values[offsets[i]:offsets[i + 1]]; the first is 0.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, begin: int, end: int) -> Ragged:
        """Returns rows [begin, end) as views."""
        first, last = self.offsets[begin], self.offsets[end]
        return Ragged(self.values[first:last], self.offsets[begin : end + 1] - first)

    def copied(self) -> Ragged:
        """Returns a copy."""
        return Ragged(self.values.copy(), self.offsets.copy())

    @staticmethod
    def of_lengths(values: NDArray[Any], lengths: NDArray[np.int64]) -> Ragged:
        """Creates an object from the lengths of the rows, int64 (rows,)."""
        return Ragged(values, starts_of(lengths))

    @staticmethod
    def joined(parts: list[Ragged]) -> Ragged:
        """Concatenates parts; at least one."""
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        return Ragged.of_lengths(np.concatenate([part.values for part in parts]), lengths)


def leaf_array(batch: pa.RecordBatch, leaf: Leaf) -> pa.Array:
    """Returns a leaf's array, null where its struct is. Decodes dictionaries of numbers."""
    array = batch.column(leaf.path[0])
    for name in leaf.path[1:]:
        array = array.flatten()[array.type.get_field_index(name)]
    if pa.types.is_dictionary(array.type) and not is_vocabulary(array.type):
        array = array.dictionary_decode()
    return array


def missing_rows(array: pa.Array) -> NDArray[np.bool_] | None:
    """Returns which rows are null, bool (rows,); None if none is."""
    if not array.null_count:
        return None
    found: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return found


def number_values(array: pa.Array) -> NDArray[Any]:
    """Returns the values of booleans, numbers, decimals or times, (rows,); undefined where null."""
    kind = array.type
    if pa.types.is_boolean(kind):  # Arrow stores them as bits
        return number_values(array.cast(pa.uint8())).view(np.bool_)
    if pa.types.is_decimal(kind):
        return number_values(array.cast(pa.float64()))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        dtype = number_dtype(kind)
    else:
        dtype = np.dtype(np.int32 if kind.bit_width == 32 else np.int64)
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.zeros(len(array), dtype)
    values = np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)
    # The fields of all times are int64: see `leaves`.
    return values.astype(np.int64) if pa.types.is_time32(kind) else values


def list_values(array: pa.Array) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Returns the numbers in fixed-size lists, and which are missing: (rows, *shape) both.

    A number is missing if it is null or in a null list. The mask is None if none is.
    """
    rows, shape = len(array), []
    missing = None
    while pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        missing = _either(missing, missing_rows(array))
        missing = None if missing is None else missing.repeat(size)
        shape.append(size)
        array = array.values.slice(array.offset * size, len(array) * size)
    missing = _either(missing, missing_rows(array))
    values = number_values(array).reshape(rows, *shape)
    return values, None if missing is None else missing.reshape(rows, *shape)


def ragged_lists(array: pa.Array) -> tuple[Ragged, NDArray[np.bool_] | None]:
    """Returns the numbers in lists, and which are missing, bool (n,), or None without nulls.

    Null lists become empty rows.
    """
    offsets = np.asarray(array.offsets).astype(np.int64)
    lengths = offsets[1:] - offsets[:-1]
    missing = missing_rows(array)
    if missing is not None:  # a null list may have values, which `flatten` leaves out
        lengths[missing] = 0
    flat = array.flatten()
    return Ragged.of_lengths(number_values(flat), lengths), missing_rows(flat)


def ragged_bytes(array: pa.Array, column: str, origin: Origin) -> Ragged:
    """Returns strings or byte strings as rows of bytes. Nulls become empty rows.

    Raises:
        SchemaError: If a string is not UTF-8.
    """
    if is_text(array.type):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise SchemaError(
                f"{origin.column(column)} is not UTF-8 in {origin.rows(len(array))}: {error}"
            ) from error
    if array.null_count:
        fixed = pa.types.is_fixed_size_binary(array.type)
        empty = bytes(array.type.byte_width) if fixed else b""
        array = array.fill_null("" if is_text(array.type) else empty)
    assert is_text(array.type) or is_binary(array.type)
    array = array.cast(pa.large_binary())
    offsets = np.zeros(1, np.int64)
    if len(array):
        offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, 8 * array.offset)
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    return Ragged(data[offsets[0] : offsets[-1]], offsets - offsets[0])


def filled(values: NDArray[Any], missing: NDArray[np.bool_] | None, value: Any) -> NDArray[Any]:
    """Returns a copy with missing values replaced; the same array if none is missing."""
    if missing is None:
        return values
    values = values.copy()
    values[missing] = value
    return values


def cast_numbers(values: NDArray[Any], dtype: str, column: str, origin: Origin) -> NDArray[Any]:
    """Casts numbers (rows, ...) to a dtype. Floats may be rounded; other changes are errors.

    Raises:
        SchemaError: If a number does not fit. The message names column and row.
    """
    target = np.dtype(dtype)
    if values.dtype == target:
        return values
    with np.errstate(all="ignore"):
        found = values.astype(target)
    wrong = _changed(values, found)
    if wrong is not None and wrong.any():
        where = int(wrong.reshape(len(values), -1).any(axis=1).argmax())
        number = values[where][wrong[where]].flat[0] if values.ndim > 1 else values[where]
        raise SchemaError(
            f"{origin.column(column)}, row {origin.row(where)}: {number} does not fit {dtype}"
        )
    return found


def copy_tiled(copies: Sequence[tuple[NDArray[Any], NDArray[Any]]], rows: int) -> None:
    """Copies arrays (rows, ...) to strided ones, a tile of rows of all of them at a time."""
    for begin in range(0, rows, _TILE_ROWS):
        end = begin + _TILE_ROWS
        for target, values in copies:
            target[begin:end] = values[begin:end]


def _changed(values: NDArray[Any], found: NDArray[Any]) -> Any:
    """Returns a mask of numbers that a cast has changed; None if the cast is always exact."""
    source, target = values.dtype, found.dtype
    # NumPy calls the cast from int64 to float64 safe, but it may round.
    if not values.size or (np.can_cast(source, target, "safe") and source.itemsize < 8):
        return None
    if source.kind == "f" and target.kind == "f":
        return np.isinf(found) & np.isfinite(values)
    if target.kind == "b":
        return (values != 0) & (values != 1)
    if source.kind == "f":
        # 2**63 is not an int64, but it is the float closest to the largest int64.
        info = np.iinfo(target)
        return ~((values >= float(info.min)) & (values < float(info.max + 1)) & (values == found))
    if target.kind == "f":
        exact = 2 ** (np.finfo(target).nmant + 1)  # all integers up to here are floats
        inside = -exact <= int(values.min()) and int(values.max()) <= exact
        if inside and np.isfinite(found).all():
            return None
        # Compare as Python integers, because a cast back could overflow.
        return ~np.isfinite(found) | (found.astype(object) != values.astype(object))
    info = np.iinfo(target)
    return (values < max(info.min, np.iinfo(source).min)) | (
        values > min(info.max, np.iinfo(source).max)
    )


def _either(
    first: NDArray[np.bool_] | None, second: NDArray[np.bool_] | None
) -> NDArray[np.bool_] | None:
    if first is None or second is None:
        return second if first is None else first
    return first | second


class Words:
    """Maps words to codes, in the order in which the words were first seen. `all` has the words."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._codes: dict[str, int] = {}
        self._last: tuple[pa.Array, NDArray[np.int32]] | None = None

    def add(self, dictionary: pa.Array) -> None:
        """Adds the words of a dictionary in their order. Not thread-safe, unlike `codes`."""
        if self._last is not None and dictionary.equals(self._last[0]):
            return
        for word in dictionary.to_pylist():
            if word is not None:
                self.add_word(word)
        self._last = dictionary, np.zeros(0, np.int32)

    def add_word(self, word: str) -> None:
        """Adds a word, unless it is known."""
        if word not in self._codes:
            self._codes[word] = len(self.all)
            self.all.append(word)

    def seal(self) -> None:
        """Ends the adding of words. From here on `codes` may be called from any thread."""
        self._last = None

    def code(self, word: str) -> int:
        """Returns the code of a word; KeyError if it is not known."""
        return self._codes[word]

    def codes(self, array: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.bool_] | None]:
        """Returns the codes of dictionary-encoded words, and a mask of nulls or None.

        Raises:
            SchemaError: If a word is not known.
        """
        of_dictionary = self._of(array.dictionary)
        indices = array.indices
        missing = indices.is_null().to_numpy(zero_copy_only=False)
        if not len(of_dictionary):
            return np.zeros(len(array), np.int32), missing if len(array) else None
        positions = indices.fill_null(0).to_numpy(zero_copy_only=False)
        codes = of_dictionary[positions]
        missing |= codes < 0  # a dictionary may have a null among its words
        return codes, missing if missing.any() else None

    def _of(self, dictionary: pa.Array) -> NDArray[np.int32]:
        """Returns the codes of a dictionary's words: int32 (words,), -1 for null."""
        last = self._last  # read the attribute once, because other threads may set it
        if last is not None and dictionary.equals(last[0]):
            return last[1]
        try:
            codes = np.array(
                [-1 if word is None else self._codes[word] for word in dictionary.to_pylist()],
                np.int32,
            )
        except KeyError as error:
            raise SchemaError(
                f"the value {error.args[0]!r} did not occur when the table was first read: the "
                "file was changed"
            ) from error
        self._last = dictionary, codes
        return codes


def listed(rows: Ragged, kind: Field) -> list[Any]:
    """Returns rows of differing lengths as a list of str, bytes or arrays of their own."""
    ends = rows.offsets.tolist()
    parts = [rows.values[begin:end] for begin, end in pairwise(ends)]
    if isinstance(kind, Array):
        return [np.array(part) for part in parts]
    if isinstance(kind, Text):
        return [part.tobytes().decode() for part in parts]
    return [part.tobytes() for part in parts]


def nested_values(array: pa.Array, leaf: Leaf, field: Field, origin: Origin) -> Any:
    """Returns a list of each row's numbers, an array of the field's dtype, or of its strings.

    Raises:
        SchemaError: a value is null, or lists in a list differ in their lengths.
    """
    if isinstance(field, Text):
        return _strings(array, leaf, origin)
    assert isinstance(field, Array)
    found = []
    for row, value in enumerate(array):
        try:
            found.append(_as_array(value.as_py(), field))
        except (TypeError, ValueError) as error:
            raise SchemaError(
                f"{origin.column(leaf.spoken)}, row {origin.row(row)} has a null, or lists of "
                f"different lengths, and cannot become an array ({error}); leave the column "
                "out by choosing other columns (columns=..., --columns)"
            ) from error
    return found


def _strings(array: pa.Array, leaf: Leaf, origin: Origin) -> list[list[str]]:
    try:
        found: list[list[str]] = array.to_pylist()
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"{origin.column(leaf.spoken)} is not UTF-8 in {origin.rows(len(array))}: {error}"
        ) from error
    for row, strings in enumerate(found):
        if strings is None or None in strings:
            raise SchemaError(
                f"{origin.column(leaf.spoken)}, row {origin.row(row)} is null instead of a "
                "string: fill it with dataset.map, or leave the column out by choosing other "
                "columns (columns=..., --columns)"
            )
    return found


def _as_array(value: Any, field: Array) -> NDArray[Any]:
    if value is None:
        raise TypeError("there is no value")
    array = np.array(value, field.dtype)
    shape = field.shape or ()
    if array.ndim < len(shape) and not array.size:  # of empty lists NumPy knows the outer ones only
        return np.zeros(
            [*array.shape, *(length or 0 for length in shape[array.ndim :])], array.dtype
        )
    if array.ndim != len(shape):
        raise ValueError(f"its shape is {array.shape}")
    return array
