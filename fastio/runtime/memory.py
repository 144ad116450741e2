"""Measures and limits the use of memory, and allocates memory in huge pages."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastio.runtime.lifecycle import after_fork
from fastio.runtime.threads import WAIT_S

# What one sample may take, where nobody says: pixels of an image (about what Pillow itself
# refuses), and bytes that a zipped file holds.
MAX_PIXELS = 178_956_970
MAX_UNZIPPED_BYTES = 256 << 20

HUGE_PAGE = 2 << 20
_MEMINFO = Path("/proc/meminfo")
_MAPS = Path("/proc/self/smaps")
_CGROUPS = (  # limit and use, of control groups version 2 and 1, as a container sees its own
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_memory() -> int:
    """Returns the bytes that could be allocated now without swapping; 0 if that is not known.

    A container's limit counts, with its page cache taken as used.
    """
    room = _available_on_machine()
    for limit, used in _CGROUPS:
        with suppress(OSError, ValueError):
            room = min(room, int(Path(limit).read_text()) - int(Path(used).read_text()))
    return max(0, room)


def total_memory() -> int:
    """Returns the size in bytes of this machine's memory, or the container's limit if smaller."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit, _ in _CGROUPS:
        with suppress(OSError, ValueError):
            total = min(total, int(Path(limit).read_text()))
    return total


def nominal_memory() -> int:
    """Returns the size in bytes of this machine's memory, rounded down to four binary digits.

    Ranks that share an epoch must choose the same order. Unlike the available memory, this size is
    the same for all ranks on machines of one kind, at any time.
    """
    total = total_memory()
    return total >> (digits := max(0, total.bit_length() - 4)) << digits


def huge_page_share(files: Iterable[str | os.PathLike[str]]) -> float:
    """Returns the part of the mapped memory of files that this process has as huge pages.

    Translating the addresses of small pages takes most of the time of reads at random places. File
    systems with large folios (XFS since Linux 5.18, ext4 since 6.16) give huge pages to the page
    cache. 1.0 if the system does not tell, or nothing is mapped.
    """
    inodes = {str(os.stat(path).st_ino) for path in files}
    kib = {"Rss": 0, "FilePmdMapped": 0, "ShmemPmdMapped": 0}
    wanted = False
    with suppress(OSError), open(_MAPS, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            # "address rights offset device inode path", or "Rss:  4 kB".
            name, value, *rest = line.split(maxsplit=5)
            if not name.endswith(":"):
                wanted = rest[2:3] != [] and rest[2] in inodes
            elif wanted and name[:-1] in kib:
                kib[name[:-1]] += int(value)
    mapped = kib.pop("Rss")
    return sum(kib.values()) / mapped if mapped else 1.0


def huge_pages(nbytes: int) -> mmap.mmap:
    """Returns zeroed memory of at least `nbytes` bytes, in huge pages if the system has them.

    Raises:
        OSError, OverflowError: so much memory, or address space, is not available.
    """
    # mmap(2) refuses a length of 0.
    size = -(-max(nbytes, 1) // HUGE_PAGE) * HUGE_PAGE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # without huge pages, small ones are used
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class ReusedMemory:
    """A block of memory that is reused when nothing refers to it any more, by one thread at a time.

    New memory causes page faults, which take longer than writing to memory that was used before.
    If the block is still in use, new memory is returned.

    Args:
        keep: The largest size in bytes of memory that is kept.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._memory = np.empty(0, np.uint8)
        self._user: weakref.ref[Any] | None = None

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Returns memory with undefined contents: uint8 (nbytes,)."""
        if nbytes > self._keep or (self._user is not None and self._user() is not None):
            return np.empty(nbytes, np.uint8)
        if len(self._memory) < nbytes:
            self._memory = np.empty(nbytes, np.uint8)
        # In NumPy, a view of a view refers only to the array that owns the memory. With a
        # memoryview in between, all views keep the memoryview alive, and its end is watched.
        view = np.asarray(self._memory[:nbytes].data)
        holder: Any = view.base
        self._user = weakref.ref(holder)
        return view


class Room:
    """Limits the memory that threads take at the same time to half of what is available.

    A thread that needs more than is left waits until others give memory back. If no other thread
    has taken any, it does not wait. A forked child has a limit of its own.

    Args:
        freely: number of bytes up to which work never waits, and is not counted.
    """

    def __init__(self, freely: int) -> None:
        self._freely = freely
        self._renew()
        after_fork(self._renew)

    @contextmanager
    def taken(self, nbytes: int) -> Iterator[None]:
        """Waits until so many bytes may be taken, and holds them until the end."""
        if nbytes <= self._freely:
            yield
            return
        changed = self._changed
        with changed:
            while self._taken and self._taken + nbytes > (available_memory() + self._taken) // 2:
                changed.wait(WAIT_S)
            self._taken += nbytes
        try:
            yield
        finally:
            with changed:
                if changed is self._changed:  # else it was taken in the parent
                    self._taken -= nbytes
                changed.notify_all()

    def _renew(self) -> None:
        self._changed = threading.Condition()
        self._taken = 0


def _available_on_machine() -> int:
    with suppress(OSError):
        for line in _MEMINFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    with suppress(OSError, ValueError):  # macOS: what there is, for want of what is free
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 0
