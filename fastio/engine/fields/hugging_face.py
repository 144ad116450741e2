"""Image fields of the datasets package, for the engine's threads to read."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.engine.fields.reads import LOOK_INTO_FILE, WHOLE_FILE, ImageReads, Rows, most_open
from fastio.schema import CODEC_ENCODED, CODEC_JPEG
from fastio.sources.hugging_face import NOWHERE, HuggingFaceDataset, Places

_JPEG_NAMES = (".jpg", ".jpeg")


class HuggingFaceImages:
    """An image field: ranges of Arrow files that stay open, and separate image files."""

    def __init__(self, dataset: HuggingFaceDataset, field: str) -> None:
        self._dataset = dataset
        self._field = field
        # What is no JPEG is known when it is read; where none seems to be one, nothing is read.
        self._codec = CODEC_JPEG if dataset.has_jpegs(field) else CODEC_ENCODED
        self._files = _native.FileSet(keep_open=True, max_open=most_open())
        self._added = 0
        self._lock = threading.Lock()

    def reads(self, rows: Rows) -> ImageReads:
        places = self._dataset.places(self._field, rows)
        codec = np.full(len(rows), self._codec, np.uint8)
        # Which Pillow's threads come to, and say what there is to say.
        codec[places.file == NOWHERE] = CODEC_ENCODED
        unknown = np.full(len(rows), LOOK_INTO_FILE, np.int32)
        file = np.maximum(places.file, 0)
        if not places.paths:
            return _as_found(self._known_files(), file, places, codec, unknown)
        # Numbered anew: a table of all paths that were ever read would grow and grow.
        files = _native.FileSet(keep_open=False)
        files.add(list(self._dataset.files(self._field)))
        first = files.add(list(places.paths.values()))
        for number, (place, path) in enumerate(places.paths.items()):
            file[place] = first + number
            places.length[place] = WHOLE_FILE
            codec[place] = CODEC_JPEG if path.lower().endswith(_JPEG_NAMES) else CODEC_ENCODED
        return _as_found(files, file, places, codec, unknown)

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        return self._dataset.image(self._field, row)

    def close(self) -> None:
        self._files.close()

    def _known_files(self) -> _native.FileSet:
        with self._lock:
            known = self._dataset.files(self._field)
            if len(known) > self._added:
                self._files.add(list(known[self._added :]))
                self._added = len(known)
        return self._files


def _as_found(
    files: _native.FileSet,
    file: npt.NDArray[np.int32],
    places: Places,
    codec: npt.NDArray[np.uint8],
    unknown: npt.NDArray[np.int32],
) -> ImageReads:
    """Returns reads of image files whose properties, except the kind, are in their headers."""
    return ImageReads(
        files,
        file,
        places.offset,
        places.length,
        codec,
        unknown.astype(np.uint8),
        unknown,
        unknown,
        None,
        None,
    )
