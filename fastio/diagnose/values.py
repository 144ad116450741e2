"""Frozen values from JSON, checked against their annotations."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fastio.errors import MeasuredInvalid

_T = TypeVar("_T")


def from_json(kind: type[_T], values: Any, where: str) -> _T:
    """Returns a dataclass made of JSON values. Unknown keys are ignored.

    Args:
        kind: the dataclass.
        values: as `json.load` gave them.
        where: names it in errors.

    Raises:
        MeasuredInvalid: something is missing or of another type.
    """
    if not isinstance(values, dict):
        raise MeasuredInvalid(f"{where}: expected an object, got {values!r}")
    hints = get_type_hints(kind)
    known = {
        one.name: _part(hints[one.name], values[one.name], f"{where}.{one.name}")
        for one in fields(kind)  # type: ignore[arg-type]
        if one.name in values
    }
    try:
        return kind(**known)
    except TypeError as error:
        raise MeasuredInvalid(f"{where}: {error}") from error


def _part(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _part(arguments[0], value, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise MeasuredInvalid(f"{where}: expected a list, got {value!r}")
        return tuple(_part(arguments[0], one, f"{where}[{n}]") for n, one in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise MeasuredInvalid(f"{where}: expected an object, got {value!r}")
        return {key: _part(arguments[1], one, f"{where}.{key}") for key, one in value.items()}
    if origin is Literal:
        if value not in arguments:
            raise MeasuredInvalid(f"{where}: expected one of {arguments}, got {value!r}")
        return value
    if is_dataclass(hint):
        return from_json(hint, value, where)  # type: ignore[arg-type]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise MeasuredInvalid(f"{where}: expected {hint.__name__}, got {value!r}")
    return value
