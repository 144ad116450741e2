"""The thread that recodes blocks of a dataset, and finds what other processes have recoded.

For each block, the thread notes the stamps of the originals, claims the piece in the cache so that
no other process recodes it, lets native threads read and encode the files, writes the piece, and
publishes it. A process that is killed in between leaves a claim, which the next process releases.

The native threads never take the interpreter lock. A thread that runs only while a processor is
idle may be suspended at any point for as long as other threads work. It must not hold a lock that
these wait for.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fastio import _native
from fastio.cache import Cache, CacheFolder, Consumer, Outcome, Source
from fastio.errors import CacheError, FastioError
from fastio.order.orders import Orders
from fastio.packed.codebook import default_codebook
from fastio.packed.layout import WHOLE_FILE, ImageReads
from fastio.recoded.originals import Originals, are_settled
from fastio.recoded.piece import DIRECTORY, Directory, head, head_bytes, read_head
from fastio.recoded.table import RecodedTable
from fastio.runtime.threads import PATIENCE_S, join_all
from fastio.schema import CODEC_JPEG
from fastio.stage import Forecast

IDLE_SHARE = 0.05  # of the time of the engine's threads, if no processor is idle
ALWAYS_SHARE = 0.25  # of the time of the engine's threads, with pack="always"
_MOST_RESTING = 0.5  # largest share of the time in which one thread of normal priority works
_POLL_S = 0.2
_LOOK_S = 1.0  # between two checks of what other processes have recoded
_NO_ROOM_S = 30.0  # until recoding is tried again after there was no room
_USED_S = 5.0  # between two updates of the times at which pieces were last used
_ALL = range(1 << 60)  # the blocks of this source that stay when room is made for another
# What ends the recoding, and not the epoch: the cache cannot be used, or there is no memory and no
# thread for it.
NO_CACHE = (CacheError, OSError, MemoryError, RuntimeError)
_SKIPPED = (FastioError, OSError, ValueError, LookupError)


@dataclass(frozen=True)
class RecodedSource:
    """The images to recode, and the cache to which their records are written.

    Attributes:
        originals: The images as the dataset stores them.
        max_pixels: Images with more pixels are not recoded.
        cache, folder, source: The cache, its open folder, and the source of the pieces.
        threads: The number of the engine's threads, and of threads that recode in idle time.
    """

    originals: Originals
    max_pixels: int
    cache: Cache
    folder: CacheFolder
    source: Source
    threads: int


class Recoder:
    """Recodes the blocks that a table wants, in a thread of its own.

    Args:
        what: The images and the cache.
        table: The table; the recoder adds the directories of pieces to it.

    Attributes:
        what, table: The arguments.
        images: The number of images that this object has recoded.
    """

    def __init__(self, what: RecodedSource, table: RecodedTable) -> None:
        self.images = 0
        self.what = what
        self.table = table
        self._stop = threading.Event()
        self._run_number = int.from_bytes(os.urandom(4), "little")
        self._starved = False  # whether idle threads got no time lately
        self._full_until_s = 0.0
        self._missed = 0  # blocks in succession that could not be recoded yet
        self._version: tuple[int, ...] = ()
        self._looked_s = self._noted_s = 0.0
        # Called here, so that the first batch finds what earlier runs have recoded.
        self.look()
        self._thread = threading.Thread(target=self._run, name="fastio-recode", daemon=True)

    def start(self) -> None:
        """Starts the thread, and records that this loader needs the pieces."""
        orders = Orders(self.table.rows, mode="sequential")
        # Not the loader's own order: it only says that each piece is needed once in an epoch.
        forecast = Forecast(orders, 0, self.table.block_rows).text
        number = self.what.source.number
        self.what.folder.tell(self._run_number, Consumer(number, forecast, 0, 0))
        self._thread.start()

    def end(self) -> None:
        """Tells the thread to end. Does not wait."""
        self._stop.set()

    def close(self) -> None:
        """Ends the thread. A block that is not finished is discarded. Idempotent."""
        self.end()
        if self._thread.ident is None:  # it was never started, and there is nothing to record
            return
        join_all([self._thread], PATIENCE_S)
        with suppress(CacheError):
            self.what.folder.end_run(self._run_number)

    # --- What is there ----------------------------------------------------------------------------

    def look(self) -> None:
        """Reads the directories of new pieces, and removes those of deleted pieces from the table.

        Raises:
            CacheError: The cache cannot be used.
        """
        self._looked_s = time.monotonic()
        folder, source = self.what.folder, self.what.source
        version = folder.index.changes()
        if version == self._version:
            return
        self._version = version
        ready, known = set(folder.ready(source)), self.table.known()
        for block in known.keys() - ready:
            self.table.forget(block)
        for block in sorted(ready - known.keys()):
            self._load(block)

    def _load(self, block: int) -> bool:
        """Reads the directory of a piece. Deletes the piece if it is damaged."""
        folder, source, table = self.what.folder, self.what.source, self.table
        first, last = table.span(block)
        if first >= last:
            return False
        try:
            file, data = folder.files.begin(source.key, block, head_bytes(last - first))
        except FileNotFoundError:
            file, data = None, b""
        except OSError:  # the disk failed
            return False
        if file is not None:
            directory = read_head(data, source.key, block, last - first, file.size)
            if directory is not None:
                table.put(block, directory, file)
                return True
        if file is None or table.may_replace(block):
            folder.drop(source, [block])
        return False

    # --- The thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if not self._turn():
                    self._stop.wait(_POLL_S)
            except NO_CACHE as error:
                self.what.cache.give_up(error)
                # Images are read from their originals from here on.
                for block in self.table.known():
                    self.table.forget(block)
                return

    def _turn(self) -> bool:
        """Recodes one block. Returns False if there is nothing to do now."""
        now_s = time.monotonic()
        if now_s - self._looked_s > _LOOK_S:
            self.look()
        if now_s - self._noted_s > _USED_S:
            self._noted_s = now_s
            used = self.table.take_used()
            if used:
                self.what.folder.note_use(self.what.source, used)
        if now_s < self._full_until_s:
            return False
        block = self.table.next_wanted()
        if block is None:
            return False
        try:
            done = self._recode(block)
        except CacheError:
            raise
        except _SKIPPED:
            return True  # the rows cannot be read: the loader raises the error when it reads them
        self._missed = 0 if done else self._missed + 1
        if not done:
            self.table.want(block)
        return self._missed < self.table.wanted

    def _recode(self, block: int) -> bool:
        """Recodes a block. Returns False if it has to be tried again later."""
        first, last = self.table.span(block)
        rows = np.arange(first, last, dtype=np.int64)
        originals = self.what.originals
        where = originals.where(rows)
        directory = np.zeros(len(rows), DIRECTORY)
        directory["stamp"] = originals.stamps(where, np.arange(len(rows)))
        directory["at"], directory["nbytes"] = where.offset, where.length
        reads = originals.local(rows, where)  # after the stamps, so that no change is missed
        if reads is None or not are_settled(directory["stamp"]):
            return False
        jpegs = np.flatnonzero((reads.codec == CODEC_JPEG) & (directory["stamp"][:, 0] >= 0))
        sizes = np.where(reads.length == WHOLE_FILE, directory["stamp"][:, 0], reads.length)
        outcome = self._claim(block, head_bytes(len(rows)) + int(sizes[jpegs].sum()))
        if outcome != "mine":
            return outcome == "ready"
        try:
            data = self._encoded(reads, jpegs, directory)
            return data is not None and self._publish(block, directory, data)
        except OSError as error:  # no space, or the disk fails
            self._full_until_s = time.monotonic() + _NO_ROOM_S
            self.what.cache.give_up(error)
            return False
        finally:
            # Does nothing if the piece was published, which ends the claim.
            self.what.folder.abandon(self.what.source, [block])

    def _claim(self, block: int, size: int) -> Outcome:
        folder, source = self.what.folder, self.what.source
        sizes = {block: size}
        claim = partial(folder.claim, source, sizes, _ALL, None, "others", unneeded=True)
        outcome = claim()[block]
        if outcome == "ready" and not self._load(block):  # damaged, and deleted
            outcome = claim()[block]
        if outcome == "no room":
            self._full_until_s = time.monotonic() + _NO_ROOM_S
        return outcome

    def _publish(self, block: int, directory: Directory, data: NDArray[np.uint8]) -> bool:
        folder, source = self.what.folder, self.what.source
        begin = head(source.key, block, directory)
        size = len(begin) + len(data)
        # The claim reserved the size of the files, and records may be larger. Without a reservation
        # the cache could exceed its budget.
        if not folder.enlarge(source, block, size):
            self._full_until_s = time.monotonic() + _NO_ROOM_S
            return False
        written = folder.write(source, block, [begin, data])
        if folder.publish(source, {block: written}, misses=False):
            # Counted before loaders can read the records, so that the count is never too small.
            self.images += int(np.count_nonzero(directory["length"]))
            self._load(block)
        return True

    # --- Encoding ---------------------------------------------------------------------------------

    def _encoded(
        self, reads: ImageReads, jpegs: NDArray[np.int64], directory: Directory
    ) -> NDArray[np.uint8] | None:
        """Encodes images, and completes their entries in a directory.

        Returns:
            The records, one after another; None if the thread was told to end.
        """
        numbers, which = np.unique(reads.file[jpegs], return_inverse=True)
        # Files with several images, such as tars, stay open for the next one.
        files = _native.FileSet(keep_open=len(numbers) < len(jpegs), max_open=16)
        files.add([reads.path(number) for number in numbers.tolist()])
        job = _native.Recoding(
            files,
            which.astype(np.int32),
            np.ascontiguousarray(reads.offset[jpegs]),
            np.ascontiguousarray(reads.length[jpegs]),
            default_codebook(),
            self.what.max_pixels,
        )
        if not self._wait(job):
            return None
        data, lengths, heights, widths, orientations, crcs = job.take()
        begins = head_bytes(len(directory)) + np.cumsum(lengths) - lengths
        for name, values in {
            "offset": begins,
            "length": lengths,
            "crc32c": crcs,
            "height": heights,
            "width": widths,
            "orientation": orientations,
        }.items():
            directory[name][jpegs] = values
        return np.asarray(data)

    def _wait(self, job: _native.Recoding) -> bool:
        """Starts the threads of a job and waits for them. Returns False if told to end earlier."""
        always = self.what.cache.pack == "always"
        share = ALWAYS_SHARE if always else IDLE_SHARE
        wanted_s = share * self.what.threads  # processor time per second
        job.start_idle(self.what.threads)
        resting = always or self._starved
        if resting:
            _start_resting(job, wanted_s)
        start_s = time.monotonic()
        while not job.wait(_POLL_S):
            if self._stop.is_set():
                job.stop()
                return False
            idle_s, elapsed_s = job.idle_ns * 1e-9, time.monotonic() - start_s
            if not resting and elapsed_s > 2 * _POLL_S and idle_s < wanted_s * elapsed_s:
                _start_resting(job, wanted_s)
                resting = self._starved = True
        if self._starved:
            self._starved = job.idle_ns * 1e-9 < 2 * wanted_s * (time.monotonic() - start_s)
        return True


def _start_resting(job: _native.Recoding, wanted_s: float) -> None:
    """Starts threads that together use `wanted_s` seconds of processor time per second."""
    count = max(1, round(wanted_s / _MOST_RESTING))
    job.start_resting(count, min(1.0, wanted_s / count))
