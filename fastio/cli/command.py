"""Makes commands from functions: options and help from docstrings, output as text or as JSON.

A docstring describes each argument once. `--help` and the Python interface show the same text,
except that `--help` leaves out what follows the words "In Python".
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from rich.markup import escape

from fastio.cli.common import complain, print_table, say, say_json
from fastio.cli.parsing import parse_groups, parse_pairs, parse_storage_options
from fastio.errors import FastioError, OptionError, SourceNotFound
from fastio.store.urls import local_only

if TYPE_CHECKING:
    from rich.table import Table

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it

Given = dict[str, Any]  # the arguments of a described function that the command line gave


@dataclass(frozen=True)
class Written:
    """How an argument of a function is written on the command line.

    Attributes:
        option: The name of the option, if it is not the argument's own.
        metavar: What stands for the value in the help text.
        syntax: A sentence that is added to the help text.
        many: Whether the option may be repeated, or several arguments may be given.
        least, most: The smallest and the largest number that are allowed.
        parse: Converts the value, or the list of values, to the value of the argument. What it
            converts is text unless the argument is a number.
        text: The help text of an argument that has no description in a docstring.
        argument: Whether it is an argument of the command (default: if it has no default).
        short: A second name of the option, such as "-q".
    """

    option: str | None = None
    metavar: str | None = None
    syntax: str = ""
    many: bool = False
    least: float | None = None
    most: int | None = None
    parse: Callable[[Any], Any] | None = None
    text: str | None = None
    argument: bool | None = None
    short: str | None = None


# How arguments are written that several commands have.
STANDARD = {
    "storage_options": Written(
        metavar="KEY=VALUE|JSON",
        syntax="The names are those of fsspec or obstore. May be repeated, or given once as JSON. "
        "Other users can see command lines: put secrets in environment variables.",
        many=True,
        parse=parse_storage_options,
        text="Storage options for a URL, such as keys and endpoint.",
    ),
    "dtypes": Written(
        "dtype",
        "NAME=DTYPE",
        "May be repeated.",
        many=True,
        parse=parse_pairs,
    ),
    "as_json": Written("json", text="Print JSON."),
    "quiet": Written(text="Print no progress bar and no summary.", short="-q"),
    "seed": Written(least=0),
    "roots": Written("root", "DIR", "May be repeated.", many=True),
    "groups": Written(
        "group",
        "NAME=A,B,...",
        "For example dense=I1..I13. May be repeated.",
        many=True,
        parse=parse_groups,
    ),
    **{name: Written(metavar="DIR") for name in ("cache", "checkpoint_dir", "scratch", "staging")},
}


@dataclass(frozen=True)
class Output:
    """What a command prints, and how it ends.

    Attributes:
        values: The result, which `--json` prints on stdout.
        text: The lines and tables that are printed on stdout without `--json` and `--quiet`, or a
            function that prints them.
        problems: The lines that are printed on stderr in any case.
        code: The exit code.
    """

    values: Mapping[str, Any]
    text: Sequence[str | Table] | Callable[[], object] = ()
    problems: Sequence[str] = ()
    code: int = 0


def command(
    *described: Callable[..., Any],
    written: Mapping[str, Written] | None = None,
    without: frozenset[str] = frozenset(),
    defaults: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Output | None]], Callable[..., None]]:
    """Returns a decorator that makes a command from a function.

    The first parameters of the function receive the parsed arguments of the described functions,
    one dict (`Given`) for each. The others are the command's own, which its docstring describes. An
    argument without a default becomes an argument of the command, any other an option. The function
    returns what is printed, or None if it has printed everything itself. All commands have `--json`
    and report errors in the same way: see `clear_errors`.

    Args:
        described: Functions or dataclasses. Sections of their docstrings with other titles than
            usual become panels of the help.
        written: How arguments are written that need more than their name, by name.
        without: Arguments of the described functions that are no options.
        defaults: Default values that differ from those of the arguments.
    """
    how = {**STANDARD, **(written or {})}
    parts = [_parameters(one, how, without, defaults or {}) for one in described]

    def decorate(function: Callable[..., Output | None]) -> Callable[..., None]:
        taken = list(inspect.signature(function).parameters)[: len(described)]
        own = _parameters(function, how, frozenset(taken), {})
        every = {name: each for part in [*parts, own] for name, each in part.items()}
        if "as_json" not in every:
            flag = inspect.Parameter("as_json", _KEYWORD, default=False, annotation=bool)
            every["as_json"] = _parameter(flag, how["as_json"], str(how["as_json"].text), None)

        def run(**values: Any) -> None:
            with clear_errors():
                # Inside the `with` block, because a parser may import a user's module, whose errors
                # are reported in the same way.
                values |= {name: _parsed(name, values[name], how.get(name)) for name in values}
                given = ({name: values[name] for name in part} for part in parts)
                output = function(*given, **{name: values[name] for name in own})
                if output is not None:
                    _print(output, values["as_json"], values.get("quiet", False))

        run.__name__ = function.__name__
        doc = re.split(r"\n *Args:\n", inspect.getdoc(function) or "")[0]
        run.__doc__ = re.sub(r"(?<!\n)\n(?!\n)", " ", doc)  # the terminal breaks the lines
        run.__signature__ = inspect.Signature(list(every.values()))  # type: ignore[attr-defined]
        return run

    return decorate


@contextmanager
def clear_errors() -> Iterator[None]:
    """Prints errors that users can fix as one line on stderr, and sets the exit code.

    The code is 2 for an OptionError, as for wrong usage that typer itself reports; 1 for another
    FastioError or an error of the file system; and 130 for Ctrl-C. Nothing is printed on stdout.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # the reader closed the pipe, and typer ends quietly
    except (FastioError, OSError) as error:
        complain(str(error))
        raise typer.Exit(EXIT_USAGE if isinstance(error, OptionError) else EXIT_FAILED) from error
    except KeyboardInterrupt as error:
        complain("interrupted")
        raise typer.Exit(EXIT_INTERRUPTED) from error


def _print(output: Output, as_json: bool, quiet: bool) -> None:
    for problem in output.problems:
        complain(problem)
    if as_json:
        say_json(output.values)
    elif callable(output.text) and not quiet:
        output.text()
    elif not callable(output.text) and not quiet:
        for part in output.text:
            say(part) if isinstance(part, str) else print_table(part)
    if output.code:
        raise typer.Exit(output.code)


def _parsed(name: str, value: Any, how: Written | None) -> Any:
    if how is None or how.parse is None or value is None or value == []:
        return value
    try:
        return how.parse(value)
    except typer.BadParameter as error:
        error.param_hint = _option_name(name, how)
        raise


def _option_name(name: str, how: Written) -> str:
    return f"--{(how.option or name).replace('_', '-')}"


def descriptions(described: Callable[..., Any]) -> dict[str, tuple[str, str | None]]:
    """Returns the description of each argument, and the title of the section that it is from.

    The title is None for the usual sections of arguments.
    """
    doc = (inspect.getdoc(described) or "") + "\n"
    found: dict[str, tuple[str, str | None]] = {}
    for title, section in re.findall(r"^([A-Z][\w ]+):\n((?:    .*\n|\n)+)", doc, re.MULTILINE):
        parts = re.split(r"^    (\w+): ", section, flags=re.MULTILINE)[1:]
        panel = None if title in ("Args", "Attributes") else title
        if title not in ("Returns", "Raises"):
            joined = (" ".join(text.split()).split(" In Python", 1)[0] for text in parts[1::2])
            texts = (escape(text) for text in joined)
            found |= {name: (text, panel) for name, text in zip(parts[::2], texts, strict=True)}
    return found


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _parameters(
    described: Callable[..., Any],
    written: Mapping[str, Written],
    without: frozenset[str],
    defaults: Mapping[str, Any],
) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a command for the arguments of a function, by name."""
    texts, found = descriptions(described), {}
    for name, one in inspect.signature(described, eval_str=True).parameters.items():
        # `self` is left out, because methods such as Cache.prune are described too.
        if name in without or name == "self":
            continue
        how = written.get(name, Written())
        text, panel = texts.get(name, (how.text, None))
        if text is None:
            raise TypeError(f"{described.__qualname__} has no description of {name}")
        given = one.replace(default=defaults.get(name, one.default))
        found[name] = _parameter(given, how, text, panel)
    return found


def _parameter(
    parameter: inspect.Parameter, how: Written, text: str, panel: str | None
) -> inspect.Parameter:
    """Returns the parameter of a command for one of a function, as typer reads it."""
    kind = _kind(parameter.annotation)
    name = _option_name(parameter.name, how)
    if how.parse is not None and kind is not float:
        kind = str
    default = parameter.default
    required = default is parameter.empty
    common: dict[str, Any] = {
        "help": f"{text} {how.syntax}".rstrip(),
        # Most integers are counts of at least 1. Options that may be 0, such as seeds and threads,
        # set `least`.
        "min": 1 if kind is int and how.least is None else how.least,
        "max": how.most,
    }
    if kind is Path:
        common["parser"] = lambda given: _path(given, name)
    if required if how.argument is None else how.argument:
        info = typer.Argument(metavar=how.metavar or parameter.name.upper(), **common)
    else:
        names = [f"{name}/--no-{name[2:]}" if kind is bool and default else name]
        names += [how.short] if how.short else []
        metavar = how.metavar or ("PATH" if kind is Path else None)
        info = typer.Option(*names, metavar=metavar, rich_help_panel=panel, **common)
    annotation: Any = list[kind] if how.many else kind  # type: ignore[valid-type]
    if default is None or default == ():
        default, annotation = None, annotation | None
    return parameter.replace(kind=_KEYWORD, annotation=Annotated[annotation, info], default=default)


def _path(given: str, option: str) -> Path:
    """Returns the local path that a path or a file URL names."""
    try:
        return Path(local_only(given, option))
    except (OptionError, SourceNotFound) as error:
        raise typer.BadParameter(str(error)) from error


def _kind(annotation: Any) -> Any:
    """Returns the type of an option: a number, a flag, a choice, a path, or else text."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    if len(kinds) == 1 and get_origin(annotation) is not Literal:
        annotation = kinds[0]
    plain = annotation in (bool, int, float, Path) or get_origin(annotation) is Literal
    return annotation if plain else str
