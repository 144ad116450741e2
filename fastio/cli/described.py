"""Options of commands from the signature and the docstring of a function of the Python interface.

The function's docstring describes its arguments once; `--help` shows the same text.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from rich.markup import escape

from fastio.cli.common import clear_errors


@dataclass(frozen=True)
class Written:
    """How an argument of a function is written on the command line.

    Attributes:
        option: The name of the option, if it is not the argument's own.
        metavar: What stands for the value in the help text.
        syntax: A sentence that is added to the help text.
        many: Whether the option may be repeated.
        most: The largest number that is allowed.
        parse: Converts the text, or the list of texts, to the value of the argument.
    """

    option: str | None = None
    metavar: str | None = None
    syntax: str = ""
    many: bool = False
    most: int | None = None
    parse: Callable[[Any], Any] | None = None


def descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """Returns the description of each argument of a function, from its docstring.

    Square brackets are escaped, so that help texts show them.
    """
    doc = (inspect.getdoc(function) or "") + "\n"
    section = re.search(r"^Args:\n((?:    .*\n|\n)+)", doc, re.MULTILINE)
    parts = re.split(r"^    (\w+): ", section[1] if section else "", flags=re.MULTILINE)[1:]
    return {
        name: escape(" ".join(text.split()))
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def with_options_of(
    function: Callable[..., Any], written: Mapping[str, Written], without: frozenset[str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator that gives a command an option for each keyword argument of a function.

    The command receives their values, parsed, as its first argument, and what it declares itself.

    Args:
        function: The function.
        written: How arguments are written that need more than their name, by name.
        without: Arguments that are no options.
    """
    texts = descriptions(function)
    signature = inspect.signature(function, eval_str=True)
    options = [
        _option(parameter, written.get(name, Written()), texts[name])
        for name, parameter in signature.parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in without
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        of_command = {parameter.name for parameter in own}

        def run(**given: Any) -> None:
            values = {name: given[name] for name in given if name not in of_command}
            with clear_errors():
                for name, how in written.items():
                    if how.parse is not None and values[name] is not None:
                        values[name] = how.parse(values[name])
            command(values, **{name: given[name] for name in given if name in of_command})

        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                *(one for one in own if one.default is one.empty),
                *options,
                *(one for one in own if one.default is not one.empty),
            ]
        )
        return run

    return decorate


def _option(parameter: inspect.Parameter, how: Written, text: str) -> inspect.Parameter:
    """Returns the parameter of a command for one of a function."""
    kind = str if how.parse is not None else _kind(parameter.annotation)
    info = typer.Option(
        f"--{(how.option or parameter.name).replace('_', '-')}",
        metavar=how.metavar,
        help=f"{text} {how.syntax}".rstrip(),
        min=1 if kind is int else None,
        max=how.most,
    )
    annotation: Any = list[kind] if how.many else kind  # type: ignore[valid-type]
    if parameter.default is None:
        annotation = annotation | None
    return parameter.replace(
        kind=parameter.POSITIONAL_OR_KEYWORD, annotation=Annotated[annotation, info]
    )


def _kind(annotation: Any) -> Any:
    """Returns the type of an option: a number, a flag, a choice, or else text."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    if annotation in (bool, int) or get_origin(annotation) is Literal:
        return annotation
    if len(kinds) == 1 and (kinds[0] is int or get_origin(kinds[0]) is Literal):
        return kinds[0]
    return str
