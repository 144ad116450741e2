"""fastio.pack: the one function that packs all kinds of data."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from fastio.cache import Cache, check_is_cache
from fastio.errors import OptionError
from fastio.pack.apart import check_apart
from fastio.pack.destination import complete_dataset
from fastio.pack.growth import open_base, options_of, with_numbers_of
from fastio.pack.images import (
    DEFAULT,
    DEFAULT_CODEC,
    IMAGE_CODECS,
    ImageCodec,
    ImageOptions,
    choose_codebook,
)
from fastio.pack.items import Source
from fastio.pack.lists import lists_urls
from fastio.pack.packer import Packer, UnitRunner
from fastio.pack.process_units import ProcessUnits
from fastio.pack.ray_engine import RayRunner
from fastio.pack.refusals import check_image_options
from fastio.pack.remote import open_destination
from fastio.pack.row_sources import RowSource
from fastio.pack.samples import SampleEncoder, SampleOptions
from fastio.pack.sources import max_pixels_of, open_source
from fastio.pack.tables import TableEncoder
from fastio.pack.tokens.encoders import AUTO, TOKENS, DocumentUnit, TokenOptions
from fastio.packed import Manifest
from fastio.runtime.cores import available_cores
from fastio.runtime.memory import MAX_PIXELS
from fastio.runtime.sizes import size_in_bytes
from fastio.schema import Schema
from fastio.sources.base import Options
from fastio.sources.registry import local_source
from fastio.store import is_remote, local_path

DEFAULT_SHARD_SIZE = "64MiB"


@dataclass(frozen=True)
class TokenCounts:
    """The token counts of a pack of text.

    Attributes:
        documents: Number of documents packed.
        tokens: Number of tokens in all of them, with separators.
        empty: Number of documents without text, which were left out.
        tokens_per_second: Throughput; shards of a pack that was resumed are not counted.
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
        was_complete: whether the dataset was complete already, so that there was nothing to resume.
    """

    rows: int
    shards: int
    bytes: int
    skipped: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    tokens: TokenCounts | None = None
    was_complete: bool = False


def pack(
    src: Any,
    dst: str | os.PathLike[str],
    *,
    codec: ImageCodec | None = None,
    codebook: str | os.PathLike[str] | None = None,
    max_side: int | None = None,
    quality: int | None = None,
    from_cache: Cache | str | os.PathLike[str] | None = None,
    shard_size: int | str = DEFAULT_SHARD_SIZE,
    workers: int | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    resume: bool = False,
    overwrite: bool = False,
    append: bool = False,
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
    split: str | None = None,
    config: str | None = None,
    staging: str | os.PathLike[str] | None = None,
    engine: Literal["threads", "ray"] = "threads",
) -> PackReport:
    """Packs data into a dataset that `fastio.open` and `fastio.Loader` read.

    The same data and options give the same bytes, for any number of threads, with or without an
    interruption. The destination is not a dataset before everything is written. Memory is bounded
    by the shard size and a fixed budget, apart from a description of each file of the source.
    Descriptions of the shards are in temporary files beside the shards.

    Samples may be tuples, dicts or single values. Without `schema`, the first sample decides:

    | value | field |
    |---|---|
    | PIL.Image of a JPEG, PNG, GIF or TIFF file, opened and not decoded | Image, as `codec` says |
    | other PIL.Image; uint8 array (H, W, 1 or 3), tensor (1 or 3, H, W) | Image, as pixels |
    | bytes that begin as an image file does | Image, stored as `codec` says |
    | list or tuple whose first value is one of these | Images, each stored in the same way |
    | int; float; bool | Scalar int64; float64; bool |
    | NumPy scalar, array or tensor without axes | Scalar of its dtype |
    | other array or tensor; str; other bytes | Array of its dtype and shape; Text; Bytes |

    The columns of a table become fields of dicts as `fastio.sources.table.leaves` says: numbers
    and fixed-size lists of them become Scalar and Array, strings Text, dictionary-encoded strings
    numbers and a vocabulary, and structs a field `parent_child` for each part. Nulls of floats are
    NaN. The manifest keeps statistics of every column.

    With `tokenizer`, text becomes a field `tokens` of dicts. Each document is stored as all its
    tokens and a separator; nothing is cut off or padded. Documents are the rows of tables
    (.jsonl.zst too), .txt files (.txt.gz, .txt.zst), Arrow data, or an iterable of str or of dicts.
    Empty documents are left out and counted.

    `fastio pack` has the same options, and shows these descriptions as its help.

    Args:
        src: The data to pack: a folder of images, with a subfolder for each class; a folder of
            sound, .npy or .npz files, with or without such subfolders; a CSV or JSONL list with a
            column 'path' (or file_name, ...); WebDataset tars (one, a folder, or a pattern
            such as 'train-{000..099}.tar'); tables (a Parquet, Arrow, CSV or JSONL file, a folder,
            or a pattern such as 'data/*.parquet'); a Lance dataset; a directory written by
            save_to_disk of the datasets package; or, with a tokenizer, text in such tables or .txt
            files. Several tars, tables or text files can be given. Folders of images or sound
            files, tars and tables can also be given by URL. In Python also: such data that
            `fastio.open` returned; Arrow data; a ray.data.Dataset; a datasets.Dataset; a dataset
            with `__len__` and `__getitem__`, which worker processes read; or any iterable, which
            one thread reads (docs/python.md).
        dst: The folder to create, or a URL such as s3://bucket/dataset. Shards are uploaded as they
            are finished, and the manifest last. Any machine can resume an interrupted pack, which
            ends a process that still packs there with an error.
        codec: Image storage: 'blocks' (default) recodes JPEGs without loss into a form that decodes
            faster, and keeps other files and JPEGs that it cannot hold (CMYK, arithmetic coding);
            'jpeg' keeps all files byte for byte; 'raw' stores upright pixels.
        codebook: Codebook of the block codec: 'default' for the built-in one; 'train' to train one
            on up to 512 JPEGs of the source first, which saves about a percent of the bytes; or a
            file that tools/train_codebook wrote.
        max_side: Maximum length of the longer side in pixels. Larger images are shrunk with
            antialiasing, and files among them become JPEGs. Loses information.
        quality: Re-encode all image files as JPEGs of this quality, 1 to 100 (default with a
            maximum side: 90, for shrunk files only). Loses information. Orientation, color profile
            and chroma subsampling are kept.
        from_cache: Folder of a cache in which loaders have recoded images of the source. These
            images are copied from the cache instead of being encoded again; the result is the same.
            Only with the codec 'blocks' and the default codebook.
        shard_size: Size of a shard in bytes, or as text such as 64MiB or 1GB. A source whose
            samples can be read by number is divided into units with equal numbers of samples, so
            that shards have this size on average; a unit of more than twice the size becomes
            several shards. Text and tables with strings are divided at line breaks and row groups
            into units of about this size. What can only be read from its beginning (an iterable, a
            single CSV or compressed file) has shards that end with the row that reaches the size.
        workers: Number of threads, and maximum number of processes (default: all cores that this
            process may use). With 4 or more, forked processes pack local image files. Processes
            also read a Python dataset with `__len__` and `__getitem__`; each has at least 16
            samples, and 1 reads it in the calling thread. With Ray, cores and threads per task (1).
        on_error: 'raise' stops at the first bad sample in the order of the source; 'skip' leaves
            bad samples out and reports them. For tables, 'skip' leaves out files that are empty or
            cannot be opened; damage inside of a file always stops. Not for text.
        resume: Continue an interrupted pack with the same source and options, without repeating
            finished shards. Samples of a Python iterable must be the same again, which cannot be
            checked. Does nothing if the dataset is complete.
        overwrite: Replace the dataset, or an unfinished one, at the destination. The old dataset
            stays complete until the new one is complete, so there must be room for both. Other
            files in the folder are not touched. To continue an interrupted overwrite, use resume
            without overwrite. Raises PackError if the source reads the dataset to be replaced.
        append: Add the samples to the dataset at the destination, as its next version. Readers
            that have it open keep reading their version. Fields must be the same; new classes and
            words are added. The defaults of codec, maximum side and quality are those of the
            dataset (docs/growing.md).
        progress: Whether to show a progress bar on stderr.
        schema: Fields of the samples. None derives them from the first sample. Not for tables.
        columns: Tables: names of columns and groups to pack, in this order (default: all).
            With a tokenizer: columns to keep beside the tokens.
        groups: Tables: columns that become one array, by the name of the new field. In Python
            {"dense": ["I1", "I2"]}.
        dtypes: Tables: dtype of a column or group; values that do not fit are errors, and floats
            may be rounded. Text: dtype of the field tokens. In Python {"label": "float32"}.
        nulls: Tables: value that replaces the nulls of a column or group; 'mask' stores zeros and
            adds a bool field NAME_valid. Without it, nulls are errors except in floats.
        filters: Tables: conditions for the rows to pack. Row groups and files that cannot match
            are not read. In Python a list of (column, operator, value), all of which must hold; a
            list of such lists, one of which must hold; or an expression of pyarrow.dataset.
        roots: Lists and save_to_disk directories: other folders, besides their own, in which the
            files they name may lie. Paths that lead elsewhere are errors, because such data may
            come from others.
        max_pixels: Maximum number of pixels of an image; larger images are bad samples (default:
            about 179 million, or what an open dataset was given).
        max_unzipped_bytes: Maximum decompressed size of a compressed file of a sample (.gz in tars,
            .npz), in bytes; larger files are bad samples (default: 256MiB).
        tokenizer: Pack text as tokens of this tokenizer: 'bytes' for UTF-8 bytes, with 256 as the
            separator; a name on the Hugging Face Hub such as gpt2; or the path of a tokenizer.json
            or of a folder with one. All but 'bytes' need fastio[tokens]. In Python also an object
            of tokenizers or transformers, or a function from a str to integers, which several
            threads call.
        separator: Text: token that ends every document, or its number; 'auto' is the tokenizer's
            own, such as <|endoftext|> or </s>; 'none' is none.
        vocabulary_size: Text: all tokens are below it. Required if the tokenizer is a function. The
            dtype of tokens is the smallest of uint8, uint16 and uint32 that holds them.
        text_column: Text in tables: name of the text column (default: text, content or document, or
            the only column of strings).
        document: Text files: unit that is one document: 'file' (default), 'line', or 'blank-line'
            for the text between blank lines.
        special_tokens: Text: add the special tokens that the tokenizer puts around a text, such as
            [CLS] or <s>.
        storage_options: Options of the file system of a URL in the source or the destination, such
            as keys and endpoint.
        source_options: Like the storage options, but for the source only, if both are URLs.
        split: Name of the split of data with the layout of the Hugging Face Hub, if it has several.
        config: Name of its configuration, if it has several.
        staging: For a URL: folder for shards that are not uploaded yet (default: a temporary
            folder).
        engine: What packs: 'threads' of this process, or tasks on a 'ray' cluster, which needs
            fastio[ray]. The bytes are the same. With Ray, source and destination must be URLs or
            lie on a file system that all machines share (docs/ray.md).

    Returns:
        What was packed and what was skipped. When samples are appended, only these are counted.

    Raises:
        SourceNotFound: `src` does not exist or has no images.
        DatasetExists: `dst` holds a dataset.
        PackError: There is nothing to pack, `dst` cannot be written, a pack cannot be resumed,
            there is nothing to append to, or the source does not fit the dataset.
        OptionError: An option has a value that is not possible, contradicts another one, or does
            not apply to this kind of source or destination.
        PackConflict: Another process is packing to `dst`, or has appended to it since this pack
            began.
        StoreError: A URL is not valid, or its store cannot be listed.
        ImageError: An image is damaged, or has more than 8 bits per channel.
        SampleError: The source failed to give a sample.
        WorkerDied: A worker process that read samples was killed. The pack can be resumed.
        SchemaError: A value cannot be stored or does not fit its field, or the fields of an
            append differ from those of the dataset.
        ShardCorrupt: A table file or a tar is damaged.
    """
    start = time.monotonic()
    src, dst = local_source(src), local_path(dst)
    limit = max_pixels_of(src) if max_pixels is None else max_pixels
    from_url = any(map(is_remote, src if isinstance(src, (list, tuple)) else [src]))
    from_url = from_url or lists_urls(src)
    if source_options is not None and not from_url:
        raise OptionError("source_options can only be used with a URL as the source")
    if append and overwrite:
        raise OptionError("append and overwrite cannot be combined: choose one")
    # If only the source is a URL, storage_options are its options. A local destination takes none.
    of_destination = None if from_url and not is_remote(dst) else storage_options
    destination = open_destination(dst, of_destination, staging)
    check_apart(src, dst, overwrite)
    base = open_base(dst, of_destination) if append else None
    options = sample_options(
        codec, codebook, max_side, quality, shard_size, workers, on_error, limit, base
    )
    cache = _cache_to_copy(from_cache, options)
    data = Options(
        storage_options=source_options if source_options is not None else storage_options,
        cache=cache,
        fields=None if schema is None else tuple(schema.fields),
        columns=columns,
        groups=groups,
        dtypes=dtypes,
        nulls=nulls,
        filters=filters,
        roots=roots,
        max_pixels=max_pixels,
        max_unzipped_bytes=max_unzipped_bytes,
        split=split,
        config=config,
    )
    how = TokenOptions(tokenizer, separator, vocabulary_size, text_column, document, special_tokens)
    reads = options.workers if engine == "threads" else 1  # a task of Ray reads in its own process
    source = open_source(src, schema, how, data, on_error == "skip", reads)
    with source.reading() if isinstance(source, Source) else nullcontext():
        if base is not None:
            source = with_numbers_of(base, source)
        of_images: dict[str, Any] = {"codec": codec, "codebook": codebook, "quality": quality}
        of_images |= {"max_side": max_side, "max_pixels": max_pixels, "from_cache": from_cache}
        if isinstance(source, RowSource) and not source.of_samples:
            check_image_options(source.name, source.schema, of_images)
            if on_error == "skip" and not source.can_skip:
                raise OptionError(
                    f"on_error='skip' cannot be used with tables, and {source.name} is one"
                )
        if cache is not None and not (isinstance(source, Source) and source.recodes):
            raise OptionError(
                "from_cache can only be used with a local folder of images, tars, and data of the "
                f"datasets package, and {source.name} is not one"
            )
        make_encoder = partial(_encoder_of, source, options)
        encoder = make_encoder(options.workers)
        runner: UnitRunner | None = None
        if engine == "ray":
            if cache is not None:
                raise OptionError(
                    "from_cache cannot be used with Ray, because a cache is on one machine: pack "
                    "without from_cache, or without Ray"
                )
            runner = RayRunner(encoder, make_encoder, src, source.name, destination, workers)
        elif engine != "threads":
            raise OptionError(f"engine must be 'threads' or 'ray', got {engine!r}")
        elif isinstance(source, Source) and isinstance(encoder, SampleEncoder) and source.processes:
            runner = ProcessUnits(encoder, source.processes, options)
        if base is not None:
            if destination.was_completed(base, encoder.identity() if resume else None):
                return _complete(base, start, appended=True)
        elif resume and not overwrite:
            # The packer would refuse a complete dataset, which has no journal.
            done = complete_dataset(dst, of_destination, encoder.identity(), encoder.total)
            if done is not None:
                return _complete(done, start, appended=False)
        packer: Packer[Any, Any]
        packer = Packer(destination, encoder, resume=resume, overwrite=overwrite, base=base)
        try:
            packer.run(progress, runner)
        finally:
            # A cache that the caller passed stays open.
            if cache is not None and cache is not from_cache:
                cache.close()
    report = report_of(packer, start)
    if tokenizer is not None and isinstance(encoder, TableEncoder):
        return replace(report, tokens=_token_counts(packer, encoder.left_out, report))
    return report


def _encoder_of(
    source: Source | RowSource, options: SampleOptions, workers: int
) -> SampleEncoder | TableEncoder:
    """Returns a new encoder of a source, with a number of threads."""
    if isinstance(source, RowSource):
        return TableEncoder(source, options.shard_bytes, workers)
    return SampleEncoder(source, replace(options, workers=workers))


def _complete(done: Manifest, start: float, appended: bool) -> PackReport:
    """Returns the report of an append, or of the first pack, that an earlier process finished."""
    versions = [*done.history, done.as_version()]
    new = versions[-1 if appended else 0]
    rows, shards, nbytes = new.rows, new.shards, new.bytes
    if appended:
        before = versions[-2]
        rows, shards, nbytes = rows - before.rows, shards - before.shards, nbytes - before.bytes
    seconds = time.monotonic() - start
    return PackReport(rows, shards, nbytes, seconds=seconds, was_complete=True)


def _cache_to_copy(
    given: Cache | str | os.PathLike[str] | None, options: SampleOptions
) -> Cache | None:
    """Returns the cache to copy recoded images from, or None. OptionError if it is unusable."""
    if given is None:
        return None
    images, codebook = options.images, options.codebook
    if codebook is None or codebook.origin != DEFAULT or images.max_side or images.quality:
        raise OptionError(
            "from_cache can only be used with codec='blocks', its default codebook, and without "
            "max_side and quality: the images in a cache are stored in this way"
        )
    cache = given if isinstance(given, Cache) else Cache(given)
    check_is_cache(cache.path)
    return cache


def sample_options(
    codec: ImageCodec | None,
    codebook: str | os.PathLike[str] | None,
    max_side: int | None,
    quality: int | None,
    shard_size: int | str,
    workers: int | None,
    on_error: str,
    max_pixels: int | None,
    base: Manifest | None = None,
) -> SampleOptions:
    """Returns the options of `fastio.pack` for samples; OptionError if one is not valid.

    Args:
        base: The dataset that is appended to, which gives the defaults; None for a new dataset.
        codec, codebook, max_side, quality, shard_size, workers, on_error, max_pixels: See there.
    """
    if base is not None:
        kept = base.packing
        codec = kept.get("codec") if codec is None else codec
        max_side = kept.get("max_side") if max_side is None else max_side
        if quality is None and codec != "raw":
            quality = kept.get("quality")
    codec = DEFAULT_CODEC if codec is None else codec
    if codec not in IMAGE_CODECS:
        raise OptionError(f"codec must be one of {', '.join(IMAGE_CODECS)}, got {codec!r}")
    if codec != "blocks" and codebook not in (None, DEFAULT):
        raise OptionError(f"codebooks can only be used with codec='blocks', got codec={codec!r}")
    if max_side is not None and max_side < 1:
        raise OptionError(f"max_side must be at least 1, got {max_side}")
    if quality is not None and not 1 <= quality <= 100:
        raise OptionError(f"quality must be from 1 to 100, got {quality}")
    if quality is not None and codec == "raw":
        raise OptionError("quality cannot be used with codec='raw', which stores pixels")
    if max_pixels is not None and max_pixels < 1:
        raise OptionError(f"max_pixels must be at least 1, got {max_pixels}")
    if on_error not in ("raise", "skip"):
        raise OptionError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
    if workers is None:
        workers = available_cores()
    if workers < 1:
        raise OptionError(f"workers must be at least 1, got {workers}")
    images = ImageOptions(
        codec,
        max_side=max_side,
        quality=quality,
        max_pixels=MAX_PIXELS if max_pixels is None else max_pixels,
    )
    codebooks = choose_codebook(codebook) if codec == "blocks" else None
    shard_bytes = size_in_bytes(shard_size, "shard_size")
    options = SampleOptions(images, codebooks, shard_bytes, on_error == "skip", workers)
    return options if base is None else options_of(base, options, codebook is not None)


def report_of(packer: Packer[Any, Any], start: float) -> PackReport:
    """Returns the report of a packer that has finished, which began at `start` (monotonic)."""
    return PackReport(
        packer.entries.total("rows"),
        len(packer.entries),
        packer.entries.total("bytes"),
        packer.skipped,
        time.monotonic() - start,
    )


def _token_counts(packer: Packer[Any, Any], empty: int, report: PackReport) -> TokenCounts:
    column = f"{TOKENS}.tokens"
    rate = packer.entries.total(column, packer.resumed) / max(report.seconds, 1e-9)
    return TokenCounts(report.rows, packer.entries.total(column), empty, rate)
