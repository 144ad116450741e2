"""What all commands share: exit codes, error messages, and the format of sizes and counts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from fastio.errors import FastioError, SourceNotFound
from fastio.shown import shown, shown_lines, shown_values
from fastio.store.urls import is_remote

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
_PATTERN = set("*?[{")

StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-options",
        metavar="KEY=VALUE|JSON",
        help="Storage options for a URL, such as keys and endpoint, with the names of "
        "fsspec or obstore. May be repeated, or given once as JSON. Other users can "
        "see command lines: put secrets in environment variables.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress bar and no summary.")]


@contextmanager
def clear_errors() -> Iterator[None]:
    """Prints errors that users can fix as one line on stderr, and sets the exit code.

    The code is 1 for a FastioError or an error of the file system, and 130 for Ctrl-C. Typer itself
    reports wrong usage, with code 2.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # the reader closed the pipe, and typer ends quietly
    except (FastioError, OSError) as error:
        complain(str(error))
        raise typer.Exit(EXIT_FAILED) from error
    except KeyboardInterrupt as error:
        complain("interrupted")
        raise typer.Exit(EXIT_INTERRUPTED) from error


def parse_storage_options(
    given: Sequence[str] | None, option: str = "--storage-options"
) -> dict[str, Any] | None:
    """Parses --storage-options: JSON objects, or KEY=VALUE, where true and false become booleans.

    Raises:
        typer.BadParameter: the text is neither.
    """
    found: dict[str, Any] = {}
    for text in given or ():
        key, mark, value = text.partition("=")
        if text.lstrip().startswith("{"):
            try:
                found.update(json.loads(text))
            except ValueError as error:
                raise BadParameter(f"{option} is not valid JSON: {error}") from error
        elif mark and key:
            found[key.strip()] = {"true": True, "false": False}.get(value.lower(), value)
        else:
            raise BadParameter(f"{option} must be KEY=VALUE or a JSON object")
    return found or None


def parse_pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """Parses NAME=TEXT options into a dict.

    Raises:
        typer.BadParameter: an option has another form, or a name occurs twice.
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, mark, value = text.partition("=")
        if not mark or not name.strip() or not value or name.strip() in found:
            raise BadParameter(
                f"{option} must have the form NAME=..., with each name given once; got {text!r}"
            )
        found[name.strip()] = value
    return found


def parse_names(text: str) -> list[str]:
    """Returns the names in a comma-separated list, with ranges such as I1..I13 expanded."""
    from fastio.sources.table.options import expand_range

    return [name for part in text.split(",") for name in expand_range(part.strip())]


def parse_groups(option: str, given: Sequence[str] | None) -> dict[str, list[str]]:
    """Parses NAME=A,B,... options into a dict of lists; see `parse_names`.

    Raises:
        typer.BadParameter: an option has another form, or a name occurs twice.
    """
    return {name: parse_names(members) for name, members in parse_pairs(option, given).items()}


def check_there(data: str | None) -> None:
    """Raises an error if a path does not exist, before imports of torch and others take seconds.

    Args:
        data: path, pattern or URL that a command was given, or None.

    Raises:
        SourceNotFound: there is no such file or folder, and it is neither a pattern nor a URL.
    """
    if data is None or is_remote(data) or _PATTERN & set(data) or os.path.exists(data):
        return
    raise SourceNotFound(f"{data}: no such folder, file or pattern")


class BadParameter(typer.BadParameter):
    """Reports wrong usage of a command; control characters in the message are escaped."""

    def __init__(self, message: str) -> None:
        super().__init__(shown_lines(message))


def complain(message: str) -> None:
    """Prints one line on stderr."""
    print(shown(f"fastio: {' '.join(message.splitlines())}"), file=sys.stderr)


def say(*lines: str) -> None:
    """Prints lines on stdout; control characters in names are escaped."""
    print("\n".join(map(shown, lines)))


def say_json(values: Any) -> None:
    """Prints a line of JSON on stdout."""
    print(json.dumps(shown_values(values)))


def readable_bytes(nbytes: int) -> str:
    """Returns a size in readable form: "512 bytes", "13.4 MiB"."""
    if nbytes < 1024:
        return "1 byte" if nbytes == 1 else f"{nbytes} bytes"
    size = float(nbytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun in the singular or with an s: "1 shard", "1,200 shards"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
