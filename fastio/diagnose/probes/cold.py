"""How fast a loader is whose images nothing has in memory: some of them, given back to the system.

What a loader reads of an image, and what the system reads ahead, no read of another kind tells.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fastio.diagnose.probes.data import Data, chosen
from fastio.diagnose.probes.rates import loader_of_rows, loader_part
from fastio.diagnose.probes.storage import Piece, give_back
from fastio.diagnose.use import Use
from fastio.packed import Dataset
from fastio.sources.folder import FolderDataset

_ROWS = 1024
_BYTES = 256 << 20
_CHOOSING_S = 3.0  # a network file system takes a while for each
_SECONDS = 2.5
_BATCH, _AHEAD = 16, 4  # small, so that a slow disk gives some


def cold_loader_rate(data: Data, use: Use, threads: int) -> float | None:
    """Returns the samples per second of a loader that reads from disk, or None without images.

    Args:
        data: on this machine.
        use: how it is loaded.
        threads: that the loader has.

    Raises:
        FastioError, OSError: they cannot be read, or their pages cannot be taken out of memory.
    """
    with ExitStack() as open_now:
        if data.facts.kind == "folder":
            paths = chosen(data.files, _ROWS)
            pieces = _few(Piece(path, 0, path.stat().st_size) for path in paths)
            listed = [(str(piece.path), number % 2) for number, piece in enumerate(pieces)]
            dataset: Any = FolderDataset.from_samples(listed, ("a", "b"))
            rows: Sequence[int] = range(len(listed))
            field = "image"
        elif data.facts.kind == "packed":
            packed = dataset = open_now.enter_context(Dataset(data.part))
            field = packed.schema.image_fields[0]
            rows = random.Random(2).sample(range(len(packed)), min(len(packed), _ROWS))
            pieces = _few(_stored(packed, field, row) for row in rows)
            rows = rows[: len(pieces)]
        else:
            return None
        give_back(pieces)
        part = loader_part(
            loader_of_rows(dataset, field, rows, threads, use.crop, _BATCH, _AHEAD),
            _SECONDS,
            warm_samples=_BATCH * (_AHEAD + 1),
            once=True,
        )
    return None if part is None else part.samples / part.seconds


def _stored(dataset: Dataset, field: str, row: int) -> Piece:
    """Returns the place of an image in its shard."""
    shards, places = dataset.locate(np.array([row], np.int64))
    reader, local = dataset.shard(int(shards[0])), int(places[0])
    begin, end = reader.offsets(field)[local : local + 2].tolist()
    return Piece(Path(reader.path), reader.data_offset(field) + begin, end - begin)


def _few(pieces: Iterable[Piece]) -> list[Piece]:
    """Returns the first pieces, up to the limits in bytes and time."""
    found: list[Piece] = []
    total, end_s = 0, time.monotonic() + _CHOOSING_S
    for piece in pieces:
        total += piece.length
        if found and (total > _BYTES or time.monotonic() > end_s):
            break
        found.append(piece)
    return found
