"""Where a cache folder keeps its files, and the code that writes and deletes them.

    fastio-cache.json      says that the folder is a cache; nothing is touched where it is missing
    index.sqlite           which pieces there are, who fetches what (`index`)
    members/TOKEN          a locked file a process (`members`)
    data/KEY/NNN/NUMBER    the pieces of a source
    tmp/TOKEN.PIECE.N      what TOKEN is writing, each under a name that no other writing ever has

A piece's place is only ever changed by a rename, so what is there is whole. Who may do that, and
when, is not decided here: see `claims`. Only files of this layout are deleted.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from fastio.cache.direct import Aligned, write_direct
from fastio.cache.members import is_alive, token_of
from fastio.errors import CacheError

MARKER = "fastio-cache.json"
_PAGE = 4096
_FAN_OUT = 1000
_CHUNK_BYTES = 256 << 10


@dataclass(frozen=True)
class Written:
    """The bytes of a piece in a temporary file, not yet in their place.

    Attributes:
        path: of the file, which is its writer's alone.
        size: bytes in it.
        xxh3: the xxh3_64 of them, as 16 hexadecimal digits.
    """

    path: Path
    size: int
    xxh3: str


class Files:
    """The files of a cache folder, which is there. Thread-safe.

    Args:
        path: the folder.
        token: this member's; what it writes is known by it.

    Attributes:
        members: where the files of the members are.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, path: Path, token: str) -> None:
        self.members = path / "members"
        self._data = str(path / "data")
        self._tmp = path / "tmp"
        self._token = token
        self._numbers = itertools.count()
        self._tmp.mkdir(exist_ok=True)

    # --- Pieces -----------------------------------------------------------------------------------

    def piece(self, key: str, number: int) -> str:
        """Where a piece is, if it is, by the key of its source."""
        return f"{self._data}/{key}/{number // _FAN_OUT}/{number}"

    def has(self, key: str, number: int, size: int) -> bool:
        """Whether a piece is there and has its size."""
        try:
            return os.stat(self.piece(key, number)).st_size == size
        except OSError:
            return False

    def unlink(self, key: str, number: int) -> None:
        """Deletes a piece, if it is there and can be deleted."""
        with suppress(OSError):
            os.unlink(self.piece(key, number))

    # --- What is being written --------------------------------------------------------------------

    def write(self, name: str, parts: Sequence[Any] | Aligned) -> Written:
        """Writes the bytes of a piece beside its place.

        Args:
            name: stands for the piece, without dots.
            parts: bytes-like objects, which follow one another in the file; or all bytes in memory
                from which they are written past the system's page cache, where the file system can.

        Raises:
            OSError: they cannot be written; nothing is left of them.
        """
        path = self._tmp / f"{self._token}.{name}.{next(self._numbers)}"
        digest = xxhash.xxh3_64()
        try:
            if not isinstance(parts, Aligned):
                size = _write_file(path, parts, digest)
            else:
                size = parts.nbytes
                digest.update(parts.data)  # from the processor's cache, which the disk would empty
                if not write_direct(path, parts):
                    _write_file(path, [parts.data])
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise
        return Written(path, size, digest.hexdigest())

    def put(self, written: Written, key: str, number: int) -> bool:
        """Puts what was written in the piece's place.

        Returns:
            False where it is not there any more.

        Raises:
            OSError: it cannot be put there.
        """
        target = Path(self.piece(key, number))
        try:
            os.rename(written.path, target)
        except FileNotFoundError:
            if not written.path.exists():
                return False
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(written.path, target)
        return True

    def discard(self, token: str, name: str | None = None) -> None:
        """Deletes what a member has written and not put in its place; of one piece, or all."""
        with suppress(OSError):
            for path in self._tmp.glob(f"{token}.*" if name is None else f"{token}.{name}.*"):
                path.unlink()

    def discard_dead(self) -> None:
        """Deletes what members have written that are dead."""
        with suppress(OSError):
            for name in os.listdir(self._tmp):
                owner = token_of(name)
                if owner is not None and not is_alive(self.members, owner):
                    with suppress(OSError):
                        (self._tmp / name).unlink()


def on_disk(size: int) -> int:
    """Bytes that a file of this size takes."""
    return -(-size // _PAGE) * _PAGE


def take_folder(path: Path) -> None:
    """Makes a cache folder of an empty or missing one.

    Raises:
        CacheError: it holds something else.
        OSError: it cannot be made.
    """
    path.mkdir(parents=True, exist_ok=True)
    marker = path / MARKER
    if marker.exists():
        return
    # What an opening that was killed, or one that is under way, may have made.
    ours = {MARKER, "members", "tmp", "data"}
    others = [name for name in os.listdir(path) if name not in ours and "index.sqlite" not in name]
    others = [name for name in others if not name.startswith(f".{MARKER}")]
    if others:
        raise CacheError(
            f"{path} is no cache of fastio's, and not empty ({others[0]!r}): give an empty folder "
            "or one that does not exist yet"
        )
    temporary = path / f".{MARKER}.{secrets.token_hex(6)}"
    temporary.write_text(json.dumps({"fastio_cache": 1}) + "\n")
    os.rename(temporary, marker)


def _write_file(path: Path, parts: Sequence[Any], digest: Any = None) -> int:
    """Writes parts that follow one another, and adds them to a hash; returns their bytes."""
    size = 0
    with open(path, "wb", buffering=0) as file:
        for part in parts:
            data = memoryview(part).cast("B")
            size += data.nbytes
            for begin in range(0, data.nbytes, _CHUNK_BYTES):
                # Hashed and then written from the processor's cache.
                chunk = data[begin : begin + _CHUNK_BYTES]
                if digest is not None:
                    digest.update(chunk)
                _write_all(file.fileno(), chunk)
    return size


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
