"""fastio.export: a dataset's images as files again."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastio.errors import OptionError, PackError
from fastio.pack.exporters import FolderExporter, TarExporter, export_rows
from fastio.pack.journal import writing_to
from fastio.packed import Dataset
from fastio.runtime.cores import available_cores
from fastio.runtime.files import remove_leftovers
from fastio.runtime.sizes import size_in_bytes
from fastio.sources import open as open_data
from fastio.store import local_only

DEFAULT_TAR_SIZE = "256MiB"


@dataclass(frozen=True)
class ExportReport:
    """The result of `export`.

    Attributes:
        images: number of images written.
        bytes: total size of the images.
        index: path of the list of samples; None if the folders' names hold all information.
        seconds: duration.
        tars: number of tars written; 0 for files in folders.
    """

    images: int
    bytes: int
    index: str | None
    seconds: float
    tars: int = 0


def export(
    dataset: Dataset | str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    to: Literal["folder", "webdataset"] = "folder",
    shard_size: int | str = DEFAULT_TAR_SIZE,
    field: str | None = None,
    rows: slice | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    progress: bool = False,
) -> ExportReport:
    """Writes a packed dataset's images to files, or the whole dataset to WebDataset tars.

    In a folder, each image becomes `dst/CLASS/ROW.jpg`, or `dst/ROW.jpg` if the samples have no
    class names; ROW is its number in the dataset. Files that were packed unchanged are identical to
    the originals. Images that are stored as blocks become JPEGs with the same coefficients,
    quantization tables and metadata, which decode to the same pixels. Stored pixels become PNG.

    If samples have more than an image and a class, `dst/samples.jsonl` has one line per sample:
    the image's `path` and the other fields. `fastio pack` reads this list. Classes are given by
    name. Values of Array and Tokens fields are files `CLASS/ROW.FIELD.npy`, those of Bytes fields
    `CLASS/ROW.FIELD.bin`; their paths are in the list.

    With "webdataset", samples become members of `dst/000000.tar`, `dst/000001.tar`, ... with all
    fields. A sample's key is its field `__key__` if that can be a name in a tar, or else ROW. The
    extension of a field is given by its type: jpg (png, ...), cls (an integer), json (other
    numbers), txt, npy, bin. If the field's own name is such an extension, with underscores for
    dots, or if several fields have one type, the name is used (`left.jpg`). Class numbers are
    written, class names are not. The same rows give the same bytes.

    `fastio export` has the same options, and shows these descriptions as its help.

    Args:
        dataset: A packed dataset, its folder or its URL.
        dst: Folder to write to.
        to: Output: 'folder' writes the images to one folder per class and other fields to a list;
            'webdataset' writes tars with all fields.
        shard_size: Size of a tar in bytes, or as text such as 256MiB or 1GB. The row that reaches
            it is the last of its tar.
        field: Name of the image field. Needed only for a folder, if there are several.
        rows: Rows to export (default: all).
        overwrite: Write to the folder even if it is not empty. Files with the same names are
            replaced, and so are all tars that are named by a number. Other files are not touched.
        workers: Number of threads (default: all cores that this process may use).
        progress: Whether to show a progress bar on stderr.

    Returns:
        What was written.

    Raises:
        DatasetNotFound, ManifestInvalid: There is no dataset.
        OptionError: An option has a value that is not possible.
        PackError: There are no rows or no images to export, or `dst` is not empty or cannot be
            written.
        ImageError, ShardCorrupt: An image, or a whole shard, is damaged. What was written before
            stays.
    """
    start = time.monotonic()
    if workers is not None and workers < 1:
        raise OptionError(f"workers must be at least 1, got {workers}")
    if to not in ("folder", "webdataset"):
        raise OptionError(f"to must be 'folder' or 'webdataset', got {to!r}")
    tar_bytes = size_in_bytes(shard_size, "shard_size")
    folder = Path(local_only(dst, "dst"))
    opened = open_data(dataset)
    try:
        if opened.packed is not opened:
            raise PackError(f"{opened.path} is not a packed dataset: only these can be exported")
        if opened.schema.list_fields:
            raise PackError(
                f"{opened.path} has lists of images ({', '.join(opened.schema.list_fields)}), "
                "which cannot be exported: read them with dataset[i] or a Loader"
            )
        numbers = range(len(opened))[rows or slice(None)]
        if not numbers:
            raise PackError(
                f"rows {_written_slice(rows)} select nothing; {opened.path} has rows 0 to "
                f"{len(opened) - 1}"
            )
        exporter: TarExporter | FolderExporter
        if to == "webdataset":
            images = () if field is None else (_image_field(opened, field),)
            exporter = TarExporter(opened, images, folder, tar_bytes)
        else:
            exporter = FolderExporter(opened, folder, _image_field(opened, field))
        with writing_to(folder):
            _prepare(folder, opened, overwrite)
            pool = workers or available_cores()
            count, nbytes = export_rows(exporter, numbers, pool, progress)
    finally:
        if opened is not dataset:
            opened.close()
    seconds = time.monotonic() - start
    if isinstance(exporter, TarExporter):
        return ExportReport(count, nbytes, None, seconds, exporter.count)
    return ExportReport(count, nbytes, exporter.index, seconds)


def _written_slice(rows: slice | None) -> str:
    """Returns a slice as it is written between brackets: "5:3"."""
    parts = () if rows is None else (rows.start, rows.stop)
    step = "" if rows is None or rows.step is None else f":{rows.step}"
    return ":".join("" if part is None else str(part) for part in parts) + step


def _prepare(folder: Path, dataset: Dataset, overwrite: bool) -> None:
    """Creates the folder to write to; refuses the dataset's own, and one that is not empty."""
    inside = Path(dataset.path).resolve()
    if inside in (folder.resolve(), *folder.resolve().parents):
        raise PackError(f"{folder} is the dataset itself or lies in it; choose another folder")
    if folder.exists() and not folder.is_dir():
        raise PackError(f"{folder} is a file: give a folder to write to")
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    if not overwrite and next(folder.iterdir(), None) is not None:
        raise PackError(
            f"{folder} is not empty; choose another folder, or write to this one with overwrite "
            "(--overwrite)"
        )


def _image_field(dataset: Dataset, name: str | None) -> str:
    fields = dataset.schema.image_fields
    if not fields:
        raise PackError(
            f"{dataset.path} has no images to export to a folder; tars take all fields: "
            "to='webdataset' (--to webdataset)"
        )
    if name is None and len(fields) > 1:
        raise PackError(
            f"{dataset.path} has the image fields {', '.join(fields)}; choose one with field "
            "(--field)"
        )
    if name is not None and name not in fields:
        raise PackError(f"{dataset.path} has no image field {name!r}; it has {', '.join(fields)}")
    return name or fields[0]
