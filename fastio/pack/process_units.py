"""Packs units of a Python dataset, or of image files if there are many cores, in worker processes.

A worker reads, encodes and writes a whole unit, so that samples are not sent between processes.
The names of shards that a worker writes have random endings (`task_output`). The calling process
gives the shards their final names in the order of the source.

If the number of units of a Python dataset is not a multiple of the number of workers, the calling
process packs the last units, and gets their samples from all workers. Otherwise, some workers would
have nothing to do at the end. Files are packed by threads of the calling process if there are few
units or cores. More threads would wait for each other, because only one of them can run Python at a
time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from fastio.pack.items import Source, SourceProcesses
from fastio.pack.journal import FinishedUnit, FinishedUnits, Plan, writing_to
from fastio.pack.names import is_task_output_name, own_files
from fastio.pack.samples import SampleEncoder, SampleOptions
from fastio.pack.task_output import WrittenUnit, give_names, new_ending
from fastio.pack.units import ShardWriter, pack_unit
from fastio.runtime.memory import available_memory

# The memory that a worker takes while it packs a unit, in shards: its rows, and the columns that
# are made of them.
_SHARDS_IN_MEMORY = 2.5
# The share of the available memory that all workers may take.
_MEMORY_SHARE = 0.5


class ProcessUnits:
    """Runs units in the processes of a source; see `packer.UnitRunner`.

    Args:
        encoder: The encoder of this process, which encodes the units that are left.
        processes: The processes.
        options: How samples are packed.
    """

    def __init__(
        self, encoder: SampleEncoder, processes: SourceProcesses, options: SampleOptions
    ) -> None:
        self._encoder = encoder
        self._processes = processes
        # No threads: `workers` limits the processes, each of which encodes on one thread.
        self._options = replace(options, workers=0)

    def run(
        self, plan: Plan, finished: FinishedUnits, writer: ShardWriter
    ) -> Generator[FinishedUnit, None, None]:
        """See `packer.UnitRunner`."""
        numbers = self._numbers(range(len(finished), self._encoder.units(plan) or 0))
        tasks = (_UnitTask(plan, number, writer, self._options) for number in numbers)
        # No process is started without a unit.
        if not numbers:
            return
        try:
            with closing(self._processes.call(tasks)) as units:
                for written in units:
                    with writing_to(writer.folder, writer.when_full):
                        give_names(writer.folder, written)
                    self._encoder.count(written.unit.end)
                    yield written.unit
        except BaseException:
            # The processes have ended. Processes that were ahead may have written shards.
            for name in filter(is_task_output_name, own_files(writer.folder)):
                (writer.folder / name).unlink(missing_ok=True)
            raise

    def rest(self, plan: Plan, number: int) -> Iterator[Any]:
        """See `packer.UnitRunner`."""
        return self._encoder.parts_from_unit(plan, number)

    def _numbers(self, left: range) -> range:
        """Returns which of the units that are left the processes pack; none if memory is scarce."""
        count = self._processes.count
        needed = count * _SHARDS_IN_MEMORY * self._options.shard_bytes
        if needed > _MEMORY_SHARE * available_memory():
            return left[:0]
        if self._processes.pack_all:
            return left if 2 * len(left) >= count else left[:0]
        return left[: len(left) // count * count]


@dataclass(frozen=True)
class _UnitTask:
    """Packs a unit in a worker process. Can be pickled."""

    plan: Plan
    number: int
    writer: ShardWriter
    options: SampleOptions

    def __call__(self, source: Source) -> WrittenUnit:
        """Packs the unit of this source, and returns it when its shards are on the disk."""
        writer = replace(self.writer, ending=new_ending())
        encoder = SampleEncoder(source, self.options)
        return WrittenUnit(pack_unit(encoder, self.plan, self.number, writer), writer.ending)
