"""What of a table is wanted where only some of its fields are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastio.errors import SchemaError
from fastio.schema import Schema
from fastio.sources.table.features import CLASS_FIELDS
from fastio.sources.table.options import KEPT_SUFFIX, VALID_SUFFIX, TableOptions


def selected(schema: Schema, fields: Sequence[str] | None) -> Schema:
    """The schema of some fields, in their order, each before what tells where its values are."""
    if fields is None:
        return schema
    fields = [n for name in fields for n in (name, name + KEPT_SUFFIX) if n in schema.fields]
    kept = {name: schema.fields[name] for name in fields}
    words = {name: schema.vocabularies[name] for name in fields if name in schema.vocabularies}
    classes = schema.classes if any(name in CLASS_FIELDS for name in kept) else None
    return Schema(kept, "dict", classes, True, words)


def narrowed(options: TableOptions, schema: Schema, fields: Sequence[str]) -> TableOptions:
    """The options with what only these fields need.

    Raises:
        SchemaError: there is no such field.
    """
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
        return {k: v for k, v in given.items() if k in kept or k.replace(".", "_") in kept}

    return TableOptions(
        columns, groups, of_kept(options.dtypes), of_kept(options.nulls), options.keep_nulls
    )
