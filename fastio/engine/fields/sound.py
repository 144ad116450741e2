"""Fields of sound files: Python threads decode them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from fastio import _native
from fastio.engine.batch import AnyArray
from fastio.engine.fields.reader import Reader, Work, result_of
from fastio.engine.ragged import RaggedBatch, of_rows
from fastio.engine.settings import EngineSettings
from fastio.engine.threads import Threads
from fastio.errors import AudioError, SchemaError, TransformError
from fastio.order.order import WORD
from fastio.packed.rows import Rows
from fastio.schema import Bytes
from fastio.transforms import BytesFile

if TYPE_CHECKING:
    from fastio.engine.pending import Pending

Clip = tuple[AnyArray, int]  # (C, frames), and how many of these are the file's


class SoundReader(Reader):
    """Reads a field of sound files; see `Reader`.

    Args:
        dataset: dataset of the field.
        name: name of the field, which `settings.audio` has.
        settings: settings of the engine.
        threads: threads of the engine.

    Raises:
        PackageMissing: a package that decodes sound is not installed.
        TransformError: the field does not hold bytes.
    """

    def __init__(
        self, dataset: Rows, name: str, settings: EngineSettings, threads: Threads
    ) -> None:
        self._how = settings.audio[name]
        if not isinstance(dataset.schema.fields[name], Bytes):
            raise TransformError(f"{self._how} needs a field of bytes, and {name!r} is not one")
        if self._how.sample_rate is None:
            self._how = replace(self._how, sample_rate=dataset.sampling_rate(name))
        if self._how.resample and self._how.sample_rate is None:
            raise TransformError(
                "AudioDecode: resample=True needs a sample_rate, because the dataset has no "
                f"sampling rate for the field {name!r}: pass sample_rate= in Hz"
            )
        self._how.check_installed()
        self.fields = (name,)
        self._name = name
        self._dataset = dataset
        self._threads = threads
        self._form = settings.ragged.get(name, "padded")
        shape = self._how.shape
        self.pools = {} if shape is None else {name: settings.pool(shape, self._how.dtype)}

    def submit(self, batch: Pending, work: Work) -> None:
        """See `Reader`. Each file is a task of its own."""
        out = work.acquire(self._name, len(batch.rows)) if self.pools else None
        pairs = zip(batch.rows.tolist(), batch.keys.tolist(), strict=True)
        for place, (row, key) in enumerate(pairs):
            draws = batch.seed, batch.epoch, key & WORD
            own = None if out is None else out[place]
            work.futures[place] = self._threads.submit(self._decode, row, draws, own)

    def finish(self, batch: Pending, work: Work) -> dict[str, Any]:
        """See `Reader`. A bad clip is replaced by another of the batch, or by an empty one."""
        found = [
            result_of(future, batch, place, self._dataset, AudioError)
            for place, future in work.futures.items()
        ]
        good = next((clip for clip in found if clip is not None), None)
        empty = (np.zeros(self._how.shape or (1, 0), self._how.dtype), 0)
        clips = [clip if clip is not None else good or empty for clip in found]
        out = work.lease(self._name).view(len(clips)) if self.pools else None
        return {self._name: self._batch(clips, out)}

    def _decode(self, row: int, draws: tuple[int, int, int], out: AnyArray | None) -> Clip:
        """Returns one decoded clip.

        Args:
            row: row of the dataset.
            draws: seed, epoch and key of the crop; see `plan.draw_keys`.
            out: (C, T), the row's memory in a slot, which is filled; None if sizes differ.

        Raises:
            ValueError: the file cannot be decoded, or does not have the required format.
            OSError: the file cannot be read.
        """
        seed, epoch, key = draws
        # Seed, epoch and key are mixed to one number, from which Python draws the crop.
        mixed = _native.mix_key(_native.mix_key(seed, epoch), key)
        clip = self._how.decode(self._file(row), mixed, self._dataset.max_unzipped_bytes)
        frames = clip.shape[1]
        if out is None:
            return self._filled(clip), frames
        out[:, :frames] = clip
        out[:, frames:] = 0
        return out, frames

    def _batch(self, clips: Sequence[Clip], out: AnyArray | None) -> Any:
        """Returns the clips of a batch in the form in which the engine delivers them.

        Args:
            clips: results of `_decode`.
            out: (N, C, T), the memory in which they already lie, or None.

        Raises:
            SchemaError: the numbers of channels differ.
        """
        arrays = [clip for clip, _ in clips]
        if out is None:
            self._check_channels(arrays)
            if self._how.length is None:
                return of_rows(arrays, self._form, self._how.dtype, axis=1)
            out = np.stack(arrays)
        if not self._how.lengths or self._how.length is None:
            return out
        shapes = np.array([(out.shape[1], frames) for _, frames in clips], np.int64)
        return RaggedBatch("padded", out, shapes, axis=1, fixed=True)

    def _filled(self, clip: AnyArray) -> AnyArray:
        short = 0 if self._how.length is None else self._how.length - clip.shape[1]
        return np.pad(clip, ((0, 0), (0, short))) if short > 0 else clip

    def _check_channels(self, arrays: Sequence[AnyArray]) -> None:
        channels = sorted({len(array) for array in arrays})
        if len(channels) > 1:
            raise SchemaError(
                f"field {self._name!r}: files of one batch have "
                f"{' and '.join(map(str, channels))} channels: use AudioDecode(mono=True), or "
                "channels= for the files that are right"
            )

    def _file(self, row: int) -> str | BinaryIO:
        found = self._dataset.sound_file(self._name, row)
        if isinstance(found, str):
            return found
        return BytesFile(found)  # type: ignore[return-value]  # soundfile asks for no more
