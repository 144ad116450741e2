"""fastio.pack and fastio.Writer."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from fastio.errors import PackError, SchemaError
from fastio.pack.cells import Bad, Item
from fastio.pack.codebooks import DEFAULT, TRAIN, choose_codebook
from fastio.pack.columnar import TableEncoder
from fastio.pack.destination import Destination, LocalDestination
from fastio.pack.images import DEFAULT_CODEC, IMAGE_CODECS, ImageCodec
from fastio.pack.infer import field_values
from fastio.pack.packer import Packer
from fastio.pack.samples import SampleEncoder, SampleOptions
from fastio.pack.sources import Source, TableRows, open_source
from fastio.pack.tables import TableSource, refuse_image_options
from fastio.pack.tokens import (
    AUTO,
    TOKENS,
    DocumentUnit,
    TextSource,
    TokenOptions,
    open_documents,
)
from fastio.pack.upload import RemoteDestination
from fastio.packed.rows import Rows
from fastio.runtime.cores import available_cores
from fastio.runtime.memory import MAX_PIXELS
from fastio.runtime.sizes import size_in_bytes
from fastio.schema import Schema
from fastio.sources.table import TableOptions
from fastio.store import is_remote

DEFAULT_SHARD_SIZE = "64MiB"


@dataclass(frozen=True)
class TokenCounts:
    """What a pack of text did.

    Attributes:
        documents: packed.
        tokens: of all of them, separators too.
        empty: documents without text, which were left out.
        tokens_per_second: how many were made; those of a pack that was resumed before are not.
    """

    documents: int
    tokens: int
    empty: int
    tokens_per_second: float


@dataclass(frozen=True)
class PackReport:
    """The result of `pack`.

    Attributes:
        rows: number of samples packed.
        shards: number of shards.
        bytes: total size of the shards.
        skipped: (name, reason) of every bad sample that was left out, in the source's order.
        seconds: duration.
        tokens: token counts of packed text; None for other data.
    """

    rows: int
    shards: int
    bytes: int
    skipped: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    tokens: TokenCounts | None = None


def pack(
    src: Any,
    dst: str | os.PathLike[str],
    *,
    codec: ImageCodec | None = None,
    codebook: str | os.PathLike[str] | None = None,
    max_side: int | None = None,
    quality: int | None = None,
    shard_size: int | str = DEFAULT_SHARD_SIZE,
    workers: int | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    schema: Schema | None = None,
    columns: Sequence[str] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    dtypes: Mapping[str, str] | None = None,
    nulls: Mapping[str, Any] | None = None,
    filters: Any = None,
    roots: Sequence[str | os.PathLike[str]] | None = None,
    max_pixels: int | None = None,
    max_unzipped_bytes: int | None = None,
    tokenizer: Any = None,
    separator: int | str | None = AUTO,
    vocabulary_size: int | None = None,
    text_column: str | None = None,
    document: DocumentUnit | None = None,
    special_tokens: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    staging: str | os.PathLike[str] | None = None,
) -> PackReport:
    """Pack samples into a dataset that `fastio.open` and `fastio.Loader` read.

    The same samples and options give the same bytes, for any number of workers, with or without
    an interruption. The destination is no dataset before everything is written. Memory is bounded
    by the shard size and a fixed budget, whatever the size of the source.

    Samples may be tuples, dicts or single values. Without `schema`, the first one decides:

    | value | field |
    |---|---|
    | PIL.Image | Image, stored as pixels |
    | uint8 array (H, W, C), C 1 or 3 | Image, stored as pixels |
    | uint8 tensor (C, H, W), C 1 or 3 | Image, stored as pixels |
    | bytes that begin as an image file does | Image, stored as `codec` says |
    | int; float; bool | Scalar int64; float64; bool |
    | NumPy scalar, array or tensor without axes | Scalar of its dtype |
    | other array or tensor | Array of its dtype and shape |
    | str; other bytes | Text; Bytes |

    The columns of a table become fields of dicts as `fastio.sources.table.leaves` says: numbers
    and fixed-size lists of them Scalar and Array, strings Text, dictionary-encoded strings numbers
    and a vocabulary, structs a field `parent_child` for each part. Nulls of floats are NaN. The
    manifest keeps statistics of every column.

    With `tokenizer`, text becomes a field `tokens` of dicts: every document its tokens and a
    separator, nothing cut off or padded. Documents are the rows of tables (.jsonl.zst too), .txt
    files (.txt.gz, .txt.zst), Arrow data, or an iterable of str or of dicts; files of several
    kinds may stand in one list or folder. Empty documents are left out and counted. What stands
    beside the text is left out, unless `columns` names it.

    Args:
        src: a folder with a folder of images for each class, in torchvision's ImageFolder order;
            such a folder of sound files, or of .npy or .npz files, or one with such files alone;
            a CSV file with a header or a JSONL file, with a column `path` (or image, file,
            filename) relative to the list; tables: a file .parquet, .arrow or .feather, or .csv or
            .jsonl without such a column, a folder or a list of them, or a pattern such as
            "data/*.parquet", each also as a URL; an Arrow table, or what gives an Arrow stream;
            WebDataset tars, as `fastio.TarDataset` takes and reads them (a sample that lacks a
            field of the others is a bad one); a dataset with `__len__` and `__getitem__`, called
            in order by one thread; or any iterable. A torchvision ImageFolder without transforms is
            packed as its folder is: upright, where its images' EXIF orientation turns them. A
            datasets.Dataset, or a directory that its `save_to_disk` wrote: a table, or with images
            samples as dicts, for which `columns`, `groups`, `dtypes` and `nulls` hold too.
        dst: the folder to make; or its URL in a store, such as "s3://bucket/dataset". Shards are
            uploaded as they are finished, and the manifest last. Any machine can resume it; two
            that pack to one URL at once are not noticed.
        codec: "blocks" (what None means) stores JPEG files in the block codec, which loses
            nothing and is decoded several times faster, and every other image file, and JPEGs
            that it cannot hold (CMYK, arithmetic coding), byte for byte; "jpeg" keeps all files
            byte for byte, whatever their format; "raw" stores their upright pixels.
        codebook: of the block codec: None or "default" is the one that ships with fastio; "train"
            first trains one on up to 512 of the source's JPEG files, for a percent or so less
            bytes; anything else is the path of a file that tools/train_codebook wrote.
        max_side: pixels of the longer side at most. Larger images are shrunk, antialiased, and
            files among them become JPEGs, of `quality` or else 90.
        quality: all image files, whatever their format and size, are made JPEGs of this quality,
            1 to 100. This and `max_side` lose something; without them nothing does. Orientation,
            colour profile and chroma subsampling are kept.
        shard_size: data in a shard, in bytes or as "64MiB": the row that reaches it is its last.
        workers: number of threads; None uses all cores that this process may use.
        on_error: "raise" stops at the first bad sample in the source's order; "skip" leaves bad
            ones out and reports them. Of tables it leaves out files that are empty or damaged as
            far as opening them tells; what is damaged inside of a file stops in any case, because
            rows are counted to resume. Of text there is no "skip".
        resume: go on with a pack that was interrupted, without doing finished shards again; with
            the same source and options. A dataset or iterable must give the same samples again:
            for those, other than for files, that cannot be checked.
        overwrite: replace a dataset, or a part of one, that is at `dst`. No other file in the
            folder is touched.
        progress: show a progress bar on stderr.
        schema: fields of the samples; None derives them from the first sample. Not for tables.
        columns: for tables, the columns and groups to pack, in this order; None for all.
        groups: for tables, names of groups with the columns that become one Array (n,):
            {"dense": ["I1", "I2"]}.
        dtypes: for tables, the type of a column or group, such as {"label": "float32"}. A value
            that does not fit is an error; floats may be rounded.
        nulls: for tables, the replacement of a column's or group's nulls: a value, or "mask" for
            zeros and a bool field `NAME_valid`. Without it, nulls are an error except in floats.
        filters: of a table, the rows that are wanted: a list of (column, operator, value), all of
            which hold; a list of such lists, one of which holds; or an expression of
            pyarrow.dataset. Row groups are left out by their statistics, files by their folders.
        roots: of a list, or a directory of `save_to_disk`: folders, beside its own, that files
            which it names may lie in. Without them a path that leads elsewhere is an error, for
            such data may come from others, and name any file of yours.
        max_pixels, max_unzipped_bytes: what one sample may take, as for `fastio.open`; one that
            takes more is a bad sample. .npz files are zipped, too. None: what an open dataset was
            given, or what `fastio.open` allows by default.
        tokenizer: "bytes" (UTF-8, and 256 as the separator); the path of a tokenizer.json of
            Hugging Face, or of a folder with one; a name such as "gpt2", which is fetched; a
            tokenizer of `tokenizers` or `transformers`; or any function from a str to integers,
            which several threads call at once. All but the first and last need fastio[tokens].
        separator: the token that ends every document: itself or its number; "auto" for the one
            that the tokenizer has (<|endoftext|>, </s>, ...); None or "none" for none.
        vocabulary_size: every token is below it; to be given with a function. The tokens' type is
            the smallest of uint8, uint16 and uint32 that holds it; `dtypes` may say a wider one,
            as in {"tokens": "uint32"}.
        text_column: name of the text column in tables and dicts; None uses text, content or
            document, or the only column of strings.
        document: unit of .txt files that is one document: "file" (the meaning of None), "line", or
            "blank-line" for the text between blank lines.
        special_tokens: whether the tokenizer adds its special tokens to every document.
        storage_options: options of the file system of a URL in `src` or `dst` (keys, endpoint,
            ...).
        source_options: options for `src` only, if both are URLs with different options.
        staging: for a URL, the folder for the few shards that are not uploaded yet; None uses a
            temporary folder.

    Returns:
        What was packed and what was skipped.

    Raises:
        SourceNotFound: `src` does not exist or has no images.
        DatasetExists: `dst` holds a dataset.
        PackError: there is nothing to pack, `dst` cannot be written, or a pack cannot be resumed.
        StoreError: a URL is not understood, or its store cannot be listed.
        ImageError: an image is damaged, or has more than 8 bits a channel.
        SampleError: the source failed to give a sample.
        SchemaError: a value cannot be stored, or does not fit its field.
        ShardCorrupt: a table's file, or a tar, is damaged.
    """
    start = time.monotonic()
    if isinstance(src, Rows) and max_pixels is None:
        max_pixels = src.max_pixels
    options = _options(
        codec, codebook, max_side, quality, shard_size, workers, on_error, max_pixels
    )
    from_url = any(map(is_remote, src if isinstance(src, (list, tuple)) else [src]))
    if source_options is not None and not from_url:
        raise PackError("source_options are for a URL, and the source is none")
    of_destination = None if from_url and not is_remote(dst) else storage_options
    destination = _destination(dst, of_destination, staging)
    _check_apart(src, dst)
    wanted = TableOptions(
        None if columns is None else tuple(columns),
        {name: tuple(members) for name, members in (groups or {}).items()},
        dtypes or {},
        nulls or {},
    )
    how = TokenOptions(tokenizer, separator, vocabulary_size, text_column, document, special_tokens)
    asked = TableRows(
        filters,
        on_error == "skip",
        source_options if source_options is not None else storage_options,
        roots,
        max_unzipped_bytes,
    )
    source = _open(src, schema, wanted, how, asked)
    encoder: SampleEncoder | TableEncoder
    if isinstance(source, (TableSource, TextSource)):
        can_skip = isinstance(source, TableSource) and source.has_files
        skipping = "skip" if on_error == "skip" and not can_skip else None
        refuse_image_options(
            source.name,
            codec=codec,
            codebook=codebook,
            max_side=max_side,
            quality=quality,
            on_error=skipping,
        )
        encoder = TableEncoder(source, options.shard_bytes, options.workers)
    else:
        encoder = SampleEncoder(source, options)
    packer: Packer[Any, Any] = Packer(destination, encoder, resume=resume, overwrite=overwrite)
    packer.run(progress)
    report = _report(packer, start)
    if isinstance(source, TextSource):
        return replace(report, tokens=_token_counts(packer, source.empty, report))
    return report


def _open(
    src: Any, schema: Schema | None, options: TableOptions, how: TokenOptions, asked: TableRows
) -> Source | TableSource | TextSource:
    """Find out what `src` is: text where there is a tokenizer."""
    if how.tokenizer is None:
        return open_source(src, schema, options, asked)
    if asked.filters is not None:
        raise PackError("filters are for tables, and with a tokenizer they are text")
    if schema is not None:
        raise SchemaError(
            "the fields of text are its tokens and the columns that are kept: say which with "
            "columns, and their types with dtypes, instead of a schema"
        )
    return open_documents(src, how, options)


class Writer:
    """Packs samples that are passed to it one by one.

        with fastio.Writer("train", Schema({"image": Image(), "label": Scalar("int64")})) as writer:
            for data, label in samples:
                writer.write({"image": data, "label": label})

    Leaving the block finishes the dataset; leaving it with an exception deletes what was written.
    Use a writer from one thread only.

    Args:
        dst: folder to create, or its URL.
        schema: fields of the samples.
        codec, codebook, max_side, quality: as in `fastio.pack`, except that a codebook cannot be
            trained, since there are no samples yet.
        shard_size, workers, on_error, overwrite, max_pixels: as in `fastio.pack`.
        storage_options, staging: as in `fastio.pack`.

    Raises:
        DatasetExists: `dst` holds a dataset.
        PackError: `dst` cannot be written.
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
        max_pixels: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        staging: str | os.PathLike[str] | None = None,
    ) -> None:
        self._start = time.monotonic()
        self._schema = schema
        self._written = 0
        if codebook == TRAIN:
            raise PackError(
                "a Writer has no samples to train a codebook on: use the default one, or one from "
                "a file that tools/train_codebook wrote"
            )
        options = _options(
            codec, codebook, max_side, quality, shard_size, workers, on_error, max_pixels
        )
        destination = _destination(dst, storage_options, staging)
        encoder = SampleEncoder(_Written(schema), options)
        self._packer: Packer[Item | Bad, Any] | None
        self._packer = Packer(destination, encoder, overwrite=overwrite)
        self._report: PackReport | None = None

    def write(self, sample: Any) -> None:
        """Add a sample, in the structure of the schema.

        Samples are encoded in the background: an error may be raised by a later call, and names
        the sample that caused it.

        Raises:
            SchemaError, ImageError, PackError: as `fastio.pack`.
        """
        position = self._written
        name = f"sample {position}"
        item: Item | Bad
        try:
            item = Item(position, name, field_values(self._schema, sample, name))
        except SchemaError as error:
            item = Bad(position, name, error)
        self._opened().add(item)
        self._written += 1

    def finish(self) -> PackReport:
        """Write the remaining samples and the manifest, and close the writer.

        Raises:
            PackError: no samples were written.
            As `write`.
        """
        packer = self._opened()
        packer.finish()
        packer.close()
        self._packer = None
        self._report = _report(packer, self._start)
        return self._report

    @property
    def report(self) -> PackReport:
        """The report of the finished dataset."""
        if self._report is None:
            raise PackError("the writer has not finished")
        return self._report

    def discard(self) -> None:
        """Delete what was written and close the writer. May be called more than once."""
        if self._packer is not None:
            packer, self._packer = self._packer, None
            packer.discard()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.discard()
            return
        if self._packer is not None:
            try:
                self.finish()
            except BaseException:
                self.discard()
                raise

    def _opened(self) -> Packer[Item | Bad, Any]:
        if self._packer is None:
            raise PackError("the writer is closed")
        return self._packer


class _Written:
    """The source of a Writer's samples, which are passed to the packer one by one."""

    def __init__(self, schema: Schema) -> None:
        self.name = "Writer"
        self.schema = schema
        self.total: int | None = None
        self.has_keys = False

    def items(self, start: int) -> Iterator[Item | Bad]:
        """Returns nothing."""
        return iter(())

    def sample(self, count: int) -> Iterator[Item | Bad]:
        """Returns nothing."""
        return iter(())


def parse_size(size: int | str) -> int:
    """A number of bytes from an int or from text such as "64MiB", "1.5 GB" or "65536".

    Raises:
        PackError: it is not a size, or less than 1 byte.
    """
    try:
        return size_in_bytes(size)
    except ValueError as error:
        raise PackError(str(error)) from None


def _options(
    codec: ImageCodec | None,
    codebook: str | os.PathLike[str] | None,
    max_side: int | None,
    quality: int | None,
    shard_size: int | str,
    workers: int | None,
    on_error: str,
    max_pixels: int | None,
) -> SampleOptions:
    codec = DEFAULT_CODEC if codec is None else codec
    if codec not in IMAGE_CODECS:
        raise PackError(f"codec must be one of {', '.join(IMAGE_CODECS)}, got {codec!r}")
    if codec != "blocks" and codebook not in (None, DEFAULT):
        raise PackError(f"codebooks are for the codec 'blocks', and the codec is {codec!r}")
    if max_side is not None and max_side < 1:
        raise PackError(f"max_side must be at least 1, got {max_side}")
    if quality is not None and not 1 <= quality <= 100:
        raise PackError(f"quality must be from 1 to 100, got {quality}")
    if quality is not None and codec == "raw":
        raise PackError("quality is that of JPEGs, and the codec 'raw' stores pixels")
    if max_pixels is not None and max_pixels < 1:
        raise PackError(f"max_pixels must be at least 1, got {max_pixels}")
    if on_error not in ("raise", "skip"):
        raise PackError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
    if workers is None:
        workers = available_cores()
    if workers < 1:
        raise PackError(f"workers must be at least 1, got {workers}")
    return SampleOptions(
        codec,
        choose_codebook(codebook) if codec == "blocks" else None,
        max_side,
        quality,
        parse_size(shard_size),
        on_error == "skip",
        workers,
        MAX_PIXELS if max_pixels is None else max_pixels,
    )


def _destination(
    dst: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
    staging: str | os.PathLike[str] | None,
) -> Destination:
    if is_remote(dst):
        return RemoteDestination(str(dst), storage_options, staging)
    if storage_options is not None or staging is not None:
        raise PackError(
            f"storage_options and staging are for a URL, and {os.fspath(dst)} is on this machine"
        )
    return LocalDestination(Path(dst))


def _check_apart(src: Any, dst: str | os.PathLike[str]) -> None:
    if is_remote(dst):
        return
    destination = Path(dst).resolve()
    is_path = isinstance(src, (str, os.PathLike))
    # Of a list, which may be one of documents, only folders can hold the destination.
    folders = filter(_is_folder, src) if isinstance(src, (list, tuple)) else ()
    for path in [src] if is_path else folders:
        source = Path(path).resolve()
        if source == destination or source in destination.parents:
            raise PackError(
                f"the destination {os.fspath(dst)} lies in the source {os.fspath(path)} and would "
                "become a part of it; choose a folder elsewhere"
            )


def _is_folder(item: Any) -> bool:
    return isinstance(item, (str, os.PathLike)) and os.path.isdir(item)


def _report(packer: Packer[Any, Any], start: float) -> PackReport:
    return PackReport(
        sum(entry.rows for entry in packer.entries),
        len(packer.entries),
        sum(entry.nbytes for entry in packer.entries),
        packer.skipped,
        time.monotonic() - start,
    )


def _token_counts(packer: Packer[Any, Any], empty: int, report: PackReport) -> TokenCounts:
    counts = [entry.tokens[TOKENS] for entry in packer.entries]
    rate = sum(counts[packer.resumed :]) / max(report.seconds, 1e-9)
    return TokenCounts(report.rows, sum(counts), empty, rate)
