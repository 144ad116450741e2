"""What is wanted of a table: which columns, as which fields, of which types, and what of nulls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastio.errors import SchemaError
from fastio.schema import DTYPES

MASK = "mask"
VALID_SUFFIX = "_valid"
KEPT_SUFFIX = ":valid"  # of fields that no batch has: where samples have None
_RANGE = re.compile(r"(.*?)(\d+)\.\.(.*?)(\d+)")


@dataclass(frozen=True)
class TableOptions:
    """How a table's columns become fields.

    Names are those of the table's columns, where `parent_child` (or `parent.child`) is a field
    `child` in a struct `parent`.

    Args:
        columns: what is wanted, columns and groups, in this order; groups that it does not name
            come after. None: all columns, a group where its first column stands.
        groups: name of a group and its columns, which become one Array (n,).
        dtypes: type of a field, a column or a group, one of `fastio.schema.DTYPES`.
        nulls: for a column or a group, what its nulls are: a value, or "mask", which adds a bool
            field `NAME_valid`.
        keep_nulls: nulls that would be an error are kept for samples: a bool field `NAME:valid`
            beside each number that has none, string, bytes or list tells where values are.

    Raises:
        SchemaError: an empty group, an unknown dtype, or a name that is listed twice.
    """

    columns: tuple[str, ...] | None = None
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    nulls: Mapping[str, Any] = field(default_factory=dict)
    keep_nulls: bool = False

    def __post_init__(self) -> None:
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
                raise SchemaError(
                    f"dtype {dtype!r} of {name!r} cannot be stored; possible are "
                    f"{', '.join(DTYPES)}"
                )

    @classmethod
    def of(
        cls,
        columns: Iterable[str] | None,
        groups: Mapping[str, Iterable[str]] | None,
        dtypes: Mapping[str, str] | None,
        nulls: Mapping[str, Any] | None,
    ) -> TableOptions:
        """The options as users give them.

        Raises:
            SchemaError: they are not possible.
            ValueError: names are a string and no list.
        """
        for what, names in {"columns": columns, **(groups or {})}.items():
            if isinstance(names, str):
                raise ValueError(f"{what} is a list of names: [{names!r}]")
        return cls(
            None if columns is None else tuple(columns),
            {name: tuple(members) for name, members in (groups or {}).items()},
            dtypes or {},
            nulls or {},
        )

    def __bool__(self) -> bool:
        """Whether anything is asked for."""
        return self != TableOptions()

    def to_json(self) -> dict[str, Any]:
        """These options as JSON values, for journals and manifests."""
        return {
            "columns": None if self.columns is None else list(self.columns),
            "groups": {name: list(members) for name, members in self.groups.items()},
            "dtypes": dict(self.dtypes),
            "nulls": {
                name: value.decode("latin-1") if isinstance(value, bytes) else value
                for name, value in self.nulls.items()
            },
        }


def expand_range(name: str) -> list[str]:
    """The names that "I1..I13" stands for; any other name stands for itself.

    Raises:
        SchemaError: the range runs backwards, or its ends are called differently.
    """
    found = _RANGE.fullmatch(name)
    if found is None:
        return [name]
    stem, first, other, last = found.groups()
    if stem != other or int(first) > int(last):
        raise SchemaError(f"{name!r} is no range of columns; one looks like I1..I13")
    width = len(first) if first.startswith("0") else 0
    return [f"{stem}{number:0{width}d}" for number in range(int(first), int(last) + 1)]


def _check_once(what: str, names: tuple[str, ...]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"{what}: {', '.join(twice)} is there twice")
