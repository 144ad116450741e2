"""The reads of an image field: records in a cache where they exist, and files otherwise.

The rows of a batch and the random draws do not depend on which images are recoded. Pixels from a
record may differ by a few levels from pixels from the JPEG file (docs/cache.md).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio import _native
from fastio.cache import Cache, CacheFolder, FileStamp, Source
from fastio.errors import CacheError
from fastio.packed.codebook import default_codebook, default_codebook_data
from fastio.packed.layout import LOOK_INTO_FILE, WHOLE_FILE, ImageReads
from fastio.packed.packed import StoredImage
from fastio.packed.rows import Rows
from fastio.recoded import originals
from fastio.recoded.originals import Originals, StagedObjects
from fastio.recoded.recoder import NO_CACHE, RecodedSource, Recoder
from fastio.recoded.table import RecodedTable
from fastio.runtime.files import read_part
from fastio.runtime.lifecycle import Owner, at_exit
from fastio.schema import CODEC_BLOCKS
from fastio.stage import Blocks
from fastio.stage.forecast import next_use
from fastio.store import absolute_path

_PIECE_BYTES = 8 << 20
_MOST_BLOCK_ROWS = 4096
_SAMPLED = 64  # rows whose sizes are used to estimate the mean size
_IN_MEMORY = "/proc/self/fd/"  # files that only this process can open
Numbers = NDArray[np.int64]


class RecodedImages:
    """The recoded images of one field of a dataset, in a cache. Safe to use from several threads.

    When the first rows are read, the cache is opened and the thread that recodes is started.

    Args:
        dataset: The dataset. It is not closed by this object.
        field: The name of an image field.
        cache: The cache.
        threads: The number of threads that decode the images; 0 recodes nothing.
        blocks: The blocks in which a remote dataset is fetched; None for a local one.
    """

    def __init__(
        self,
        dataset: Rows,
        field: str,
        cache: Cache,
        threads: int,
        blocks: Blocks | None = None,
    ) -> None:
        self._blocks = blocks
        self._dataset = dataset
        self._field = field
        self._cache = cache
        self._threads = threads
        self._owner = Owner()
        self._begin()
        at_exit(self.close)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._opened: Recoder | None = None
        self._tried = False
        self._read = 0

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of images that this object has recoded, and that it has read from records."""
        return 0 if self._opened is None else self._opened.images, self._read

    def reads(self, rows: Numbers, where: ImageReads, reads: ImageReads) -> ImageReads:
        """Returns the reads of rows: of records for rows that have one, else of the originals.

        Args:
            rows: int64 (n,), the rows.
            where: Where the originals of the rows lie.
            reads: The reads of the originals. For a remote dataset, these are reads of the blocks
                that were fetched.
        """
        self._owner.take_over(self._begin)
        opened = self._open()
        if opened is None:
            return reads
        table, what = opened.table, opened.what
        found, editions = table.look(rows)
        pixels = found["height"].astype(np.int64) * found["width"]
        # Images that are too large for this dataset are read from their originals, which fail.
        places = np.flatnonzero((found["length"] > 0) & (pixels <= self._dataset.max_pixels))
        if len(places):
            stamps = what.originals.stamps(where, places)
            same = originals.same(stamps, where, places, found[places])
            for block in np.unique(rows[places[~same]] // table.block_rows).tolist():
                if table.may_replace(block):
                    self._replace(opened, block)
            places = places[same]
        if not len(places):
            return reads
        with self._lock:
            self._read += len(places)
        blocks = rows[places] // table.block_rows
        return _joined(reads, places, found[places], blocks, editions[places], what)

    def record(self, row: int) -> StoredImage | None:
        """Returns the record of a row after comparing its checksum; None if there is no valid one.

        Raises:
            FastioError, OSError: The original is missing.
        """
        rows, first = np.array([row], np.int64), np.zeros(1, np.int64)
        self._owner.take_over(self._begin)
        opened = self._open()
        if opened is None:
            return None
        table, what = opened.table, opened.what
        (found, _), file = table.look(rows), table.piece(row // table.block_rows)
        length = int(found["length"][0])
        if not length or file is None:
            return None
        where = what.originals.where(rows)
        if not originals.same(what.originals.stamps(where, first), where, first, found)[0]:
            return None
        path = what.folder.path_of(what.source, row // table.block_rows)
        data = read_part(path, int(found["offset"][0]), length)
        if data is None:
            return None
        height, width, orientation, crc = (
            int(found[name][0]) for name in ("height", "width", "orientation", "crc32c")
        )
        record = np.frombuffer(data, np.uint8)
        if _native.crc32c(record) != crc:
            return None
        return StoredImage(record, CODEC_BLOCKS, height, width, orientation, crc)

    def stale(self, pieces: Numbers) -> Numbers:
        """Returns the places in the batch of rows whose pieces were replaced while they were read.

        Args:
            pieces: `ImageReads.pieces` of the rows.
        """
        if self._opened is None:
            return np.flatnonzero(pieces >= 0)
        table, what = self._opened.table, self._opened.what
        editions = np.unique(pieces[pieces >= 0]).tolist()
        blocks = list(map(table.block_of, editions))
        gone = []
        for edition, block, now in zip(editions, blocks, _piece_files(what, blocks), strict=True):
            file = table.file_of(edition)
            if file != now:
                gone.append(edition)
            if file is not None and file != now:
                table.forget(block)
        return np.flatnonzero(np.isin(pieces, gone))

    def drop(self, pieces: Numbers) -> None:
        """Deletes pieces with a damaged record, and marks their blocks to be recoded again.

        Args:
            pieces: As for `stale`. Pieces that were replaced meanwhile stay.
        """
        if self._opened is None:
            return
        table = self._opened.table
        for edition in np.unique(pieces).tolist():
            if table.file_of(edition) is not None:
                self._replace(self._opened, table.block_of(edition))

    def close(self) -> None:
        """Ends the thread. Idempotent."""
        if self._owner.is_here and self._opened is not None:
            self._opened.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # When the interpreter exits, `close` has ended the thread, and modules may be unloaded.
        if not is_finalizing() and self._owner.is_here and self._opened is not None:
            self._opened.end()

    def _open(self) -> Recoder | None:
        """Returns the recoder with its table and source; None if the cache cannot be used."""
        # Checked without the lock, because this method is called for each batch.
        if self._tried:
            return self._opened
        with self._lock:
            if not self._tried:
                try:
                    self._opened = self._opened_now()
                except NO_CACHE as error:
                    self._cache.give_up(error)
                self._tried = True
        return self._opened

    def _opened_now(self) -> Recoder | None:
        dataset, field = self._dataset, self._field
        rows = len(dataset)
        sampled = np.unique(np.linspace(0, rows - 1, min(rows, _SAMPLED)).astype(np.int64))
        where = dataset.image_reads(field, sampled)
        paths = [where.path(number) for number in where.file.tolist()]
        # Images in memory are not recoded, because no other process or later run could find the
        # originals.
        if where.memory is not None or any(path.startswith(_IN_MEMORY) for path in paths):
            return None
        found = Originals(dataset, field)
        if self._blocks is not None:
            found = StagedObjects(dataset, field, self._cache, self._blocks)
        stamps = found.stamps(where, np.arange(len(sampled)))
        sizes = np.where(where.length == WHOLE_FILE, stamps[:, 0], where.length).clip(0)
        folder = self._cache.folder(next_use)
        source = self._source(folder, paths[0], float(sizes.mean()))
        block_rows = int(source.key.rpartition("-")[2])
        table = RecodedTable(rows, block_rows, versions=self._blocks is not None)
        limit = dataset.max_pixels
        what = RecodedSource(found, limit, self._cache, folder, source, self._threads)
        recoder = Recoder(what, table)
        if self._threads:
            recoder.start()
        return recoder

    def _source(self, folder: CacheFolder, path: str, mean_bytes: float) -> Source:
        """Registers the field as a source of the cache, in blocks of about 8 MB each.

        For a remote dataset, these are the blocks in which it is fetched, and all versions of it
        are one source. `path` is one of its files.
        """
        dataset, blocks = self._dataset, self._blocks
        url, path = absolute_path(dataset.path), absolute_path(path)
        which = dataset.fingerprint
        if blocks is not None:
            url = blocks.dataset.store.url
            path, which = str(blocks.block_rows), blocks.dataset.lineage
        digest = xxhash.xxh3_128(b"recoded")
        digest.update(default_codebook_data())
        for text in (url, path, which, self._field):
            digest.update(text.encode("utf-8", "surrogateescape") + b"\0")
        fingerprint, rows = digest.hexdigest(), len(dataset)
        block_rows = folder.block_rows(fingerprint)  # does not change when files change
        if block_rows is None and blocks is not None:
            block_rows = blocks.block_rows
        if block_rows is None:
            block_rows = min(max(1, int(_PIECE_BYTES / max(mean_bytes, 1))), _MOST_BLOCK_ROWS)
            block_rows = 1 << (block_rows.bit_length() - 1)
        size = int(mean_bytes * rows)
        return folder.source(url, fingerprint, rows, block_rows, size, recoded=True)

    def _replace(self, opened: Recoder, block: int) -> None:
        """Deletes a piece that is damaged or out of date, and marks its block to be recoded again.

        The piece is kept if another process has replaced it in the meantime.
        """
        table, what = opened.table, opened.what
        file = table.piece(block)
        if file is None:
            return
        table.forget(block)
        try:
            if _piece_files(what, [block]) == [file]:
                what.folder.drop(what.source, [block])
        except CacheError as error:
            self._cache.give_up(error)
        table.want(block)


def _joined(
    reads: ImageReads,
    places: Numbers,
    found: NDArray[np.void],
    blocks: Numbers,
    editions: Numbers,
    what: RecodedSource,
) -> ImageReads:
    """Returns `reads`, with the reads at `places` replaced by reads of records."""
    numbers, which = np.unique(blocks, return_inverse=True)
    first = int(reads.file.max()) + 1
    pieces = [what.folder.path_of(what.source, number) for number in numbers.tolist()]

    def path(number: int) -> str:
        return reads.path(number) if number < first else pieces[number - first]

    turns = reads.orientation[places] == LOOK_INTO_FILE  # others are delivered as stored
    columns = {
        "file": first + which,
        "offset": found["offset"],
        "length": found["length"],
        "codec": CODEC_BLOCKS,
        "orientation": np.where(turns, found["orientation"], reads.orientation[places]),
        "height": found["height"],
        "width": found["width"],
    }
    changed = {name: getattr(reads, name).copy() for name in columns}
    for name, values in columns.items():
        changed[name][places] = values
    of_pieces = np.full(len(reads.file), -1, np.int64)
    of_pieces[places] = editions
    return replace(
        reads,
        **changed,
        path=path,
        codebook=default_codebook(),
        same_files=False,
        pieces=of_pieces,
    )


def _piece_files(what: RecodedSource, blocks: list[int]) -> list[FileStamp]:
    """Returns the present files of pieces; -1 where there is none."""
    paths = [what.folder.path_of(what.source, block) for block in blocks]
    return [FileStamp(*stamp) for stamp in _native.file_stamps(paths).tolist()]
