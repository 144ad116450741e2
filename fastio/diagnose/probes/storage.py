"""Probes of where files lie: how much of them is in memory, and how fast the disk gives the rest.

For a cold read, pages of a few files are given back to the system first, as it does itself when
memory is short; nothing is written.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastio.diagnose.facts import StorageFacts
from fastio.diagnose.probes.data import (
    Context,
    Piece,
    chosen,
    file_system,
    first_pieces,
    release,
    storage_of,
)
from fastio.diagnose.probes.rates import image_loader, loader_part
from fastio.runtime.files import only_files
from fastio.runtime.threads import DaemonPool

_MOST_BYTES = 64 << 20  # that a measurement reads
_MOST_S = 2.0
_MOST_READS = 1024
_PARALLEL = 8
_LARGE_BYTES = 16 << 20  # least size of a file for the sequential read
_CHUNK_BYTES = 1 << 20
_LOOKED_AT = 256  # most files whose resident pages are counted
_MAPPED_BYTES = 1 << 30  # and their most bytes
_CHECKED = 32  # pieces whose pages are counted after they were dropped
_STILL_THERE = 0.5  # share of these pages: above it, the system has kept them


def storage_facts(context: Context) -> StorageFacts | None:
    """Measures how fast a dataset's files on this machine are read; None if there are none."""
    data, use = context.data, context.use
    if not data.files:
        return None
    first = data.files[0]
    pieces = _pieces(data.files, round(data.facts.sample_bytes))
    # Each measurement reads pieces of its own, because those that another one has read may be in
    # memory.
    half = len(pieces) // 2
    probes: dict[str, tuple[Any, ...]] = {
        "resident_share": ("page cache", resident_share, chosen(data.files, _LOOKED_AT)),
        "cold_reads_s": ("cold reads", cold_rate, pieces[:half], 1),
        "cold_reads_parallel_s": ("parallel cold reads", cold_rate, pieces[half:], _PARALLEL),
    }
    large = [file for file in data.files[:1000] if file.stat().st_size >= _LARGE_BYTES]
    if large:
        probes["sequential_bytes_s"] = ("a sequential read", sequential_rate, large[-1])
    if data.facts.kind in ("folder", "packed"):
        probes["cold_loader_s"] = ("a cold loader", cold_loader_rate, context)
    if use.scratch is not None:
        name = "writing to the scratch folder"
        probes["write_bytes_s"] = (name, write_rate, Path(use.scratch))
    return StorageFacts(
        file_system=file_system(first) or "unknown",
        network=storage_of(first) == "network",
        rotating=rotating(first),
        read_bytes=sum(piece.length for piece in pieces) / max(1, len(pieces)),
        **context.attempts.each(probes),
    )


def resident_share(files: Sequence[Path]) -> float | None:
    """Returns the share of the files' pages that are in the page cache.

    Raises:
        PermissionError: the system tells owners only (Linux says "all" to others).
    """
    there = pages = mapped = 0
    for path in files:
        size = path.stat().st_size
        if not size or mapped > _MAPPED_BYTES:
            continue
        mapped += size
        found, of = resident_pages(path)
        there, pages = there + found, pages + of
    return there / pages if pages else None


def resident_pages(path: Path, offset: int = 0, length: int | None = None) -> tuple[int, int]:
    """Returns the number of a range's pages in memory, and of all its pages, from mincore(2).

    Args:
        path: the path of the file.
        offset, length: the range in bytes; a length of None goes to the end.

    Raises:
        PermissionError: the file is another user's, and cannot be written.
        OSError: it cannot be mapped.
    """
    about = path.stat()
    if about.st_uid != os.geteuid() and not os.access(path, os.W_OK):
        raise PermissionError(
            "the system does not report which parts of other users' files are in the page cache"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    # ctypes takes the address of a writable mapping only. This one is private, so nothing is
    # written to the file.
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as memory:
        pages = -(-len(memory) // mmap.PAGESIZE)
        told = (ctypes.c_ubyte * pages)()
        place = ctypes.c_char.from_buffer(memory)
        try:
            size = ctypes.c_size_t(len(memory))
            if libc.mincore(ctypes.c_void_p(ctypes.addressof(place)), size, told):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            # A mapping cannot be closed while an object refers to its memory.
            del place
        end = len(memory) if length is None else offset + length
        part = told[offset // mmap.PAGESIZE : -(-end // mmap.PAGESIZE)]
        # mincore(2) defines only the lowest bit of each byte.
        return sum(page & 1 for page in part), len(part)


def cold_rate(pieces: Sequence[Piece], threads: int) -> float | None:
    """Returns the reads per second from disk.

    Raises:
        OSError: a file cannot be read, or its pages cannot be taken out of memory.
    """
    give_back(pieces)
    return read_rate(pieces, threads)


def give_back(pieces: Sequence[Piece]) -> None:
    """Drops pieces from the page cache.

    Raises:
        OSError: they cannot be opened, or the system keeps them.
    """
    for piece in pieces:
        release(piece.path, piece.offset, piece.length)
    _check_given_back(pieces[:_CHECKED])


def _check_given_back(pieces: Sequence[Piece]) -> None:
    with suppress(PermissionError):
        found = [
            resident_pages(piece.path, piece.offset, piece.length)
            for piece in pieces
            if piece.length  # an empty file, which cannot be mapped
        ]
        if sum(there for there, _ in found) > _STILL_THERE * sum(of for _, of in found):
            raise OSError(
                "the system keeps them in the page cache: they were just written, or "
                "are mapped by a process"
            )


def read_rate(pieces: Sequence[Piece], threads: int) -> float | None:
    """Returns the reads per second of a number of threads, measured until the time limit.

    Raises:
        OSError: a file cannot be read.
    """
    end_s = time.monotonic() + _MOST_S
    began_s = time.perf_counter()
    with DaemonPool(threads, "fastio-doctor") as pool:
        done = sum(pool.map(lambda piece: _read(piece, end_s), pieces))
    return done / max(time.perf_counter() - began_s, 1e-9) if done else None


def sequential_rate(path: Path) -> float | None:
    """Returns the bytes per second of a sequential read from disk.

    Raises:
        OSError: it cannot be read, or its pages cannot be taken out of memory.
    """
    length = min(path.stat().st_size, 2 * _MOST_BYTES)
    give_back([Piece(path, 0, length)])
    end_s, done = time.monotonic() + _MOST_S, 0
    began_s = time.perf_counter()
    with open(path, "rb", buffering=0, opener=only_files) as file:
        while done < length and time.monotonic() < end_s:
            read = len(file.read(_CHUNK_BYTES))
            if not read:
                break
            done += read
    return done / max(time.perf_counter() - began_s, 1e-9) if done else None


def write_rate(folder: Path) -> float:
    """Returns the bytes per second of writing a new file to disk. The file is deleted again.

    Raises:
        OSError: it cannot be written.
    """
    block = os.urandom(_CHUNK_BYTES)
    end_s, done = time.monotonic() + _MOST_S, 0
    with tempfile.TemporaryFile(dir=folder) as file:
        began_s = time.perf_counter()
        while done < _MOST_BYTES and time.monotonic() < end_s:
            done += file.write(block)
        file.flush()
        # The data is flushed, so that the disk is measured and not the page cache.
        os.fsync(file.fileno())
        return done / max(time.perf_counter() - began_s, 1e-9)


def rotating(path: Path) -> bool | None:
    """Returns whether a file's disk is a rotating one; None if the system does not say."""
    with suppress(OSError, ValueError):
        device = path.stat().st_dev
        disk = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
        for folder in (disk, disk.parent):  # of a partition, that of its disk
            flag = folder / "queue" / "rotational"
            if flag.exists():
                return flag.read_text().strip() == "1"
    return None


def _pieces(files: Sequence[Path], read_bytes: int) -> list[Piece]:
    """Returns random whole small files, or ranges of large ones, up to a number of bytes."""
    draws = random.Random(1)
    pieces: list[Piece] = []
    total = 0
    for path in chosen(files, _MOST_READS, seed=1) * max(1, _MOST_READS // len(files)):
        size = path.stat().st_size
        if not size:
            continue
        whole = not read_bytes or size <= 2 * read_bytes
        length = size if whole else read_bytes
        length = min(length, _MOST_BYTES // 4)
        offset = 0 if whole else draws.randrange(size - length)
        total += length
        if pieces and total > 2 * _MOST_BYTES:
            break
        pieces.append(Piece(path, offset, length))
    return list(dict.fromkeys(pieces))


def _read(piece: Piece, end_s: float) -> int:
    """Reads a piece. Returns 1, or 0 if no time is left."""
    if time.monotonic() > end_s:
        return 0
    piece.read()
    return 1


# --- A loader whose images are not in memory ------------------------------------------------------

_ROWS = 1024
_BYTES = 256 << 20
_CHOOSING_S = 3.0  # time to find images, each of which takes a while on a network file system
_SECONDS = 2.5
_BATCH, _AHEAD = 16, 4  # small, so that even a slow disk delivers some batches


def cold_loader_rate(context: Context) -> float | None:
    """Returns the samples per second of a loader that reads images from disk.

    Raises:
        FastioError, OSError: they cannot be read, or their pages cannot be taken out of memory.
    """
    with context.data.images(_ROWS) as images:
        if images is None:
            return None
        pieces = first_pieces(images.pieces(), _BYTES, _CHOOSING_S)
        give_back(pieces)
        few = replace(images, rows=images.rows[: len(pieces)])
        threads = context.use.threads or context.cores
        loader = image_loader(few, threads, context.steps.native, _BATCH, _AHEAD, again=False)
        part = loader_part(loader, _SECONDS, warm_samples=_BATCH * (_AHEAD + 1), once=True)
    return None if part is None else part.rate
