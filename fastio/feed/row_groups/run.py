"""One run over a table: threads decode row groups into records, and deal chunks of the stream.

    a window opens                       if enough blocks are free for its records, or if no other
                                         window is open
      -> a thread decodes a row group    and writes its rows to the blocks, in their order
      -> the rows can be dealt           when all row groups of the window are decoded; without
                                         shuffling, when the rows before them are decoded
      -> a thread deals a chunk of them  a few chunks ahead of the consumer; the blocks become free
                                         when all rows of the window are dealt
      -> the consumer takes its batches

One lock guards the threads' shared state. It is held for bookkeeping only.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from fastio.engine.batch import Lease, SlotPool
from fastio.engine.ragged import Forms
from fastio.errors import LoaderClosed, LoaderTimeout
from fastio.feed.row_groups.blocks import BlockMemory
from fastio.feed.row_groups.chunks import Chunk, Dealt, DealtPart, OpenWindow
from fastio.feed.row_groups.cut import GroupSpan, GroupWindow
from fastio.feed.row_groups.ragged import RaggedRuns
from fastio.feed.row_groups.records import Records
from fastio.runtime.lifecycle import Owner
from fastio.runtime.threads import PATIENCE_S, WAIT_S, join_all
from fastio.sources.table.direct import DecodedRows, TableDataset
from fastio.stats import Stats


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run.

    Attributes:
        batch_size: The number of rows in a batch.
        chunk_batches: The number of batches in a chunk.
        threads: The number of threads that decode and deal.
        decoders: The number of them that may decode at the same time.
        slice_rows: The number of rows that a decoder reads at a time. If None, a row group.
        arrow_threads: Whether pyarrow may use its own threads too.
        blocks: The number of memory blocks that windows may use; see `TableRun._blocks_of`.
        ahead: The number of chunks that are dealt ahead of the consumer.
        timeout_s: The longest wait for a batch in seconds; 0 for no limit.
        ragged: The forms of lists.
    """

    batch_size: int
    chunk_batches: int
    threads: int
    decoders: int
    slice_rows: int | None
    arrow_threads: bool
    blocks: int
    ahead: int
    timeout_s: float = 0.0
    ragged: Forms = field(default_factory=Forms)

    @property
    def chunk_rows(self) -> int:
        """The number of rows in a chunk."""
        return self.batch_size * self.chunk_batches


class TableRun:
    """The batches of one rank's stream from a position on.

    For one consumer. The threads start when the first batch is requested.

    Args:
        dataset: The tables.
        windows: The windows of the stream.
        start: The position of the first row.
        rows: The number of rows of the stream.
        records: The layout of rows in memory.
        blocks: The memory of windows, which several runs may share.
        pools: The memory of each fixed-width field.
        settings: The settings of the run.
        stats: Its decode_s is increased.
    """

    def __init__(
        self,
        dataset: TableDataset,
        windows: Iterator[GroupWindow],
        start: int,
        rows: int,
        records: Records,
        blocks: BlockMemory,
        pools: dict[str, SlotPool],
        settings: RunSettings,
        stats: Stats,
    ) -> None:
        self._dataset = dataset
        self._windows = (w for w in windows if w.first + w.rows > start)
        self._start = start
        self._rows = max(rows - start, 0)  # `_fail` reduces it
        self._records = records
        self._blocks = blocks
        self._pools = pools
        self._settings = settings
        self._stats = stats
        fields = dataset.schema.fields
        self._ragged_fields = {n: k for n, k in fields.items() if n not in records.fields}
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # threads wait for work
        self._news = threading.Condition(self._lock)  # the consumer waits for a chunk
        self._next_window: GroupWindow | None = None
        self._coming: deque[GroupSpan] = deque()  # not fetched ahead yet, in order
        self._look_at_next_window()
        self._open: deque[OpenWindow] = deque()  # windows with rows to deal, in order
        self._decoding: list[int] = []  # places in the stream that threads decode
        self._dealt_to = 0  # the rows of the run before this one are dealt, or a thread deals them
        self._partial: Chunk | None = None  # a chunk with rows left to deal, unless a thread has it
        self._dealt: dict[int, Dealt] = {}
        self._failed: tuple[int, int, Exception] | None = None  # the first failure: see `_fail`
        self._at = 0  # the consumer's chunk
        self._batch = 0  # the consumer's next batch in the run
        self._ended = self._abandoned = False
        self._threads: list[threading.Thread] = []
        self._owner = Owner()

    @property
    def batches(self) -> int:
        """The number of batches of the whole run."""
        return -(-self._rows // self._settings.batch_size)

    def ready(self) -> bool:
        """Returns whether next() would return or raise without waiting."""
        self._check_process()
        self._start_threads()
        with self._lock:
            done = self._batch >= self.batches and self._failed is None
            return self._ended or done or self._outcome() is not None

    def __iter__(self) -> TableRun:
        return self

    def __next__(self) -> DealtPart:
        """Returns the next batch.

        Raises:
            StopIteration: If there are no more batches.
            LoaderTimeout: If it takes too long. A later call continues to wait.
            LoaderClosed: This process is a forked child, whose parent has the threads.
            ShardCorrupt, SchemaError: If one of its row groups cannot be read. The batches that
                are returned before this error are the same in every run. Later calls raise too.
        """
        self._check_process()
        if (self._batch >= self.batches or self._ended) and self._failed is None:
            raise StopIteration
        self._start_threads()
        dealt = self._wait()
        settings = self._settings
        begin = (self._batch % settings.chunk_batches) * settings.batch_size
        end = min(begin + settings.batch_size, len(dealt.rows))
        at = self._start + self._batch * settings.batch_size
        self._batch += 1
        # Batches keep the memory of a chunk with leases: here only the threads are told that one
        # more chunk may be dealt ahead.
        if end == len(dealt.rows):
            with self._lock:
                del self._dealt[self._at]
                self._at += 1
                self._work.notify_all()
        return DealtPart(dealt, begin, end, at)

    def close(self, timeout_s: float = PATIENCE_S) -> None:
        """Ends the threads and returns the memory. Idempotent.

        Args:
            timeout_s: The longest wait for all threads. If a thread hangs in a read, it and the
                memory are abandoned.
        """
        if not self._owner.is_here:
            return
        with self._lock:
            self._ended = True
            self._work.notify_all()
            self._news.notify_all()
        # A thread that hangs may still write to a block, so no block goes back to the pool then,
        # nor in a later call of this method, for example when the batches are garbage-collected.
        if not self._abandoned and join_all(self._threads, timeout_s):
            self._give_all_back()
        else:
            self._abandoned = True
        self._threads = []

    def close_soon(self) -> None:
        """Closes within a second, for the exit of the interpreter."""
        self.close(1.0)

    # --- The consumer -----------------------------------------------------------------------------

    def _check_process(self) -> None:
        if not self._owner.is_here:
            raise LoaderClosed(
                "the run belongs to the parent process: make an iterator in the child"
            )

    def _start_threads(self) -> None:
        if self._threads or self._ended:
            return
        for number in range(self._settings.threads):
            name = f"fastio-table-{number}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _wait(self) -> Dealt:
        limit_s = self._settings.timeout_s
        deadline = time.monotonic() + limit_s
        with self._lock:
            while (outcome := self._outcome()) is None and not self._ended:
                if limit_s and time.monotonic() >= deadline:
                    raise LoaderTimeout(f"no batch of {self._dataset.path} within {limit_s:g} s")
                self._news.wait(WAIT_S)  # in short waits, so that Ctrl-C is handled
        if outcome is None:
            raise StopIteration
        if isinstance(outcome, Exception):
            # The threads refer to the run, the run to the error, and the error's traceback to the
            # iterator, whose finalizer would end them: without this, they run until the loader is
            # closed.
            self.close()
            raise outcome
        return outcome

    def _outcome(self) -> Dealt | Exception | None:
        """Returns the consumer's chunk, or why it failed; None if it is not ready."""
        if self._failed is not None and self._batch >= self.batches:
            earlier = min(self._decoding, default=self._failed[1]) < self._failed[1]
            return None if earlier else self._failed[2]
        return self._dealt.get(self._at)

    def _give_all_back(self) -> None:
        with self._lock:
            blocks = [block for opened in self._open for block in opened.blocks]
            self._open.clear()
            self._dealt.clear()
            self._partial = None
        for block in blocks:
            self._blocks.give(block)

    # --- The threads ------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Runs in each thread: takes tasks until the run ends."""
        while (task := self._wait_for_task()) is not None:
            task()
            del task

    def _wait_for_task(self) -> Callable[[], None] | None:
        """Returns the next task; None when the run has ended."""
        with self._lock:
            try:
                while not self._ended and (task := self._next_task()) is None:
                    self._work.wait()
                return None if self._ended else task
            except Exception as error:  # the consumer would wait for ever for a thread that ends
                self._fail(self._dealt_to, error)
                return None

    def _next_task(self) -> Callable[[], None] | None:
        """Returns the next task. Dealing has priority: it frees memory, and the consumer waits."""
        if (deal := self._next_rows()) is not None:
            return deal
        if self._failed is not None or len(self._decoding) >= self._settings.decoders:
            return None
        opened = next((one for one in self._open if one.waiting), None) or self._open_window()
        if opened is None:
            return None
        segment = opened.waiting.popleft()
        self._decoding.append(place := opened.window.first + segment.offset)
        if self._coming and self._coming[0] is segment:
            self._coming.popleft()
        # Do it before another thread takes one of them, because every fetched segment must be read.
        while self._coming and self._is_asked_for(self._coming[0]):
            self._coming.popleft()
        return lambda: self._decode(opened, segment, place)

    def _next_rows(self) -> Callable[[], None] | None:
        """Returns the task to deal the next rows of the run; None if they cannot be dealt yet.

        A task deals rows up to the end of a chunk, or up to the end of the window if that is
        earlier: the window's memory then becomes free without waiting for the next window.
        """
        size, begin, chunk = self._settings.chunk_rows, self._dealt_to, self._partial
        number, inside = divmod(begin, size)
        # A chunk that is far ahead waits, so that batches do not exceed their share of the memory.
        if number >= self._at + self._settings.ahead or (inside and chunk is None):
            return None
        for opened in self._open:
            first = opened.window.first - self._start
            end = min(first + opened.window.rows, (number + 1) * size, self._rows)
            if end > begin:
                break
        else:
            return None
        if not opened.has(end - first):
            return None
        rows = min(size, self._rows - number * size)
        self._dealt_to, self._partial = end, None
        return lambda: self._deal(opened, chunk, rows, begin, end)

    def _is_asked_for(self, segment: GroupSpan) -> bool:
        """Fetches a row group ahead. Returns False if there is no memory for it now."""
        try:
            return self._dataset.ahead(segment.group)
        except Exception:  # the thread that reads it will raise the error
            return True

    def _open_window(self) -> OpenWindow | None:
        """Opens the next window if there are enough blocks for its rows; else returns None."""
        window = self._next_window
        if window is None:
            return None
        # A window that needs more blocks than the limit is opened when no other is open.
        if self._open and self._held_blocks() + self._blocks_of(window) > self._settings.blocks:
            return None
        group = window.segments[0].group
        where = f"{group.origin.file}, row group {group.number}"
        blocks = self._blocks.take(self._records.blocks(window.rows), where)
        try:
            ragged = RaggedRuns(self._ragged_fields, self._settings.ragged)
        except Exception:
            for block in blocks:
                self._blocks.give(block)
            raise
        opened = OpenWindow(window, blocks, ragged, self._start)
        self._open.append(opened)
        self._look_at_next_window()
        return opened

    def _held_blocks(self) -> int:
        return sum(self._blocks_of(opened.window) for opened in self._open)

    def _blocks_of(self, window: GroupWindow) -> int:
        """Returns the blocks of a window, and as many as its variable-width values would fill."""
        # Rounded up once, so that a window of half of the memory takes half of the blocks.
        return self._records.blocks(window.rows) + window.varying_bytes // self._records.block_bytes

    def _look_at_next_window(self) -> None:
        self._next_window = next(self._windows, None)
        if self._next_window is not None:
            self._coming += self._next_window.needed_from(self._start)

    def _decode(self, opened: OpenWindow, segment: GroupSpan, place: int) -> None:
        began_s, filled = time.thread_time(), segment.offset
        try:
            settings = self._settings
            taken = None
            for rows in self._dataset.read(
                segment.group, settings.slice_rows, settings.arrow_threads
            ):
                # Damage of a mapped file is detected after its use, when more is requested.
                if taken is not None:
                    self._filled_up(opened, *taken)
                    _, filled = taken
                taken = None
                if rows.begin >= segment.end or self._ended:
                    break
                taken = self._take_in(opened, segment, rows)
            if taken is not None:
                self._filled_up(opened, *taken)
            error = None
        except Exception as caught:
            error = caught
        with self._lock:
            self._stats.decode_s += time.thread_time() - began_s
            self._decoding.remove(place)
            if error is not None:
                first = opened.window.first - self._start
                self._fail(max(first + opened.known(filled), 0), error, place)
            self._news.notify_all()
            self._work.notify_all()

    def _take_in(
        self, opened: OpenWindow, segment: GroupSpan, rows: DecodedRows
    ) -> tuple[int, int] | None:
        """Writes the rows that are in the segment to the window's records.

        Returns:
            The range (begin, end) of the records that are filled; None if there are none.
        """
        begin, end = max(segment.begin, rows.begin), min(segment.end, rows.begin + rows.count)
        if begin >= end:
            return None
        first_row = segment.group.first_row
        numbers = np.arange(first_row + begin, first_row + end, dtype=np.int64)
        if rows.ragged:
            with self._lock:
                opened.ragged.add(first_row + rows.begin, rows.ragged)
        record = segment.offset + begin - segment.begin
        self._records.fill(opened.blocks, record, rows.parts, numbers, begin - rows.begin)
        return record, record + end - begin

    def _filled_up(self, opened: OpenWindow, begin: int, end: int) -> None:
        """Marks records [begin, end) of a window as filled, and wakes the threads."""
        with self._lock:
            opened.add(begin, end)
            self._work.notify_all()

    def _deal(
        self, opened: OpenWindow, chunk: Chunk | None, rows: int, begin: int, end: int
    ) -> None:
        """Deals rows [begin, end) of the run, which belong to one window and one chunk.

        Args:
            opened: The window.
            chunk: The chunk; None if no rows of it are dealt yet.
            rows: The number of rows of the chunk.
            begin, end: The range of rows, relative to the first row of the run.
        """
        number, inside = divmod(begin, self._settings.chunk_rows)
        first = begin - inside
        try:
            chunk = chunk or self._new_chunk(number, rows)
            self._deal_rows(opened, chunk, begin, end)
            if self._ragged_fields:
                chunk.ragged.append(opened.ragged)
            if end == first + len(chunk.dealt.rows):
                self._batch_ragged(chunk, end)
            error = None
        except Exception as caught:
            error = caught
        with self._lock:
            # The blocks are free even after an error.
            opened.undealt -= end - begin
            if not opened.undealt and opened in self._open:
                self._open.remove(opened)
                # Before another thread opens a window, which would map new memory.
                for block in opened.blocks:
                    self._blocks.give(block)
            if error is not None:
                self._fail(first, error)
            elif chunk is not None and end < first + len(chunk.dealt.rows):
                self._partial = chunk
                self._end_partial()
            elif chunk is not None:
                self._dealt[number] = chunk.dealt
            self._news.notify_all()
            self._work.notify_all()

    def _new_chunk(self, number: int, rows: int) -> Chunk:
        out, leases = {}, []
        for name in self._records.fields:
            pool = self._pools[name]
            lease = Lease(pool, pool.acquire(rows))
            out[name] = lease.view(rows)
            leases.append(lease)
        return Chunk(number, Dealt(np.empty(rows, np.int64), out, [], leases))

    def _deal_rows(self, opened: OpenWindow, chunk: Chunk, begin: int, end: int) -> None:
        window = opened.window
        numbers = window.order.span(begin + self._start - window.first, end - begin)
        first = chunk.number * self._settings.chunk_rows
        part = slice(begin - first, end - first)
        fields = {name: values[part] for name, values in chunk.dealt.fields.items()}
        self._records.deal(opened.blocks, numbers, chunk.dealt.rows[part], fields)

    def _batch_ragged(self, chunk: Chunk, end: int) -> None:
        """Sets the variable-width fields of a chunk up to a row, one dict for each batch."""
        if not chunk.ragged:
            return
        # A chunk at the border of two windows has rows of both.
        held = chunk.ragged[0]
        for more in chunk.ragged[1:]:
            held = held.merged(more)
        first, size = chunk.number * self._settings.chunk_rows, self._settings.batch_size
        rows = chunk.dealt.rows[: max(end - first, 0)]
        chunk.dealt.ragged += [held.batch(rows[b : b + size]) for b in range(0, len(rows), size)]

    def _fail(self, row: int, error: Exception, place: int = 0) -> None:
        """Shortens the run to the whole batches before a row; the error is raised after them."""
        # The lowest row and place count, not the earliest failure, because threads decode in any
        # order. They begin in the order of places, so all segments before this one have begun.
        if self._failed is None or (row, place) < self._failed[:2]:
            self._failed = row, place, error
            self._rows = row - row % self._settings.batch_size
            self._end_partial()
        self._news.notify_all()

    def _end_partial(self) -> None:
        """Delivers the partial chunk if the run was shortened and the chunk gets no more rows."""
        chunk = self._partial
        if chunk is not None and self._dealt_to >= self._rows:
            self._partial = None
            try:
                self._batch_ragged(chunk, self._rows)
            except Exception as error:
                self._fail(chunk.number * self._settings.chunk_rows, error)
            self._dealt[chunk.number] = chunk.dealt
