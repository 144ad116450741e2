"""The originals of recoded images, and the stamps (size and times of a file) that identify them.

A file that has just changed may be written again within the same tick of the file system's clock,
which its times would not show. Such files are recoded later.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio import _native
from fastio.cache import Cache
from fastio.packed.layout import ImageReads
from fastio.packed.rows import Rows
from fastio.recoded.piece import Directory
from fastio.stage import Blocks
from fastio.stage.cached import TICK_NS, source_of
from fastio.stage.forecast import next_use

Numbers = NDArray[np.int64]
Stamps = NDArray[np.int64]  # (n, 3): size in bytes, times of modification and of change in ns


class Originals:
    """The images of a field as the dataset stores them, in files of this machine.

    Each image is a whole file or a part of one.
    """

    def __init__(self, dataset: Rows, field: str) -> None:
        self.where = partial(dataset.image_reads, field)

    def local(self, rows: Numbers, where: ImageReads) -> ImageReads | None:
        """Returns where the rows lie on this machine; None if some of them are not there now."""
        return where

    def stamps(self, where: ImageReads, places: Numbers) -> Stamps:
        """Returns the stamps of the files of some reads, int64 (n, 3); -1 for missing files.

        A stamp, with the image's offset and length in the file, identifies the image's bytes.
        """
        numbers, which = np.unique(where.file[places], return_inverse=True)
        # The stamp contains the time of change (ctime): a program that replaces a file can copy the
        # time of modification of the old file, but not its time of change.
        found = _native.file_stamps([where.path(number) for number in numbers.tolist()])
        return found[which, 1:]


class StagedObjects(Originals):
    """Images in a store, read from the blocks that were fetched into a cache.

    A stamp has a hash of the object's name and version in place of the time of modification, and
    zeros. Rows of a later version of the dataset may be other objects.
    """

    def __init__(self, dataset: Rows, field: str, cache: Cache, blocks: Blocks) -> None:
        super().__init__(dataset, field)
        self._field = field
        self._cache = cache
        self._blocks = blocks
        self._hashes = np.zeros(0, np.int64)  # of names and versions of objects; 0 until asked for
        self._lock = threading.Lock()

    def local(self, rows: Numbers, where: ImageReads) -> ImageReads | None:
        """See `Originals`."""
        folder = self._cache.folder(next_use)
        source = source_of(folder, self._blocks)
        numbers, offset = self._blocks.locate(self._field, rows, where)
        pieces = {block: self._blocks.piece(block) for block in np.unique(numbers).tolist()}
        if any(folder.look(source, piece) != "whole" for piece in pieces.values()):
            return None
        return replace(
            where,
            path=lambda block: folder.path_of(source, pieces[block]),
            file=numbers.astype(np.int32),
            offset=offset,
            same_files=False,
        )

    def stamps(self, where: ImageReads, places: Numbers) -> Stamps:
        """See `Originals`."""
        files = where.file[places]
        with self._lock:
            if len(files) and files.max() >= len(self._hashes):
                more = max(int(files.max()) + 1 - len(self._hashes), len(self._hashes))
                self._hashes = np.append(self._hashes, np.zeros(more, np.int64))
            for file in np.unique(files[self._hashes[files] == 0]).tolist():
                version = self._blocks.dataset.version(file).encode("utf-8", "surrogateescape")
                # The number is a positive int64. 0 means that the version was not requested.
                self._hashes[file] = xxhash.xxh3_64_intdigest(version) >> 1 | 1
            stamps = np.zeros((len(places), 3), np.int64)
            stamps[:, 1] = self._hashes[files]
        return stamps


def same(
    stamps: Stamps, where: ImageReads, places: Numbers, directory: Directory
) -> NDArray[np.bool_]:
    """Returns which originals have not changed since they were recoded, bool (n,).

    Args:
        stamps: int64 (n, 3), the present stamps of these originals.
        where: Where the originals of all rows lie now.
        places: int64 (n,), the places of these originals in `where`.
        directory: The entries of these rows, (n,).
    """
    moved = (where.offset[places] != directory["at"]) | (
        where.length[places] != directory["nbytes"]
    )
    still: NDArray[np.bool_] = (stamps == directory["stamp"]).all(axis=1) & ~moved
    return still


def are_settled(found: Stamps) -> bool:
    """Returns whether no file has changed within the last 0.1 s.

    Only the time of change tells: programs set the time of modification as they like, also to the
    future.
    """
    return bool(found[:, 2].max(initial=0) < time.time_ns() - TICK_NS)
