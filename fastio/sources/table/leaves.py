"""The columns of a table, with the children of structs as columns, and the fields they become.

==============================================  ===============================================
Arrow type                                      field
==============================================  ===============================================
bool, integers, floats                          Scalar of that type
fixed_size_list of those, nested too            Array of that type and shape
list or large_list of those                     Array of that type, shape None, one axis
string, large_string, string_view               Text
binary, large_binary, binary_view, fixed_size_  Bytes
dictionary of strings                           Scalar int32, whose words are a vocabulary
dictionary of numbers                           as those numbers
timestamp, time32, time64, duration, date64     Scalar int64, in the column's own unit
date32                                          Scalar int32, in days
decimal                                         Scalar float64
struct                                          a field `parent_child` for each of its children
null, map, union, other lists                   none: SchemaError
==============================================  ===============================================
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import pyarrow as pa

from fastio.errors import SchemaError
from fastio.packed.ipc import number_dtype
from fastio.schema import Array, Bytes, Field, Scalar, Text

_LISTED = 10  # names of columns that an error lists


@dataclass(frozen=True)
class Leaf:
    """A column, or a part of a struct.

    Attributes:
        name: The name of the column, or `parent_child`, with underscores in place of dots.
        path: The names from the table's column down to this one.
        type: The Arrow type.
    """

    name: str
    path: tuple[str, ...]
    type: pa.DataType

    @property
    def spoken(self) -> str:
        """The name in the file."""
        return ".".join(self.path)


def field_name(path: Iterable[str]) -> str:
    """Returns the name of the field of a column, or of the part of a struct at a path of names.

    Dots are replaced, because they separate the names of structs and their parts in options.
    """
    return "_".join(path).replace(".", "_")


def leaves(schema: pa.Schema, where: str, files: Collection[str] = ()) -> dict[str, Leaf]:
    """Returns the leaves of a table by name, in order; SchemaError if two have the same name.

    Columns `files` hold files: if they are structs, their bytes are the leaf.
    """
    found: dict[str, Leaf] = {}
    for column in schema:
        of_column = _leaves_of(column.type, (column.name,))
        if column.name in files and pa.types.is_struct(column.type):
            name, kind = field_name([column.name]), column.type.field("bytes").type
            of_column = [Leaf(name, (column.name, "bytes"), kind)]
        for leaf in of_column:
            if leaf.name in found:
                raise SchemaError(
                    f"{where}: two columns have the name {leaf.name!r} "
                    f"({found[leaf.name].spoken} and {leaf.spoken}): rename one"
                )
            found[leaf.name] = leaf
    return found


def find_leaf(found: Mapping[str, Leaf], name: str, where: str) -> Leaf:
    """Returns the leaf of a name that a user has given; SchemaError if there is none."""
    leaf = found.get(name) or found.get(name.replace(".", "_"))
    if leaf is None:
        raise SchemaError(f"{where} has no column {name!r}; it has {_listed(name, list(found))}")
    return leaf


def _listed(wanted: str, names: list[str]) -> str:
    """Returns the existing names for a message; of many only those similar to the wanted one."""
    if len(names) <= _LISTED:
        return ", ".join(names)
    near = get_close_matches(wanted, names, _LISTED) or names[:_LISTED]
    return f"{', '.join(near)}, ... ({len(names):,} columns in all)"


def field_of(leaf: Leaf, where: str) -> Field:
    """Returns the field that a leaf becomes; SchemaError if its type cannot be stored."""
    kind = value_type(leaf.type)
    if is_text(kind):
        return Text()
    if is_binary(kind):
        return Bytes()
    if is_vocabulary(leaf.type):
        return Scalar("int32")
    dtype = _dtype(kind)
    if dtype is not None:
        return Scalar(dtype)
    shape: tuple[int, ...] = ()
    while pa.types.is_fixed_size_list(kind) and kind.list_size > 0:
        shape, kind = (*shape, kind.list_size), kind.value_type
    dtype = _dtype(kind) if is_number(kind) else None
    if shape and dtype is not None:
        return Array(dtype, shape)
    if not shape and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        dtype = _dtype(kind.value_type) if is_number(kind.value_type) else None
        if dtype is not None:
            return Array(dtype, None)
    raise SchemaError(
        f"{where}: column {leaf.spoken!r} is {leaf.type}, which is not supported; leave it out "
        "by choosing other columns (columns=..., --columns)"
    )


def nested_field(kind: pa.DataType) -> Array | Text | None:
    """Returns the field of lists of lists of numbers, or of lists of strings; None for others."""
    if field_or_none(kind) is not None or not is_list(kind):
        return None
    if is_text(kind.value_type):
        return Text(listed=True)
    shape: tuple[int | None, ...] = ()  # None where the lengths of lists differ
    while is_list(kind):
        fixed = pa.types.is_fixed_size_list(kind)
        shape, kind = (*shape, kind.list_size if fixed else None), kind.value_type
    field = field_or_none(kind)
    return Array(field.dtype, shape) if isinstance(field, Scalar) and is_number(kind) else None


def is_vocabulary(kind: pa.DataType) -> bool:
    """Returns whether a type is a dictionary of strings, of which the codes are stored."""
    return bool(pa.types.is_dictionary(kind)) and is_text(kind.value_type)


def is_text(kind: pa.DataType) -> bool:
    """Returns whether a type is one of strings."""
    types = pa.types
    return any(
        is_it(kind) for is_it in (types.is_string, types.is_large_string, types.is_string_view)
    )


def is_binary(kind: pa.DataType) -> bool:
    """Returns whether a type is one of byte strings."""
    types = pa.types
    each = types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view
    return any(is_it(kind) for is_it in each)


def value_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of a column's values, which is another one for dictionaries of numbers."""
    if pa.types.is_dictionary(kind) and not is_vocabulary(kind):
        return kind.value_type
    return kind


def widest(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Returns a type that holds the values of both types without loss; None if there is none.

    Integers and floats may become wider. Strings, bytes and lists may differ in their offsets.
    """
    if first == second:
        return first
    if is_text(first) and is_text(second):
        return pa.large_string()
    if is_binary(first) and is_binary(second):
        return pa.large_binary()
    if pa.types.is_null(first) or pa.types.is_null(second):
        return second if pa.types.is_null(first) else first
    if is_list(first) and is_list(second):
        # The names of what is in lists differ between writers, and mean nothing.
        same = field_or_none(first) == field_or_none(second) and first.value_type.equals(
            second.value_type
        )
        return first if same else None
    for wider, narrower in ((first, second), (second, first)):
        if _holds(wider, narrower):
            return wider
    return None


def least_bits(kind: pa.DataType) -> int:
    """Returns the least number of bits that a value takes in Arrow's buffers, 0 for no buffer."""
    types = pa.types
    kind = getattr(kind, "storage_type", kind)
    if types.is_fixed_size_list(kind):
        return int(kind.list_size) * least_bits(kind.value_type)
    if types.is_struct(kind):
        return sum(least_bits(child.type) for child in children(kind))
    if types.is_null(kind) or types.is_run_end_encoded(kind):
        return 0
    try:
        return int(kind.bit_width)
    except ValueError:  # strings, lists and unions: offsets, views or the numbers of types
        return 8


def has_dictionary(kind: pa.DataType) -> bool:
    """Returns whether a type, or one in its lists or structs, is a dictionary."""
    inside = (kind.field(number).type for number in range(kind.num_fields))
    return bool(pa.types.is_dictionary(kind)) or any(has_dictionary(each) for each in inside)


def field_or_none(kind: pa.DataType) -> Field | None:
    """Returns the field for a type; None if there is none."""
    try:
        return field_of(Leaf("", ("",), kind), "")
    except SchemaError:
        return None


def is_list(kind: pa.DataType) -> bool:
    """Returns whether a type is one of lists, of fixed size or not."""
    types = pa.types
    return any(
        is_it(kind) for is_it in (types.is_list, types.is_large_list, types.is_fixed_size_list)
    )


def is_number(kind: pa.DataType) -> bool:
    """Returns whether a type is one of booleans, integers or floats."""
    types = pa.types
    return bool(types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind))


def children(kind: pa.DataType) -> list[pa.Field]:
    """Returns the fields of a struct."""
    return [kind.field(number) for number in range(kind.num_fields)]


def struct_values(array: pa.Array) -> dict[str, pa.Array]:
    """Returns the parts of a struct by their names. Values are null where the struct is null."""
    return dict(zip((child.name for child in children(array.type)), array.flatten(), strict=True))


def with_types(
    kind: pa.DataType, others: Mapping[pa.DataType, pa.DataType], wide_lists: bool = False
) -> pa.DataType:
    """Returns a type in which some types, in lists and structs too, are replaced by others.

    Extension types become their storage types. With `wide_lists`, offsets of lists have 64 bits.
    """
    types, kind = pa.types, getattr(kind, "storage_type", kind)

    def inside(field: pa.Field) -> pa.Field:
        return field.with_type(with_types(field.type, others, wide_lists))

    if types.is_list(kind) or types.is_large_list(kind):
        wide = wide_lists or types.is_large_list(kind)
        return (pa.large_list if wide else pa.list_)(inside(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(inside(kind.value_field), kind.list_size)
    if types.is_struct(kind):
        return pa.struct([inside(child) for child in children(kind)])
    return others.get(kind, kind)


def _holds(wider: pa.DataType, narrower: pa.DataType) -> bool:
    types = pa.types
    if types.is_floating(wider) and types.is_floating(narrower):
        return bool(wider.bit_width >= narrower.bit_width)
    if types.is_dictionary(wider) and types.is_dictionary(narrower):
        return bool(is_vocabulary(wider) and is_vocabulary(narrower))
    if not types.is_integer(narrower):
        return False
    if types.is_floating(wider):
        # A float of this type represents all integers of so many bits exactly.
        digits = {16: 11, 32: 24, 64: 53}[wider.bit_width]
        return bool(narrower.bit_width <= digits)
    if not types.is_integer(wider) or wider.bit_width < narrower.bit_width:
        return False
    if types.is_signed_integer(wider) == types.is_signed_integer(narrower):
        return True
    return bool(types.is_signed_integer(wider) and wider.bit_width > narrower.bit_width)


def _leaves_of(kind: pa.DataType, path: tuple[str, ...]) -> list[Leaf]:
    if not pa.types.is_struct(kind):
        return [Leaf(field_name(path), path, kind)]
    below = ((child.type, (*path, child.name)) for child in children(kind))
    return [leaf for each in below for leaf in _leaves_of(*each)]


def _dtype(kind: pa.DataType) -> str | None:
    """Returns NumPy's name for a type of single numbers; None for other types."""
    types = pa.types
    if types.is_boolean(kind):
        return "bool"
    if types.is_integer(kind) or types.is_floating(kind):
        return number_dtype(kind).name
    if types.is_date32(kind):
        return "int32"
    if types.is_temporal(kind) and not types.is_interval(kind):
        return "int64"
    return "float64" if types.is_decimal(kind) else None
