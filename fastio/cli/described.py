"""Options of commands from the docstrings of the Python interface: of functions and dataclasses.

A docstring describes each argument once; `--help` shows the same text.
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
        least, most: The smallest and the largest number that are allowed.
        parse: Converts the value, or the list of values, to the value of the argument. What it
            converts is text unless the argument is a number.
    """

    option: str | None = None
    metavar: str | None = None
    syntax: str = ""
    many: bool = False
    least: float | None = None
    most: int | None = None
    parse: Callable[[Any], Any] | None = None


def descriptions(described: Callable[..., Any]) -> dict[str, str]:
    """Returns the description of each argument of a function or a dataclass, from its docstring.

    Square brackets are escaped, so that help texts show them.
    """
    return {name: text for texts in _sections(described).values() for name, text in texts.items()}


def _sections(described: Callable[..., Any]) -> dict[str, dict[str, str]]:
    """Returns the descriptions by the title of the docstring's section."""
    doc = (inspect.getdoc(described) or "") + "\n"
    found = {}
    for title, section in re.findall(r"^([A-Z][\w ]+):\n((?:    .*\n|\n)+)", doc, re.MULTILINE):
        parts = re.split(r"^    (\w+): ", section, flags=re.MULTILINE)[1:]
        texts = [escape(" ".join(text.split())) for text in parts[1::2]]
        if title not in ("Returns", "Raises"):
            found[title] = dict(zip(parts[::2], texts, strict=True))
    return found


def with_options_of(
    *described: Callable[..., Any],
    written: Mapping[str, Written] | None = None,
    without: frozenset[str] = frozenset(),
    defaults: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator that gives a command an option for each keyword argument of functions.

    The command receives their values, parsed, as its first argument, and what it declares itself.

    Args:
        described: Functions, of which keyword-only arguments count, or dataclasses. Sections of
            their docstrings with other titles than usual become panels of the help.
        written: How arguments are written that need more than their name, by name.
        without: Arguments that are no options.
        defaults: Default values of options that differ from those of the arguments.
    """
    written = written or {}
    options = [
        _option(parameter.replace(default=(defaults or {}).get(name, parameter.default)), how, text)
        for one in described
        for name, parameter, text in _arguments(one)
        if name not in without
        for how in [written.get(name, Written())]
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


def _arguments(
    described: Callable[..., Any],
) -> list[tuple[str, inspect.Parameter, tuple[str, str | None]]]:
    """Returns name, parameter, and help text with its panel of each argument that may be given."""
    texts = {
        name: (text, None if title in ("Args", "Attributes") else title)
        for title, found in _sections(described).items()
        for name, text in found.items()
    }
    fields = inspect.isclass(described)
    parameters = inspect.signature(described, eval_str=True).parameters.values()
    given = [one for one in parameters if fields or one.kind is one.KEYWORD_ONLY]
    return [(one.name, one, texts[one.name]) for one in given]


def _option(
    parameter: inspect.Parameter, how: Written, text: tuple[str, str | None]
) -> inspect.Parameter:
    """Returns the parameter of a command for one of a function."""
    kind = _kind(parameter.annotation)
    if how.parse is not None and kind is not float:
        kind = str
    name = (how.option or parameter.name).replace("_", "-")
    on_by_default = kind is bool and parameter.default
    info = typer.Option(
        f"--{name}/--no-{name}" if on_by_default else f"--{name}",
        metavar=how.metavar,
        help=f"{text[0]} {how.syntax}".rstrip(),
        min=1 if kind is int and how.least is None else how.least,
        max=how.most,
        rich_help_panel=text[1],
    )
    annotation: Any = list[kind] if how.many else kind  # type: ignore[valid-type]
    default = parameter.default
    if default is None or default == ():
        default, annotation = None, annotation | None
    return parameter.replace(
        kind=parameter.POSITIONAL_OR_KEYWORD,
        annotation=Annotated[annotation, info],
        default=default,
    )


def _kind(annotation: Any) -> Any:
    """Returns the type of an option: a number, a flag, a choice, or else text."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    if len(kinds) == 1 and get_origin(annotation) is not Literal:
        annotation = kinds[0]
    plain = annotation in (bool, int, float) or get_origin(annotation) is Literal
    return annotation if plain else str
