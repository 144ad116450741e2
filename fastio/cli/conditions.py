"""Parses conditions on table rows from the command line: 'column >= 3', 'kind in a,b'."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fastio.cli.common import BadParameter

_COMPARED = re.compile(r"\s*([^<>=!\s][^<>=!]*?)\s*(==|!=|<=|>=|<|>|=)\s*([^<>=!\s].*?)\s*")
_LISTED = re.compile(r"\s*(.+?)\s+(not\s+in|in)\s+(.+?)\s*")
_BRACKETS = {"[": "]", "(": ")"}
_QUOTED = re.compile(r"""\s*("[^"]*"|'[^']*'|[^,]*?)\s*(?:,|$)""")
_TRUTH = {"true": True, "false": False}

Condition = tuple[str, str, Any]


def parse_conditions(given: Sequence[str] | None) -> list[Condition] | None:
    """Parses the conditions of --filter, all of which must hold; returns None if there are none.

    Raises:
        typer.BadParameter: a text is not a condition.
    """
    return [parse_condition(text) for text in given] if given else None


def parse_condition(text: str) -> Condition:
    """Parses a column, an operator and a value: a number, true, false, or a string, quoted or not.

    Raises:
        typer.BadParameter: the text is not a condition.
    """
    found = _COMPARED.fullmatch(text)
    if found is not None and not _LISTED.fullmatch(found[1]):
        operator = "==" if found[2] == "=" else found[2]
        return found[1], operator, _value(found[3])
    found = _LISTED.fullmatch(text)
    if found is None:
        raise BadParameter(
            "--filter must have the form 'COLUMN OP VALUE', where OP is one of ==, !=, <, <=, "
            f">, >=, in, not in; got {text!r}"
        )
    return found[1], " ".join(found[2].split()), _values(found[3])


def _values(text: str) -> list[Any]:
    if _BRACKETS.get(text[0]) == text[-1]:
        text = text[1:-1]
    return [_value(part[1]) for part in _QUOTED.finditer(text.strip()) if part[0]]


def _value(text: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return _TRUTH.get(text.lower(), text)
