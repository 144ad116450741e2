"""Converts a table's columns to fields: the plan is made once, then applied to each batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.errors import SchemaError
from fastio.schema import PICTURES, Array, Bytes, Field, Scalar, Schema, Text, fixed_shape
from fastio.sources.table.leaves import (
    Leaf,
    field_of,
    find_leaf,
    is_vocabulary,
    leaves,
    value_type,
)
from fastio.sources.table.options import (
    KEPT_SUFFIX,
    MASK,
    VALID_SUFFIX,
    TableOptions,
    null_advice,
    null_text,
)
from fastio.sources.table.reading import Origin
from fastio.sources.table.values import (
    Ragged,
    Words,
    cast_numbers,
    copy_tiled,
    filled,
    leaf_array,
    list_values,
    missing_rows,
    nested_values,
    number_values,
    ragged_bytes,
    ragged_lists,
)

_NO_POLICY = object()
_KEPT = object()  # like MASK, but for nulls that samples keep as None


@dataclass(frozen=True)
class Column:
    """The values of one source column in converted rows.

    Attributes:
        field: The name of the field that the column belongs to.
        name: The name of the column.
        values: (rows, ...) in the field's dtype; Ragged for lists; None for text and bytes.
        missing: Where the source had nulls, bool (rows, ...), or (values,) for Ragged; None if it
            had none.
        nulls: bool (rows,), rows of Ragged, text and bytes that are null; None if there are none.
    """

    field: str
    name: str
    values: NDArray[Any] | Ragged | None
    missing: NDArray[np.bool_] | None = None
    nulls: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Converted:
    """Rows converted to fields: arrays (rows, *shape) or Ragged rows, and their source columns."""

    fields: Mapping[str, NDArray[Any] | Ragged]
    columns: Sequence[Column]


@dataclass(frozen=True)
class Part:
    """The values of one source column in a fixed-width field.

    They are (rows, ...) in the field's dtype, at position `first` of the field's values.
    """

    field: str
    first: int
    values: NDArray[Any]


@dataclass(frozen=True)
class _Member:
    """A column as a member of a field.

    Attributes:
        leaf, kind: The column, and the field that it would be by itself.
        policy: What replaces nulls: a value, MASK, _KEPT or _NO_POLICY.
        first, width: The first position on the group's axis, and the number of positions.
    """

    leaf: Leaf
    kind: Field
    policy: Any
    first: int = 0
    width: int = 1


@dataclass(frozen=True)
class _Plan:
    """How a field is made of columns.

    Attributes:
        name, kind: The field.
        members: The columns; one, unless the field is a group.
        grouped: Whether the field is a group.
        valid: The name of the bool field that tells where values are, or None.
    """

    name: str
    kind: Field
    members: list[_Member] = field(default_factory=list)
    grouped: bool = False
    valid: str | None = None


class Conversion:
    """Converts a table's columns to fields. Thread-safe.

    Nulls in floats become NaN. Other nulls are an error unless the options replace them.

    Args:
        schema: The schema of the table.
        options: The columns, groups, dtypes and nulls that are wanted.
        where: The table's path, for messages.
        special: The fields of some columns, by name: images, which others read; nested lists.
        files: The names of columns that hold files, of which the bytes are read.

    Attributes:
        reads: The names of the table's columns that are needed, except those of images.
        pictures: The column of each field of images.
        dictionaries: The column of each field with a vocabulary.

    Raises:
        SchemaError: If a column is missing or cannot be stored, or if two fields have one name.
    """

    def __init__(
        self,
        schema: pa.Schema,
        options: TableOptions,
        where: str,
        special: Mapping[str, Field] | None = None,
        files: Collection[str] = (),
    ) -> None:
        self._where = where
        self._options = options
        self._special = special or {}
        self._names = schema.names
        self._leaves = leaves(schema, where, files)
        self._check_names()
        self._plans = [self._plan(name) for name in self._wanted()]
        self.reads = self.reads_of(None)
        pictures = (plan for plan in self._plans if isinstance(plan.kind, PICTURES))
        self.pictures = {plan.name: plan.members[0].leaf for plan in pictures}
        self.dictionaries = {
            plan.name: plan.members[0].leaf
            for plan in self._plans
            if is_vocabulary(plan.members[0].leaf.type)
        }
        self.words = {name: Words() for name in self.dictionaries}
        self._fields = self._all_fields()

    def schema(self) -> Schema:
        """Returns the schema of the fields, with the vocabularies that `words` hold."""
        words = {name: tuple(found.all) for name, found in self.words.items()}
        return Schema(self._fields, "dict", None, True, words)

    def reads_of(self, fields: Collection[str] | None) -> list[str]:
        """Returns the names of the table's columns that some fields, or all, are made of."""
        plans = self._plans_of(fields)
        used = {member.leaf.path[0] for plan in plans for member in plan.members}
        return [name for name in self._names if name in used]

    def columns(self) -> list[tuple[str, str]]:
        """Returns field and name of every source column, in the order of `Converted.columns`."""
        return [(plan.name, member.leaf.name) for plan in self._plans for member in plan.members]

    def varying(self) -> list[str]:
        """Returns the table's columns whose fields differ in size from row to row, sorted."""
        plans = [plan for plan in self._plans if fixed_shape(plan.kind) is None]
        return sorted({member.leaf.path[0] for plan in plans for member in plan.members})

    def convert(
        self,
        batch: pa.RecordBatch,
        origin: Origin,
        out: Mapping[str, NDArray[Any]] | None = None,
        only: Collection[str] | None = None,
    ) -> Converted:
        """Converts rows to fields that are not images.

        Args:
            batch: Rows with the columns `reads`, in types that the table's schema can hold.
            origin: Where the rows come from, for messages.
            out: For each fixed-width field an array (rows, *shape) of its dtype to write to. If
                None, arrays are allocated.
            only: The fields that are needed. If None, all.

        Raises:
            SchemaError: If a field cannot hold a null or a number, or if a string is not UTF-8. The
                message names file, column and rows.
        """
        rows = batch.num_rows
        fields: dict[str, NDArray[Any] | Ragged] = {}
        columns: list[Column] = []
        copies: list[tuple[NDArray[Any], NDArray[Any]]] = []
        for plan, found, ragged in self._members(batch, origin, only):
            shape = fixed_shape(plan.kind) or ()
            if ragged is not None:
                fields[plan.name] = ragged
            else:
                target = fields[plan.name] = _target(out, plan.name, rows, shape, plan.kind)
                for member, column in zip(plan.members, found, strict=True):
                    copies.append((_part(target, plan, member), column.values))  # type: ignore[arg-type]
            if plan.valid is not None:
                valid = fields[plan.valid] = _target(out, plan.valid, rows, shape, Scalar("bool"))
                _mark_valid(valid, plan, found)
            columns += found
        copy_tiled(copies, rows)
        return Converted(fields, columns)

    def parts(self, batch: pa.RecordBatch, origin: Origin) -> tuple[list[Part], dict[str, Ragged]]:
        """Converts rows, without copies where possible; see `convert`.

        Returns the parts of fixed-width fields, and the other fields.
        """
        parts: list[Part] = []
        ragged: dict[str, Ragged] = {}
        for plan, columns, found in self._members(batch, origin):
            if found is not None:
                ragged[plan.name] = found
            else:
                for member, column in zip(plan.members, columns, strict=True):
                    parts.append(Part(plan.name, member.first, column.values))  # type: ignore[arg-type]
            if plan.valid is not None:
                valid = np.empty((batch.num_rows, *(fixed_shape(plan.kind) or ())), np.bool_)
                _mark_valid(valid, plan, columns)
                parts.append(Part(plan.valid, 0, valid))
        return parts, ragged

    def _members(
        self, batch: pa.RecordBatch, origin: Origin, only: Collection[str] | None = None
    ) -> Iterator[tuple[_Plan, list[Column], Ragged | None]]:
        """Yields the plan and source columns of each field, and its rows if they differ in size."""
        for plan in self._plans_of(only):
            if plan.name in self._special:
                leaf = plan.members[0].leaf
                yield plan, [], nested_values(leaf_array(batch, leaf), leaf, plan.kind, origin)
            elif fixed_shape(plan.kind) is None:
                rows, column = self._ragged(plan, batch, origin)
                yield plan, [column], rows
            else:
                yield plan, [self._fixed(plan, m, batch, origin) for m in plan.members], None

    def _plans_of(self, fields: Collection[str] | None) -> list[_Plan]:
        """Returns the plans of those fields, or of all, that are not images."""
        return [
            plan
            for plan in self._plans
            if not isinstance(plan.kind, PICTURES)
            and (fields is None or plan.name in fields or plan.valid in fields)
        ]

    # --- Planning ---------------------------------------------------------------------------------

    def _leaf(self, name: str) -> Leaf:
        return find_leaf(self._leaves, name, self._where)

    def _check_names(self) -> None:
        """Checks that every name in the options is a column of the table or a group."""
        options = self._options
        names = [name for members in options.groups.values() for name in members]
        names += [n for n in (*options.dtypes, *options.nulls) if n not in options.groups]
        names += [n for n in options.columns or () if n not in options.groups]
        for name in names:
            self._leaf(name)
        for what, given in (("dtypes", options.dtypes), ("nulls", options.nulls)):
            for name in given:
                if name not in options.groups and self._leaf(name).name in self._special:
                    raise SchemaError(
                        f"{self._where}: {name!r} cannot have {what}: it contains images or "
                        "nested lists"
                    )

    def _wanted(self) -> list[str]:
        """Returns the names of the fields, columns and groups, in order."""
        groups = self._options.groups
        if self._options.columns is not None:
            listed = list(self._options.columns)
            return listed + [name for name in groups if name not in listed]
        group_of = {
            self._leaf(member).name: name for name, members in groups.items() for member in members
        }
        for name in groups:
            if name in self._leaves and name not in group_of:
                raise self._same_name(name)
        return list(dict.fromkeys(group_of.get(name, name) for name in self._leaves))

    def _plan(self, name: str) -> _Plan:
        if name in self._options.groups:
            return self._group_plan(name, self._options.groups[name])
        leaf = self._leaf(name)
        special = self._special.get(leaf.name)
        if special is not None:
            return _Plan(leaf.name, special, [_Member(leaf, special, _NO_POLICY)])
        kind = self._cast_kind(leaf, field_of(leaf, self._where), self._option("dtypes", name))
        policy = self._option("nulls", name, _NO_POLICY)
        suffix = VALID_SUFFIX if _is_mask(policy) else None
        if policy is _NO_POLICY and self._options.keep_nulls and _has_no_null(kind):
            policy, suffix = _KEPT, KEPT_SUFFIX
        valid = None if suffix is None else leaf.name + suffix
        return _Plan(leaf.name, kind, [_Member(leaf, kind, policy)], valid=valid)

    def _group_plan(self, name: str, names: Sequence[str]) -> _Plan:
        members: list[_Member] = []
        first = 0
        for column in names:
            leaf = self._leaf(column)
            kind = self._special.get(leaf.name) or field_of(leaf, self._where)
            shape = fixed_shape(kind)
            if shape is None or len(shape) > 1 or is_vocabulary(leaf.type):
                raise SchemaError(
                    f"{self._where}: column {leaf.spoken!r} is {leaf.type} and cannot be in "
                    f"the group {name!r}: groups contain numbers and fixed-size lists of "
                    "numbers"
                )
            kind = self._cast_kind(leaf, kind, self._option("dtypes", column))
            nulls = self._options.nulls
            policy = self._option("nulls", column, nulls.get(name, _NO_POLICY))
            members.append(_Member(leaf, kind, policy, first, shape[0] if shape else 1))
            first += members[-1].width
        dtype = self._options.dtypes.get(name)
        dtype = dtype or np.result_type(*(_dtype_of(m.kind) for m in members)).name
        masked = any(_is_mask(member.policy) for member in members)
        valid = name + VALID_SUFFIX if masked else None
        return _Plan(name, Array(dtype, (first,)), members, True, valid)

    def _cast_kind(self, leaf: Leaf, kind: Field, dtype: str | None) -> Field:
        if dtype is None:
            return kind
        if not isinstance(kind, (Scalar, Array)) or is_vocabulary(leaf.type):
            raise SchemaError(
                f"{self._where}: column {leaf.spoken!r} is {leaf.type} and cannot become {dtype}"
            )
        return Scalar(dtype) if isinstance(kind, Scalar) else Array(dtype, kind.shape)

    def _all_fields(self) -> dict[str, Field]:
        fields: dict[str, Field] = {}
        for plan in self._plans:
            added: list[tuple[str, Field]] = [(plan.name, plan.kind)]
            if plan.valid is not None:
                shape = fixed_shape(plan.kind)
                added.append((plan.valid, Array("bool", shape) if shape else Scalar("bool")))
            for name, kind in added:
                if name in fields:
                    raise self._same_name(name)
                fields[name] = kind
        return fields

    def _same_name(self, name: str) -> SchemaError:
        return SchemaError(
            f"{self._where}: two fields would have the name {name!r}: rename the group or the "
            "column"
        )

    def _option(self, which: str, name: str, default: Any = None) -> Any:
        """Returns the option given for a column, in any of the spellings of its name."""
        given: Mapping[str, Any] = getattr(self._options, which)
        leaf = self._leaf(name)
        for spelling in (name, leaf.name, leaf.spoken):
            if spelling in given:
                return given[spelling]
        return default

    # --- Converting rows --------------------------------------------------------------------------

    def _fixed(self, plan: _Plan, member: _Member, batch: pa.RecordBatch, origin: Origin) -> Column:
        """Converts one member of a fixed-width field to the field's dtype."""
        spoken = member.leaf.spoken
        array = leaf_array(batch, member.leaf)
        if pa.types.is_fixed_size_list(array.type):
            values, missing = list_values(array)
        elif is_vocabulary(member.leaf.type):
            values, missing = self.words[plan.name].codes(array)
        else:
            values, missing = number_values(array), missing_rows(array)
        dtype = _dtype_of(plan.kind)
        if missing is not None:
            fill = self._fill(plan, member, missing, origin)
            values = cast_numbers(filled(values, missing, 0), dtype, spoken, origin)
            values = filled(values, missing, fill)
        else:
            values = cast_numbers(values, dtype, spoken, origin)
        return Column(plan.name, member.leaf.name, values, missing)

    def _fill(
        self, plan: _Plan, member: _Member, missing: NDArray[np.bool_], origin: Origin
    ) -> Any:
        """Returns the value that replaces nulls of a fixed-width field."""
        policy, dtype = member.policy, _dtype_of(plan.kind)
        if _is_mask(policy):
            return 0
        if policy is _NO_POLICY:
            if np.dtype(dtype).kind == "f":
                return np.nan
            raise self._null_error(member, int(missing.sum()), len(missing), dtype, origin)
        where = origin.column(member.leaf.spoken)
        if is_vocabulary(member.leaf.type):
            return self.words[plan.name].code(null_text(policy, where))
        try:
            return cast_numbers(np.array([policy]), dtype, member.leaf.spoken, origin)[0]
        except (SchemaError, ValueError, TypeError) as error:
            raise SchemaError(f"{where}: nulls={policy!r} is not a valid {dtype}") from error

    def _ragged(self, plan: _Plan, batch: pa.RecordBatch, origin: Origin) -> tuple[Ragged, Column]:
        """Converts the rows of a variable-width field."""
        (member,) = plan.members
        spoken = member.leaf.spoken
        array = leaf_array(batch, member.leaf)
        nulls = missing_rows(array)
        if nulls is not None and member.policy is _NO_POLICY:
            raise self._null_error(member, int(nulls.sum()), len(array), "", origin)
        if not isinstance(plan.kind, Array):
            if nulls is not None and not _is_mask(member.policy):
                fill = member.policy
                text = fill if isinstance(fill, bytes) else null_text(fill, origin.column(spoken))
                array = array.fill_null(text)
            rows = ragged_bytes(array, spoken, origin)
            return rows, Column(plan.name, member.leaf.name, None, None, nulls)
        rows, missing = ragged_lists(array)
        dtype = _dtype_of(plan.kind)
        values = filled(rows.values, missing, 0)
        values = cast_numbers(values, dtype, spoken, origin)
        if missing is not None:
            if member.policy is _KEPT:  # only null rows are kept, not null numbers in them
                member = replace(member, policy=_NO_POLICY)
            values = filled(values, missing, self._fill(plan, member, missing, origin))
        rows = Ragged(values, rows.offsets)
        return rows, Column(plan.name, member.leaf.name, rows, missing, nulls)

    def _null_error(
        self, member: _Member, count: int, rows: int, dtype: str, origin: Origin
    ) -> SchemaError:
        leaf = member.leaf
        words = is_vocabulary(leaf.type) or isinstance(member.kind, (Text, Bytes))
        what = "text" if words else dtype or str(value_type(leaf.type))
        where = f"{count} null{'s' * (count != 1)} in {origin.rows(rows)}"
        told = null_advice(leaf.spoken, leaf.name, words)
        return SchemaError(f"{origin.column(leaf.spoken)} has {where}, and {what} has none: {told}")


def _target(
    out: Mapping[str, NDArray[Any]] | None, name: str, rows: int, shape: tuple[int, ...], kind: Any
) -> NDArray[Any]:
    return np.empty((rows, *shape), kind.dtype) if out is None else out[name]


def _part(target: NDArray[Any], plan: _Plan, member: _Member) -> NDArray[Any]:
    """Returns the view of the field's array that a member's values are copied to."""
    if not plan.grouped:
        return target
    if isinstance(member.kind, Scalar):
        part: NDArray[Any] = target[:, member.first]
        return part
    return target[:, member.first : member.first + member.width]


def _mark_valid(valid: NDArray[Any], plan: _Plan, columns: Sequence[Column]) -> None:
    valid[...] = True
    for member, column in zip(plan.members, columns, strict=True):
        of_rows = column.values is None or isinstance(column.values, Ragged)
        missing = column.nulls if of_rows else column.missing
        if missing is None or not _is_mask(member.policy):
            continue
        _part(valid, plan, member)[...] = ~missing


def _dtype_of(kind: Any) -> str:
    return str(kind.dtype)


def _has_no_null(kind: Field) -> bool:
    """Returns whether a field cannot represent a null. Floats can, as NaN."""
    if isinstance(kind, Scalar):
        return np.dtype(kind.dtype).kind != "f"
    return fixed_shape(kind) is None


def _is_mask(policy: Any) -> bool:
    return policy is _KEPT or (isinstance(policy, str) and policy == MASK)
