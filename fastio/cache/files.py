"""The files of a cache folder: where they are, and the code that writes and deletes them.

    fastio-cache.json      marks the folder as a cache; a folder without it is never modified
    index.sqlite           which pieces exist, and which process fetches what (`index`)
    members/TOKEN          one locked file for each process (`members`)
    data/KEY/NNN/NUMBER    the pieces of a source, about a thousand blocks in a folder
    tmp/TOKEN.PIECE.N      files that the member TOKEN is writing; each name is used only once

A piece's file is replaced only by a rename. `claims` decides which process may do that, and when.
Only files of this layout are deleted, and symbolic links in it are not followed: see `held`.
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
from fastio.cache.editions import block_of
from fastio.cache.held import Access, HeldFolder
from fastio.cache.members import is_alive, token_of
from fastio.errors import CacheError

MARKER = "fastio-cache.json"
# A source's name in the index and its folder's in `data/`: FINGERPRINT-BLOCK_ROWS.
KEY = re.compile(r"[0-9a-f]{16,64}-[0-9]{1,19}")
MOST = (1 << 63) - 1  # the largest number of a piece
# O_NOFOLLOW fails with ELOOP for a symbolic link, which is never a piece.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_PAGE = 4096
_FAN_OUT = 1000
_CHUNK_BYTES = 256 << 10
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Written:
    """A temporary file that holds the bytes of a piece.

    Attributes:
        name: The file's name in `tmp/`. No other process uses it.
        size: The file's size in bytes.
        xxh3: The xxh3_64 of the contents, as 16 hexadecimal digits.
    """

    name: str
    size: int
    xxh3: str


class FileStamp(NamedTuple):
    """The properties of a file that change when the file is replaced or written to."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class Files:
    """The files of an existing cache folder. Thread-safe.

    Methods raise CacheError if the key or the number of a piece is not valid.

    Args:
        top, members: The cache's folder, and the folder of the members' files.
        token: The token of this member. The names of its temporary files begin with it.

    Raises:
        CacheError: A folder in it belongs to another user.
        OSError: The folder cannot be written to.
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
        """Returns the path of a piece's file, whether or not the file exists."""
        _check(key, number)
        return f"{self._path}/{key}/{_inner(number)}/{number}"

    def stamp(self, key: str, number: int) -> FileStamp | None:
        """Returns the stamp of a piece's file; None if there is no such file."""
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

    def read(self, key: str, number: int, take: Callable[[memoryview], object]) -> FileStamp:
        """Reads a whole piece, and returns the file's stamp before the read.

        Args:
            key, number: The piece.
            take: Called with consecutive parts of the contents, whose memory is reused.

        Raises:
            FileNotFoundError: There is no such file.
            CacheError: The file cannot be opened.
            OSError: The file cannot be read.
        """
        with self._opened(key, number) as descriptor:
            found = _stamp(os.fstat(descriptor))
            memory = memoryview(bytearray(min(_READ_BYTES, found.size + 1)))
            while count := os.readv(descriptor, [memory]):
                take(memory[:count])
            return found

    @contextmanager
    def _opened(self, key: str, number: int) -> Iterator[int]:
        """Opens the file of a piece and yields its descriptor. Raises the errors of `read`."""
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
            yield descriptor
        finally:
            os.close(descriptor)

    def begin(self, key: str, number: int, nbytes: int) -> tuple[FileStamp, bytes]:
        """Returns a piece's stamp and its first `nbytes` bytes, or fewer if it has no more.

        Raises:
            FileNotFoundError, CacheError, OSError: As `read`.
        """
        with self._opened(key, number) as descriptor:
            return _stamp(os.fstat(descriptor)), os.pread(descriptor, nbytes, 0)

    def digest(self, key: str, number: int) -> tuple[FileStamp, str]:
        """Returns a piece's stamp and the xxh3_64 of its contents, in hexadecimal; see `read`."""
        digest = xxhash.xxh3_64()
        stamp = self.read(key, number, digest.update)
        return stamp, digest.hexdigest()

    def unlink(self, key: str, number: int) -> None:
        """Deletes a piece. Does nothing if it does not exist or cannot be deleted."""
        with suppress(OSError), self._place(key, number) as folder:
            folder.unlink(str(number))

    def sources(self) -> list[str]:
        """Returns the keys of the sources that have a folder, sorted."""
        return sorted(name for name in _names(self._data) if KEY.fullmatch(name))

    def numbers(self, key: str) -> Iterator[list[int]]:
        """Yields, for each folder of a source, the numbers of the pieces whose files are in it."""
        with suppress(OSError), self._data.folder(key) as top:
            for inner in sorted(filter(_NUMBER.fullmatch, _names(top))):
                with suppress(OSError), top.folder(inner) as folder:
                    found = [int(name) for name in _names(folder) if _NUMBER.fullmatch(name)]
                    yield [number for number in found if _inner(number) == inner]

    def forget(self, key: str) -> None:
        """Deletes the folders of a source. Folders that still hold pieces are kept."""
        _check(key, 0)
        with suppress(OSError), self._data.folder(key) as top:
            for inner in filter(_NUMBER.fullmatch, _names(top)):
                top.rmdir(inner)  # does nothing if the folder is not empty
        self._data.rmdir(key)

    @contextmanager
    def _place(self, key: str, number: int, *, make: bool = False) -> Iterator[HeldFolder]:
        """Opens the folder of a piece."""
        _check(key, number)
        with (
            self._data.folder(key, make=make) as top,
            top.folder(_inner(number), make=make) as folder,
        ):
            yield folder

    # --- What is being written --------------------------------------------------------------------

    def write(self, name: str, parts: Sequence[Any] | Aligned) -> Written:
        """Writes the bytes of a piece to a temporary file.

        The file is not flushed to the disk. After a power failure the index may list a piece whose
        file is incomplete; this is detected when the piece is first opened.

        Args:
            name: Identifies the piece; without dots.
            parts: Bytes-like objects that are written one after another; or an `Aligned` buffer,
                which is written with direct I/O if the file system supports it.
        """
        name = f"{self._token}.{name}.{next(self._numbers)}"
        try:
            if isinstance(parts, Aligned):
                if not write_direct(self._tmp, name, parts):
                    self._write_file(name, [parts.data])
                return Written(name, parts.nbytes, parts.xxh3)
            digest = xxhash.xxh3_64()
            size = self._write_file(name, parts, digest)
        except BaseException:
            self._tmp.unlink(name)
            raise
        return Written(name, size, digest.hexdigest())

    def _write_file(self, name: str, parts: Sequence[Any], digest: Any = None) -> int:
        """Writes parts one after another, adds them to a hash, and returns their total size."""
        size = 0
        descriptor = self._tmp.create(name)
        try:
            for part in parts:
                data = memoryview(part).cast("B")
                size += data.nbytes
                for begin in range(0, data.nbytes, _CHUNK_BYTES):
                    # Small chunks are still in the CPU cache when they are written after hashing.
                    chunk = data[begin : begin + _CHUNK_BYTES]
                    if digest is not None:
                        digest.update(chunk)
                    _write_all(descriptor, chunk)
        finally:
            os.close(descriptor)
        return size

    def put(self, written: Written, key: str, number: int) -> bool:
        """Moves a temporary file to the place of its piece. Returns False if it does not exist."""
        # Another process may have taken this one for dead, and deleted its temporary files.
        if not self._tmp.has(written.name):
            return False
        with self._place(key, number, make=True) as folder:
            self._tmp.rename(written.name, folder, str(number))
        return True

    def throw_away(self, written: Written) -> None:
        """Deletes a temporary file, if it still exists."""
        self._tmp.unlink(written.name)

    def discard(self, token: str, name: str | None = None) -> None:
        """Deletes a member's temporary files: those of one piece, or all if `name` is None."""
        begin = f"{token}." if name is None else f"{token}.{name}."
        with suppress(OSError):
            for found in self._tmp.names():
                if found.startswith(begin) and token_of(found) == token:
                    self._tmp.unlink(found)

    def discard_dead(self) -> None:
        """Deletes the temporary files of dead members."""
        with suppress(OSError):
            for name in self._tmp.names():
                owner = token_of(name)
                if owner is not None and not is_alive(self.members, owner):
                    self._tmp.unlink(name)


def _check(key: str, number: int) -> None:
    """Refuses a key or number that could lead outside the folder. The index is not trusted."""
    fits = isinstance(key, str) and KEY.fullmatch(key)
    if not fits or not isinstance(number, int) or not 0 <= number <= MOST:
        raise CacheError(
            f"the cache's index names the piece {number!r} of {key!r}, which is impossible: "
            "the index is damaged. Delete the cache folder"
        )


def _inner(number: int) -> str:
    """Returns the name of the folder of a piece within that of its source."""
    return str(block_of(number) // _FAN_OUT)


def _stamp(found: os.stat_result) -> FileStamp:
    return FileStamp(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _names(folder: HeldFolder) -> list[str]:
    try:
        return folder.names()
    except OSError:
        return []


def on_disk(size: int) -> int:
    """Returns the number of bytes that a file of this size takes on the disk."""
    return -(-size // _PAGE) * _PAGE


def take_folder(path: Path, access: Access) -> HeldFolder:
    """Opens a cache folder, and makes an empty or missing folder a cache first.

    Raises:
        CacheError: If it holds other data, belongs to another user, or is writable by others.
        OSError: If it cannot be created.
    """
    folder = HeldFolder.top(path, access)
    if folder.has(MARKER):
        return folder
    # An earlier call that was killed, or one that runs now, may have created some of these.
    ours = {MARKER, "members", "tmp", "data"}
    others = [name for name in folder.names() if name not in ours and "index.sqlite" not in name]
    others = [name for name in others if not name.startswith(f".{MARKER}")]
    if others:
        raise CacheError(
            f"{path} is not a fastio cache, and is not empty ({others[0]!r}). Give an empty "
            "folder, or one that does not exist yet"
        )
    # The marker is renamed into place, so that a killed process leaves no incomplete marker.
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
