"""Finds a dataset's files, and drops them from the page cache."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastio.diagnose.facts import Storage
from fastio.runtime.files import only_files
from fastio.store import is_remote

MOST_FILES = 100_000  # that are taken out of the page cache one by one, in a few seconds
_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "beegfs", "afs"}


def local_files(data: Any, most: int = MOST_FILES) -> list[Path]:
    """Returns the local files of a dataset, including those in subfolders; [] if there are none.

    Args:
        data: a path, a pattern, or a list of them.
        most: how many are enough.
    """
    found: list[Path] = []
    for one in data if isinstance(data, (list, tuple)) else [data]:
        if not isinstance(one, (str, os.PathLike)) or is_remote(one):
            continue
        for path in _expanded(str(one)):
            for file in files_below(path):
                found.append(file)
                if len(found) >= most:
                    return found
    return found


def _expanded(pattern: str) -> list[Path]:
    if os.path.exists(pattern):
        return [Path(pattern)]
    # "{000000..000009}" is WebDataset's; for this purpose any tar beside them will do.
    if "{" in pattern:
        pattern = pattern[: pattern.index("{")] + "*" + pattern[pattern.rindex("}") + 1 :]
    return [Path(path) for path in sorted(glob.glob(pattern, recursive=True))]


def files_below(path: Path) -> Iterator[Path]:
    """Yields a file, or the files anywhere below a folder, sorted by folder and name."""
    if path.is_file():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        yield from (Path(folder, name) for name in sorted(names))


@dataclass(frozen=True)
class Piece:
    """A range of bytes of a file."""

    path: Path
    offset: int
    length: int

    def read(self) -> bytes:
        """Returns the bytes.

        Raises:
            OSError: the file cannot be read.
        """
        file = only_files(self.path, os.O_RDONLY)
        try:
            if self.offset:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
            return os.pread(file, self.length, self.offset)
        finally:
            os.close(file)


def first_pieces(pieces: Iterable[Piece], most_bytes: int, seconds: float) -> list[Piece]:
    """Returns the first pieces, at least one, up to a number of bytes and a time for finding them.

    Args:
        pieces: found one by one, which takes a while on a network file system.
        most_bytes: largest sum of their lengths.
        seconds: time after which the next one is not looked for.
    """
    found: list[Piece] = []
    total, end_s = 0, time.monotonic() + seconds
    for piece in pieces:
        total += piece.length
        if found and (total > most_bytes or time.monotonic() > end_s):
            break
        found.append(piece)
    return found


def drop(files: list[Path]) -> None:
    """Drops files from the page cache, except pages that a process has mapped.

    What was not written yet is written first. Files that cannot be opened are left.
    """
    for path in files:
        with suppress(OSError):
            release(path, written=False)


def release(path: Path, offset: int = 0, length: int = 0, *, written: bool = True) -> None:
    """Advises the system to drop a part of a file from the page cache.

    Args:
        path: of the file.
        offset, length: of the part, in bytes; 0: to the end.
        written: False: what was not written to the disk yet, and would stay, is written first.

    Raises:
        OSError: it cannot be opened.
    """
    file = only_files(path, os.O_RDONLY)
    try:
        if not written:
            os.fdatasync(file)
        os.posix_fadvise(file, offset, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def can_drop() -> bool:
    """Returns whether this system supports dropping files from the page cache."""
    return hasattr(os, "posix_fadvise")


def storage_of(data: Any) -> Storage:
    """Returns where a dataset is stored, from its file system or its URL."""
    first = data[0] if isinstance(data, (list, tuple)) and data else data
    if is_remote(first):
        return "network"
    if not isinstance(first, (str, os.PathLike)):
        return "memory"
    kind = file_system(_expanded(str(first))[0]) if _expanded(str(first)) else ""
    if kind in _MEMORY:
        return "memory"
    fuse_store = kind.startswith("fuse.") and any(word in kind for word in ("s3", "gcs", "goofys"))
    return "network" if kind in _NETWORK or fuse_store else "disk"


def file_system(path: Path) -> str:
    """Returns the type of the file system of a path, as Linux names it; "" if unknown."""
    where, kind, longest = os.path.realpath(path), "", -1
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            left, _, right = line.partition(" - ")
            mount = left.split(" ")[4].replace("\\040", " ")
            inside = where == mount or where.startswith(mount.rstrip("/") + "/")
            # Of mounts one over the other the last one counts.
            if inside and len(mount) >= longest:
                kind, longest = right.split(" ")[0], len(mount)
    return kind
