"""Encodes samples one by one: images, sounds, arrays, numbers and strings."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import xxhash

from fastio.errors import FastioError, PackError, SchemaError
from fastio.pack.cells import (
    codec_counts,
    columns,
    encode_row,
    field_encoders,
    indexed_fields,
    memory_bytes,
)
from fastio.pack.encoder import LARGEST_UNIT, About, Filled
from fastio.pack.images import CodebookChoice, ImageOptions, train_codebook
from fastio.pack.items import AGAIN, UNREAD, Item, Row, Source, ended
from fastio.pack.journal import Plan, UnitEnd
from fastio.packed import FORMAT_VERSION, ShardTable
from fastio.packed.codebook import open_codebook
from fastio.packed.sample_errors import NOT_OF_SAMPLES
from fastio.runtime.ahead import in_order
from fastio.schema import CODEC_BLOCKS, CODEC_NAMES, Schema, is_fixed_width, row_bytes

_DEPTH_PER_WORKER = 64
# How many samples are encoded to estimate the size of one: a share of all, within limits.
_TRIED_SHARE, _TRIED_LEAST, _TRIED_MOST = 1 / 128, 8, 64


@dataclass(frozen=True)
class SampleOptions:
    """How samples are packed.

    Attributes:
        images: How images are stored. The codebook is set when packing begins.
        codebook: The codebook of the codec "blocks"; None for other codecs.
        shard_bytes: The size of a shard. If all units have the same number of rows, the average
            size of a unit; otherwise, a shard ends with the row that reaches this size.
        skip_bad: Whether bad samples are left out. If not, the first one stops the pack.
        workers: The number of threads.
    """

    images: ImageOptions
    codebook: CodebookChoice | None
    shard_bytes: int
    skip_bad: bool
    workers: int

    def to_json(self) -> dict[str, Any]:
        """Returns how images are stored, as JSON values for the journal and the manifest."""
        return {
            "codec": self.images.codec,
            "codebook": None if self.codebook is None else self.codebook.identity,
            "max_side": self.images.max_side,
            "quality": self.images.quality,
        }


class RowEncoder:
    """Turns samples into rows, in this process or, after it was pickled, in another one.

    Args:
        source: The name of the source.
        schema: The fields of the samples.
        images: How images are stored; its codebook is replaced.
        codebook: The bytes of the codebook, or None.

    Attributes:
        fixed_bytes: The bytes of a row in fields of fixed width.
    """

    def __init__(
        self, source: str, schema: Schema, images: ImageOptions, codebook: bytes | None
    ) -> None:
        opened = None if codebook is None else open_codebook(codebook)
        self._source, self._schema, self._codebook = source, schema, codebook
        self._images = replace(images, codebook=opened)
        self._fields = field_encoders(schema, self._images)
        # The place of the field whose values must be numbers of classes; None if there is none.
        self._class_place: int | None = None
        if schema.classes is not None and schema.class_field is not None:
            self._class_place = list(schema.fields).index(schema.class_field)
        self.fixed_bytes = sum(row_bytes(*each) for each in schema.fields.items())

    def __reduce__(self) -> Any:
        # The native codebook cannot be pickled, but is made again from its bytes.
        images = replace(self._images, codebook=None)
        return RowEncoder, (self._source, self._schema, images, self._codebook)

    def __call__(self, item: Item, stamp: bytes = b"") -> Row:
        """Returns a sample as a row, which has an error if the sample is bad.

        Raises:
            FastioError: One of `NOT_OF_SAMPLES`, which says nothing about the sample.
        """
        if item.error is not None:
            return Row(item.name, stamp, error=item.error)
        try:
            self._check_class(item)
            cells, nbytes = encode_row(self._fields, self._source, item)
        except NOT_OF_SAMPLES:
            raise
        except FastioError as error:
            return Row(item.name, stamp, error=error)
        return Row(item.name, stamp, cells, self.fixed_bytes + nbytes)

    def _check_class(self, item: Item) -> None:
        """Raises SchemaError if no class has the class number of a sample."""
        classes = self._schema.classes
        if self._class_place is None or classes is None:
            return
        with suppress(TypeError):  # encoding reports what is no number
            number = operator.index(item.values[self._class_place])
            if number >= len(classes):
                raise SchemaError(
                    f"{item.name}: no class has the number {number}: the schema has "
                    f"{len(classes)} classes, numbered from 0. Add the class to the "
                    "schema, or use -1 for a sample without a class"
                )


class SampleEncoder:
    """Encodes the samples of a source; see `encoder.Encoder`.

    Args:
        source: The samples.
        options: How they are packed.
    """

    def __init__(self, source: Source, options: SampleOptions) -> None:
        self.schema = source.schema
        self.counted = "samples"
        self.total = source.total
        self.position = 0
        self.skipped: list[tuple[str, str]] = []
        # Numbers and strings cost less to encode than to pass to a thread.
        encodes_here = source.rows is None and source.schema.pictured
        self.workers = options.workers if encodes_here else 0
        self.depth = self.workers * _DEPTH_PER_WORKER
        self._source = source
        self._options = options
        self._rows: list[Row] = []
        self._row_bytes = 0
        self._skipped_before = 0  # in finished units
        self._begin = 0  # the position where the unit that is being filled begins
        self._cut = False  # whether shards of the unit that is being filled were written
        self._stamps = xxhash.xxh3_64()
        self._use(Plan())

    def identity(self) -> Mapping[str, Any]:
        """See `encoder.Encoder`."""
        options, limits = self._options, {}
        # If bad samples are skipped, max_pixels decides which samples the dataset has, so a resumed
        # pack needs the same limit. Otherwise a larger image ends the pack, which can be resumed
        # with a larger limit.
        if options.skip_bad and self.schema.pictured:
            limits["max_pixels"] = list(self._source.limits) or options.images.max_pixels
        return {
            **options.to_json(),
            **limits,
            "format_version": FORMAT_VERSION,
            "shard_size": options.shard_bytes,
            "on_error": "skip" if options.skip_bad else "raise",
            "source": self._source.name,
            "schema": self.schema.to_json(),
        }

    def plan(self, progress: bool) -> Plan:
        """See `encoder.Encoder`. Trains a codebook if one was requested."""
        source, options, codebook = self._source, self._options, None
        if options.codebook is not None and options.codebook.data is None:
            codebook = train_codebook(source, options.images, progress)
            self._use(Plan(codebook))
        if source.total is None:
            return Plan(codebook)
        row_bytes: float = self._encode.fixed_bytes
        if not all(map(is_fixed_width, self.schema.fields.values())):
            count = round(min(max(source.total * _TRIED_SHARE, _TRIED_LEAST), _TRIED_MOST))
            sizes = list(in_order(self._encoded_size, source.sample(count), options.workers))
            row_bytes = sum(sizes) / max(len(sizes), 1)
        return Plan(codebook, max(1, math.ceil(options.shard_bytes / max(row_bytes, 1))))

    def begin(self, plan: Plan, finished: Iterable[UnitEnd]) -> Iterator[Item | Row]:
        """See `encoder.Encoder`."""
        self._use(plan)
        source, last = self._source, None
        items: Iterator[Item | Row] = iter(())
        if source.has_keys:
            # Objects of finished units are not fetched again.
            items = self._parts(0) if source.named is None else source.named()
        for end in finished:
            stamps = xxhash.xxh3_64()
            for part in islice(items, end.samples * source.has_keys):
                stamps.update(part.stamp if isinstance(part, Row) else _stamp(part))
            if stamps.hexdigest() != end.source:
                raise PackError(
                    f"cannot resume: {source.name} has changed since its first "
                    f"{self.position + end.samples} samples were packed (files added, removed, "
                    f"renamed or modified); {AGAIN}"
                )
            self.count(end)
            last = end
        # Checked here too, because worker processes may read the samples of all remaining units.
        if self.total is not None and self.position > self.total:
            raise ended(source.name, self.total, self.position)
        if not source.has_keys or source.named is not None:
            items = self._parts(self.position)
        if last is not None and last.last and next(items, None) is not None:
            raise PackError(
                f"cannot resume: {source.name} had {self.position} samples when it was packed to "
                f"its end, and has more now; {AGAIN}"
            )
        return items

    def units(self, plan: Plan) -> int | None:
        """See `encoder.Encoder`."""
        total, rows = self.total, plan.unit_rows
        return None if total is None or rows is None else math.ceil(total / rows)

    def parts_of_unit(self, plan: Plan, number: int) -> Iterator[Item | Row]:
        """See `encoder.Encoder`."""
        self._use(plan)
        rows = plan.unit_rows or 0
        # Not `parts_from_unit`: a unit behind the last sample that this machine finds is an error.
        self.position = self._begin = number * rows
        return islice(self._parts(self.position), rows)

    def parts_from_unit(self, plan: Plan, number: int) -> Iterator[Item | Row]:
        """Returns the parts of a unit and of all units after it; other encoders packed the rest."""
        self._use(plan)
        self.position = self._begin = min(number * (plan.unit_rows or 0), self.total or 0)
        return self._parts(self.position)

    def count(self, end: UnitEnd) -> None:
        """See `encoder.Encoder`."""
        self.position = self._begin = self.position + end.samples
        self.skipped += end.skipped
        self._skipped_before = len(self.skipped)

    def _parts(self, start: int) -> Iterator[Item | Row]:
        source = self._source
        return source.items(start) if source.rows is None else source.rows(start, self._encode)

    def memory_bytes(self, part: Item | Row) -> int:
        """See `encoder.Encoder`."""
        return part.nbytes if isinstance(part, Row) else memory_bytes(part)

    def encode(self, part: Item | Row, hold: Callable[[int], None]) -> Row:
        """See `encoder.Encoder`."""
        return part if isinstance(part, Row) else self._encode(part, _stamp(part, hold))

    def encoded_bytes(self, encoded: Row) -> int:
        """See `encoder.Encoder`."""
        return encoded.nbytes

    def fill(self, encoded: Row) -> Iterator[Filled]:
        """See `encoder.Encoder`. Raises the error of a bad sample unless those are skipped."""
        error = encoded.error
        if error is not None and not self._options.skip_bad:
            raise error
        self.position += 1
        self._stamps.update(encoded.stamp)
        if error is None:
            self._rows.append(encoded)
            self._row_bytes += encoded.nbytes
        else:
            self.skipped.append((encoded.name, str(getattr(error, "cause", "") or error)))
        # Whether a shard ends here depends on this row and not on the next one, so that a shard
        # depends on no row after it.
        full = self._row_bytes >= self._shard_bytes
        ends = full if self._unit_rows is None else self.position % self._unit_rows == 0
        if full or ends:
            yield self._filled(ends)

    def rest(self) -> Filled | None:
        """See `encoder.Encoder`."""
        unfinished = self._rows or self._cut or len(self.skipped) > self._skipped_before
        return self._filled(ends=True, last=True) if unfinished else None

    def about(self, shards: ShardTable) -> About:
        """See `encoder.Encoder`."""
        if not shards:
            raise self._nothing_packed()
        counts = [f"{name}.{CODEC_NAMES[CODEC_BLOCKS]}" for name in self.schema.pictured]
        has_blocks = any(map(shards.total, counts))
        choice = self._options.codebook
        packing = {
            **self._options.to_json(),
            "codebook": choice.origin if choice is not None and has_blocks else None,
            "shard_bytes": self._options.shard_bytes,
            "source": self._source.name,
            "skipped": len(self.skipped),
        }
        # Without block records, readers need no codebook.
        return About(packing, self._codebook if has_blocks else None)

    def _encoded_size(self, item: Item) -> int:
        return self.encode(item, lambda nbytes: None).nbytes

    def _use(self, plan: Plan) -> None:
        """Encodes with the codebook of a plan, and fills units of its size, from now on."""
        choice, self._unit_rows = self._options.codebook, plan.unit_rows
        self._shard_bytes = self._options.shard_bytes * (LARGEST_UNIT if plan.unit_rows else 1)
        self._codebook = choice.data or plan.codebook if choice is not None else None
        self._encode = RowEncoder(
            self._source.name, self.schema, self._options.images, self._codebook
        )

    def _filled(self, ends: bool, last: bool = False) -> Filled:
        """Returns the rows held as a shard. `ends`: whether its unit ends with it."""
        rows, self._rows, self._row_bytes = self._rows, [], 0
        self._cut, end = not ends, None
        if ends:
            skipped = self.skipped[self._skipped_before :]
            end = UnitEnd(self.position - self._begin, self._stamps.hexdigest(), last, skipped)
            self._begin = self.position
            self._skipped_before = len(self.skipped)
            self._stamps.reset()
        schema = self.schema
        counts = codec_counts(schema, rows)
        arrays = columns(schema, rows) if rows else ()
        return Filled(arrays, end, counts, indexed_fields(schema, rows))

    def _nothing_packed(self) -> PackError:
        name = self._source.name
        if not self.skipped:
            return PackError(f"there is nothing to pack: {name} has no samples")
        bad, reason = self.skipped[0]
        return PackError(
            f"nothing was packed: all {len(self.skipped)} samples of {name} are bad, the first is "
            f"{bad}: {reason}"
        )


def _stamp(item: Item, hold: Callable[[int], None] | None = None) -> bytes:
    """Returns a sample's key, and its files' sizes and times; `hold` is called with their bytes."""
    if not item.key:
        return b""
    parts = [item.key]
    total = 0
    for value in _single_values(item.values):
        if isinstance(value, UNREAD):
            try:
                stamp, nbytes = value.stamp()
            except OSError:
                parts.append("unreadable")
                continue
            parts.append(stamp)
            total += nbytes
    if hold is not None:
        hold(total)
    return "\0".join(parts).encode("utf-8", "surrogateescape") + b"\n"


def _single_values(values: Iterable[Any]) -> Iterator[Any]:
    """Yields values, and those of tuples of images one by one."""
    for value in values:
        if isinstance(value, tuple):
            yield from value
        else:
            yield value
