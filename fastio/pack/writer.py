"""fastio.Writer: packs samples that are passed to it one by one."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Literal

from fastio.errors import OptionError, PackError, SchemaError
from fastio.pack.api import DEFAULT_SHARD_SIZE, PackReport, report_of, sample_options
from fastio.pack.growth import open_base, same_numbers
from fastio.pack.images import TRAIN, ImageCodec
from fastio.pack.items import Item, Row, Source
from fastio.pack.journal import WRITER
from fastio.pack.objects import checked_item
from fastio.pack.packer import Packer
from fastio.pack.remote import open_destination
from fastio.pack.samples import SampleEncoder
from fastio.schema import Schema
from fastio.store import local_path


class Writer:
    """Packs samples that are passed to it one by one.

        with fastio.Writer("train", Schema({"image": Image(), "label": Scalar("int64")})) as writer:
            for data, label in samples:
                writer.write({"image": data, "label": label})

    Leaving the block finishes the dataset. Leaving it with an exception deletes the samples that
    this writer has written; a dataset that was there before stays. An error that is raised after
    the manifest was written, such as Ctrl-C, deletes nothing: the dataset is complete then.
    Use a writer from one thread only.

    Args:
        dst: folder to create, or its URL.
        schema: fields of the samples.
        codec, codebook, max_side, quality: as in `fastio.pack`, except that a codebook cannot be
            trained, since there are no samples yet.
        shard_size, workers, on_error, overwrite, append, max_pixels: as in `fastio.pack`.
        storage_options, staging: as in `fastio.pack`.

    Raises:
        DatasetExists: `dst` holds a dataset.
        PackError: `dst` cannot be written, or there is no dataset to append to.
        OptionError: an option has a value that is not possible, or contradicts another one.
        PackConflict: another process is packing to `dst`.
        SchemaError: the dataset that is appended to has other fields or numbers of classes.
    """

    def __init__(
        self,
        dst: str | os.PathLike[str],
        schema: Schema,
        *,
        codec: ImageCodec | None = None,
        codebook: str | os.PathLike[str] | None = None,
        max_side: int | None = None,
        quality: int | None = None,
        shard_size: int | str = DEFAULT_SHARD_SIZE,
        workers: int | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        overwrite: bool = False,
        append: bool = False,
        max_pixels: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        staging: str | os.PathLike[str] | None = None,
    ) -> None:
        self._start = time.monotonic()
        self._schema = schema
        self._written = 0
        if not isinstance(schema, Schema):
            raise SchemaError(f"schema must be a fastio.Schema({{name: field}}), got {schema!r}")
        if codebook == TRAIN:
            raise OptionError(
                "a Writer cannot train a codebook: use the default one, or one from a file "
                "that tools/train_codebook wrote"
            )
        if append and overwrite:
            raise OptionError("append and overwrite cannot be combined: choose one")
        dst = local_path(dst)
        destination = open_destination(dst, storage_options, staging)
        base = open_base(dst, storage_options) if append else None
        options = sample_options(
            codec, codebook, max_side, quality, shard_size, workers, on_error, max_pixels, base
        )
        if base is not None:
            # Raises an error if a killed append had already written its manifest: the same samples
            # might be appended twice.
            destination.was_completed(base, None)
            schema = same_numbers(base, schema)
        # The samples are passed to the packer one by one.
        source = Source(WRITER, schema, None, False, lambda start: iter(()), lambda rows: iter(()))
        encoder = SampleEncoder(source, options)
        self._packer: Packer[Item | Row, Any] | None
        self._packer = Packer(destination, encoder, overwrite=overwrite, base=base)
        self._report: PackReport | None = None

    def write(self, sample: Any) -> None:
        """Adds a sample, in the structure of the schema.

        Samples are encoded in the background: an error may be raised by a later call, and names
        the sample that caused it.

        Raises:
            SchemaError, ImageError, PackError: As for `fastio.pack`.
        """
        item = checked_item(self._schema, self._written, sample)
        self._opened().add(item)
        self._written += 1

    def finish(self) -> PackReport:
        """Writes the remaining samples and the manifest, and closes the writer.

        Raises:
            PackError: No samples were written.
            As for `write`.
        """
        packer = self._opened()
        packer.finish()
        packer.close()
        self._packer = None
        self._report = report_of(packer, self._start)
        return self._report

    @property
    def report(self) -> PackReport:
        """The report of the finished dataset; PackError before `finish`."""
        if self._report is None:
            raise PackError("the writer has not finished")
        return self._report

    def discard(self) -> None:
        """Deletes what was written and closes the writer. May be called more than once."""
        if self._packer is not None:
            packer, self._packer = self._packer, None
            packer.discard()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is not None:
            self.discard()
            return
        if self._packer is not None:
            try:
                self.finish()
            except BaseException:
                self.discard()
                raise

    def _opened(self) -> Packer[Item | Row, Any]:
        if self._packer is None:
            raise PackError("the writer is closed")
        return self._packer
