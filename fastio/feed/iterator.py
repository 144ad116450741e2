"""One pass over an epoch of a loader."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastio.device import DevicePrefetcher
from fastio.errors import LoaderClosed
from fastio.feed.base import BatchInfo, HostBatches
from fastio.feed.tuning import tune
from fastio.order.state import END, Cursor, States
from fastio.transforms import StepDraw

if TYPE_CHECKING:
    from fastio.loader import Loader


def _finish_of(loader: Loader, cursor: Cursor) -> Callable[[Any, BatchInfo], Any] | None:
    """Returns what is done with each batch on its device; None if there is nothing."""
    finish = loader._feed.finish
    if finish is None:
        return None
    rank = loader._ranks().rank

    def finished(data: Any, info: BatchInfo) -> Any:
        return finish(data, step_draw(cursor, rank, info))

    return finished


def step_draw(cursor: Cursor, rank: int, info: BatchInfo) -> StepDraw:
    """Returns what the random numbers of a batch as a whole depend on."""
    # On the torch path, the seed may be drawn when the first key is requested, which is after the
    # cursor was made.
    seeds = (cursor.seed, cursor.order_seed, info.order_seed)
    seed = next((each for each in seeds if each is not None), 0)
    return StepDraw(seed, info.epoch, rank, info.step)


class LoaderIterator:
    """Iterates over one epoch of a loader, or the rest of it.

    `close`, or dropping the last reference, frees its batches.
    """

    def __init__(self, loader: Loader, cursor: Cursor, run: HostBatches) -> None:
        self._loader = loader
        self._epochs = loader._epochs
        self._cursor = cursor
        self._batches = DevicePrefetcher(
            run,
            loader.device,
            finish=_finish_of(loader, cursor),
            ready=run.ready,
            stats=loader._stats,
            stream=loader._stream,
        )
        self._left_s: float | None = None  # when the caller got the last batch
        self._exhausted = False
        # On the torch path, the keys that are asked for tell when the epoch ends.
        self._draw = loader._feed.sampling.draw if loader._feed.path == "native" else None
        self._world_size = loader._ranks().world_size
        if self._draw is not None:
            self._exhaust(self._draw, cursor.position)

    def __iter__(self) -> LoaderIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        """Returns the next batch.

        Raises:
            SampleError: a sample of the batch cannot be read; the next call returns the batch after
                it.
            LoaderTimeout: the batch did not come within the timeout; the next call waits for it
                again.
            LoaderClosed: the loader was closed.
        """
        loader = self._loader
        if loader._closed:
            raise LoaderClosed("this loader was closed")
        stats = loader._stats
        began_s = time.perf_counter()
        if self._left_s is not None:
            stats.between_s += began_s - self._left_s
        try:
            data, info = next(self._batches)
        except StopIteration:
            if self._draw is not None:
                self._exhaust(self._draw)
            following = self._cursor.at_epoch(self._cursor.epoch + 1)
            if self._cursor.states is not None:
                following = replace(following, states=States(self._cursor.states.at(END)))
            self._epochs.move(self, following, 0)
            self.close()
            raise
        finally:
            self._left_s = time.perf_counter()
            stats.wait_s += self._left_s - began_s
        stats.batches += 1
        stats.samples += info.valid
        if loader._current.tuner is not None:
            tune(loader._current.tuner, loader._feed, stats)
        # Bypasses DataLoader's __setattr__, which would take as long as the rest of this method.
        loader.__dict__["_batch"] = info
        self._epochs.drawn_last = self._cursor
        if info.order_seed is not None and self._cursor.order_seed is None:
            self._cursor = replace(self._cursor, order_seed=info.order_seed)
        self._epochs.move(self, self._cursor, info.next_position)
        if self._draw is not None:
            self._exhaust(self._draw, info.next_position)
        return data

    def close(self) -> None:
        """Ends the iteration. Idempotent."""
        self._batches.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the interpreter's exit the modules that `close` needs may be gone.
        if not is_finalizing():
            self.close()

    def _exhaust(self, draw: Callable[[int], object], position: int | None = None) -> None:
        """Draws once more at the end of an epoch, as RandomSampler does without using the result.

        BatchSampler reaches that end with the last batch if the batch is not full, else after it.
        With workers, DataLoader asks for batches before the ones ahead of them are delivered.

        Args:
            draw: draws an order of a number of rows.
            position: samples of the epoch delivered so far; None after the last batch.
        """
        if self._exhausted:
            return
        loader = self._loader
        rows = loader._feed.epoch_rows()
        if position is not None:
            batch = (loader._feed.sampling.batch_size or 1) * self._world_size
            ahead = loader.num_workers * (loader.prefetch_factor or 0)
            if -(-position // batch) + ahead <= rows // batch:
                return
        self._exhausted = True
        draw(rows)
