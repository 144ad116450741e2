"""The packer: parts of a source in, shards out, a journal beside them and a manifest at the end.

    source -> parts -> encoder (threads) -> encoder (one thread: shards) -> destination

All kinds of data are packed in this way. They differ in the source, which gives the parts, and in
the encoder (`encoder.Encoder`). Units are packed by threads of this process (`units`), or by a
`UnitRunner` in other processes, on this machine (`process_units`) or others (`ray_engine`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import chain
from typing import Any, Generic, Protocol

from fastio.pack.destination import Destination
from fastio.pack.encoder import E, Encoder, P
from fastio.pack.journal import APPEND_TO, FinishedUnit, FinishedUnits, Plan, when_full, writing_to
from fastio.pack.progress import progress_bar
from fastio.pack.task_output import WrittenUnit
from fastio.pack.units import ShardWriter, UnitPacker
from fastio.packed import Manifest, write_manifest
from fastio.runtime.texts import Names


class UnitRunner(Protocol):
    """Packs units of a source in other processes, from the first unit that is not finished."""

    def run(
        self, plan: Plan, finished: FinishedUnits, writer: ShardWriter
    ) -> Generator[WrittenUnit | FinishedUnit, None, None]:
        """Yields the units after the finished ones, in order, when their shards are written.

        A `FinishedUnit` has its shards in the folder under their names, and the packer's encoder
        has counted it.

        Args:
            plan: How the source is divided into units.
            finished: The units that are finished already.
            writer: Writes shards to the folder of the destination.

        Raises:
            As for `units.pack_units`; the first error in the order of the source.
        """
        ...

    def rest(self, plan: Plan, number: int) -> Iterator[Any]:
        """Returns the parts of the units that are left to the packer, given the first one's number.

        Called after `run`.
        """
        ...


class Packer(Generic[P, E]):
    """Writes one dataset. Used by one thread.

    Args:
        destination: Where it is written to.
        encoder: The source's encoder.
        resume: Whether to continue a half-written dataset at the destination.
        overwrite: Whether to replace a dataset at the destination.
        base: The dataset at the destination to which the samples are appended, or None.

    Attributes:
        entries: The shards of the finished units, without those of `base`.
        resumed: The number of shards that an earlier run has finished.

    Raises:
        DatasetExists: The destination holds a dataset.
        PackError: It cannot be written, or cannot be resumed with this source and these options.
    """

    def __init__(
        self,
        destination: Destination,
        encoder: Encoder[P, E],
        *,
        resume: bool = False,
        overwrite: bool = False,
        base: Manifest | None = None,
    ) -> None:
        self._encoder = encoder
        self._destination = destination
        self._base = base
        identity = dict(encoder.identity())
        if base is not None:
            identity[APPEND_TO] = base.fingerprint
        self._when_full = when_full(identity)
        with writing_to(destination.name, ", then try again"):  # the journal may not be there yet
            self._journal = destination.open(identity, resume, overwrite, base)
        self.entries = self._journal.finished.shards
        self.resumed = len(self.entries)
        version = 1 if base is None else base.version + 1
        self._writer = ShardWriter(
            destination.folder,
            encoder.schema,
            version,
            self._when_full,
            pack_id=destination.pack_id,
        )
        self._units = UnitPacker(encoder, self._writer, len(self._journal.finished))

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """(name, reason) of the samples that were left out."""
        return self._encoder.skipped

    def run(self, progress: bool, runner: UnitRunner | None = None) -> None:
        """Packs the whole source, and closes the packer in any case.

        Args:
            progress: Whether to show a progress bar on stderr.
            runner: Packs the units elsewhere. If it is None, this process packs them.

        Raises:
            As for `add`; PackError: A finished shard is missing, the source is not the one that was
                packed, or it has no samples.
        """
        encoder = self._encoder
        journal = self._journal
        try:
            for entry in self.entries:
                self._destination.check(entry)
            if journal.plan is None:
                journal.keep_plan(encoder.plan(progress))
            plan = journal.plan or Plan()
            parts = encoder.begin(plan, journal.finished.ends())
            shown = encoder.position
            with progress_bar(
                "packing", encoder.counted, encoder.total, progress, shown
            ) as advance:
                if runner is not None:
                    number = len(journal.finished)
                    # Ends tasks and processes at the end of this block, and not when they are
                    # garbage-collected.
                    with closing(runner.run(plan, journal.finished, self._writer)) as units:
                        for unit in units:
                            if isinstance(unit, WrittenUnit):
                                encoder.count(unit.unit.end)
                                self._record_written(unit)
                            else:
                                self._commit(unit)
                            number += 1
                            advance(encoder.position - shown)
                            shown = encoder.position
                    parts = runner.rest(plan, number)
                    self._units.number = number
                for part in parts:
                    self.add(part)
                    advance(encoder.position - shown)
                    shown = encoder.position
                self.finish()
                advance(encoder.position - shown)
        finally:
            self.close()

    def add(self, part: P) -> None:
        """Takes a part. It may be encoded and written later.

        Raises:
            ImageError, SampleError, SchemaError: A bad sample, in this part or one before it,
                unless bad samples are skipped.
            PackError: The destination cannot be written.
        """
        for unit in self._units.add(part):
            self._commit(unit)

    def finish(self) -> None:
        """Writes what is left and the manifest; raises PackError if there were no samples."""
        for unit in self._units.rest():
            self._commit(unit)
        about = self._encoder.about(self.entries)
        destination, base = self._destination, self._base
        packing, codebook = about.packing, about.codebook
        # Appended samples may already be tokens. The dataset then keeps its description of the
        # tokenizer.
        if base is not None and "tokens" in base.packing:
            packing = {"tokens": base.packing["tokens"], **packing}
        # Appended samples may have no block records, and so no codebook. The dataset keeps its own.
        if base is not None and base.codebook is not None:
            codebook = base.codebook
            packing = {**packing, "codebook": base.packing.get("codebook")}
        with writing_to(destination.name, self._when_full):
            destination.prepare(self.entries.names, base)
            write_manifest(
                destination.folder,
                self._encoder.schema,
                packing,
                self.entries,
                codebook,
                about.statistics,
                base,
            )
            destination.finish()

    def _commit(self, unit: FinishedUnit) -> None:
        """Records a unit whose shards were written, and passes them to the destination."""
        with writing_to(self._destination.name, self._when_full):
            self.entries.extend(unit.entries)
            # Recorded before they are sent, because the journal must name each shard before it is
            # uploaded.
            self._destination.record(unit)
            for entry in unit.entries:
                self._destination.send(entry)

    def _record_written(self, written: WrittenUnit) -> None:
        """Records a unit whose shards the runner's processes have written."""
        with writing_to(self._destination.name, self._when_full):
            self._destination.record_written(written)
            self.entries.extend(written.unit.entries)

    def discard(self) -> None:
        """Stops, and deletes everything that was written."""
        self._units.close()
        written = Names(chain(self.entries.names, (entry.name for entry in self._units.entries)))
        with writing_to(self._destination.name, self._when_full):
            self._destination.discard(written)

    def close(self) -> None:
        """Ends the threads and closes the journal. A half-written dataset can be resumed."""
        self._units.close()
        # Without a shard, there is nothing to resume, and the journal would only make the next pack
        # fail.
        written = self.entries or self._units.entries or self._journal.finished
        self._destination.close(keep=bool(written) or self._destination.replaces)
