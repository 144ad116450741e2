"""Which shards' columns were compared with their hashes, and those that still are to be.

Small columns are compared when a shard is opened. Those of large tables would keep the first batch
waiting: they are compared by a thread, once a process, while the first epoch goes on.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

from fastio.errors import FastioError
from fastio.memory import available_memory, local_ranks
from fastio.shard import ShardReader

_POLL_S = 0.1  # so that signals are seen while somebody waits


class _Known:
    """Files whose columns were compared in this process. Thread-safe."""

    def __init__(self) -> None:
        self._files: set[int] = set()

    def has(self, reader: ShardReader) -> bool:
        return hash(reader.identity) in self._files

    def add(self, reader: ShardReader) -> None:
        self._files.add(hash(reader.identity))


_known = _Known()


def compare(reader: ShardReader) -> None:
    """Compare a shard's columns with their hash, unless this process did so before.

    Raises:
        ShardCorrupt: they are not those that were written.
    """
    if not _known.has(reader):
        reader.check_columns()
        reader.check_offsets()
        _known.add(reader)


class Comparisons:
    """What is compared in the background. Thread-safe; a forked child begins anew.

    Args:
        nbytes: size of the dataset. What memory cannot hold is read past the page cache, where it
            would push out the rows that are needed next.

    Attributes:
        problem: what was found to be wrong; the next one who reads rows is to raise it.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self.problem: FastioError | OSError | None = None
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = False

    def add_shard(self, reader: ShardReader) -> None:
        """Has a shard's columns compared, unless this process did so before."""
        if not _known.has(reader):
            self.add(lambda: self._compare(reader))

    def add(self, work: Callable[[], None]) -> None:
        """Has something done that raises an error where something is wrong."""
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            self._waiting.append(work)
            if self._busy:
                return
            self._busy = True
        # A daemon, as a process that ends does not wait until all of a table was read.
        threading.Thread(target=self._work, name="fastio-compare", daemon=True).start()

    def finish(self) -> None:
        """Wait until all was compared.

        Raises:
            ShardCorrupt, ManifestInvalid, SourceChanged, OSError: something is wrong.
        """
        if self._pid == os.getpid():
            with self._changed:
                while self._busy and self.problem is None and not self._closed:
                    self._changed.wait(_POLL_S)
        self.raise_problem()

    def raise_problem(self) -> None:
        """Raises what was found to be wrong, if something was."""
        if self.problem is not None:
            raise self.problem

    def close(self) -> None:
        """Leave out what was not compared yet."""
        self._closed = True

    def _compare(self, reader: ShardReader) -> None:
        reader.check_columns(
            in_file=True,
            past_cache=self._nbytes > available_memory() // local_ranks(),
            stopped=lambda: self._closed,
        )
        reader.check_offsets()
        if not self._closed:
            _known.add(reader)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting or self._closed or self.problem is not None:
                    self._waiting.clear()
                    self._busy = False
                    self._changed.notify_all()
                    return
                work = self._waiting.popleft()
            try:
                work()
            except (FastioError, OSError) as error:
                if not self._closed:
                    self.problem = error
            except ValueError:  # the reader was closed meanwhile
                self._closed = True
