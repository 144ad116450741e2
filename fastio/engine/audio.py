"""Fields of sound files in the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from fastio import _native
from fastio.engine.batch import AnyArray
from fastio.engine.ragged import Form, RaggedBatch, of_rows
from fastio.errors import SchemaError, TransformError
from fastio.packed.rows import Rows
from fastio.schema import Bytes
from fastio.transforms import AudioDecode, BytesFile

Clip = tuple[AnyArray, int]  # (C, frames), and how many of these are the file's


@dataclass(frozen=True)
class AudioField:
    """The settings of a field of sound files, known before the first batch.

    Attributes:
        name: name of the field.
        dataset: dataset of the field.
        how: decoding settings.
        form: form of batches whose clips differ in length.
    """

    name: str
    dataset: Rows
    how: AudioDecode
    form: Form

    def decode(self, row: int, draws: tuple[int, int, int], out: AnyArray | None) -> Clip:
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
        mixed = _native.mix_key(_native.mix_key(seed, epoch), key)
        clip = self.how.decode(self._file(row), mixed)
        frames = clip.shape[1]
        if out is None:
            return self._filled(clip), frames
        out[:, :frames] = clip
        out[:, frames:] = 0
        return out, frames

    def batch(self, clips: Sequence[Clip], out: AnyArray | None) -> Any:
        """Returns the clips of a batch in the form in which the engine delivers them.

        Args:
            clips: results of `decode`.
            out: (N, C, T), the memory in which they already lie, or None.

        Raises:
            SchemaError: the numbers of channels differ.
        """
        arrays = [clip for clip, _ in clips]
        if out is None:
            if self.how.length is None:
                self._check_channels(arrays)
                return of_rows(arrays, self.form, self.how.dtype, axis=1)
            self._check_channels(arrays)
            out = np.stack(arrays)
        if not self.how.lengths or self.how.length is None:
            return out
        shapes = np.array([(out.shape[1], frames) for _, frames in clips], np.int64)
        return RaggedBatch("padded", out, shapes, axis=1)

    def _filled(self, clip: AnyArray) -> AnyArray:
        short = 0 if self.how.length is None else self.how.length - clip.shape[1]
        return np.pad(clip, ((0, 0), (0, short))) if short > 0 else clip

    def _check_channels(self, arrays: Sequence[AnyArray]) -> None:
        channels = sorted({len(array) for array in arrays})
        if len(channels) > 1:
            raise SchemaError(
                f"field {self.name!r}: a batch has files of {' and '.join(map(str, channels))} "
                "channels: give AudioDecode(mono=True), or channels=, which names those of others"
            )

    def _file(self, row: int) -> str | BinaryIO:
        found = self.dataset.sound_file(self.name, row)
        if isinstance(found, str):
            return found
        return BytesFile(found)  # type: ignore[return-value]  # soundfile asks for no more


def audio_fields(
    dataset: Rows, fields: Sequence[str], given: Mapping[str, AudioDecode], forms: Any
) -> dict[str, AudioField]:
    """Returns the fields of sound files that are decoded.

    Args:
        dataset: dataset of the fields.
        fields: names of the fields that are delivered.
        given: decoding settings by field.
        forms: a `ragged.Forms`.

    Raises:
        TransformError: a field does not hold bytes, or a library is not installed.
    """
    found = {}
    for name in fields:
        if name not in given:
            continue
        if not isinstance(dataset.schema.fields[name], Bytes):
            raise TransformError(f"{given[name]} needs a field of bytes, and {name!r} is none")
        given[name].check_installed()
        found[name] = AudioField(name, dataset, given[name], forms.get(name, "padded"))
    return found
