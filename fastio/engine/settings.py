"""The settings of an engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from fastio.cache import Cache
from fastio.engine.batch import Allocate, AnyArray, SlotPool
from fastio.engine.ragged import Forms
from fastio.runtime.memory import HUGE_PAGE, huge_pages
from fastio.transforms import AudioDecode, Compiled

OnError = Literal["raise", "skip", "replace"]
_KEPT_SLOTS = 8  # free ones of each field
_SMALL_BYTES = 64 << 10  # fields of a batch below this size, such as labels, get new memory


def numpy_memory(shape: tuple[int, ...], dtype: str) -> AnyArray:
    """Returns slot memory allocated by NumPy."""
    return np.empty(shape, dtype)


def _reused_memory(shape: tuple[int, ...], dtype: str) -> AnyArray:
    """Returns slot memory in huge pages, unless more than a fifth of them would stay empty.

    Without huge pages, a field of several megabytes has so many pages that translating their
    addresses takes longer than writing the field.
    """
    count = math.prod(shape)
    nbytes = count * np.dtype(dtype).itemsize
    if 4 * (-nbytes % HUGE_PAGE) < nbytes:
        with suppress(OSError, OverflowError):
            return np.frombuffer(huge_pages(nbytes), dtype, count).reshape(shape)
    return numpy_memory(shape, dtype)


@dataclass(frozen=True)
class EngineSettings:
    """The settings of an engine.

    Attributes:
        transforms: transforms of each image field, or of each view of it; fields that are not named
            keep their pixels.
        views: names of the views of image fields that have several.
        fields: names of the fields to deliver, in order; None for all.
        threads: number of native threads, 1 or more.
        on_error: "raise" raises the error of a bad sample from next(), "skip" leaves the sample out
            of its batch, "replace" replaces it by the next good sample of the batch.
        channels_last: whether image batches are stored (n, H, W, C); else (n, C, H, W).
        normalize_on_cpu: apply ToDtype("float32") and Normalize in the engine, which then writes
            float32; `Engine.tails` has the remaining steps.
        allocate: function that returns slot memory; None uses NumPy.
        recycle: whether slots are reused; False gives every batch memory of its own.
        resident: whether to keep a copy of a table's rows in memory; see `Columns`.
        ragged: forms of the fields whose rows differ in size; lists for fields without one.
        handed: image fields, or views, whose values a stage changes that follows the engine, with
            the function that allocates their slots. They are uint8 (H, W, C), whatever
            `channels_last` says.
        cache: cache for recoded images and indexes of JPEGs; None recodes nothing.
        direct: whether images in shards and tars are read past the page cache (O_DIRECT), if the
            system supports it.
        audio: decoding settings of fields of sound files; fields that are not named stay bytes.

    Raises:
        ValueError: `threads` or `on_error` is not possible.
    """

    transforms: Mapping[str, Compiled] = field(default_factory=dict)
    views: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fields: Sequence[str] | None = None
    threads: int = 1
    on_error: OnError = "raise"
    channels_last: bool = False
    normalize_on_cpu: bool = False
    allocate: Allocate | None = None
    recycle: bool = True
    resident: bool | None = False
    ragged: Forms = field(default_factory=Forms)
    audio: Mapping[str, AudioDecode] = field(default_factory=dict)
    handed: Mapping[str, Allocate] = field(default_factory=dict)
    cache: Cache | None = None
    direct: bool = False

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")
        if self.on_error not in ("raise", "skip", "replace"):
            raise ValueError(
                f"on_error must be 'raise', 'skip' or 'replace', got {self.on_error!r}"
            )

    def pool(
        self,
        shape: tuple[int, ...],
        dtype: str,
        *,
        reuse_small: bool = False,
        allocate: Allocate | None = None,
    ) -> SlotPool:
        """Returns a pool of slots for a field.

        Args:
            shape, dtype: shape and dtype of a row.
            reuse_small: whether slots of a few kilobytes are reused too. Slots of memory that is
                not NumPy's always are.
            allocate: function that returns memory for a field that is not delivered as it is; its
                slots are always reused.
        """
        if allocate is not None:
            return SlotPool(shape, dtype, allocate, _KEPT_SLOTS)
        keep = _KEPT_SLOTS if self.recycle else 0
        smallest = 0 if reuse_small or self.allocate is not None else _SMALL_BYTES
        memory = _reused_memory if self.recycle else numpy_memory
        return SlotPool(shape, dtype, self.allocate or memory, keep, smallest)

    def byte_pool(self) -> SlotPool:
        """Returns a pool of slots of bytes for rows of different sizes.

        Slots that are not reused are NumPy's: the whole batch is pinned later.
        """
        settings = self if self.recycle else replace(self, allocate=None)
        return settings.pool((), "uint8")
