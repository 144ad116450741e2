"""Where a cache folder keeps its files, and the code that writes and deletes them.

    fastio-cache.json      says that the folder is a cache; nothing is touched where it is missing
    index.sqlite           which pieces there are, who fetches what (`index`)
    members/TOKEN          a locked file a process (`members`)
    data/KEY/NNN/NUMBER    the pieces of a source
    tmp/TOKEN.PIECE.N      what TOKEN is writing, each under a name that no other writing ever has

A piece's place is only ever changed by a rename. Who may do that, and when, is not decided here:
see `claims`. Only files of this layout are deleted, and no link in it is followed: see `held`.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from fastio.cache.direct import Aligned, write_direct
from fastio.cache.held import Access, HeldFolder
from fastio.cache.members import is_alive, token_of
from fastio.errors import CacheError

MARKER = "fastio-cache.json"
# A source's name in the index and its folder's in `data/`: FINGERPRINT-BLOCK_ROWS.
KEY = re.compile(r"[0-9a-f]{16,64}-[0-9]{1,19}")
MOST = (1 << 53) - 1  # number of a piece
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")
_PAGE = 4096
_FAN_OUT = 1000
_CHUNK_BYTES = 256 << 10
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Written:
    """The bytes of a piece in a temporary file, not yet in their place.

    Attributes:
        name: of the file in `tmp/`, which is its writer's alone.
        size: bytes in it.
        xxh3: the xxh3_64 of them, as 16 hexadecimal digits.
    """

    name: str
    size: int
    xxh3: str


class Stamp(NamedTuple):
    """What changes with a file."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class Files:
    """The files of a cache folder, which is there. Thread-safe.

    Args:
        top: the cache's folder.
        members: the folder of the members' files.
        token: this member's; what it writes is known by it.

    Attributes:
        members: as given.

    Raises:
        CacheError: a folder in it belongs to others.
        OSError: the folder cannot be written.
    """

    def __init__(self, top: HeldFolder, members: HeldFolder, token: str) -> None:
        self.members = members
        self._top = top
        self._path = str(top.path / "data")
        self._tmp = top.folder("tmp", make=True)
        self._data = top.folder("data", make=True)
        self._token = token
        self._numbers = itertools.count()

    # --- Pieces -----------------------------------------------------------------------------------

    def piece(self, key: str, number: int) -> str:
        """Where a piece is, if it is, by the key of its source.

        Raises:
            CacheError: there can be no such piece.
        """
        _check(key, number)
        return f"{self._path}/{key}/{number // _FAN_OUT}/{number}"

    def stamp(self, key: str, number: int) -> Stamp | None:
        """What changes with a piece's file; None where it is not there.

        Raises:
            CacheError: there can be no such piece, or it cannot be looked at.
        """
        try:
            with self._place(key, number) as folder:
                found = folder.stat(str(number))
        except CacheError:
            raise
        except OSError as error:
            if error.errno in _NOT_THERE:
                return None
            raise CacheError(f"{self.piece(key, number)}: {error}") from error
        return _stamp(found) if stat.S_ISREG(found.st_mode) else None

    def read(self, key: str, number: int, take: Callable[[memoryview], object]) -> Stamp:
        """Reads a piece from its beginning to its end.

        Args:
            take: is given the bytes, some at a time, in memory that is used again.

        Returns:
            What the file was before it was read.

        Raises:
            FileNotFoundError: it is not there.
            CacheError: there can be no such piece, or it cannot be opened.
            OSError: it cannot be read.
        """
        try:
            with self._place(key, number) as folder:
                descriptor = folder.open(str(number))
        except CacheError:
            raise
        except OSError as error:
            where = self.piece(key, number)
            if error.errno in _NOT_THERE:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where) from error
            raise CacheError(f"{where}: {error}") from error
        try:
            found = _stamp(os.fstat(descriptor))
            memory = memoryview(bytearray(min(_READ_BYTES, found.size + 1)))
            while count := os.readv(descriptor, [memory]):
                take(memory[:count])
            return found
        finally:
            os.close(descriptor)

    def unlink(self, key: str, number: int) -> None:
        """Deletes a piece, if it is there and can be deleted."""
        with suppress(OSError), self._place(key, number) as folder:
            folder.unlink(str(number))

    def sources(self) -> list[str]:
        """The keys of sources that have a folder."""
        return sorted(name for name in _names(self._data) if KEY.fullmatch(name))

    def numbers(self, key: str) -> Iterator[list[int]]:
        """The numbers of files that lie where pieces of a source do, a folder's at a time."""
        with suppress(OSError), self._data.folder(key) as top:
            for inner in sorted(filter(_NUMBER.fullmatch, _names(top))):
                with suppress(OSError), top.folder(inner) as folder:
                    found = [int(name) for name in _names(folder) if _NUMBER.fullmatch(name)]
                    yield [number for number in found if str(number // _FAN_OUT) == inner]

    def forget(self, key: str) -> None:
        """Deletes the folders of a source that has no pieces."""
        _check(key, 0)
        with suppress(OSError), self._data.folder(key) as top:
            for inner in filter(_NUMBER.fullmatch, _names(top)):
                top.rmdir(inner)  # fails where it holds something
        self._data.rmdir(key)

    @contextmanager
    def _place(self, key: str, number: int, *, make: bool = False) -> Iterator[HeldFolder]:
        """The folder that a piece lies in.

        Raises:
            CacheError: there can be no such piece, or the folder belongs to others.
            OSError: it is not there.
        """
        _check(key, number)
        with (
            self._data.folder(key, make=make) as top,
            top.folder(str(number // _FAN_OUT), make=make) as folder,
        ):
            yield folder

    # --- What is being written --------------------------------------------------------------------

    def write(self, name: str, parts: Sequence[Any] | Aligned) -> Written:
        """Writes the bytes of a piece beside its place.

        They are not flushed to the disk: after a power cut the index may name a piece that lacks
        some of them, which is found when it is first opened.

        Args:
            name: stands for the piece, without dots.
            parts: bytes-like objects, which follow one another in the file; or all bytes in memory
                from which they are written past the system's page cache, where the file system can.

        Raises:
            OSError: they cannot be written; nothing is left of them.
        """
        name = f"{self._token}.{name}.{next(self._numbers)}"
        digest = xxhash.xxh3_64()
        try:
            if not isinstance(parts, Aligned):
                size = self._write_file(name, parts, digest)
            else:
                size = parts.nbytes
                digest.update(parts.data)  # from the processor's cache, which the disk would empty
                if not write_direct(self._tmp, name, parts):
                    self._write_file(name, [parts.data])
        except BaseException:
            self._tmp.unlink(name)
            raise
        return Written(name, size, digest.hexdigest())

    def _write_file(self, name: str, parts: Sequence[Any], digest: Any = None) -> int:
        """Writes parts that follow one another, and adds them to a hash; returns their bytes."""
        size = 0
        descriptor = self._tmp.create(name)
        try:
            for part in parts:
                data = memoryview(part).cast("B")
                size += data.nbytes
                for begin in range(0, data.nbytes, _CHUNK_BYTES):
                    # Hashed and then written from the processor's cache.
                    chunk = data[begin : begin + _CHUNK_BYTES]
                    if digest is not None:
                        digest.update(chunk)
                    _write_all(descriptor, chunk)
        finally:
            os.close(descriptor)
        return size

    def put(self, written: Written, key: str, number: int) -> bool:
        """Puts what was written in the piece's place.

        Returns:
            False where it is not there any more.

        Raises:
            OSError: it cannot be put there.
        """
        if not self._tmp.has(written.name):
            return False
        with self._place(key, number, make=True) as folder:
            self._tmp.rename(written.name, folder, str(number))
        return True

    def throw_away(self, written: Written) -> None:
        """Deletes what was written, if it is still there."""
        self._tmp.unlink(written.name)

    def discard(self, token: str, name: str | None = None) -> None:
        """Deletes what a member has written and not put in its place; of one piece, or all."""
        begin = f"{token}." if name is None else f"{token}.{name}."
        with suppress(OSError):
            for found in self._tmp.names():
                if found.startswith(begin) and token_of(found) == token:
                    self._tmp.unlink(found)

    def discard_dead(self) -> None:
        """Deletes what members have written that are dead."""
        with suppress(OSError):
            for name in self._tmp.names():
                owner = token_of(name)
                if owner is not None and not is_alive(self.members, owner):
                    self._tmp.unlink(name)


def _check(key: str, number: int) -> None:
    """Refuses what would lead out of the folder: the index may have been written by anybody.

    Raises:
        CacheError: it is no key of a source, or no number of a piece.
    """
    fits = isinstance(key, str) and KEY.fullmatch(key)
    if not fits or not isinstance(number, int) or not 0 <= number <= MOST:
        raise CacheError(
            f"the cache's index names the piece {number!r} of {key!r}, which is not possible: the "
            "index is damaged; delete the cache folder"
        )


def _stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _names(folder: HeldFolder) -> list[str]:
    try:
        return folder.names()
    except OSError:
        return []


def on_disk(size: int) -> int:
    """Bytes that a file of this size takes."""
    return -(-size // _PAGE) * _PAGE


def take_folder(path: Path, access: Access) -> HeldFolder:
    """Makes a cache folder of an empty or missing one, and opens it.

    Raises:
        CacheError: it holds something else, belongs to others, or others may write to it.
        OSError: it cannot be made.
    """
    folder = HeldFolder.top(path, access)
    if folder.has(MARKER):
        return folder
    # What an opening that was killed, or one that is under way, may have made.
    ours = {MARKER, "members", "tmp", "data"}
    others = [name for name in folder.names() if name not in ours and "index.sqlite" not in name]
    others = [name for name in others if not name.startswith(f".{MARKER}")]
    if others:
        raise CacheError(
            f"{path} is no cache of fastio's, and not empty ({others[0]!r}): give an empty folder "
            "or one that does not exist yet"
        )
    temporary = f".{MARKER}.{secrets.token_hex(6)}"
    descriptor = folder.create(temporary)
    try:
        _write_all(descriptor, memoryview(json.dumps({"fastio_cache": 1}).encode() + b"\n"))
    finally:
        os.close(descriptor)
    folder.rename(temporary, folder, MARKER)
    return folder


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
