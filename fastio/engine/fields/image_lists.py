"""Lists of images: each image is decoded as those of an image field are."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fastio.engine.batch import AnyArray
from fastio.engine.fields.images import ImageReader
from fastio.engine.fields.reader import Reader, Work, sample_error
from fastio.engine.ragged import Form, Int64s, RaggedBatch
from fastio.engine.settings import EngineSettings
from fastio.engine.threads import Threads
from fastio.errors import ImageError, TransformError
from fastio.order.plan import image_keys
from fastio.packed.image_lists import (
    NO_IMAGE,
    NULL_LIST,
    image_numbers,
    null_list,
)
from fastio.packed.listed_images import ListedImages
from fastio.packed.rows import Rows
from fastio.stage import Stager

if TYPE_CHECKING:
    from fastio.engine.pending import Pending


@dataclass
class _Lists:
    """The lists of a batch.

    Attributes:
        images: the batch of their images, one after the other; with NO_IMAGE between shorter lists
            if the form is "padded". None if there are none.
        sample: int64 (images,), the place of each image's sample in the batch of samples.
        counts: int64 (n,), the number of images of each list; 0 for a list that is null.
        detail: what the reader of the images keeps.
    """

    images: Pending | None
    sample: Int64s
    counts: Int64s
    detail: Any = None


class ImageListReader(Reader):
    """Reads a field of lists of images; see `Reader`. Safe to use from several threads.

    Args:
        dataset: dataset of the field.
        name: name of the field.
        settings: settings of the engine.
        threads: threads of the engine.
        stager: fetches the blocks of a remote dataset.

    Attributes:
        images: the reader of their images.

    Raises:
        TransformError: the form of the batches needs images of one size, and the transforms do not
            give one.
    """

    def __init__(
        self,
        dataset: Rows,
        name: str,
        settings: EngineSettings,
        threads: Threads,
        stager: Stager | None = None,
    ) -> None:
        self.fields = (name,)
        self._name = name
        self._dataset = dataset
        self._form: Form = settings.ragged.get(name, "list")
        # Images in lists are not recoded, because the cache finds a record by its row.
        own = replace(settings, cache=None)
        listed = ListedImages(dataset, name)
        self.images = ImageReader(listed, name, own, threads, stager, sizes=False)
        self.pools = self.images.pools
        (self._part,) = self.images.parts
        if self._part.pool is None and self._form != "list":
            raise TransformError(
                f"ragged={self._form!r} needs images of one size in the lists of {name!r}: add "
                "Resize((height, width)) or a crop to the transforms of the field, or use "
                f"ragged={{{name!r}: 'list'}}"
            )

    def submit(self, batch: Pending, work: Work) -> None:
        """See `Reader`. A list that is null is an error of its sample."""
        counts = self._dataset.image_counts(self._name, batch.rows)
        for place in np.flatnonzero(counts == NULL_LIST).tolist():
            error = sample_error(self._dataset, batch, place, null_list(self._name), ImageError)
            batch.failures.setdefault(place, error)
        counts = np.maximum(counts, 0)
        each = np.arange(len(counts), dtype=np.int64)
        room = np.full_like(counts, counts.max(initial=0)) if self._form == "padded" else counts
        sample = np.repeat(each, room)
        index = np.arange(len(sample), dtype=np.int64) - np.repeat(np.cumsum(room) - room, room)
        lists = work.detail = _Lists(None, sample, counts)
        if not counts.any():
            return
        there = index < counts[sample]
        numbers = np.where(there, image_numbers(batch.rows[sample], index), NO_IMAGE)
        lists.images = images = replace(
            batch,
            planned=batch.planned.with_rows(numbers, None),
            work=[],
            failures={},
            blocks=None,
            staged=None,
        )
        images.keys = image_keys(batch.keys[sample], index)
        done: Future[dict[str, AnyArray]] = Future()
        done.set_result({})
        # Padding has the codec number of images for Pillow. A future that is done keeps Pillow from
        # decoding it.
        work.futures.update(dict.fromkeys(np.flatnonzero(~there).tolist(), done))
        self.images.submit(images, work)
        lists.detail, work.detail = work.detail, lists

    def follow(self, batch: Pending, work: Work) -> None:
        """See `Reader`."""
        lists: _Lists = work.detail
        if lists.images is not None:
            self.images.follow(lists.images, work)

    def finish(self, batch: Pending, work: Work) -> dict[str, Any]:
        """See `Reader`. A bad image is an error of its sample, whose message names the image."""
        lists: _Lists = work.detail
        found: Any = None
        if lists.images is not None:
            work.detail = lists.detail
            found = self.images.finish(lists.images, work)[self._name]
            self._add_failures(batch, lists)
            batch.error = batch.error or lists.images.error
        if self._part.pool is None:
            ends = np.cumsum([0, *lists.counts.tolist()]).tolist()
            images = found or []
            return {self._name: [images[begin:end] for begin, end in pairwise(ends)]}
        return {self._name: self._batch(lists, found)}

    def close(self) -> None:
        """Closes the files."""
        self.images.close()

    def _add_failures(self, batch: Pending, lists: _Lists) -> None:
        """Adds the errors of images to those of their samples; the first of a list counts."""
        assert lists.images is not None
        for number, error in sorted(lists.images.failures.items()):
            place = int(lists.sample[number])
            row = int(batch.planned.rows[place])
            path = str(self._dataset.path)
            named = ImageError(path, row, self._named(lists.images, number), error.cause)
            batch.failures.setdefault(place, named)

    def _named(self, images: Pending, number: int) -> str:
        return self.images.dataset.sample_name(int(images.rows[number]))

    def _batch(self, lists: _Lists, found: AnyArray | None) -> RaggedBatch:
        """Returns the images of a batch, which have one size, in the form of the field."""
        size = self._part.compiled.size
        assert size is not None
        shape = self._part.shape(size)
        if found is None:
            dtype = np.uint8 if self._part.affine is None else np.float32
            found = np.empty((0, *shape), dtype)
        if self._form == "padded":
            longest = int(lists.counts.max(initial=0))
            found = found.reshape(len(lists.counts), longest, *shape)
            found[np.arange(longest) >= lists.counts[:, None]] = 0
        shapes = np.empty((len(lists.counts), 1 + len(shape)), np.int64)
        shapes[:, 0], shapes[:, 1:] = lists.counts, shape
        return RaggedBatch(self._form, found, shapes)
