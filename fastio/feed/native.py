"""A feed whose batches are made by the threads of the native engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fastio.device import HostBatch
from fastio.engine import BatchStream, Engine
from fastio.engine.batch import Batch
from fastio.engine.fields import ReadAheadPlan, windows_of
from fastio.errors import TransformError
from fastio.feed.base import Asked, Batches, BatchInfo, Feed, HostBatches
from fastio.feed.delivery import Delivery, FeedSettings
from fastio.feed.fields import FieldTransforms, only_image
from fastio.feed.per_sample import PerSampleStage
from fastio.order.order import mixed_seed
from fastio.order.plan import PlannedBatch, draw_keys
from fastio.order.sampling import Ranks, Sampling
from fastio.order.state import Cursor
from fastio.packed.rows import Rows
from fastio.stage import (
    Forecast,
    Stager,
    StagingPlan,
    ahead_bytes,
    most_ahead_bytes,
    staged,
)
from fastio.stats import Stats
from fastio.transforms import Augmentation, Compiled, OnBatch, augmentation
from fastio.views.mixing import Chain

_AHEAD_OF_STAGE = 2  # batches that are decoded while functions are called for those before


class NativeFeed(Feed):
    """Makes batches with the threads of the native engine.

    Args:
        dataset: packed dataset, folder or tars; the feed does not close it.
        sampling: sampling, which decides the rows of each batch.
        transforms: transforms of the fields.
        settings: settings of the engine and the batches.
        stager: fetches the blocks of a remote dataset; the feed closes it.

    Raises:
        TransformError: the dataset does not have the fields, or cannot apply the transforms.
    """

    def __init__(
        self,
        dataset: Rows,
        sampling: Sampling,
        transforms: FieldTransforms,
        settings: FeedSettings,
        stager: Stager | None = None,
    ) -> None:
        images = dataset.schema.pictured
        names = dataset.schema.fields if settings.engine.fields is None else settings.engine.fields
        fields = transforms.fields
        parts = [(part, name) for name in names for part in transforms.parts_of(name)]
        called = {n: fields[n] for n, _ in parts if n in fields and fields[n].per_sample}
        of_images = {part for part, name in parts if name in images}
        stage = None
        if called:
            last, count = settings.engine.channels_last, settings.engine.threads
            stage = PerSampleStage(dataset, called, of_images, last, count, settings.processes)
            settings = replace(settings, ahead=settings.ahead + _AHEAD_OF_STAGE)
        of_engine = replace(
            settings.engine,
            handed={} if stage is None else stage.images,
            transforms={k: v for k, v in transforms.fields.items() if k in of_images},
            views=transforms.parts,
            audio=transforms.audio,
        )
        self.settings = settings = replace(settings, engine=of_engine)
        self.transforms = transforms
        self._stager = stager
        self._stage_of_samples = stage
        self._engine: Engine | None = Engine(dataset, of_engine, stager, stage)  # no threads yet
        self.fields = tuple(self._engine.fields)
        self.delivery = Delivery(
            dataset, self.fields, sampling, transforms, settings, self._engine.tails
        )
        super().__init__(dataset, sampling, self.delivery.finish, settings.ahead)

    def __getstate__(self) -> dict[str, Any]:
        # Threads and requests belong to this process. The copy makes its own.
        return {**self.__dict__, "_engine": None, "_stager": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.dataset.remote_part is not None:
            self._stage(self.sampling)

    def _stage(self, sampling: Sampling) -> None:
        """Fetches the blocks of the remote dataset for another sampling."""
        fields = self.settings.engine.fields
        self.sampling, self._stager = staged(self.dataset, sampling, fields)

    @property
    def leaves(self) -> Sequence[NativeFeed]:  # type: ignore[override]
        """This feed alone."""
        return [self]

    @property
    def chain(self) -> Chain:  # type: ignore[override]
        """The rows of the dataset."""
        return Chain([len(self.dataset)], self.sampling)

    @property
    def local(self) -> bool:  # type: ignore[override]
        """Whether all data is on this machine."""
        return self._stager is None

    @property
    def draws(self) -> bool:  # type: ignore[override]
        """Whether random numbers are drawn for each sample."""
        # Sounds are cropped at random too.
        crops = any(compiled.random for compiled in self.transforms.fields.values())
        return crops or any(how.draws for how in self.transforms.audio.values())

    def engine(self) -> Engine:
        """Returns the engine of this process."""
        if self._engine is None:
            stage = self._stage_of_samples
            self._engine = Engine(self.dataset, self.settings.engine, self._stager, stage)
        return self._engine

    def stream(
        self,
        plan: Iterator[PlannedBatch],
        cursor: Cursor,
        ranks: Ranks,
        epoch: int,
        known_order: bool = True,
    ) -> BatchStream:
        """Returns the batches of a plan.

        Args:
            plan: the rows of each batch.
            cursor, ranks: as for `run`.
            epoch: epoch that keys the draws.
            known_order: whether the rows follow this feed's own sampling.
        """
        return self.engine().run(
            plan,
            seed=self.draw_seed(cursor, ranks),
            epoch=epoch,
            ahead=self.settings.ahead,
            timeout_s=self.settings.timeout_s,
            staging=self._staging(cursor, ranks, known_order),
        )

    def run(self, cursor: Cursor, ranks: Ranks) -> HostBatches:
        plan = self.sampling.plan(self.epoch_rows(), cursor, ranks, count=self.draws)
        stream = self.stream(self._asked_ahead(plan, cursor), cursor, ranks, cursor.epoch)
        first = self.sampling.first_step(cursor.position, ranks)
        return Batches(stream, partial(self._host_batch, first))

    def draw_seed(self, cursor: Cursor, ranks: Ranks) -> int:
        """Returns the seed of the draws, mixed with the rank if a sampler decides the rows.

        A sampler may give the same row to several ranks.
        """
        assert cursor.seed is not None
        if self.sampling.ours or ranks.rank == 0:
            return cursor.seed
        return mixed_seed(cursor.seed, ranks.rank)

    def _asked_ahead(self, plan: Iterator[PlannedBatch], cursor: Cursor) -> Iterator[PlannedBatch]:
        """Returns the plan, which also reads rows into the page cache ahead if that is enabled."""
        ours = self.sampling.ours and self.sampling.picked is None and self.sampling.repeat == 1
        rows = self.engine().cold_rows() if self.settings.read_ahead and ours else None
        if rows is None:
            return plan
        # A table that is read ahead is local, and its order has no partitions: it is the same for
        # all ranks.
        orders = self.sampling.orders(self.epoch_rows(), cursor.of_order(), Ranks())
        order = orders.epoch(cursor.epoch)
        windows = windows_of(order, rows.nbytes / max(1, order.rows))
        return ReadAheadPlan(plan, windows, rows, cursor.position, self.settings.let_go)

    def _staging(self, cursor: Cursor, ranks: Ranks, known_order: bool) -> StagingPlan | None:
        """Returns how far ahead a remote dataset's blocks are fetched; None for local datasets."""
        if self._stager is None:
            return None
        rows, sampling = self.epoch_rows(), self.sampling
        following = orders = None
        # Other processes compute the next use of a block from the order only, so rows that a list,
        # a generator or a repetition puts elsewhere cannot be forecast.
        known_order = known_order and sampling.ours and sampling.draw is None
        known_order = known_order and sampling.picked is None and sampling.repeat == 1
        if known_order and cursor.order_seed is None:
            orders = sampling.orders(rows, cursor.of_order(), ranks)
            following = Cursor(cursor.epoch + 1, 0, cursor.seed)
        return StagingPlan(
            Forecast(orders, cursor.epoch, self._stager.blocks.block_rows),
            cursor.position,
            ahead_bytes(sampling, self._stager, ranks),
            None if following is None else partial(sampling.plan, rows, following, ranks),
            ranks.share_of(sampling.partitions_of(ranks)),
            sampling.pool_rows(ranks),
            most_ahead_bytes(self._stager),
        )

    def adopt_order(self, order: Mapping[str, Any], ranks: Ranks) -> None:
        """Uses the block and window of a loader's state, if rows are shuffled by windows."""
        sampling = self.sampling.adopting(order)
        if sampling == self.sampling:
            return
        if self._stager is None:  # another machine had room for other windows of a table
            own = self.sampling.shuffling
            if own.window is not None or own.bounds is not None:
                self.sampling = sampling
            return
        # The stager and its blocks were made for the previous sampling.
        self.close()
        self._engine = None
        self._stage(sampling)

    def set_threads(self, threads: int) -> int:
        if self._engine is not None:
            self._engine.set_threads(threads)
            threads = min(threads, self._engine.threads)
        engine = replace(self.settings.engine, threads=threads)
        self.settings = replace(self.settings, engine=engine)
        return threads

    def stats(self) -> Stats:
        threads, transform_s = self.settings.engine.threads, self.delivery.transform_s
        total = Stats(
            threads=threads, transform_s=transform_s, transforms="; ".join(self._described())
        )
        if self._stage_of_samples is not None:
            total += Stats(sample_s=self._stage_of_samples.seconds)
        if self._engine is not None:
            total += self._engine.stats
        if self._stager is not None:
            transfers = self._stager.transfers
            total += Stats(
                bytes_fetched=self._stager.bytes_fetched,
                retries=transfers.retries,
                refetched=transfers.refetched,
            )
        return total

    def _described(self) -> Iterator[str]:
        """Yields where the transforms of each field run; equal views are named together."""
        names: dict[str, list[str]] = {}
        for name in self.transforms.fields:
            names.setdefault(self._phrase(name), []).append(name)
        for phrase, equal in names.items():
            yield f"{', '.join(equal)}: {phrase}"

    def _phrase(self, name: str) -> str:
        """Returns where the transforms of a field or view run."""
        compiled = self.transforms.fields[name]
        tails = {} if self._engine is None else self._engine.tails
        tail = tails.get(name, compiled.tail)
        native = [*compiled.steps, *(compiled.tail if not tail else ()), *compiled.erasing]
        phrases = [f"{', '.join(map(str, native))} in native threads"] if native else []
        delivered = (part for each in self.fields for part in self.transforms.parts_of(each))
        if compiled.per_sample and name in delivered and self._stage_of_samples is not None:
            phrases.append(self._stage_of_samples.described(name))
        after = [*tail, *(OnBatch(function) for function in compiled.batch)]
        phrases += [f"{', '.join(map(str, after))} on the batch"] if after else []
        return ", ".join(phrases)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        if self._stager is not None:
            self._stager.close()

    def drawn(self, cursor: Cursor, ranks: Ranks, asked: Asked) -> list[Augmentation]:
        rows, occurrences, field, view = asked
        name = only_image(self.dataset.schema) if field is None else field
        if name not in self.dataset.schema.image_fields:
            raise TransformError(f"{name!r} is not a field of single images: choose one that is")
        parts = self.transforms.parts_of(name)
        if not 0 <= view < len(parts):
            raise IndexError(f"view {view}: field {name!r} has {len(parts)}")
        sizes = [self.dataset.image_size(name, row) for row in rows.tolist()]
        heights, widths = np.array(sizes, np.int32).reshape(-1, 2).T
        seed, keys = self.draw_seed(cursor, ranks), draw_keys(rows, occurrences)
        compiled = self.transforms.fields.get(parts[view], Compiled())
        return augmentation(compiled, seed, cursor.epoch, keys, heights, widths)

    def _host_batch(self, first_step: int, batch: Batch) -> HostBatch:
        """Returns a batch of the engine as tensors, in a run whose first step has a number."""
        info = BatchInfo(
            self.sampling.places(batch.rows, batch.occurrences),
            batch.valid,
            batch.epoch,
            first_step + batch.step,
            batch.next_position,
            tuple(batch.errors),
            batch.occurrences,
        )
        return self.delivery.host_batch(batch.fields, info, batch.release)
