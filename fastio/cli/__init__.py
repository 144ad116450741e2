"""The command line of fastio: one file per command.

A command imports what it needs when it runs, so that `fastio --help` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from fastio.cli.bench import bench
from fastio.cli.cache import cache
from fastio.cli.doctor import doctor
from fastio.cli.export import export
from fastio.cli.info import info
from fastio.cli.pack import pack
from fastio.cli.show import show
from fastio.cli.train import train
from fastio.cli.verify import verify

main = typer.Typer(
    name="fastio",
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


for command in (pack, info, verify, show, export, bench, doctor):
    main.command()(command)
main.add_typer(cache, name="cache")
main.add_typer(train, name="train")
