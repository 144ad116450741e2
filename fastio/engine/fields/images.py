"""Image fields: native threads decode them, and Pillow's what native code cannot decode."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import ImageFile

from fastio import _native
from fastio.engine.batch import AnyArray
from fastio.engine.fields.image_files import ImageSource
from fastio.engine.fields.reader import WAIT_S, Reader, Work, result_of, sample_error
from fastio.engine.settings import EngineSettings
from fastio.engine.threads import Threads
from fastio.errors import ImageError, LoaderClosed
from fastio.packed.layout import ImageReads
from fastio.packed.rows import Rows
from fastio.schema import CODEC_ENCODED, Image
from fastio.stage import Stager
from fastio.transforms import Compiled, Pointwise, affine, augmentation

if TYPE_CHECKING:
    from fastio.engine.pending import Pending

_DAMAGED = (_native.TRUNCATED, _native.CORRUPT)
Images = list[AnyArray | None]


class ImageReader(Reader):
    """Reads an image field; see `Reader`. Safe to use from several threads.

    Args:
        dataset: dataset of the field.
        name: name of the field.
        settings: settings of the engine.
        threads: threads of the engine.
        stager: fetches the blocks of a remote dataset.

    Attributes:
        compiled: transforms of the field.
        tail: ToDtype and Normalize steps that are left to others.
    """

    def __init__(
        self,
        dataset: Rows,
        name: str,
        settings: EngineSettings,
        threads: Threads,
        stager: Stager | None = None,
    ) -> None:
        kind = dataset.schema.fields[name]
        assert isinstance(kind, Image)
        self.fields = (name,)
        self._name = name
        self._dataset = dataset
        self._threads = threads
        self._stager = stager
        self._source = ImageSource(dataset, name, stager)
        self.compiled = settings.transforms.get(name) or Compiled()
        self._chain = self.compiled.native()
        self._channels = kind.channels
        self._out_channels = self.compiled.channels(kind.channels)
        handed = name in settings.handed
        self._channels_last = settings.channels_last or handed
        size = self.compiled.size
        fuses = (settings.normalize_on_cpu or self.compiled.erasing) and size and not handed
        self._affine = affine(self.compiled.tail, self._out_channels) if fuses else None
        self.tail: tuple[Pointwise, ...] = self.compiled.tail if self._affine is None else ()
        self.pools = {}
        if size is not None:
            dtype = "uint8" if self._affine is None else "float32"
            pool = settings.pool(
                self._shape(size), dtype, reuse_small=True, allocate=settings.handed.get(name)
            )
            self.pools = {name: pool}

    def submit(self, batch: Pending, work: Work) -> None:
        """See `Reader`. Images of known foreign formats go to Pillow at once."""
        out = work.acquire(self._name, len(batch.rows)) if self.pools else None
        reads = self._submit(batch, batch.rows, batch.keys, out, work.slots)
        for place in np.flatnonzero(reads.codec == CODEC_ENCODED).tolist():
            work.futures[place] = self._to_pillow(batch, place, out)

    def follow(self, batch: Pending, work: Work) -> None:
        """Passes images to Pillow that the native threads could not decode.

        These are foreign formats that are recognised only when read, such as a PNG named .jpg, and
        truncated files if Pillow is set to load them (`ImageFile.LOAD_TRUNCATED_IMAGES`).
        """
        damaged = _DAMAGED if ImageFile.LOAD_TRUNCATED_IMAGES else ()
        wanted = (_native.FOREIGN, *damaged)
        out = work.memory.get(self._name)
        for slot in work.slots:
            for place, code, _ in slot.failures():
                if code in wanted and place not in work.futures:
                    work.futures[place] = self._to_pillow(batch, place, out)

    def finish(self, batch: Pending, work: Work) -> dict[str, Any]:
        """See `Reader`. Images of a remote dataset that are damaged are fetched again."""
        (slot,) = work.slots
        out = work.memory.get(self._name)
        images: Images = [] if self.pools else [slot.take(n) for n in range(len(batch.rows))]
        broken = {
            place: message
            for place, code, message in slot.failures()
            if code != _native.FOREIGN and place not in work.futures
        }
        for in_memory in (False, True):  # staged data may be damaged, or gone
            if broken and self._stager is not None:
                broken = self._read_again(batch, broken, images, out, self._stager, in_memory)
        packed = self._dataset.packed
        if broken and packed is not None:
            packed.shards.check_unchanged()  # a shard that was cut off is no row's own error
        for place, message in broken.items():
            error = sample_error(self._dataset, batch, place, message, ImageError)
            batch.failures.setdefault(place, error)
        for place, future in work.futures.items():
            pixels = result_of(future, batch, place, self._dataset, ImageError)
            if images and pixels is not None:
                images[place] = pixels
        if out is None:
            return {self._name: images}
        return {self._name: work.lease(self._name).view(len(batch.rows))}

    def close(self) -> None:
        """Closes the files."""
        self._source.close()

    def _shape(self, size: tuple[int, ...]) -> tuple[int, ...]:
        channels = self._out_channels
        return (*size, channels) if self._channels_last else (channels, *size)

    def _submit(
        self,
        batch: Pending,
        rows: npt.NDArray[np.int64],
        keys: npt.NDArray[np.int64],
        out: AnyArray | None,
        slots: list[_native.Slot],
    ) -> ImageReads:
        """Passes rows to the native threads, whose slot is added to `slots`."""
        files, reads = self._source.reads(rows)
        slots.append(
            self._threads.native.submit(
                files,
                self._chain,
                batch.seed,
                batch.epoch,
                reads.file,
                reads.offset,
                reads.length,
                reads.codec,
                reads.orientation,
                reads.height,
                reads.width,
                keys,
                reads.crc32c,
                reads.codebook,
                self._channels,
                self._channels_last,
                self._affine,
                out,
                self._dataset.max_pixels,
            )
        )
        return reads

    def _to_pillow(
        self, batch: Pending, place: int, out: AnyArray | None
    ) -> Future[AnyArray | None]:
        draws = batch.seed, batch.epoch, int(batch.keys[place])
        row = int(batch.rows[place])
        own = None if out is None else out[place]
        return self._threads.python.submit(self._decode_with_pillow, row, draws, own)

    def _decode_with_pillow(
        self, row: int, draws: tuple[int, int, int], out: AnyArray | None
    ) -> AnyArray | None:
        """Decodes one image with Pillow that the native engine cannot decode.

        Args:
            row: row of the dataset.
            draws: seed, epoch and key of the augmentations; see `plan.draw_keys`.
            out: the row's memory in a slot, which is filled; None if sizes differ.

        Returns:
            uint8 (H, W, C) or (C, H, W) if there is no `out`.
        """
        pixels = self._source.pixels(row)
        height, width = pixels.shape[:2]
        seed, epoch, key = draws
        place = out
        if place is None:
            (plan,) = augmentation(self.compiled, seed, epoch, [key], [height], [width])
            place = np.empty(self._shape(plan.size), np.uint8)
        _native.transform(
            self._chain, seed, epoch, key, pixels, place, self._channels_last, self._affine
        )
        return place if out is None else None

    def _read_again(
        self,
        batch: Pending,
        broken: dict[int, str],
        images: Images,
        out: AnyArray | None,
        stager: Stager,
        in_memory: bool,
    ) -> dict[int, str]:
        """Reads failed rows from blocks that are fetched again.

        Returns:
            The rows that still fail, by their places in the batch, and why.
        """
        places = np.array(sorted(broken), np.int64)
        rows = batch.rows[places]
        blocks = stager.blocks.of(rows)
        stager.restage(blocks.tolist(), in_memory=in_memory)
        while not stager.wait(blocks, WAIT_S):
            if self._threads.closed:
                raise LoaderClosed("closed while waiting for a batch")
        again = None if out is None else np.empty((len(rows), *out.shape[1:]), out.dtype)
        slots: list[_native.Slot] = []
        self._submit(batch, rows, batch.keys[places], again, slots)
        (slot,) = slots
        while not slot.wait(WAIT_S):
            pass
        still = {number: message for number, _, message in slot.failures()}
        for number, place in enumerate(places.tolist()):
            if number in still:
                continue
            if out is None:
                images[place] = slot.take(number)
            elif again is not None:
                out[place] = again[number]
        return {int(places[number]): message for number, message in still.items()}
