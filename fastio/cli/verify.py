"""fastio verify: compare every byte of a dataset with its manifest; of others, what can be told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.cli.common import (
    EXIT_FAILED,
    StorageOptions,
    clear_errors,
    open_packed,
    parse_storage_options,
)
from fastio.cli.findings import Findings, Images, report
from fastio.memory import MAX_PIXELS

if TYPE_CHECKING:
    from fastio.dataset import Dataset, ImagesCheck, ShardCheck
    from fastio.formats.tables import TableFile
    from fastio.formats.tars import LocalTars, TarSamples
    from fastio.formats.tars.remote import StoreTars

_TARS_AT_ONCE = 8


def verify(
    dst: Annotated[
        str,
        typer.Argument(
            help="A packed dataset, WebDataset tars or table files (Parquet, Arrow, CSV, JSONL), "
            "or their URL; or a directory of Hugging Face's save_to_disk."
        ),
    ],
    deep: Annotated[
        bool, typer.Option("--deep", help="Decode every image too, and name the damaged ones.")
    ] = False,
    max_pixels: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --deep: maximum number of pixels of an image; larger images are damaged "
            "ones. Default: about 179 million.",
        ),
    ] = None,
    storage_options: StorageOptions = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar; only what is damaged.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check all checksums of a dataset; the exit code is 1 if anything is damaged.

    In tars only headers have checksums: what is checked is that these hold, that nothing is cut
    off, and that every sample has the fields of the others. Of tables every column of every row
    group is read, with the checksums of Parquet's pages where it has some; so it is with
    directories of save_to_disk.
    """
    options = parse_storage_options(storage_options)
    with clear_errors():
        found = _check(dst, options, deep, max_pixels or MAX_PIXELS, not quiet)
        report(found, quiet=quiet, as_json=as_json)
        if not found.all_well:
            raise typer.Exit(EXIT_FAILED)


def _check(
    dst: str, options: dict[str, Any] | None, deep: bool, max_pixels: int, shown: bool
) -> Findings:
    from fastio.errors import DatasetNotFound
    from fastio.formats import find_table_files, tables_of_url_folder
    from fastio.formats.hugging_face import is_hugging_face
    from fastio.store import is_remote

    tables = find_table_files(dst, options)
    if tables is not None:
        return _check_tables(dst, tables, shown)
    if is_hugging_face(dst):
        return _check_hugging_face(dst, deep, max_pixels, shown)
    tars = _find_tars(dst, options)
    if tars is not None:
        with closing(tars[0]):
            return _check_tars(dst, *tars, deep, max_pixels, shown)
    try:
        with open_packed(dst, options) as dataset:
            dataset.limit(max_pixels, None)
            return _check_packed(dataset, deep, shown)
    except DatasetNotFound:
        tables = tables_of_url_folder(dst, options) if is_remote(dst) else None
        if tables is None:
            raise
        return _check_tables(dst, tables, shown)


def _find_tars(
    dst: str, options: dict[str, Any] | None
) -> tuple[LocalTars | StoreTars, list[str], int] | None:
    """What reads the tars that are meant, their names, and how much at a time; None: no tars."""
    from fastio.formats import find_store_tars, is_tars
    from fastio.formats.tars import LOCAL_WINDOW_BYTES, LocalTars, find_tars
    from fastio.formats.tars.remote import STORE_WINDOW_BYTES
    from fastio.store import is_remote

    if is_remote(dst):
        stored = find_store_tars(dst, options)
        return None if stored is None else (stored, stored.names, STORE_WINDOW_BYTES)
    if options is not None or not is_tars(dst):
        return None  # which `open_packed` has words for
    return LocalTars(), find_tars(dst) or [], LOCAL_WINDOW_BYTES


def _check_packed(dataset: Dataset, deep: bool, shown: bool) -> Findings:
    from fastio.cores import available_cores
    from fastio.dataset import check_images

    checks = _checked(dataset.verify(), "shards", dataset.num_shards, shown)
    found = Findings(
        path=dataset.path,
        files=dataset.num_shards,
        nbytes=dataset.manifest.nbytes,
        rows=len(dataset),
        damaged=[check for check in checks if check.problem is not None],
    )
    if deep:
        found.images = _decoded(check_images(dataset, available_cores()), len(dataset), shown)
    return found


def _check_tables(path: str, files: list[TableFile], shown: bool) -> Findings:
    from fastio.cores import available_cores
    from fastio.formats.tables import check_tables

    rows = 0

    def found() -> Iterator[ShardCheck]:
        nonlocal rows
        for check, count in check_tables(files, available_cores()):
            rows += count
            yield check

    checks = _checked(found(), "files", len(files), shown)
    return _of_files(path, checks, rows)


def _check_hugging_face(path: str, deep: bool, max_pixels: int, shown: bool) -> Findings:
    from fastio.cores import available_cores
    from fastio.formats import HuggingFaceDataset
    from fastio.formats.hugging_face import check_arrow_streams, check_hugging_face_images

    with HuggingFaceDataset(path) as dataset:
        dataset.limit(max_pixels, None)
        streams = check_arrow_streams(dataset.sources, available_cores())
        checks = _checked(streams, "files", len(dataset.sources), shown)
        found = _of_files(path, checks, len(dataset))
        if deep and not found.damaged:
            images = check_hugging_face_images(dataset, available_cores())
            found.images = _decoded(images, len(dataset), shown)
    return found


def _of_files(path: str, checks: list[ShardCheck], rows: int) -> Findings:
    return Findings(
        path=path,
        files=len(checks),
        nbytes=sum(check.nbytes for check in checks),
        rows=rows,
        damaged=[check for check in checks if check.problem is not None],
        kind="file",
    )


def _check_tars(
    path: str,
    reader: LocalTars | StoreTars,
    names: list[str],
    window_bytes: int,
    deep: bool,
    max_pixels: int,
    shown: bool,
) -> Findings:
    from fastio.cores import available_cores
    from fastio.formats.tars import assemble, check_tar_images, check_tars, lacked_fields

    samples: dict[str, TarSamples] = {}

    def structure() -> Iterator[ShardCheck]:
        for check, found in check_tars(reader, names, window_bytes, _TARS_AT_ONCE):
            if found is not None:
                samples[check.name] = found
            yield check

    checks = _checked(structure(), "tars", len(names), shown)
    found = Findings(
        path=path,
        files=len(names),
        nbytes=sum(check.nbytes for check in checks),
        rows=sum(map(len, samples.values())),
        damaged=[check for check in checks if check.problem is not None],
        images=Images() if deep else None,
        lacked=[],
        kind="tar",
    )
    if found.rows or not found.damaged:
        index = assemble(reader, list(samples), [""] * len(samples), list(samples.values()))
        found.lacked = lacked_fields(index)
        if deep:
            images = check_tar_images(reader, index, available_cores(), max_pixels)
            found.images = _decoded(images, found.rows, shown)
    if found.images is not None and found.damaged:
        found.images.not_decoded = None
    return found


def _checked(checks: Iterable[ShardCheck], unit: str, count: int, shown: bool) -> list[ShardCheck]:
    """What checking files found, with a bar while it is done."""
    from fastio.pack.progress import progress_bar

    done = []
    with progress_bar("checking", unit, count, shown) as advance:
        for check in checks:
            done.append(check)
            advance(1)
    return done


def _decoded(checks: Iterable[ImagesCheck], rows: int, shown: bool) -> Images:
    """What decoding all images found, with a bar while it is done."""
    from fastio.pack.progress import progress_bar

    damaged, not_decoded = [], 0
    with progress_bar("decoding", "samples", rows, shown) as advance:
        for check in checks:
            damaged += check.bad
            not_decoded += check.not_decoded
            advance(check.rows)
    return Images(damaged, not_decoded)
