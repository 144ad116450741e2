"""Image fields: native threads decode them, and Pillow's what native code cannot decode."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import ImageFile

from fastio import _native
from fastio.engine.batch import AnyArray, SlotPool
from fastio.engine.fields.image_files import FoundImages, ImageSource
from fastio.engine.fields.reader import Reader, Work, result_of, sample_error
from fastio.engine.settings import EngineSettings
from fastio.engine.threads import Threads
from fastio.errors import ImageError, LoaderClosed, TransformError
from fastio.packed.rows import Rows
from fastio.recoded import RecodedImages
from fastio.runtime.threads import WAIT_S
from fastio.schema import Image
from fastio.stage import Stager
from fastio.transforms import Compiled, Pointwise, affine, augmentation

if TYPE_CHECKING:
    from fastio.engine.pending import Pending

_DAMAGED = (_native.TRUNCATED, _native.CORRUPT)
Outs = dict[str, AnyArray]  # memory of the parts whose images are of one size
Images = dict[str, list[AnyArray | None]]  # values of the others


class ImagePart:
    """One view of an image field, or the field itself if it has one.

    Args:
        name: name of the field or view.
        kind: type of the field.
        settings: settings of the engine.

    Attributes:
        compiled: transforms.
        chain: those of them that the native threads run.
        channels: number of channels of its images.
        channels_last: whether its images are stored (H, W, C).
        affine: (scale, bias) of each channel if the native threads write float32.
        tail: ToDtype and Normalize steps that are left to others.
        pool: slots; None if the sizes of images may differ.
    """

    def __init__(self, name: str, kind: Image, settings: EngineSettings) -> None:
        self.name = name
        self.compiled = settings.transforms.get(name) or Compiled()
        self.chain = self.compiled.native(kind.channels)
        self.channels = self.compiled.channels(kind.channels)
        handed = name in settings.handed
        self.channels_last = settings.channels_last or handed
        size = self.compiled.size
        # Erasing comes after Normalize, so an engine that erases normalises too.
        fuses = (settings.normalize_on_cpu or self.compiled.erasing) and size and not handed
        self.affine = affine(self.compiled.tail, self.channels) if fuses else None
        self.tail: tuple[Pointwise, ...] = self.compiled.tail if self.affine is None else ()
        self._settings = settings
        self._own_pool: tuple[tuple[int, int], SlotPool] | None = None
        self._lock = threading.Lock()
        self.pool: SlotPool | None = None
        if size is not None:
            dtype = "uint8" if self.affine is None else "float32"
            self.pool = settings.pool(
                self.shape(size), dtype, reuse_small=True, allocate=settings.handed.get(name)
            )

    def shape(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of an image whose height and width are `size`."""
        return (*size, self.channels) if self.channels_last else (self.channels, *size)

    def pool_of(self, size: tuple[int, int] | None) -> SlotPool | None:
        """Returns the slots for a batch, or None if each of its images needs its own memory.

        If the transforms keep the size of an image, a batch whose images have one size is also
        written to a slot. Only the size of the first such batch has slots, so that a dataset of
        many sizes does not keep slots for each of them.

        Args:
            size: (height, width) of all images of the batch; None if they differ.
        """
        if self.pool is not None or size is None or self.name in self._settings.handed:
            return self.pool
        with self._lock:  # of several streams, the first has to make it for all
            if self._own_pool is None:
                (plan,) = augmentation(self.compiled, 0, 0, [0], [size[0]], [size[1]])
                pool = self._settings.pool(self.shape(plan.size), "uint8", reuse_small=True)
                self._own_pool = size, pool
            own, pool = self._own_pool
        return pool if own == size else None

    def transform(
        self, pixels: npt.NDArray[np.uint8], draws: tuple[int, int, int], out: AnyArray | None
    ) -> AnyArray | None:
        """Applies the transforms to one image in memory.

        Args:
            pixels: uint8 (H, W, C).
            draws: seed, epoch and key of the augmentations; see `plan.draw_keys`.
            out: the image's memory in a slot, which is filled; None if sizes differ.

        Returns:
            uint8 (H, W, C) or (C, H, W) if there is no `out`.
        """
        seed, epoch, key = draws
        place = out
        if place is None:
            height, width = pixels.shape[:2]
            (plan,) = augmentation(self.compiled, seed, epoch, [key], [height], [width])
            place = np.empty(self.shape(plan.size), np.uint8)
        _native.transform(
            self.chain, seed, epoch, key, pixels, place, self.channels_last, self.affine
        )
        return place if out is None else None


class ImageReader(Reader):
    """Reads an image field; see `Reader`. Safe to use from several threads.

    Args:
        dataset: dataset of the field.
        name: name of the field.
        settings: settings of the engine.
        threads: threads of the engine.
        stager: fetches the blocks of a remote dataset.
        sizes: whether a batch whose images happen to have one size is written to a slot too.

    Attributes:
        dataset: the dataset of the field.
        field: name of the field.
        parts: its views; the field itself if it has none.
    """

    def __init__(
        self,
        dataset: Rows,
        name: str,
        settings: EngineSettings,
        threads: Threads,
        stager: Stager | None = None,
        *,
        sizes: bool = True,
    ) -> None:
        kind = dataset.schema.fields[name]
        assert isinstance(kind, Image)
        self.field = name
        self.dataset = dataset
        self._threads = threads
        self._stager = stager
        recoded = None
        if settings.cache is not None and settings.cache.pack != "never":
            blocks = None if stager is None else stager.blocks
            recoded = RecodedImages(dataset, name, settings.cache, settings.threads, blocks)
        self.fields = settings.views.get(name, (name,))
        self.parts = [ImagePart(part, kind, settings) for part in self.fields]
        self._stored_channels = kind.channels
        # Gray images may be wanted with three channels; others lose two in the chain of a part.
        self._channels = max(kind.channels, *(part.channels for part in self.parts))
        if any(part.channels != self._channels for part in self.parts) and kind.channels == 1:
            raise TransformError(
                f"{name!r} has gray images: give all of its views one channel, or all of them "
                "three by Grayscale(3)"
            )
        self._pools = {part.name: part.pool for part in self.parts if part.pool is not None}
        self.pools = self._pools
        sizes = sizes and len(self._pools) < len(self.parts)
        self._source = ImageSource(dataset, name, stager, recoded, settings.direct, sizes)

    @property
    def recoded_counts(self) -> tuple[int, int]:
        """The numbers of images recoded for the cache, and of images read from records."""
        recoded = self._source.recoded
        return (0, 0) if recoded is None else recoded.counts

    def submit(self, batch: Pending, work: Work) -> None:
        """See `Reader`. Images of known foreign formats go to Pillow at once."""
        found, first = self._source.reads_of(batch.planned, batch.rows)
        outs: Outs = {}
        for part in self.parts:
            pool = part.pool_of(found.size)
            if pool is not None:
                self._pools[part.name] = pool
                outs[part.name] = work.acquire(part.name, len(batch.rows))
        work.detail = found.pieces_of(first, len(batch.rows))
        work.slots.append(self._submit(batch, found, first, batch.keys, outs))
        for place in found.foreign_of(first, len(batch.rows)):
            if place not in work.futures:
                work.futures[place] = self._to_pillow(batch, place, outs)

    def follow(self, batch: Pending, work: Work) -> None:
        """Passes images to Pillow that the native threads could not decode.

        These are foreign formats that are recognised only when read, such as a PNG named .jpg, and
        truncated files if Pillow is set to load them (`ImageFile.LOAD_TRUNCATED_IMAGES`).
        """
        damaged = _DAMAGED if ImageFile.LOAD_TRUNCATED_IMAGES else ()
        wanted = (_native.FOREIGN, *damaged)
        outs = dict(work.memory)
        for slot in work.slots:
            for place, code, _ in slot.failures():
                if code in wanted and place not in work.futures:
                    work.futures[place] = self._to_pillow(batch, place, outs)

    def finish(self, batch: Pending, work: Work) -> dict[str, Any]:
        """See `Reader`. Images of a remote dataset that are damaged are fetched again."""
        (slot,) = work.slots
        outs = dict(work.memory)
        images: Images = {
            part.name: [slot.take(place, view) for place in range(len(batch.rows))]
            for view, part in enumerate(self.parts)
            if part.name not in outs
        }
        broken = {
            place: message
            for place, code, message in slot.failures()
            if code != _native.FOREIGN and place not in work.futures
        }
        resized: Images = {}
        # Rows whose records are damaged or were replaced are read from their originals first. Rows
        # that still fail may lie in a damaged block, which is fetched again.
        broken = self._read_originals(batch, broken, images, outs, work.detail)
        if broken and work.detail is not None:
            broken, resized = self._read_resized(batch, broken, images, outs)
        for in_memory in (False, True):  # staged data may be damaged, or gone
            if broken and self._stager is not None:
                broken = self._read_again(batch, broken, images, outs, self._stager, in_memory)
        packed = self.dataset.packed
        if broken and packed is not None:
            packed.shards.check_unchanged()  # a shard that was cut off is no row's own error
        for place, message in broken.items():
            error = sample_error(self.dataset, batch, place, message, ImageError)
            batch.failures.setdefault(place, error)
        for place, future in work.futures.items():
            found = result_of(future, batch, place, self.dataset, ImageError) or {}
            for name, pixels in found.items():
                images[name][place] = pixels
        for name, found_again in resized.items():  # after futures, which write to the slots
            out = outs.pop(name)
            images[name] = [
                out[place].copy() if image is None else image
                for place, image in enumerate(found_again)
            ]
            work.pools[name].release(work.memory.pop(name))
        slots = {name: work.lease(name).view(len(batch.rows)) for name in outs}
        return {**images, **slots}

    def close(self) -> None:
        """Closes the files."""
        self._source.close()

    def _submit(
        self,
        batch: Pending,
        found: FoundImages,
        first: int,
        keys: npt.NDArray[np.int64],
        outs: Outs,
    ) -> _native.Slot:
        """Passes a row for each key to the native threads. Their reads begin at number `first`."""
        views = [
            (part.chain, part.channels_last, part.affine, outs.get(part.name))
            for part in self.parts
        ]
        return self._threads.native.submit(
            found.files,
            views,
            batch.seed,
            batch.epoch,
            found.reads,
            first,
            keys,
            found.codebook,
            self._channels,
            self.dataset.max_pixels,
            self._stored_channels,
        )

    def _to_pillow(self, batch: Pending, place: int, outs: Outs) -> Future[Outs]:
        draws = batch.seed, batch.epoch, int(batch.keys[place])
        row = int(batch.rows[place])
        own = {name: out[place] for name, out in outs.items()}
        return self._threads.submit(self._decode_with_pillow, row, draws, own)

    def _decode_with_pillow(self, row: int, draws: tuple[int, int, int], outs: Outs) -> Outs:
        """Decodes one image with Pillow that the native engine cannot decode.

        Args:
            row: row of the dataset.
            draws: seed, epoch and key of the augmentations; see `plan.draw_keys`.
            outs: memory of the row in the slots, which is filled.

        Returns:
            The images of the parts that have no slot.
        """
        pixels = self._source.pixels(row)
        found = {
            part.name: part.transform(pixels, draws, outs.get(part.name)) for part in self.parts
        }
        return {name: image for name, image in found.items() if image is not None}

    def _read_again(
        self,
        batch: Pending,
        broken: dict[int, str],
        images: Images,
        outs: Outs,
        stager: Stager,
        in_memory: bool,
    ) -> dict[int, str]:
        """Reads failed rows from blocks that are fetched again.

        Returns:
            The rows that still fail, by their places in the batch, and why.
        """
        places = np.array(sorted(broken), np.int64)
        blocks = stager.blocks.of(self.dataset.rows_of(batch.rows[places]))
        stager.restage(blocks.tolist(), in_memory=in_memory)
        while not stager.wait(blocks, WAIT_S):
            if self._threads.closed:
                raise LoaderClosed("closed while waiting for a batch")
        return self._read_now(batch, places, images, outs)

    def _read_originals(
        self,
        batch: Pending,
        broken: dict[int, str],
        images: Images,
        outs: Outs,
        pieces: npt.NDArray[np.int64] | None,
    ) -> dict[int, str]:
        """Reads rows whose records are damaged or were replaced again, from their originals.

        Returns:
            The rows that still fail, by their places in the batch, and why.
        """
        recoded = self._source.recoded
        if recoded is None or pieces is None:
            return broken
        stale = recoded.stale(pieces)
        damaged = [place for place in broken if pieces[place] >= 0]
        again = np.union1d(damaged, stale).astype(np.int64)
        if not again.size:
            return broken
        still = self._read_now(batch, again, images, outs)
        # If the original fails too, the record is not damaged: a crop may be larger than the image.
        to_blame = np.setdiff1d(damaged, [*stale.tolist(), *still]).astype(np.int64)
        recoded.drop(pieces[to_blame])
        return {n: why for n, why in broken.items() if n not in damaged} | still

    def _read_resized(
        self, batch: Pending, broken: dict[int, str], images: Images, outs: Outs
    ) -> tuple[dict[int, str], Images]:
        """Reads originals again that may have another size than the records of their batch had.

        This is so if a file was replaced while the batch was read. The batch is a list then.

        Returns:
            The rows that still fail, by their places in the batch, and why. For each part whose
            images differ in size now: the images of the rows that were read, and None for others.
        """
        own = [part.name for part in self.parts if part.pool is None and part.name in outs]
        if not own:
            return broken, {}
        places = np.array(sorted(broken), np.int64)
        found: Images = {name: [None] * len(batch.rows) for name in own}
        others = {name: out for name, out in outs.items() if name not in own}
        still = self._read_now(batch, places, {**images, **found}, others)
        return still, found if len(still) < len(broken) else {}

    def _read_now(
        self, batch: Pending, places: npt.NDArray[np.int64], images: Images, outs: Outs
    ) -> dict[int, str]:
        """Reads rows of a batch from their originals, and waits for them.

        Returns:
            The rows that fail, by their places in the batch, and why.
        """
        rows = batch.rows[places]
        again = {
            name: np.empty((len(rows), *out.shape[1:]), out.dtype) for name, out in outs.items()
        }
        found = self._source.reads(rows, original=True)
        slot = self._submit(batch, found, 0, batch.keys[places], again)
        while not slot.wait(WAIT_S):
            pass
        still = {number: message for number, _, message in slot.failures()}
        for number, place in enumerate(places.tolist()):
            if number in still:
                continue
            for view, part in enumerate(self.parts):
                if part.name in outs:
                    outs[part.name][place] = again[part.name][number]
                else:
                    images[part.name][place] = slot.take(number, view)
        return {int(places[number]): message for number, message in still.items()}
