"""Batches of fields whose rows differ in size: their forms, and where each row lies in memory.

A batch has one of four forms: "list", a list of arrays; "padded", one array with zeros after
shorter rows, and the sizes; "flat", the rows one after the other, and the offset of each; "nested",
a nested tensor of torch, which has the memory of "flat".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fastio.errors import SchemaError
from fastio.packed.layout import same_axes
from fastio.schema import Array, Field, Images, Schema, Tokens, is_open_array

Form = Literal["list", "padded", "nested", "flat"]
FORMS: tuple[Form, ...] = get_args(Form)
LENGTH_SUFFIX = "_length"  # of the name of the field with the lengths of padded rows
SHAPE_SUFFIX = "_shape"  # of a padded field's shapes
OFFSETS_SUFFIX = "_offsets"  # of where rows begin in a flat field

Int64s = npt.NDArray[np.int64]
AnyArray = npt.NDArray[Any]


@dataclass(frozen=True)
class Forms:
    """The forms of a loader's fields of varying size.

    Attributes:
        default: form of the fields that are not named; None leaves it to the reader of the field.
        named: forms of single fields.
    """

    default: Form | None = None
    named: Mapping[str, Form] = field(default_factory=dict)

    @classmethod
    def of(cls, ragged: Form | Mapping[str, Form] | None) -> Forms:
        """Returns the forms that `Loader(ragged=)` describes.

        Raises:
            ValueError: a form does not exist.
        """
        named = dict(ragged) if isinstance(ragged, Mapping) else {}
        default = None if isinstance(ragged, Mapping) else ragged
        for form in (*named.values(), *([] if default is None else [default])):
            if form not in FORMS:
                raise ValueError(f"ragged must be one of {', '.join(FORMS)}, got {form!r}")
        return cls(default, named)

    def check(
        self, schema: Schema, fields: Sequence[str] | None = None, audio: Iterable[str] = ()
    ) -> None:
        """Checks that the named fields exist and can have their forms.

        Args:
            schema: schema of the dataset.
            fields: names of the fields that are delivered; None for all.
            audio: fields of sound files that are decoded, whose clips differ in length.

        Raises:
            SchemaError: the rows of a named field do not differ in size, or a form is not possible.
        """
        ragged = {name: kind for name, kind in schema.fields.items() if is_ragged(kind)}
        for name in self.named:
            if name not in ragged and name not in audio:
                raise SchemaError(
                    f"ragged names the field {name!r}; the fields of varying size are: "
                    f"{', '.join(ragged) or 'none'}"
                )
        for name, kind in ragged.items():
            wanted = fields is None or name in fields
            if wanted and self.get(name, "list") in ("nested", "flat"):
                _check_one_variable_axis(name, kind)

    def get(self, name: str, default: Form) -> Form:
        """Returns the form of a field, or `default` if none was given."""
        return self.named.get(name, self.default or default)


def is_ragged(kind: Field) -> bool:
    """Returns whether a field's rows are arrays that differ in size."""
    return is_open_array(kind) or isinstance(kind, (Tokens, Images))


def variable_axis(kind: Field) -> int | None:
    """Returns the only axis along which a ragged field's rows differ; None if there are several."""
    axes = kind.variable_axes if isinstance(kind, Array) else (0,)
    return axes[0] if axes is not None and len(axes) == 1 else None


def _check_one_variable_axis(name: str, kind: Field) -> None:
    if variable_axis(kind) is None and isinstance(kind, Array) and kind.shape is not None:
        raise SchemaError(
            f"field {name!r} has the shape {kind.shape}: 'nested' and 'flat' need exactly one "
            f"axis of variable length; use ragged={{{name!r}: 'padded'}} or 'list'"
        )


class Selectable(ABC):
    """Values of a field in a batch that are no array and no list, and know how to pick rows."""

    @abstractmethod
    def take(self, places: Int64s) -> Selectable:
        """Returns the values of the samples at some places."""


@dataclass
class RaggedBatch(Selectable):
    """The rows of a ragged field in a batch.

    Attributes:
        form: form of the batch, which decides how rows lie in `values`.
        values: for "padded", an array (n, *longest) with zeros after each row. Else the numbers of
            all rows one after the other, (total,); or the rows along the variable axis,
            (*before, total, *behind).
        shapes: shape of each row, int64 (n, axes); a list of tuples if rows differ in axes.
        axis: the axis of variable length; 0 if all axes may be.
        declared: whether the field has exactly that one variable axis.
        fixed: whether all rows have the same size in `values`, padded with zeros. `shapes` then
            only says where the zeros begin, and the form is "padded".
    """

    form: Form
    values: AnyArray
    shapes: Int64s | list[tuple[int, ...]]
    axis: int = 0
    declared: bool = True
    fixed: bool = False

    def __len__(self) -> int:
        return len(self.shapes)

    @property
    def lengths(self) -> Int64s:
        """The lengths of the rows along the variable axis, int64 (n,)."""
        assert not isinstance(self.shapes, list)
        return np.ascontiguousarray(self.shapes[:, self.axis])

    def rows(self) -> list[AnyArray]:
        """Returns the rows as arrays, which are views of `values`."""
        if self.fixed:
            return list(self.values)
        shapes = (
            [tuple(shape) for shape in np.asarray(self.shapes).tolist()]
            if isinstance(self.shapes, np.ndarray)
            else self.shapes
        )
        if self.form == "padded":
            cut = [tuple(slice(length) for length in shape) for shape in shapes]
            return [self.values[index][at] for index, at in enumerate(cut)]
        if self.values.ndim > 1:
            ends = np.cumsum([0, *self.lengths.tolist()]).tolist()
            before = (slice(None),) * self.axis
            return [
                self.values[(*before, slice(ends[index], ends[index + 1]))]
                for index in range(len(shapes))
            ]
        flat = self.values.reshape(-1)
        ends = np.cumsum([0, *(math.prod(shape) for shape in shapes)]).tolist()
        return [
            flat[ends[index] : ends[index + 1]].reshape(shape) for index, shape in enumerate(shapes)
        ]

    def take(self, places: Int64s) -> RaggedBatch:
        """Returns the rows at some places, in memory of their own."""
        if self.fixed:
            shapes = np.asarray(self.shapes)[places]
            return replace(self, values=self.values[places], shapes=shapes)
        rows = self.rows()
        kept = [rows[place] for place in places.tolist()]
        return of_rows(kept, self.form, self.values.dtype, self.axis, self.declared)


@dataclass(frozen=True)
class Scatter:
    """Where rows go in a batch's memory, as pieces that are contiguous in both.

    Positions and counts are in numbers, not in bytes.

    Attributes:
        shape: shape of the memory.
        row: int64 (pieces,), row of each piece.
        begin: int64 (pieces,), first number of the piece in its row.
        count: int64 (pieces,), how many numbers the piece has.
        target: int64 (pieces,), position in the memory.
        room: int64 (pieces,), numbers in the memory for the piece; zeros follow its `count`.
    """

    shape: tuple[int, ...]
    row: Int64s
    begin: Int64s
    count: Int64s
    target: Int64s
    room: Int64s


def scatter(form: Form, shapes: Int64s | list[tuple[int, ...]], axis: int = 0) -> Scatter:
    """Returns where the rows of a batch go.

    Args:
        form: form of the batch.
        shapes: shapes of its rows.
        axis: the axis of variable length.

    Raises:
        SchemaError: the numbers of axes differ, in another form than "list"; or rows differ in
            another axis than the open one, in "nested" or "flat".
    """
    if form == "list":
        return _one_after_the_other(shapes)
    if isinstance(shapes, list):
        raise SchemaError(
            f"rows with {sorted(set(map(len, shapes)))} axes cannot be combined into one "
            "tensor: use ragged='list'"
        )
    if form == "padded":
        return _padded(shapes)
    _check_others_equal(shapes, axis)
    if not shapes.size or axis == 0:
        found = _one_after_the_other(shapes)
        rest = tuple(shapes[0, 1:].tolist()) if len(shapes) else ()
        return replace(found, shape=(int(shapes[:, 0].sum()), *rest))
    return _along(shapes, axis)


def _check_others_equal(shapes: Int64s, axis: int) -> None:
    if not shapes.shape[1]:
        raise SchemaError("rows without axes cannot be nested or flat: use ragged='list'")
    others = np.delete(shapes, axis, axis=1)
    differ = (others != others[:1]).any(axis=1)
    if differ.any():
        at = int(np.argmax(differ))
        raise SchemaError(
            f"rows of the shapes {tuple(shapes[0].tolist())} and {tuple(shapes[at].tolist())} "
            f"(number {at} of the batch) cannot be nested or flat: their rows may differ in "
            f"axis {axis} only. Use ragged='padded' or 'list'"
        )


def _one_after_the_other(shapes: Int64s | list[tuple[int, ...]]) -> Scatter:
    if isinstance(shapes, list):
        counts = np.array([math.prod(shape) for shape in shapes], np.int64)
    else:
        counts = np.prod(shapes, axis=1, dtype=np.int64)
    begins = np.cumsum(counts) - counts
    zeros = np.zeros(len(counts), np.int64)
    row = np.arange(len(counts), dtype=np.int64)
    return Scatter((int(counts.sum()),), row, zeros, counts, begins, counts)


def _padded(shapes: Int64s) -> Scatter:
    count, axes = shapes.shape
    full = shapes.max(axis=0, initial=0)
    differing = np.flatnonzero((shapes != full).any(axis=0))
    # After the last axis in which rows differ, all rows have the full size. So the numbers along
    # this axis and the axes after it are contiguous, both in a row and in the batch. Such a run is
    # called a line; there is one for each index into the axes before it.
    cut = int(differing[-1]) if differing.size else 0
    if not axes:
        ones = np.ones(count, np.int64)
        row = np.arange(count, dtype=np.int64)
        return Scatter((count,), row, 0 * row, ones, row, ones)
    inner = int(np.prod(full[cut + 1 :], dtype=np.int64))
    outer = full[:cut]
    lines = int(np.prod(outer, dtype=np.int64))
    at = np.asarray(
        np.indices(tuple(outer.tolist())).reshape(cut, lines), np.int64
    )  # of each line, in each outer axis
    row = np.repeat(np.arange(count, dtype=np.int64), lines)
    inside = np.ones((count, lines), np.bool_)
    begin: Int64s = np.zeros((count, lines), np.int64)
    # The position of a line in its row follows from the shape of the row, and its position in the
    # batch from the largest shape. Lines outside a row are padding only: their count is 0.
    step: Int64s = shapes[:, cut] * inner
    for axis in range(cut - 1, -1, -1):
        inside &= at[axis] < shapes[:, axis, None]
        begin += at[axis] * step[:, None]
        step = np.multiply(step, shapes[:, axis])
    counts = np.where(inside, (shapes[:, cut] * inner)[:, None], 0).reshape(-1)
    room = np.full(count * lines, int(full[cut]) * inner, np.int64)
    target = np.arange(count * lines, dtype=np.int64) * (int(full[cut]) * inner)
    begin = np.where(inside, begin, 0).reshape(-1)
    return Scatter((count, *full.tolist()), row, begin, counts, target, room)


def _along(shapes: Int64s, axis: int) -> Scatter:
    """Returns where rows go that are joined along an axis that is not the first."""
    before = tuple(shapes[0, :axis].tolist())
    inner = int(np.prod(shapes[0, axis + 1 :], dtype=np.int64))
    lines = math.prod(before)
    lengths = shapes[:, axis]
    total = int(lengths.sum())
    # Rows follow each other along this axis. For each index into the axes before it there is a
    # line, which has a part of each row.
    starts = np.cumsum(lengths) - lengths
    line = np.arange(lines, dtype=np.int64)
    counts = np.repeat(lengths * inner, lines)
    begin = (lengths[:, None] * line * inner).reshape(-1)
    target = ((line * total)[None, :] + starts[:, None]).reshape(-1) * inner
    row = np.repeat(np.arange(len(shapes), dtype=np.int64), lines)
    behind = tuple(shapes[0, axis + 1 :].tolist())
    return Scatter((*before, total, *behind), row, begin, counts, target, counts)


def of_field(rows: Sequence[AnyArray], form: Form, kind: Field) -> RaggedBatch:
    """Returns a batch of rows of a ragged field, which are given as arrays.

    Raises:
        SchemaError: as for `scatter`.
    """
    assert isinstance(kind, (Array, Tokens, Images))
    axis = variable_axis(kind)
    dtype = kind.dtype if not isinstance(kind, Images) else rows[0].dtype
    return of_rows(rows, form, dtype, axis or 0, axis is not None)


def of_rows(
    rows: Sequence[AnyArray], form: Form, dtype: Any, axis: int = 0, declared: bool = True
) -> RaggedBatch:
    """Returns a batch of rows that are arrays.

    Args:
        rows: the rows, of one dtype.
        form: form of the batch.
        dtype: dtype of the rows.
        axis, declared: as in `RaggedBatch`.

    Raises:
        SchemaError: as for `scatter`.
    """
    shapes = same_axes([row.shape for row in rows])
    at = scatter(form, shapes, axis)
    if form == "padded":
        values = np.zeros(at.shape, dtype)
        for index, row in enumerate(rows):
            corner: Any = (index, *(slice(length) for length in row.shape))
            values[corner] = row
    elif len(at.shape) > 1 and len(rows):
        values = np.concatenate(rows, axis=axis, dtype=dtype)
    else:
        values = np.concatenate([np.empty(0, dtype), *(row.reshape(-1) for row in rows)])
    return RaggedBatch(form, values, shapes, axis, declared)
