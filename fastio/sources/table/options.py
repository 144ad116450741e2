"""Options of a table: columns, groups, dtypes, and what replaces nulls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from fastio.errors import OptionError, SchemaError
from fastio.schema import DTYPES, Schema
from fastio.sources.table.leaves import field_name

MASK = "mask"
VALID_SUFFIX = "_valid"
KEPT_SUFFIX = ":valid"  # of internal fields that tell which samples have None
_RANGE = re.compile(r"(.*?)(\d+)\.\.(.*?)(\d+)")


@dataclass(frozen=True)
class TableOptions:
    """How a table's columns become fields.

    Names are those of the table's columns. `parent_child` (or `parent.child`) is the field `child`
    of a struct `parent`.

    Args:
        columns: The columns and groups that are wanted, in this order. Other groups follow. If
            None, all columns, with a group at the position of its first column.
        groups: For each group its columns, which become one Array (n,).
        dtypes: The dtype of a field, a column or a group, one of `fastio.schema.DTYPES`.
        nulls: For a column or a group, the value that replaces nulls; or "mask", which adds a bool
            field `NAME_valid`.
        keep_nulls: Whether samples keep nulls that would be an error. If so, a bool field
            `NAME:valid` is added for each number type without NaN, string, byte string or list.

    Raises:
        SchemaError: If a group is empty, a dtype is unknown, or a name is listed twice.
    """

    columns: tuple[str, ...] | None = None
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    nulls: Mapping[str, Any] = field(default_factory=dict)
    keep_nulls: bool = False

    def __post_init__(self) -> None:
        # Copies, so that what the caller does with lists and dicts later changes nothing here.
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(self.columns))
            _check_once("columns", self.columns)
        groups = {name: tuple(members) for name, members in self.groups.items()}
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "dtypes", dict(self.dtypes))
        object.__setattr__(self, "nulls", dict(self.nulls))
        for name, members in groups.items():
            if not members:
                raise SchemaError(f"the group {name!r} has no columns")
            _check_once(f"the group {name!r}", members)
        for name, dtype in self.dtypes.items():
            if dtype not in DTYPES:
                raise OptionError(
                    f"dtype {dtype!r} of {name!r} cannot be stored; supported are "
                    f"{', '.join(DTYPES)}"
                )

    def __bool__(self) -> bool:
        """Returns whether any option is set."""
        return self != TableOptions()

    def to_json(self) -> dict[str, Any]:
        """Returns the options as JSON values, for journals and manifests."""
        return {
            "columns": None if self.columns is None else list(self.columns),
            "groups": {name: list(members) for name, members in self.groups.items()},
            "dtypes": dict(self.dtypes),
            "nulls": {
                # JSON has no byte strings; in Latin-1, each byte is one character.
                name: value.decode("latin-1") if isinstance(value, bytes) else value
                for name, value in self.nulls.items()
            },
        }


def null_text(value: Any, where: str) -> str:
    """Returns the text that replaces nulls; a number as it is written.

    Args:
        value: What the options give.
        where: The column, for messages.

    Raises:
        SchemaError: It is neither text nor a number.
    """
    if isinstance(value, bool) or not isinstance(value, (str, Real)):
        raise SchemaError(f"{where}: nulls={value!r} is not a valid text")
    return str(value)


def null_advice(name: str, field: str, words: bool) -> str:
    """Returns what to do about nulls of a column, as a clause.

    Args:
        name: The column, as messages call it.
        field: The field that it becomes.
        words: Whether its values are text.
    """
    value, option = ("'unknown'", "unknown") if words else ("0", "0")
    return (
        f"say what they are to become with nulls={{{name!r}: {value}}} (--null {name}={option}), "
        f"or {{{name!r}: 'mask'}} for a field {field}{VALID_SUFFIX} that tells where values are"
    )


def expand_range(name: str) -> list[str]:
    """Returns the names that a range such as "I1..I13" stands for; any other name unchanged.

    Raises:
        SchemaError: If the range is descending, or its ends have different prefixes.
    """
    found = _RANGE.fullmatch(name)
    if found is None:
        return [name]
    stem, first, other, last = found.groups()
    if stem != other or int(first) > int(last):
        raise SchemaError(f"{name!r} is not a range of columns such as I1..I13")
    width = len(first) if first.startswith("0") else 0
    return [f"{stem}{number:0{width}d}" for number in range(int(first), int(last) + 1)]


def _check_once(what: str, names: tuple[str, ...]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"{what}: {', '.join(twice)} is there twice")


def selected(schema: Schema, fields: Sequence[str] | None) -> Schema:
    """Returns the schema of some fields in their order, each followed by its validity field."""
    if fields is None:
        return schema
    fields = [n for name in fields for n in (name, name + KEPT_SUFFIX) if n in schema.fields]
    kept = {name: schema.fields[name] for name in fields}
    words = {name: schema.vocabularies[name] for name in fields if name in schema.vocabularies}
    classes = schema.classes if schema.class_field in kept else None
    return Schema(kept, "dict", classes, True, words)


def narrowed(options: TableOptions, schema: Schema, fields: Sequence[str]) -> TableOptions:
    """Returns the options with what only these fields need; SchemaError if one does not exist."""
    needed: list[str] = []
    for name in fields:
        if name not in schema.fields:
            raise SchemaError(
                f"there is no field {name!r}; the fields are {', '.join(schema.fields)}"
            )
        source = name.removesuffix(VALID_SUFFIX)
        needed.append(source if name not in options.groups and source in schema.fields else name)
    columns = tuple(dict.fromkeys(needed))
    groups = {name: members for name, members in options.groups.items() if name in columns}
    kept = {*columns, *(member for members in groups.values() for member in members)}

    def of_kept(given: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in given.items() if k in kept or field_name([k]) in kept}

    return TableOptions(
        columns, groups, of_kept(options.dtypes), of_kept(options.nulls), options.keep_nulls
    )
