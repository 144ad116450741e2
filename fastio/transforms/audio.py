"""Sound files to samples: what is wanted of them, and one file read by the soundfile library."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, cast

import numpy as np
import numpy.typing as npt

from fastio.errors import PackageMissing, TransformError
from fastio.runtime.memory import MAX_UNZIPPED_BYTES

Crop = Literal["random", "center", "start"]
_File = str | os.PathLike[str] | BinaryIO
_CROPS = ("random", "center", "start")
_DTYPES = ("float32", "int16")
_WORD = 1 << 64
_READ_BYTES = 16 << 20  # per read: the header may claim any number of frames
# A frame of MP3 needs bits of those before it: behind a seek, libmpg123 gives other samples.
_INEXACT = ("MP3", "MPEG")
# Subtypes whose samples are floats. As int16, libsndfile would not scale those of the first two,
# and those of the others would overflow where a loud sound goes beyond 1.
_FLOATS = ("FLOAT", "DOUBLE", "VORBIS", "OPUS")
_PAGE_BYTES = 27 + 255 + 255 * 255  # of the largest page of Ogg (RFC 3533)


@dataclass(frozen=True)
class AudioDecode:
    """Decodes a field of sound files (WAV, FLAC, OGG, MP3, ...) in the loader's threads.

    A batch is (N, C, T), with zeros after shorter clips. T is `length` if given; else it is the
    length of the longest clip, and the batch also has `NAME_length`, int64 (N,), as
    `Loader(ragged=)` says. Requires `pip install "fastio[audio]"`.

    Args:
        length: number of frames of every clip, at `sample_rate` if that is given. Longer files are
            cropped, and only the wanted frames are read (for MP3 also all frames before them). None
            delivers whole files.
        crop: position of the crop: "random" (drawn like crops of images), "center" or "start".
        mono: deliver the mean of all channels, C = 1.
        dtype: "float32", in [-1, 1], or "int16", which is 32768 times as much; files of floats are
            rounded and clipped.
        sample_rate: sample rate of every clip in Hz. A file with another rate is an error, unless
            `resample` is set. None: the rate that the dataset has for the field (an Audio feature
            of the datasets package); if it has none, clips have the rates of their files.
        resample: convert other sample rates, with the soxr library.
        channels: number of channels that every file must have. None: all files of a batch must have
            the same number.
        lengths: also deliver how many frames of each clip precede its zeros, if `length` is given.
    """

    length: int | None = None
    crop: Crop = "random"
    mono: bool = False
    dtype: str = "float32"
    sample_rate: int | None = None
    resample: bool = False
    channels: int | None = None
    lengths: bool = False

    def __post_init__(self) -> None:
        for name in ("length", "sample_rate", "channels"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise TransformError(f"AudioDecode: {name} must be an int >= 1, got {value!r}")
        if self.crop not in _CROPS:
            raise TransformError(
                f"AudioDecode: crop must be one of {', '.join(_CROPS)}, got {self.crop!r}"
            )
        if self.dtype not in _DTYPES:
            raise TransformError(
                f"AudioDecode: dtype must be one of {', '.join(_DTYPES)}, got {self.dtype!r}"
            )

    @property
    def shape(self) -> tuple[int, int] | None:
        """The shape (C, T) of every clip; None if it depends on the files."""
        channels = 1 if self.mono else self.channels
        return None if channels is None or self.length is None else (channels, self.length)

    @property
    def draws(self) -> bool:
        """Whether the begin of a clip is drawn at random."""
        return self.length is not None and self.crop == "random"

    def check_installed(self) -> None:
        """Imports the packages that decoding needs.

        Raises:
            PackageMissing: a package is not installed.
        """
        _soundfile()
        if self.resample:
            _soxr()

    def decode(
        self,
        file: _File,
        key: int,
        max_bytes: int = MAX_UNZIPPED_BYTES,
    ) -> npt.NDArray[Any]:
        """Returns the clip of a file.

        Args:
            file: a path, or an open binary file that can seek.
            key: uint64 that decides where a random crop begins.
            max_bytes: limit of the size of the wanted frames in all channels, before and after
                resampling.

        Returns:
            float32 or int16 (C, frames), frames at most `length`.

        Raises:
            ValueError: it cannot be decoded, or is not what is wanted; the message is a reason,
                without a name.
        """
        soundfile = _soundfile()
        try:
            with soundfile.SoundFile(file) as sound:
                clip = self._read(sound, file, key, max_bytes)
                rate = int(sound.samplerate)
        except soundfile.LibsndfileError as error:
            reason = error.error_string.rstrip(".")
            raise ValueError(f"it cannot be decoded: {reason}") from error
        if self.mono and clip.shape[1] > 1:
            mean = clip.mean(axis=1, keepdims=True, dtype=np.float32)
            clip = np.rint(mean).astype(self.dtype) if self.dtype == "int16" else mean
        if self.sample_rate not in (None, rate):
            assert self.sample_rate is not None
            _check_size(clip.nbytes * self.sample_rate // rate, max_bytes)
            clip = _resampled(clip, rate, self.sample_rate)
        if self.length is not None:
            clip = clip[: self.length]
        return np.ascontiguousarray(clip.T)

    def _read(self, sound: Any, file: _File, key: int, max_bytes: int) -> npt.NDArray[Any]:
        """Returns the wanted frames as they are stored: (frames, channels)."""
        rate = int(sound.samplerate)
        if self.sample_rate not in (None, rate) and not self.resample:
            raise ValueError(
                f"its sample rate is {rate} Hz, expected {self.sample_rate} Hz: use "
                "AudioDecode(resample=True), or another sample_rate"
            )
        if self.channels not in (None, sound.channels):
            raise ValueError(f"it has {sound.channels} channels, expected {self.channels}")
        wanted = self._frames(rate)
        begin = 0
        if wanted is not None and sound.frames > wanted:
            begin = self._begin(sound.frames - wanted, key)
        if sound.format in _INEXACT:
            sound.seekable = lambda: False  # otherwise soundfile seeks after each read
        elif begin and sound.seekable():
            last = _last_page(file) if sound.subtype == "VORBIS" else sound.frames
            begin -= sound.seek(min(begin, max(0, last - 1)))
        # The frames before the crop to which the sound cannot seek are read and dropped.
        for _ in self._parts(sound, begin):
            pass
        parts: list[npt.NDArray[Any]] = []
        nbytes = 0
        for part in self._parts(sound, sound.frames if wanted is None else wanted):
            nbytes += part.nbytes
            _check_size(nbytes, max_bytes)
            parts.append(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _parts(self, sound: Any, count: int) -> Iterator[npt.NDArray[Any]]:
        """Yields the next frames, or fewer at the end of the file, in parts of bounded size.

        The header may claim any number of frames, and soundfile takes memory for all of them.
        """
        most = max(1, _READ_BYTES // (sound.channels * np.dtype(self.dtype).itemsize))
        converts = self.dtype == "int16" and sound.subtype in _FLOATS
        while True:
            frames = min(max(count, 0), most)
            part = sound.read(frames, "float32" if converts else self.dtype, always_2d=True)
            yield _int16(np.nan_to_num(part.clip(-1, 1)) * 32768) if converts else part
            count -= frames
            if count <= 0 or len(part) < frames:
                return

    def _frames(self, rate: int) -> int | None:
        """Returns the number of frames to read of a file with a sample rate; None for all."""
        if self.length is None or self.sample_rate in (None, rate):
            return self.length
        assert self.sample_rate is not None
        return -(-self.length * rate // self.sample_rate)

    def _begin(self, room: int, key: int) -> int:
        """Returns the first frame to read, in 0 .. room."""
        if self.crop == "random":
            return key * (room + 1) // _WORD
        return room // 2 if self.crop == "center" else 0


class BytesFile(io.RawIOBase):
    """Bytes in memory as a file. Only the parts that are read are copied.

    Args:
        data: uint8 (n,).
    """

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        super().__init__()
        self._data = data.data
        self._at = 0

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase."""
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """See io.RawIOBase."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._data)}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """See io.RawIOBase."""
        return self._at

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True


def _last_page(file: _File) -> int:
    """Returns the first frame of the last page of an Ogg file, or 0.

    libsndfile 1.2 takes this page to end where its packets end. The sound ends before that, and
    seeking into the page leads to frames as far behind those that were wanted.
    """
    path = isinstance(file, (str, os.PathLike))
    with cast(Any, open(file, "rb") if path else nullcontext(file)) as opened:  # type: ignore[arg-type]
        at = opened.tell()
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - 2 * _PAGE_BYTES))
        tail = opened.read()
        opened.seek(at)
    before = tail.rfind(b"OggS", 0, max(0, tail.rfind(b"OggS")))
    # The position of the page before it, which is -1 if no packet ends there.
    position = tail[before + 6 : before + 14] if before >= 0 else b""
    return max(0, int.from_bytes(position, "little", signed=True))


def _resampled(clip: npt.NDArray[Any], rate: int, wanted: int) -> npt.NDArray[Any]:
    """Returns a clip (frames, channels) at another sample rate, in its own dtype.

    soxr adds noise of a random seed (dither) to int16, so it always gets float32.
    """
    found: npt.NDArray[Any] = _soxr().resample(clip.astype(np.float32, copy=False), rate, wanted)
    return found if clip.dtype == np.float32 else _int16(found)


def _int16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    """Returns the nearest numbers that int16 has."""
    return np.rint(values).clip(-(1 << 15), (1 << 15) - 1).astype(np.int16)


def _check_size(nbytes: int, max_bytes: int) -> None:
    if nbytes > max_bytes:
        raise ValueError(
            f"its sound takes more than max_unzipped_bytes={max_bytes:,}. If you trust the data, "
            "pass a larger max_unzipped_bytes to fastio.open, or a smaller length to AudioDecode"
        )


def _soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: it finds no libsndfile
        raise PackageMissing("soundfile", "decode sound", "fastio[audio]", error) from error
    return soundfile


def _soxr() -> Any:
    try:
        import soxr
    except ImportError as error:
        raise PackageMissing("soxr", "resample sound", "fastio[audio]", error) from error
    return soxr
