"""What all commands share: how errors end them, and how sizes and counts are written."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.errors import FastioError, SourceNotFound
from fastio.shown import shown, shown_lines, shown_values
from fastio.store.urls import is_remote

if TYPE_CHECKING:
    pass

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
_PATTERN = set("*?[{")

StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-options",
        metavar="KEY=VALUE|JSON",
        help="For a URL: keys, endpoint and the like, in fsspec's or obstore's words; several "
        "times, or once as JSON. Others see command lines: prefer the environment for secrets.",
    ),
]


@contextmanager
def clear_errors() -> Iterator[None]:
    """Errors that users can do something about as one line on stderr, and exit codes.

    Exits with 1 for a FastioError or an error of the file system, with 130 for Ctrl-C. Wrong
    usage is typer's, with 2.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # whoever read the output has read enough; typer ends quietly
    except (FastioError, OSError) as error:
        complain(str(error))
        raise typer.Exit(EXIT_FAILED) from error
    except KeyboardInterrupt as error:
        complain("interrupted")
        raise typer.Exit(EXIT_INTERRUPTED) from error


def parse_storage_options(
    given: Sequence[str] | None, option: str = "--storage-options"
) -> dict[str, Any] | None:
    """What --storage-options says: JSON objects, or KEY=VALUE where true and false are booleans.

    Raises:
        typer.BadParameter: it is neither.
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
    """NAME=TEXT, several times.

    Raises:
        typer.BadParameter: it does not read so, or a name is there twice.
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, mark, value = text.partition("=")
        if not mark or not name.strip() or not value or name.strip() in found:
            raise BadParameter(f"{option} must read like NAME=..., once a name; got {text!r}")
        found[name.strip()] = value
    return found


def parse_names(text: str) -> list[str]:
    """Names with commas between them, and ranges of them."""
    from fastio.formats.tables import expand_range

    return [name for part in text.split(",") for name in expand_range(part.strip())]


def check_there(data: str | None) -> None:
    """Before torch and others are imported, which takes seconds.

    Args:
        data: what a command was given; None: nothing.

    Raises:
        SourceNotFound: there is no file or folder of that name, which is no pattern and no URL.
    """
    if data is None or is_remote(data) or _PATTERN & set(data) or os.path.exists(data):
        return
    raise SourceNotFound(f"{data}: no such folder, file or pattern")


class BadParameter(typer.BadParameter):
    """Wrong usage; what it says may name what stands in data."""

    def __init__(self, message: str) -> None:
        super().__init__(shown_lines(message))


def complain(message: str) -> None:
    """One line on stderr."""
    print(shown(f"fastio: {' '.join(message.splitlines())}"), file=sys.stderr)


def say(*lines: str) -> None:
    """Lines on stdout; a name in one of them begins no other."""
    print("\n".join(map(shown, lines)))


def say_json(values: Any) -> None:
    """A line of JSON on stdout."""
    print(json.dumps(shown_values(values)))


def readable_bytes(nbytes: int) -> str:
    """A size for people: "512 bytes", "13.4 MiB"."""
    if nbytes < 1024:
        return "1 byte" if nbytes == 1 else f"{nbytes} bytes"
    size = float(nbytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def counted(count: int, noun: str) -> str:
    """A count for people, of what takes an s in the plural: "1 shard", "1,200 shards"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
