"""A packed dataset as WebDataset tars: the same bytes for the same rows."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastio.errors import PackError
from fastio.pack.export_rows import CLASS_FIELDS, digits_of, image_file, made_in_order
from fastio.packed import Dataset
from fastio.runtime.files import WholeFile, flush_folder
from fastio.schema import Array, Field, Image, Scalar, Text
from fastio.sources.tar.headers import KEY_FIELD, split_name
from fastio.sources.tar.values import category

_OWN_NAME = re.compile(r"[0-9]{6,}\.tar")
# What an image's ending stands for before it is known, which is row by row.
_IMAGE = "image"


class Files(NamedTuple):
    """The files of a sample.

    Attributes:
        key: The sample's key in the dataset; None if there is none that can be used.
        row: The row number.
        images, image_bytes: The number of files that are images, and their size.
        files: (extension, bytes) of each file.
    """

    key: str | None
    row: int
    images: int
    image_bytes: int
    files: list[tuple[str, bytes]]

    def nbytes(self) -> int:
        """Returns the size of all files."""
        return sum(len(data) for _, data in self.files)


class TarExporter:
    """Makes the files of rows: all fields, but only the images named, if any. Thread-safe."""

    def __init__(self, dataset: Dataset, images: Sequence[str]) -> None:
        self._dataset = dataset
        wanted = {
            name: kind
            for name, kind in dataset.schema.fields.items()
            if not isinstance(kind, Image) or not images or name in images
        }
        self._has_keys = isinstance(wanted.get(KEY_FIELD), Text)
        self._extensions = extensions(
            {name: kind for name, kind in wanted.items() if name != KEY_FIELD}
        )
        if not self._extensions:
            raise PackError(f"{dataset.path} has no fields to export other than {KEY_FIELD}")
        self._others = [name for name, kind in wanted.items() if not isinstance(kind, Image)]
        self._digits = digits_of(len(dataset))

    def files(self, row: int, hold: Callable[[int], None]) -> Files:
        """Returns the files of a row; `hold` is called with the bytes that will be in memory."""
        values = self._dataset.gather_all(self._others, np.array([row]))
        found = []
        images = image_bytes = 0
        for name, (prefix, ending) in self._extensions.items():
            kind = self._dataset.schema.fields[name]
            if isinstance(kind, Image):
                data, suffix = image_file(self._dataset, name, row, hold)
                ending = suffix[1:]
                images, image_bytes = images + 1, image_bytes + len(data)
            else:
                data = _encoded(kind, ending, values[name][0])
            found.append((f"{prefix}.{ending}" if prefix else ending, data))
        key = values[KEY_FIELD][0] if self._has_keys else None
        usable = key is not None and _is_name(key)
        return Files(key if usable else None, row, images, image_bytes, found)

    def row_key(self, row: int) -> str:
        """Returns the key of a row that has none of its own."""
        return f"{row:0{self._digits}}"


def extensions(fields: dict[str, Field]) -> dict[str, tuple[str, str]]:
    """Returns the extension of each field: the part before its last dot, and the rest.

    That of an image is "image", because the real one depends on the row.
    """
    chosen: dict[str, tuple[str, str]] = {}
    for name, kind in fields.items():
        own = _own_extension(name, kind)
        if own is not None and own not in chosen.values():
            chosen[name] = own
    endings = [_ending(kind) for name, kind in fields.items() if name not in chosen]
    for name, kind in fields.items():
        if name in chosen:
            continue
        ending = _ending(kind)
        prefix = ""
        if endings.count(ending) > 1 or ("", ending) in chosen.values():
            prefix = re.sub(r"[/.\0]", "_", name).lower()
            while (prefix, ending) in chosen.values():
                prefix += "_"
        chosen[name] = prefix, ending
    return {name: chosen[name] for name in fields}


def _own_extension(name: str, kind: Field) -> tuple[str, str] | None:
    """Returns a field's name as an extension ("seg.png" for "seg_png") if it fits the field."""
    if name in CLASS_FIELDS and isinstance(kind, Scalar) and "int" in kind.dtype:
        return "", "cls"
    prefix, _, last = name.lower().partition(";")[0].rpartition("_")
    holds = category(last)
    if isinstance(kind, Image):
        return (prefix, _IMAGE) if holds == "image" else None
    fits = {"array"}
    if isinstance(kind, Scalar):
        fits |= {"json"} | ({"int"} if "int" in kind.dtype else set())
    elif isinstance(kind, Text):
        fits = {"text", "json"}
    elif not isinstance(kind, Array):
        fits = {"bytes"}
    odd = not last or last == "gz" or "/" in last or "\0" in name or "/" in prefix
    return (prefix, last) if holds in fits and not odd else None


def _ending(kind: Field) -> str:
    if isinstance(kind, Image):
        return _IMAGE
    if isinstance(kind, Scalar):
        return "cls" if "int" in kind.dtype else "json"
    if isinstance(kind, Array):
        return "npy"
    return "txt" if isinstance(kind, Text) else "bin"


def _encoded(kind: Field, ending: str, value: Any) -> bytes:
    if ending == "npy":
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        return file.getvalue()
    if isinstance(kind, Scalar):
        number = value.item()
        return (str(number) if category(ending) == "int" else json.dumps(number)).encode()
    return value.encode("utf-8", "surrogateescape") if isinstance(kind, Text) else bytes(value)


def _is_name(key: str) -> bool:
    """Returns whether a key can be used in a tar: it is read back unchanged, below the folder."""
    inside = not key.startswith("/") and ".." not in key.split("/")
    return inside and "\0" not in key and split_name(f"{key}.x") == (key, "x")


class _Tars:
    """Writes tars of about one size, each of which is written whole or not at all."""

    def __init__(self, folder: Path, tar_bytes: int) -> None:
        self.count = 0
        self._folder = folder
        self._tar_bytes = tar_bytes
        self._nbytes = 0
        self._last_key: str | None = None
        self._file: WholeFile | None = None
        self._tar: tarfile.TarFile | None = None

    def add(self, key: str, files: Sequence[tuple[str, bytes]]) -> None:
        """Adds a sample, and ends the tar if it is large enough."""
        if self._tar is None:
            self._file = WholeFile(self._folder / f"{self.count:06d}.tar")
            self._tar = tarfile.open(  # noqa: SIM115 - closed by end()
                fileobj=self._file.file, mode="w", format=tarfile.PAX_FORMAT
            )
        for extension, data in files:
            member = tarfile.TarInfo(f"{key}.{extension}")  # owner, group and time are 0
            member.size = len(data)
            self._tar.addfile(member, io.BytesIO(data))
            self._nbytes += len(data) + -len(data) % tarfile.BLOCKSIZE + tarfile.BLOCKSIZE
        # It keeps them for a reader; typeshed has no name for that.
        self._tar.members = []  # type: ignore[attr-defined]
        self._last_key = key
        if self._nbytes >= self._tar_bytes:
            self.end()

    def differs(self, key: str) -> bool:
        """Returns whether a key differs from that of the sample before, which would be merged."""
        return key != self._last_key

    def end(self) -> None:
        """Finishes the current tar."""
        if self._tar is None or self._file is None:
            return
        self._tar.close()
        self._file.finish()
        self._tar = self._file = None
        self._nbytes = 0
        self.count += 1

    def finish(self) -> None:
        """Finishes the last tar, and deletes those of an earlier export that were not replaced."""
        self.end()
        for name in os.listdir(self._folder):
            if _OWN_NAME.fullmatch(name) and int(name[:-4]) >= self.count:
                (self._folder / name).unlink()
        flush_folder(self._folder)

    def discard(self) -> None:
        """Deletes the current tar."""
        if self._file is not None:
            self._file.discard()


def export_tars(
    exporter: TarExporter,
    folder: Path,
    rows: Sequence[int],
    tar_bytes: int,
    workers: int,
    progress: bool,
) -> tuple[int, int, int]:
    """Writes rows as tars, in order; the row that reaches `tar_bytes` is the last of its tar.

    Returns:
        The number of images, their bytes, and the number of tars.

    Raises:
        ImageError, ShardCorrupt: A row is damaged. Tars that are finished stay.
        OSError: A tar cannot be written.
    """
    tars = _Tars(folder, tar_bytes)
    images = nbytes = 0
    units = "samples" if progress else None
    try:
        with made_in_order(exporter.files, Files.nbytes, rows, workers, units) as results:
            for made in results:
                own = made.key is not None and tars.differs(made.key)
                key = made.key if own and made.key else exporter.row_key(made.row)
                tars.add(key, made.files)
                images, nbytes = images + made.images, nbytes + made.image_bytes
        tars.finish()
    finally:
        tars.discard()
    return images, nbytes, tars.count
