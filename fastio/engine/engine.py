"""The engine: it owns threads and readers, and handles bad samples."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from fastio.engine.batch import Batch
from fastio.engine.fields import (
    ColdRows,
    ImageListReader,
    ImageReader,
    Reader,
    make_readers,
)
from fastio.engine.jpeg_indexes import KeptIndexes
from fastio.engine.pending import Feeder, Pending
from fastio.engine.pump import BatchStage
from fastio.engine.settings import EngineSettings
from fastio.engine.stream import BatchStream
from fastio.engine.threads import Threads
from fastio.errors import LoaderClosed, SampleError, TransformError
from fastio.order.order import WORD
from fastio.order.plan import PlannedBatch
from fastio.packed.rows import Rows
from fastio.runtime.lifecycle import Owner, at_exit
from fastio.runtime.threads import PATIENCE_S
from fastio.stage import Lookahead, Stager, StagingPlan
from fastio.stats import Stats
from fastio.transforms import Pointwise

_END_S = 1.0  # time that the feeder's thread has to end when the interpreter exits


class Engine:
    """Decodes batches of one dataset with a fixed set of transforms.

    Args:
        dataset: the dataset; the engine does not close it.
        settings: what is delivered, and how.
        stager: fetches the blocks of a remote dataset; the engine does not close it.
        stage: changes batches before they are delivered; closed with the engine.

    Raises:
        TransformError: a field does not exist, or cannot be decoded as the settings say.
    """

    def __init__(
        self,
        dataset: Rows,
        settings: EngineSettings,
        stager: Stager | None = None,
        stage: BatchStage | None = None,
    ) -> None:
        self.dataset = dataset
        self.settings = settings
        self.fields = list(dataset.schema.fields if settings.fields is None else settings.fields)
        for name in self.fields:
            if name not in dataset.schema.fields:
                known = ", ".join(dataset.schema.fields)
                raise TransformError(f"no field {name!r}: the dataset has {known}")
        parts = [settings.views.get(name, (name,)) for name in self.fields]
        self._parts = [part for each in parts for part in each]
        self.stage = stage
        self._stager = stager
        self._feeder: Feeder | None = None
        self._threads = Threads(settings.threads)
        self._readers = self._make_readers()
        self._indexes = KeptIndexes(dataset, settings.cache)
        self._owner = Owner()
        at_exit(self._end)
        self._streams: weakref.WeakSet[BatchStream] = weakref.WeakSet()
        self._skipped = self._replaced = 0
        self._fetch_s = 0.0

    @property
    def tails(self) -> dict[str, tuple[Pointwise, ...]]:
        """For each image field or view, the ToDtype and Normalize steps that the engine leaves."""
        parts = (part for reader in self._images.values() for part in reader.parts)
        return {part.name: part.tail for part in parts}

    @property
    def stats(self) -> Stats:
        """Returns the counters of the threads since the engine was made."""
        images, nbytes, read, decode, resample, augment = self._threads.counters()
        counts = [reader.recoded_counts for reader in self._images.values()]
        return Stats(
            bytes_read=nbytes,
            images_decoded=images,
            recoded=sum(recoded for recoded, _ in counts),
            from_recoded=sum(read for _, read in counts),
            skipped=self._skipped,
            replaced=self._replaced,
            read_s=read * 1e-9,
            decode_s=decode * 1e-9,
            # The native counter of resampling includes the augmentations.
            resample_s=(resample - augment) * 1e-9,
            augment_s=augment * 1e-9,
            fetch_s=self._fetch_s,
        )

    @property
    def threads(self) -> int:
        """The number of native threads that work, or will work once they are started."""
        return self._threads.count

    def set_threads(self, threads: int) -> None:
        """Sets the number of threads, at least 1; fewer if the system cannot start as many."""
        self._threads.resize(threads)

    def run(
        self,
        plan: Iterable[PlannedBatch],
        *,
        epoch: int,
        seed: int = 0,
        ahead: int = 2,
        timeout_s: float = 0.0,
        staging: StagingPlan | None = None,
    ) -> BatchStream:
        """Decodes the batches of a plan, in order.

        Args:
            plan: the batches; it is read `ahead` of the consumer.
            seed, epoch: key of the augmentations.
            ahead: number of batches in work besides the one that next() waits for.
            timeout_s: seconds after which next() raises LoaderTimeout; 0 waits without a limit.
            staging: for a remote dataset, how far ahead of the batches blocks are fetched.

        Raises:
            LoaderClosed: the engine was closed.
            SourceChanged: the data was replaced after it was opened.
        """
        if self._threads.closed:
            raise LoaderClosed("the engine was closed")
        shards = None if self.dataset.packed is None else self.dataset.packed.shards
        if shards is not None:
            shards.check_unchanged()
        self.start_stage()  # first: processes are forked best while there are few threads
        self._start()
        batches = iter(plan)
        if self._stager is not None and staging is not None:
            self._stager.reopen()
            batches = Lookahead(batches, self._stager, staging)
        stream = BatchStream(self, batches, seed & WORD, epoch, max(1, ahead), timeout_s, shards)
        self._streams.add(stream)
        return stream

    def end_epoch(self) -> None:
        """Stores the new indexes of the dataset's JPEGs after an epoch. Called by `BatchStream`."""
        self._indexes.save()

    def start_stage(self) -> None:
        """Starts the workers of the stage that follows, if there is one and some are missing."""
        if self.stage is not None and not self._threads.closed:
            self.stage.start()

    def cold_rows(self) -> ColdRows | None:
        """Returns the places of fixed-width rows in files, or None if there are no such rows."""
        layout = self.dataset.fixed_columns(self.fields)
        return None if layout is None else ColdRows(layout)

    def close(self) -> None:
        """Ends all streams, joins the threads and closes the files. May be called again."""
        # Closes the stages in the order in which batches pass through them, so that none passes a
        # batch to a closed one.
        self._threads.closed = True
        for stream in list(self._streams):
            stream.close()
        if self._feeder is not None and self._owner.is_here:
            self._feeder.close(PATIENCE_S)
        self._feeder = None
        if self.stage is not None:
            self.stage.close()
        for reader in self._readers:
            for pool in list(reader.pools.values()):
                pool.clear()
        if self._owner.is_here:
            self._indexes.close()
        self._threads.close()
        for reader in self._readers:
            reader.close()

    def _end(self) -> None:
        """Ends the threads at the exit of the interpreter, without waiting for any server."""
        if not self._owner.is_here:
            return
        self._threads.closed = True
        for stream in list(self._streams):
            stream.cancel()
        # Before the threads: it passes batches to them.
        if self._feeder is not None:
            self._feeder.close(_END_S)
        if self.stage is not None:
            self.stage.close()
        self._threads.close()
        self._indexes.end(_END_S)

    @property
    def _images(self) -> dict[str, ImageReader]:
        # The images of a list field are decoded by a reader of images, which has the transforms and
        # the counters.
        lists = [r.images for r in self._readers if isinstance(r, ImageListReader)]
        single = [r for r in self._readers if isinstance(r, ImageReader)]
        return {reader.field: reader for reader in (*single, *lists)}

    def _make_readers(self) -> list[Reader]:
        return make_readers(self.dataset, self.fields, self.settings, self._threads, self._stager)

    def _start(self) -> None:
        """Starts the threads once per process: a forked child has none of its parent's threads."""
        self._owner.take_over(self._begin_anew)
        self._threads.start()
        self._indexes.begin(self._threads.native)

    def _begin_anew(self) -> None:
        """Makes anew what has threads, or locks that the parent's threads may hold."""
        self._feeder = None
        self._indexes = KeptIndexes(self.dataset, self.settings.cache)
        self._readers = self._make_readers()

    def submit(self, planned: PlannedBatch, seed: int, epoch: int) -> Pending:
        """Submits a batch, at once or when its blocks have arrived; errors are recorded in it."""
        pending = Pending(planned, seed, epoch)
        if self._stager is None:
            self._begin(pending)
            return pending
        # From here on the batch holds its blocks, which are not dropped before `done`.
        pending.blocks = self._stager.blocks.of(planned.rows)
        # The heads of the shards must have arrived too: looking up rows without them would wait for
        # the store on the thread of the consumer.
        if self._stager.has(pending.blocks) and self._stager.blocks.describes(planned.rows):
            try:
                self._begin(pending)
            except BaseException:  # an interrupt
                if pending.abandon():
                    pending.release()
                raise
            return pending
        if self._feeder is None:
            self._feeder = Feeder(self._stager, self._begin)
        pending.staged = threading.Event()
        self._stager.retry(pending.blocks)  # those that failed while nobody waited for them
        self._feeder.put(pending)
        return pending

    def again(self, failed: Pending) -> Pending:
        """Submits a batch again whose blocks could not be fetched."""
        assert self._stager is not None
        assert failed.blocks is not None
        # Before the failed batch is given back, which releases its blocks: those that are there
        # would be dropped, and fetched again.
        self._stager.want(failed.blocks)
        return self.submit(failed.planned, failed.seed, failed.epoch)

    def _begin(self, pending: Pending) -> None:
        """Passes a batch to the threads, once all of its bytes can be read."""
        try:
            pending.submit(self._readers)
        except Exception as error:
            pending.withdraw()
            pending.error = error

    def finish(self, pending: Pending) -> Batch | None:
        """Returns a batch whose threads are done; None if all of its rows were skipped."""
        self._fetch_s += pending.fetch_s
        values: dict[str, Any] = {}
        for reader, work in pending.work:
            values |= reader.finish(pending, work)
        if pending.error is not None:
            raise pending.error  # the blocks are kept: the batch may be tried again
        self._let_go(pending)  # after all readers, which may read damaged blocks again
        planned, failures = pending.planned, pending.failures
        batch = Batch(
            {name: values[name] for name in self._parts},
            planned.rows,
            planned.valid,
            pending.epoch,
            planned.step,
            planned.next_position,
            leases={name: lease for _, work in pending.work for name, lease in work.leases.items()},
            occurrences=planned.occurrences,
        )
        del pending  # a traceback must not refer to it: see `Pending.release`
        return self.mended(batch, failures)

    def mended(self, batch: Batch, failures: dict[int, SampleError]) -> Batch | None:
        """Returns a batch without its bad rows, or with others in their place.

        Args:
            batch: the batch.
            failures: errors of bad samples, by their place in the batch. Errors that are raised
                or recorded in the batch are removed from this dict.

        Returns:
            The batch; None if all of its rows were skipped.

        Raises:
            SampleError: a sample is bad, and is neither skipped nor replaced.
        """
        if not failures:
            return batch
        bad, on_error = sorted(failures), self.settings.on_error
        good = np.setdiff1d(np.arange(len(batch.rows)), bad)
        if on_error == "raise" or not good.size:
            batch.release()
            if on_error != "skip":
                raise failures.pop(bad[0])
            self._skipped += len(bad)
            return None
        batch.errors += [failures.pop(place) for place in bad]
        if on_error == "skip":
            self._skipped += len(bad)
            batch.skip(good)
        else:
            self._replaced += len(bad)
            batch.replace(bad, good)
        return batch

    def give_back(self, pending: Pending) -> None:
        """Takes back the slots of a batch that is not delivered. Called by `BatchStream`."""
        self._let_go(pending)
        pending.release()

    def lose(self, pending: Pending) -> None:
        """Drops a batch whose threads hang; they keep its slots. Called by `BatchStream`."""
        self._let_go(pending)
        pending.lose()

    def _let_go(self, pending: Pending) -> None:
        """Releases the blocks of a batch."""
        if self._stager is not None and pending.blocks is not None:
            self._stager.done(pending.blocks)
            pending.blocks = None
