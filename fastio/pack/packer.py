"""The packer: samples in, shards out, a journal beside them and a manifest at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import xxhash

from fastio.errors import FastioError, PackError
from fastio.pack.cells import (
    UNREAD,
    Bad,
    Item,
    Row,
    codec_counts,
    columns,
    encode_row,
    memory_bytes,
)
from fastio.pack.codebooks import (
    CodebookChoice,
    open_codebook,
    train_codebook,
)
from fastio.pack.destination import Destination, writing_to
from fastio.pack.images import ImageCodec, ImageOptions
from fastio.pack.pipeline import OrderedPipeline
from fastio.pack.shards import RESUME, Filled, Shards
from fastio.pack.sources import Source
from fastio.packed import FORMAT_VERSION, ShardEntry
from fastio.runtime.memory import MAX_PIXELS
from fastio.schema import CODEC_BLOCKS, Schema

# Samples under way, and the bytes of theirs that may be in memory next to the shard being filled.
_DEPTH_PER_WORKER = 64
_BUDGET_BYTES = 256 << 20


@dataclass(frozen=True)
class PackOptions:
    """What a pack is to do.

    Attributes:
        codec: how images are stored, see `ImageOptions`.
        codebook: for the codec "blocks"; None for others.
        max_side: images are shrunk to so many pixels of the longer side, or None.
        quality: of the JPEGs that image files are made, or None.
        shard_bytes: a shard is closed by the row that makes its data this large.
        skip_bad: whether bad samples are left out; else the first one stops the pack.
        workers: number of threads.
        max_pixels: of an image file.
    """

    codec: ImageCodec
    codebook: CodebookChoice | None
    max_side: int | None
    quality: int | None
    shard_bytes: int
    skip_bad: bool
    workers: int
    max_pixels: int = MAX_PIXELS


class Packer:
    """Writes one dataset. Used by one thread.

    Args:
        destination: where to.
        schema: the samples' fields.
        source: name of what is packed, for the manifest.
        options: what to do.
        resume: whether to go on with a half-written dataset that is there.
        overwrite: whether to replace a dataset that is there.

    Attributes:
        skipped: (name, reason) of the samples left out.
        position: how many of the source's samples are used up.

    Raises:
        DatasetExists: the destination holds a dataset.
        PackError: it cannot be written, or not resumed with these options.
    """

    def __init__(
        self,
        destination: Destination,
        schema: Schema,
        source: str,
        options: PackOptions,
        *,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        self.skipped: list[tuple[str, str]] = []
        self.position = 0
        self._schema = schema
        self._source = source
        self._options = options
        self._rows: list[Row] = []
        self._row_bytes = 0
        self._skipped_before = 0
        self._stamps = xxhash.xxh3_64()
        self._name = destination.name
        self._shards = Shards(destination, schema, self._journal_options(), resume, overwrite)
        choice = options.codebook
        self._codebook: bytes | None = None
        if choice is not None:
            self._codebook = choice.data or self._shards.journal.codebook
        self._images = self._image_options()
        # Numbers and strings cost less to encode than to hand to a thread.
        workers = options.workers if schema.image_fields else 0
        self._pipeline: OrderedPipeline[Item | Bad, _Encoded] = OrderedPipeline(
            self._encode, _Encoded.nbytes, workers, workers * _DEPTH_PER_WORKER, _BUDGET_BYTES
        )

    @property
    def entries(self) -> list[ShardEntry]:
        """The shards that are finished."""
        return self._shards.entries

    def resume(self, source: Source) -> Iterator[Item | Bad]:
        """Take over what the journal says is finished.

        Returns:
            The source's samples that are left.

        Raises:
            PackError: a finished shard is missing, or its samples are not those of the source.
        """
        finished = self._shards.take_over()
        if not finished:
            return source.items(0)
        for shard in finished:
            self.skipped += shard.skipped
        last = finished[-1]
        self.position = last.position
        self._skipped_before = len(self.skipped)
        items = source.items(0 if source.has_keys else last.position)
        if source.has_keys:
            for item in islice(items, last.position):
                self._stamps.update(_stamp(item))
        if self._stamps.hexdigest() != last.source:
            raise PackError(
                f"cannot resume: {source.name} has changed since its first {last.position} "
                "samples were packed (files added, removed, renamed or modified); start again "
                "with overwrite"
            )
        if last.last and next(items, None) is not None:
            raise PackError(
                f"cannot resume: {source.name} had {last.position} samples when it was packed to "
                "its end, and has more now; start again with overwrite"
            )
        return items

    @property
    def needs_codebook(self) -> bool:
        """Whether `train` is to be called before samples are added."""
        return self._options.codebook is not None and self._codebook is None

    def train(self, source: Source, progress: bool) -> None:
        """Train the codebook.

        Args:
            source: what on.
            progress: show progress bars on stderr.

        Raises:
            PackError: there is nothing to train on.
        """
        options = self._options
        self._codebook = train_codebook(source, options.max_side, options.quality, progress)
        with writing_to(self._name, RESUME):
            self._shards.journal.keep_codebook(self._codebook)
        self._images = self._image_options()

    def _image_options(self) -> ImageOptions:
        options = self._options
        codebook = None if self._codebook is None else open_codebook(self._codebook)
        return ImageOptions(
            options.codec, codebook, options.max_side, options.quality, options.max_pixels
        )

    def add(self, item: Item | Bad) -> None:
        """Take one sample; it may be encoded and written later.

        Raises:
            ImageError, SampleError, SchemaError: a bad sample, this one or one before it, unless
                bad samples are skipped.
            PackError: the destination cannot be written.
        """
        for encoded in self._pipeline.submit(item, memory_bytes(item)):
            self._store(encoded)

    def finish(self) -> None:
        """Write what is left and the manifest: from here on it is a dataset.

        Raises:
            As `add`; PackError: there were no samples.
        """
        for encoded in self._pipeline.drain():
            self._store(encoded)
        if self._rows:
            self._write_shard(last=True)
        if not self.entries:
            raise self._nothing_packed()
        codebook = self._codebook if self._has_blocks() else None
        self._shards.finish(self._packing(), codebook, None)

    def discard(self) -> None:
        """Stop, and delete all that was written."""
        self._pipeline.close()
        self._shards.discard()

    def close(self) -> None:
        """End the threads and close the journal. What is half-written stays, to be resumed."""
        self._pipeline.close()
        self._shards.close()

    def _encode(self, item: Item | Bad, hold: Callable[[int], None]) -> _Encoded:
        stamp = _stamp(item, hold)
        if isinstance(item, Bad):
            return _Encoded(item, stamp)
        try:
            row = encode_row(self._schema, self._images, self._source, item)
        except FastioError as error:
            return _Encoded(Bad(item.position, item.name, error), stamp)
        return _Encoded(row, stamp)

    def _store(self, encoded: _Encoded) -> None:
        result = encoded.result
        if isinstance(result, Bad):
            if not self._options.skip_bad:
                raise result.error
            self.skipped.append((result.name, _reason(result.error)))
        self.position += 1
        self._stamps.update(encoded.stamp)
        if isinstance(result, Row):
            self._rows.append(result)
            self._row_bytes += result.nbytes
            # This row decides, and not the next one, so that a shard depends on nothing after it.
            if self._row_bytes >= self._options.shard_bytes:
                self._write_shard(last=False)

    def _write_shard(self, last: bool) -> None:
        self._shards.add(
            Filled(
                columns(self._schema, self._rows),
                len(self._rows),
                self.position,
                self._stamps.hexdigest(),
                last,
                codec_counts(self._schema, self._rows),
                self.skipped[self._skipped_before :],
            )
        )
        self._skipped_before = len(self.skipped)
        self._rows = []
        self._row_bytes = 0

    def _nothing_packed(self) -> PackError:
        if not self.skipped:
            return PackError(f"there is nothing to pack: {self._source} has no samples")
        name, reason = self.skipped[0]
        return PackError(
            f"nothing was packed: all {len(self.skipped)} samples of {self._source} are bad, the "
            f"first is {name}: {reason}"
        )

    def _has_blocks(self) -> bool:
        counts = (counts for entry in self.entries for counts in entry.codecs.values())
        return any(by_codec[CODEC_BLOCKS] for by_codec in counts)

    def _journal_options(self) -> dict[str, Any]:
        codebook = self._options.codebook
        return {
            "format_version": FORMAT_VERSION,
            "codec": self._options.codec,
            "codebook": None if codebook is None else codebook.identity,
            "max_side": self._options.max_side,
            "quality": self._options.quality,
            "shard_size": self._options.shard_bytes,
            "on_error": "skip" if self._options.skip_bad else "raise",
            "source": self._source,
            "schema": self._schema.to_json(),
        }

    def _packing(self) -> Mapping[str, Any]:
        codebook = self._options.codebook
        return {
            "codec": self._options.codec,
            "codebook": codebook.origin if codebook is not None and self._has_blocks() else None,
            "max_side": self._options.max_side,
            "quality": self._options.quality,
            "shard_bytes": self._options.shard_bytes,
            "source": self._source,
            "skipped": len(self.skipped),
        }


@dataclass(frozen=True)
class _Encoded:
    result: Row | Bad
    stamp: bytes

    def nbytes(self) -> int:
        return self.result.nbytes if isinstance(self.result, Row) else 0


def _stamp(item: Item | Bad, hold: Callable[[int], None] | None = None) -> bytes:
    """What identifies a sample across runs: its key, and its files' sizes and times.

    Args:
        item: the sample.
        hold: called with the bytes of its files.
    """
    if not item.key:
        return b""
    parts = [item.key]
    total = 0
    for value in item.values if isinstance(item, Item) else ():
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


def _reason(error: FastioError) -> str:
    """Why a sample was skipped, without its name, which stands next to it."""
    return str(getattr(error, "cause", "") or error)
