"""The feed of a loader that reads table files in place."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from fastio.device import HostBatch
from fastio.engine.batch import SlotPool
from fastio.errors import SchemaError, StateMismatch
from fastio.feed.base import Batches, BatchInfo, Feed
from fastio.feed.delivery import Delivery, FeedSettings
from fastio.feed.fields import FieldTransforms
from fastio.feed.row_groups.blocks import BlockMemory
from fastio.feed.row_groups.chunks import Dealt, DealtPart
from fastio.feed.row_groups.cut import Share, windows
from fastio.feed.row_groups.records import Records
from fastio.feed.row_groups.run import RunSettings, TableRun
from fastio.order.sampling import Ranks, Sampling
from fastio.order.shuffling import Shuffling
from fastio.order.state import Cursor, OrderState
from fastio.runtime.cores import local_ranks
from fastio.runtime.lifecycle import at_exit, weakly
from fastio.runtime.memory import nominal_memory
from fastio.runtime.sizes import size_in_bytes
from fastio.sources.table.direct import RowGroup, TableDataset
from fastio.sources.table.options import KEPT_SUFFIX
from fastio.stage.shuffling import by_whole_groups
from fastio.stats import Stats
from fastio.tensors.trees import pinned_memory

_MOST_BYTES = 1 << 30  # the largest default of memory
_LEAST_BYTES = 1 << 20
_WINDOW_SIXTEENTHS = 5  # of memory for each of two windows; decoding gets 4, batches get 2
_CHUNK_BYTES = 2 << 20  # of small batches that are dealt together
_BLOCK_BYTES = 2 << 20  # the largest size of a block, unless a single record is larger
_DECODED = 2.5  # memory of a decoder relative to the rows: the rows and their encoded form
_LEAST_SLICE = 4096  # rows; pyarrow is slow with fewer


def table_memory(memory: int | str | None) -> int:
    """Returns the memory in bytes that a feed of tables may take.

    Args:
        memory: A size in bytes, or text such as "512MiB". If None, an eighth of `nominal_memory`,
            divided by the number of ranks on this machine, at most 1 GiB. Windows depend on it, so
            it must be the same for all ranks.

    Raises:
        ValueError: If it is not a size, or less than 1 MiB.
    """
    if memory is None:
        return max(_LEAST_BYTES, min(_MOST_BYTES, nominal_memory() // (8 * local_ranks())))
    nbytes = size_in_bytes(memory, "memory")
    if nbytes < _LEAST_BYTES:
        raise ValueError(f"memory must be at least 1 MiB, got {memory!r}")
    return nbytes


@dataclass
class _Shared:
    """Memory that the runs of a feed share. Not pickled."""

    blocks: dict[int, BlockMemory] = field(default_factory=dict)
    pools: dict[str, SlotPool] = field(default_factory=dict)


class TableFeed(Feed):
    """Batches of table files, whose row groups are decoded by threads and shuffled by windows.

    Args:
        dataset: The tables. They are not closed by the feed.
        sampling: Which rows make up which batch.
        transforms: The transforms of the fields.
        settings: The settings of the feed.

    Raises:
        ValueError: If there is a sampler, or the order needs random access to rows.
        SchemaError: If a row group needs more memory than there is.
    """

    without_draws = "there are no augmentations: tables have no images"

    def __init__(
        self,
        dataset: TableDataset,
        sampling: Sampling,
        transforms: FieldTransforms,
        settings: FeedSettings,
    ) -> None:
        if not sampling.ours:
            raise ValueError(
                "a sampler cannot be used with tables in place, which are read by row groups: "
                "pack them (fastio pack) to read rows in any order"
            )
        if sampling.order == "shuffle":
            raise ValueError(
                "order='shuffle' cannot be used with tables in place, which are read by row "
                "groups: use shuffle=True, which shuffles by windows of row groups, or pack "
                "them (fastio pack)"
            )
        self.settings = settings
        self._memory = table_memory(settings.memory)
        self._window_bytes = self._memory * _WINDOW_SIXTEENTHS // 16
        block_bytes = min(_BLOCK_BYTES, self._window_bytes // 32)
        self._records = Records(dataset.schema, dataset.fixed, block_bytes)
        fields = tuple(dataset.schema.fields)
        self._delivery = Delivery(dataset, fields, sampling, transforms, settings, {})
        super().__init__(dataset, sampling, self._delivery.finish, settings.ahead)
        self._check_groups()
        self._shared = _Shared()
        self._stats = Stats()
        self._runs: weakref.WeakSet[Batches[DealtPart]] = weakref.WeakSet()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shared": _Shared(), "_runs": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _runs=weakref.WeakSet())

    def shuffling(self, ranks: Ranks) -> Shuffling:
        """See `Feed`."""
        return by_whole_groups(self.sampling, self._window_bytes)

    def order(self, ranks: Ranks) -> OrderState:
        """See `Feed`."""
        return {
            "kind": "row groups",
            "window_bytes": self._window_bytes,
            "row_bytes": self._row_bytes,
            "ranks": ranks.world_size,
        }

    def adopt_order(self, order: Mapping[str, Any], ranks: Ranks) -> None:
        """Uses the window size of a restored state, if `memory` is not given.

        Raises:
            StateMismatch: If the state has another order.
        """
        own, window = self.order(ranks), order.get("window_bytes")
        if order == own or order.get("kind") != own["kind"]:
            return
        same = order == {**own, "window_bytes": window} and not self.settings.memory
        if same and isinstance(window, int) and window > 0:
            self._window_bytes = window
            return
        raise StateMismatch(
            "the loader state was saved with the tables divided differently: "
            f"{_listed(order)}; this loader has {_listed(own)}. Use the same memory=, fields "
            "and number of ranks; or pack the tables (fastio pack), whose states do not "
            "depend on the number of ranks"
        )

    def steps(self, ranks: Ranks) -> int:
        """See `Feed`."""
        rows = self._share(ranks).rows
        return -(-rows // (self.sampling.batch_size or 1))

    def run(self, cursor: Cursor, ranks: Ranks) -> Batches[DealtPart]:
        """See `Feed`."""
        share = self._share(ranks)
        # Positions count the rows of all ranks, which are equally far. Shares may differ by one row
        # at the end of an epoch.
        start = -(-cursor.position // ranks.world_size)
        if cursor.position >= len(self.dataset):
            start = share.rows
        cut = windows(
            self.dataset.groups,
            share,
            seed=cursor.of_order(),
            epoch=cursor.epoch,
            shuffle=self.sampling.mode != "sequential",
            row_bytes=self._row_bytes,
            window_bytes=self._window_bytes,
        )
        how = self._run_settings()
        run = TableRun(
            self.dataset,
            cut,
            start,
            share.rows,
            self._records,
            self._blocks(),
            self._pools(),
            how,
            self._stats,
        )
        batches = Batches(run, partial(self._host_batch, share, cursor.epoch, ranks))
        # The threads refer to the run, so it would never be garbage itself. Without threads, it may
        # be: the error of a run that has failed refers to the batches.
        weakref.finalize(batches, weakly(run.close)).atexit = False
        # At the exit of the interpreter, `close_soon` is called instead of the finalizer: daemon
        # threads must have ended by then, and a read that hangs must not delay the exit.
        at_exit(run.close_soon)
        self._runs.add(batches)
        return batches

    def rows(self, cursor: Cursor, ranks: Ranks) -> Iterator[int]:
        """See `Feed`."""
        if self.sampling.mode != "sequential":
            raise TypeError(
                "the order of a shuffled table is only known while its row groups are read, so its "
                "sampler cannot be iterated over: pack the tables (fastio pack)"
            )
        return super().rows(cursor, ranks)

    def stats(self) -> Stats:
        """See `Feed`."""
        return (
            Stats(threads=self.settings.engine.threads, transform_s=self._delivery.transform_s)
            + self._stats
        )

    def close(self) -> None:
        """Ends all runs and releases the memory."""
        for run in list(self._runs):
            run.close()
        self._shared = _Shared()
        self.dataset.close()

    # --- Memory -----------------------------------------------------------------------------------

    @property
    def _row_bytes(self) -> int:
        return self._records.stride

    def _share(self, ranks: Ranks) -> Share:
        sampling = self.sampling
        batch_size = sampling.batch_size or 1
        return Share.of(len(self.dataset), ranks, batch_size, sampling.drop_last)

    def _run_settings(self) -> RunSettings:
        """Divides the memory among windows, decoders and batches."""
        batch_size = self.sampling.batch_size or 1
        wanted = min(_CHUNK_BYTES, max(self._window_bytes // 16, 1))
        row_bytes = sum(map(self._bytes_of, self.dataset.groups)) / max(len(self.dataset), 1)
        batches = max(1, int(wanted / max(batch_size * row_bytes, 1)))
        threads = self.settings.engine.threads
        decoders, slice_rows = self._decoders(threads)
        # If fewer row groups are decoded at a time than half of the threads, pyarrow's own threads
        # use the other cores.
        per_window = max(1, self._window_bytes // max(self._group_bytes(), 1))
        return RunSettings(
            batch_size,
            batches,
            threads,
            decoders,
            slice_rows,
            arrow_threads=threads > 1 and 2 * per_window < threads,
            blocks=2 * -(-self._window_bytes // self._records.block_bytes),
            ahead=1 + -(-self.settings.ahead // batches),
            timeout_s=self.settings.timeout_s,
            ragged=self.settings.engine.ragged,
        )

    def _decoders(self, threads: int) -> tuple[int, int | None]:
        """Returns how many row groups are decoded at once, and the rows of a slice or None."""
        room = self._memory // 4
        largest = max((group.rows for group in self.dataset.groups), default=1)
        row = self._group_bytes() / max(largest, 1) * _DECODED
        # If there is room, each thread decodes a whole row group. Otherwise threads decode slices,
        # and if there is no room for these, fewer threads decode.
        if row * largest * threads <= room:
            return threads, None
        rows = int(room / (threads * max(row, 1)))
        if rows >= _LEAST_SLICE:
            return threads, rows
        return max(1, min(threads, int(room / (max(row, 1) * _LEAST_SLICE)))), _LEAST_SLICE

    def _group_bytes(self) -> int:
        """Returns the memory of the largest row group in bytes."""
        return max(map(self._bytes_of, self.dataset.groups), default=0)

    def _bytes_of(self, group: RowGroup) -> int:
        return group.rows * self._row_bytes + group.varying_bytes

    def _check_groups(self) -> None:
        """Checks that each row group fits in the windows' memory; it is shuffled as a whole."""
        for group in self.dataset.groups if self.sampling.mode != "sequential" else ():
            nbytes = self._bytes_of(group)
            if nbytes > 2 * self._window_bytes:
                where = f"{group.origin.file}, row group {group.number}"
                needed = -(-nbytes * 16 // (2 * _WINDOW_SIXTEENTHS) >> 20)
                raise SchemaError(
                    f"{where}: its {group.rows:,} rows take {nbytes / 2**20:,.0f} MiB, more "
                    f"than five eighths of memory= ({self._memory / 2**20:,.0f} MiB): use "
                    f"memory='{needed}MiB', read fewer columns, write smaller row groups, or "
                    "pack the tables (fastio pack)"
                )

    def _blocks(self) -> BlockMemory:
        nbytes = self._records.block_bytes
        return self._shared.blocks.setdefault(nbytes, BlockMemory(nbytes))

    def _pools(self) -> dict[str, SlotPool]:
        pools, pinned = self._shared.pools, self.settings.pinned == "slots"
        allocate = pinned_memory if pinned else np.empty
        for name, kept in self._records.fields.items():
            if name not in pools:
                pools[name] = SlotPool(kept.shape, kept.dtype, allocate, keep=8)
        return pools

    # --- Batches ----------------------------------------------------------------------------------

    def _host_batch(self, share: Share, epoch: int, ranks: Ranks, part: DealtPart) -> HostBatch:
        """Returns a batch of a run over a share as tensors."""
        dealt, begin, end, at = part
        rows, size, total = end - begin, self.sampling.batch_size or 1, len(self.dataset)
        after = at + rows
        position = total if after == share.rows else min(total, after * ranks.world_size)
        valid = min(rows, max(0, share.valid - at))
        info = BatchInfo(dealt.rows[begin:end], valid, epoch, at // size, position)
        batch = begin // size
        values: dict[str, Any] = {n: v[begin:end] for n, v in dealt.fields.items()}
        values |= dealt.ragged[batch] if dealt.ragged else {}
        release = partial(_released, dealt, end == len(dealt.rows))
        return self._delivery.host_batch(values, info, release, partial(self._samples, values))

    def _samples(self, values: Mapping[str, Any], data: Mapping[str, Any]) -> list[Any]:
        """Splits a batch into samples for collate_fn, as indexing the dataset gives them."""
        columns = self._delivery.columns(data, values)
        for kept in [name for name in columns if name.endswith(KEPT_SUFFIX)]:
            valid, name = columns.pop(kept), kept.removesuffix(KEPT_SUFFIX)
            columns[name] = [
                value if there else None for value, there in zip(columns[name], valid, strict=True)
            ]
        rows = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]


def _listed(order: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in order.items() if key != "kind")


def _released(dealt: Dealt, last: bool) -> None:
    """Releases a chunk after the copy of its last batch; copies end in order."""
    if last:
        dealt.release()
