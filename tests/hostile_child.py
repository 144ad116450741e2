"""Does everything with paths that may be hostile, each in a forked process, and tells how it ended.

`run` is given REPORT WAY,... NAME=PATH...
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import tempfile
from typing import Any

import torch

import fastio
import fastio.cli.info
import fastio.cli.show
import fastio.cli.verify
import fastio.feed.row_groups
import fastio.loader
import fastio.pack
from fastio.cli import main

assert torch  # all of it is loaded before the first child

_LIMIT_S = 120


def loader(path: str, folder: str) -> None:
    """All batches."""
    with fastio.Loader(path, batch_size=64, num_workers=1) as batches:
        for _ in batches:
            pass


def index(path: str, folder: str) -> None:
    """Some rows."""
    dataset: Any = fastio.open(path)
    for row in range(0, len(dataset), 100):
        dataset[row]


def pack(path: str, folder: str) -> None:
    """All of it, packed."""
    fastio.pack(path, os.path.join(folder, "packed"))


def each(path: str, folder: str) -> None:
    """Every row of every Arrow file of a folder; fastio's own errors are right."""
    for name in sorted(os.listdir(path)):
        if name.endswith(".arrow"):
            with contextlib.suppress(fastio.FastioError):
                for row in fastio.open(os.path.join(path, name)):
                    assert isinstance(row, dict)


def cut(path: str, folder: str, file: str) -> None:
    """Batches of what is cut off meanwhile, in the middle of a page."""
    with fastio.Loader(path, batch_size=64, shuffle=True, seed=3, num_workers=1) as batches:
        for _ in range(2):
            for number, _ in enumerate(batches):
                if number == 3:
                    os.truncate(file, os.path.getsize(file) // 2 + 100)


WAYS = {"loader": loader, "index": index, "pack": pack, "each": each}


def command(name: str, path: str) -> tuple[str, str]:
    """A command of the terminal: "ok" or "refused", and what it said."""
    said = io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main([name, path])
        except SystemExit as exit:
            code = exit.code
    return ("refused" if code else "ok"), said.getvalue()


def outcome(way: str, path: str, folder: str) -> tuple[str, str]:
    """How one way ends: "ok", "refused", or the name of an error; and what it says."""
    try:
        if way.startswith("cut:"):
            cut(path, folder, way.removeprefix("cut:"))
        elif way not in WAYS:
            return command(way, path)
        else:
            WAYS[way](path, folder)
    except BaseException as error:
        return type(error).__name__, str(error)
    return "ok", ""


def forked(way: str, path: str) -> tuple[str, str]:
    """`outcome` in another process, or the signal that ended it."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as file:
        child = os.fork()
        if not child:
            signal.alarm(_LIMIT_S)
            file.write(json.dumps(outcome(way, path, folder)).encode())
            file.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return "killed", signal.Signals(os.WTERMSIG(status)).name
        file.seek(0)
        told: tuple[str, str] = json.loads(file.read())
        return told


def run(arguments: list[str]) -> None:
    """See above."""
    report, ways, *given = arguments
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for each in given:
        name, _, path = each.partition("=")
        found[name] = {way: forked(way, path) for way in ways.split(",")}
    with open(report, "w", encoding="utf-8") as file:
        json.dump(found, file)
