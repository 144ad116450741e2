"""Parses values of the command line: KEY=VALUE, NAME=A,B, conditions on rows, transforms."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typer import BadParameter

from fastio.sources.table.options import expand_range

Condition = tuple[str, str, Any]
Make = Callable[[str, Sequence[Any], Mapping[str, Any]], Any]


_COMPARED = re.compile(r"\s*([^<>=!\s][^<>=!]*?)\s*(==|!=|<=|>=|<|>|=)\s*([^<>=!\s].*?)\s*")
_LISTED = re.compile(r"\s*(.+?)\s+(not\s+in|in)\s+(.+?)\s*")
_BRACKETS = {"[": "]", "(": ")"}
_QUOTED = re.compile(r"""\s*("[^"]*"|'[^']*'|[^,]*?)\s*(?:,|$)""")
_TRUTH = {"true": True, "false": False}


def parse_storage_options(given: Sequence[str] | None) -> dict[str, Any] | None:
    """Parses storage options: JSON objects, or KEY=VALUE, where true and false become booleans.

    Raises:
        BadParameter: The text is neither.
    """
    found: dict[str, Any] = {}
    for text in given or ():
        key, mark, value = text.partition("=")
        if text.lstrip().startswith("{"):
            try:
                found.update(json.loads(text))
            except ValueError as error:
                raise BadParameter(f"it is not valid JSON: {error}") from error
        elif mark and key:
            found[key.strip()] = _TRUTH.get(value.lower(), value)
        else:
            raise BadParameter("it must have the form KEY=VALUE or be a JSON object")
    return found or None


def parse_pairs(given: Sequence[str]) -> dict[str, str]:
    """Parses NAME=TEXT options into a dict.

    Raises:
        BadParameter: An option has another form, or a name occurs twice.
    """
    found: dict[str, str] = {}
    for text in given:
        name, mark, value = text.partition("=")
        if not mark or not name.strip() or not value or name.strip() in found:
            raise BadParameter(
                f"it must have the form NAME=..., with each name given once; got {text!r}"
            )
        found[name.strip()] = value
    return found


def parse_names(text: str) -> list[str]:
    """Returns the names in a comma-separated list, with ranges such as I1..I13 expanded."""
    return [name for part in text.split(",") for name in expand_range(part.strip())]


def parse_groups(given: Sequence[str]) -> dict[str, list[str]]:
    """Parses NAME=A,B,... options into a dict of lists; see `parse_pairs` and `parse_names`."""
    return {name: parse_names(members) for name, members in parse_pairs(given).items()}


def parse_nulls(given: Sequence[str]) -> dict[str, Any]:
    """Parses NAME=VALUE options into a dict; values that read like numbers become numbers."""
    return {name: _number(text) for name, text in parse_pairs(given).items()}


def parse_conditions(given: Sequence[str]) -> list[Condition]:
    """Parses conditions on table rows, all of which must hold; see `parse_condition`."""
    return [parse_condition(text) for text in given]


def parse_condition(text: str) -> Condition:
    """Parses a column, an operator and a value: a number, true, false, or a string, quoted or not.

    Raises:
        BadParameter: The text is not a condition.
    """
    found = _COMPARED.fullmatch(text)
    # In "column in a=b,c", the "=" belongs to the list and is not an operator.
    if found is not None and not _LISTED.fullmatch(found[1]):
        operator = "==" if found[2] == "=" else found[2]
        return found[1], operator, _value(found[3])
    found = _LISTED.fullmatch(text)
    if found is None:
        raise BadParameter(
            "it must have the form 'COLUMN OP VALUE', where OP is one of ==, !=, <, <=, "
            f">, >=, in, not in; got {text!r}"
        )
    listed = found[3]
    if _BRACKETS.get(listed[0]) == listed[-1]:
        listed = listed[1:-1]
    values = [_value(part[1]) for part in _QUOTED.finditer(listed.strip()) if part[0]]
    return found[1], " ".join(found[2].split()), values


def parse_calls(given: Sequence[str], make: Make) -> list[Any]:
    """Parses calls such as "Resize((8, 9), interpolation='bicubic')".

    Arguments are literals, calls, or lists with more calls; nothing is evaluated.

    Args:
        given: The texts.
        make: Returns the value of a call, given its name, arguments and named arguments.

    Raises:
        BadParameter: A text is not such a call.
    """
    return [_call(text, make) for text in given]


def _call(text: str, make: Make) -> Any:
    wrong = BadParameter(f"it must have the form 'RandomResizedCrop(224)', got {text!r}")

    def made(node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return make(node.id, (), {})
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            named = {str(each.arg): made(each.value) for each in node.keywords}
            return make(node.func.id, [*map(made, node.args)], named)
        if isinstance(node, ast.List):
            return [*map(made, node.elts)]
        try:
            return ast.literal_eval(node)
        except ValueError:
            raise wrong from None

    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise wrong from None
    if not isinstance(node, (ast.Name, ast.Call)):
        raise wrong
    return made(node)


def parse_rows(text: str) -> slice:
    """Parses a range of rows: 100:200, 100: or :200.

    Raises:
        BadParameter: The text is not a range.
    """
    match = re.fullmatch(r"(\d*):(\d*)", text)
    if match is None:
        raise BadParameter(f"it must have the form 100:200, 100: or :200, got {text!r}")
    first, last = (int(part) if part else None for part in match.groups())
    return slice(first, last)


def _value(text: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    number = _number(text)
    return _TRUTH.get(text.lower(), text) if isinstance(number, str) else number


def _number(text: str) -> int | float | str:
    """Returns the number that a text reads like, or else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
