"""The command line of fastio: one file per command.

A command imports what it needs when it runs, so that `fastio --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fastio.cli.bench import bench
from fastio.cli.cache import cache
from fastio.cli.doctor import doctor
from fastio.cli.export import export
from fastio.cli.gc import gc
from fastio.cli.info import info
from fastio.cli.pack import pack
from fastio.cli.show import show
from fastio.cli.train import train
from fastio.cli.verify import verify
from fastio.shown import shown_lines

UsageError: type[Any] = typer.BadParameter.__bases__[0]  # of click, or of typer's copy of it


@contextmanager
def _cleaned() -> Iterator[None]:
    """Cleans the message of wrong usage, which quotes the arguments: a shell's `*` names files.

    Adds what is missing from typer's own: which arguments are needed, and which commands there are.
    """
    try:
        yield
    except UsageError as error:
        error.message = shown_lines(error.message or "").removeprefix("Value error, ")
        param, commands = getattr(error, "param", None), getattr(_command(error), "commands", {})
        if error.message.endswith("'.") and error.message.startswith("No such command"):
            error.message += f" Choose one of {', '.join(commands)}."
        if param is not None and param.nargs == -1 and not error.message:
            needed = (each.metavar for each in _command(error).params if each.required)
            error.message = f"Give {' and '.join(needed)}."
        raise


def _command(error: Any) -> Any:
    return None if error.ctx is None else error.ctx.command


class _Commands(TyperGroup):
    """All commands. What typer itself prints of arguments is cleaned as all other names are."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        r"""Runs a command. Prints escapes like \xe9 for characters that LANG=C cannot encode."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*arguments, **options)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _cleaned():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _cleaned():
            return super().invoke(ctx)


main = typer.Typer(
    name="fastio",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("fastio"))
        raise typer.Exit


@main.callback()
def _fastio(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """A high-throughput data loader for PyTorch: pack, inspect, diagnose and train."""


for command in (pack, info, verify, show, export, gc, bench, doctor):
    main.command()(command)
main.add_typer(cache, name="cache")
main.add_typer(train, name="train")
