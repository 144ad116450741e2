"""Finds out what a dataset is and where its files are, and drops files from the page cache."""

from __future__ import annotations

import glob
import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fastio.diagnose.facts import DataFacts, Storage
from fastio.diagnose.imagesteps import ImageSteps
from fastio.diagnose.options import Use
from fastio.diagnose.probes.rates import Attempts, room, within
from fastio.errors import SourceNotFound
from fastio.packed import Dataset
from fastio.packed.layout import WHOLE_FILE, ImageReads
from fastio.packed.rows import Rows
from fastio.runtime.files import only_files
from fastio.runtime.properties import cached_property
from fastio.schema import CODEC_ENCODED, CODEC_JPEG
from fastio.sources import Options, find, find_data, open_found
from fastio.sources.corpus.kind import TOKEN_FILES
from fastio.sources.folder import IMG_EXTENSIONS, FolderDataset
from fastio.sources.folder_kind import IMAGE_FOLDER
from fastio.sources.hugging_face.kind import HUGGING_FACE
from fastio.sources.packed import PACKED
from fastio.sources.registry import kind_of
from fastio.sources.table.kind import TABLES
from fastio.sources.table.names import table_kind
from fastio.sources.tar.dataset import TarDataset
from fastio.sources.tar.kind import TARS
from fastio.store import is_remote, local_path

MOST_FILES = 100_000  # dropping so many from the page cache one by one takes a few seconds
_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "beegfs", "afs"}

_LISTING_S = 5.0
_STORE_S = 15.0  # time for a store to list the data
_MEASURED = 512  # files from whose sizes the total size is estimated
_KEPT = 100_000  # paths of shards
_TABLES = 8  # files that are opened as a sample of all, because opening one reads its footer
_TAR_BYTES = 1 << 30  # total size of the tars that are indexed


@dataclass(frozen=True)
class Data:
    """A dataset, and the part of it that the probes read.

    Attributes:
        facts: the facts of the whole dataset.
        files: its files on this machine, or a large part of them.
        part: the dataset argument of a loader of a part of the data: a path, or a list of files.
    """

    facts: DataFacts
    files: tuple[Path, ...]
    part: Any

    @contextmanager
    def images(self, most: int) -> Iterator[Images | None]:
        """Opens the dataset, and returns some of its images; None if it has none.

        Args:
            most: largest number of images.
        """
        with ExitStack() as open_now:
            if self.facts.kind == "folder":
                listed = [(str(path), n % 2) for n, path in enumerate(chosen(self.files, most))]
                folder = FolderDataset.from_samples(listed, ("a", "b"))
                yield Images(folder, "image", range(len(listed)))
                return
            if self.facts.kind == "tars":
                dataset: Rows = open_now.enter_context(_tar_dataset(self.part))
            elif self.facts.kind == "packed":
                dataset = open_now.enter_context(Dataset(self.part))
            else:
                yield None
                return
            rows = random.Random(2).sample(range(len(dataset)), min(len(dataset), most))
            names = dataset.schema.image_fields
            yield Images(dataset, names[0], rows) if names else None


@contextmanager
def _tar_dataset(files: Sequence[str]) -> Iterator[TarDataset]:
    """Opens tars, with an index that is deleted again."""
    with room() as index, TarDataset(files, incomplete="skip", cache=index) as dataset:
        yield dataset


@dataclass(frozen=True)
class Images:
    """A random sample of a dataset's images, in random order, because neighbours may be similar.

    Attributes:
        dataset: the open dataset.
        field: name of its image field.
        rows: the rows of the images.
    """

    dataset: Rows
    field: str
    rows: Sequence[int]

    @cached_property
    def reads(self) -> ImageReads:
        """Where the images lie, and how they are stored."""
        return self.dataset.image_reads(self.field, np.array(self.rows, np.int64))

    def pieces(self) -> Iterator[Piece]:
        """Yields where each image lies on this machine."""
        reads = self.reads
        for number, offset, length in zip(reads.file, reads.offset, reads.length, strict=True):
            path = Path(reads.path(int(number)))
            size = path.stat().st_size if length == WHOLE_FILE else int(length)
            yield Piece(path, int(offset), size)

    @property
    def are_files(self) -> bool:
        """Whether the images are stored as image files, and not as block records or pixels."""
        return len(self.rows) > 0 and self.reads.codec[0] in (CODEC_JPEG, CODEC_ENCODED)


@dataclass(frozen=True)
class Context:
    """The argument of the probes of data: what is examined, and how.

    Attributes:
        data: the dataset.
        use: how the user loads it.
        attempts: calls the probes, and notes what cannot be measured.
        cores: the largest number of threads of a loader.
    """

    data: Data
    use: Use
    attempts: Attempts
    cores: int = 1

    @cached_property
    def steps(self) -> ImageSteps:
        """The transforms of images."""
        return ImageSteps.of(self.use.pipeline, self.use.crop)


def look_at(path: str, storage_options: Mapping[str, Any] | None = None) -> Data:
    """Finds out what data is at a path.

    Raises:
        SourceNotFound: there is no data there that a loader reads.
        FastioError: the data is damaged, or its store refuses access.
        TimeoutError: the store does not answer.
    """
    path = local_path(path)
    if is_remote(path):
        return within(_STORE_S, path, _in_store, path, storage_options)
    found = find(path)
    if found is None:
        return _folder(path)  # images anywhere below, which need not lie in class folders
    if found.kind is TABLES:
        return _tables(path, [Path(file.name) for file in found.parts])
    if found.kind is HUGGING_FACE:
        return _of_files(path, "other", local_files(path))
    look = {PACKED: _packed, TARS: _tars, IMAGE_FOLDER: _folder}.get(found.kind)
    if look is not None:
        return look(path)
    with open_found(found) as dataset:
        return Data(facts_of(path, dataset), tuple(local_files(path)), path)


def _packed(path: str) -> Data:
    with Dataset(path) as dataset:
        shards = [Path(dataset.shard_path(n)) for n in range(min(dataset.num_shards, _KEPT))]
        return Data(facts_of(path, dataset), tuple(shards), path)


def facts_of(data: Any, dataset: Any) -> DataFacts:
    """Returns the facts of an open dataset of any kind.

    Args:
        data: the path, URL or object that it was opened from.
        dataset: a dataset of fastio.
    """
    schema, kind = dataset.schema, kind_of(dataset)
    # Token files are read like a packed dataset, but fastio has not packed them.
    packed = None if kind is TOKEN_FILES else dataset.packed
    images, storage, here = schema.image_fields, storage_of(data), local_files(data)
    word = type(dataset).__name__ if kind is None else kind.key
    codecs = {"jpeg": len(dataset)} if images else {}
    files, nbytes = len(here), _bytes_of(here)
    if packed is not None:
        word = "packed" if images else "tokens" if schema.token_fields else "tables"
        codecs = dict(packed.manifest.codec_counts().get(images[0], {})) if images else {}
        files, nbytes = packed.num_shards, packed.manifest.nbytes
    return DataFacts(
        str(data),
        word,
        codecs,
        len(dataset),
        nbytes or int(getattr(dataset, "nbytes", 0)),
        storage=storage,
        packed=packed is not None,
        files=files,
        remote=storage == "network" and not here,
    )


def _of_files(path: str, kind: str, files: list[Path], part: Any = None, rows: int = 0) -> Data:
    """Returns local files as data, of which a part is measured."""
    nbytes = _bytes_of(files)
    facts = DataFacts(path, kind, rows=rows, nbytes=nbytes, files=len(files))
    return Data(facts, tuple(files), path if part is None else part)


def _bytes_of(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _tars(path: str) -> Data:
    files, part, nbytes = local_files(path), list[str](), 0
    for file in files:
        nbytes += file.stat().st_size
        if part and nbytes > _TAR_BYTES:
            break
        part.append(str(file))
    with _tar_dataset(part) as tars:
        rows = round(len(tars) * _bytes_of(files) / max(1, tars.nbytes))
    return _of_files(path, "tars", files, part, rows)


def _tables(path: str, files: list[Path]) -> Data:
    part, rows = files[:_TABLES], 0
    if table_kind(part[0]) == "parquet":
        # The number of rows is estimated from a few files, because reading every footer takes long.
        share = _bytes_of(part) / max(1, _bytes_of(files))
        rows = round(rows_of(part) / max(share, 1e-9))
    # A Lance dataset is a folder of files.
    below = [one for file in files for one in files_below(file)]
    return _of_files(path, "tables", below, [str(file) for file in part], rows)


def native_file(path: Path) -> pa.NativeFile:
    """Returns an open file for pyarrow, which takes a path that is not UTF-8 as bytes only."""
    return pa.OSFile(os.fsencode(path))


def rows_of(files: Sequence[Path]) -> int:
    """Returns the number of rows in Parquet files, from their footers."""
    return sum(pq.read_metadata(native_file(path)).num_rows for path in files)


def _folder(path: str) -> Data:
    """Lists the images anywhere below a folder, up to a time limit."""
    if not os.path.isdir(path):
        what = "is not data that fastio reads" if os.path.exists(path) else "does not exist"
        raise SourceNotFound(f"{path} {what}")
    end_s = time.monotonic() + _LISTING_S
    files: list[Path] = []
    count, complete = 0, True
    for file in files_below(Path(path)):
        if not file.name.lower().endswith(IMG_EXTENSIONS):
            continue
        count += 1
        if len(files) < _KEPT:
            files.append(file)
        if time.monotonic() > end_s:
            complete = False
            break
    if not files:
        raise SourceNotFound(
            f"{path} has no images, tars, tables or packed dataset; images end in "
            f"{', '.join(IMG_EXTENSIONS)}"
        )
    # Asking for the sizes of all files takes long on a network file system.
    measured = chosen(files, _MEASURED)
    nbytes = round(_bytes_of(measured) / len(measured) * count)
    facts = DataFacts(path, "folder", rows=count, nbytes=nbytes, files=count, complete=complete)
    return Data(facts, tuple(files), None)


def _in_store(url: str, storage_options: Mapping[str, Any] | None) -> Data:
    found = find_data(url, Options(storage_options))
    if found.kind is TABLES:
        files = len(found.parts)
        facts = DataFacts(url, "tables", files=files, storage="network", remote=True)
        return Data(facts, (), url)
    with open_found(found) as dataset:
        return Data(facts_of(url, dataset), (), url)


def chosen(files: Sequence[Path], count: int, seed: int = 0) -> list[Path]:
    """Returns a random choice of files, the same in each call."""
    if len(files) <= count:
        return list(files)
    return random.Random(seed).sample(list(files), count)


# --- Files ----------------------------------------------------------------------------------------


def local_files(data: Any, most: int = MOST_FILES) -> list[Path]:
    """Returns the local files of a dataset, including those in subfolders; [] if there are none.

    Args:
        data: a path, a pattern, or a list of them.
        most: maximum number of files to return.
    """
    found: list[Path] = []
    for one in data if isinstance(data, (list, tuple)) else [data]:
        if not isinstance(one, (str, os.PathLike)) or is_remote(one):
            continue
        for path in _expanded(str(one)):
            for file in files_below(path):
                found.append(file)
                if len(found) >= most:
                    return found
    return found


def _expanded(pattern: str) -> list[Path]:
    if os.path.exists(pattern):
        return [Path(pattern)]
    # "{000000..000009}" is WebDataset's; for this purpose any tar beside them will do.
    if "{" in pattern:
        pattern = pattern[: pattern.index("{")] + "*" + pattern[pattern.rindex("}") + 1 :]
    return [Path(path) for path in sorted(glob.glob(pattern, recursive=True))]


def files_below(path: Path) -> Iterator[Path]:
    """Yields a file, or the files anywhere below a folder, sorted by folder and name."""
    if path.is_file():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        yield from (Path(folder, name) for name in sorted(names))


@dataclass(frozen=True)
class Piece:
    """A range of bytes of a file."""

    path: Path
    offset: int
    length: int

    def read(self) -> bytes:
        """Returns the bytes.

        Raises:
            OSError: the file cannot be read.
        """
        file = only_files(self.path, os.O_RDONLY)
        try:
            # Turns read-ahead off, which would read more of a large file than the requested part.
            if self.offset:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
            return os.pread(file, self.length, self.offset)
        finally:
            os.close(file)


def first_pieces(pieces: Iterable[Piece], most_bytes: int, seconds: float) -> list[Piece]:
    """Returns the first pieces, at least one, within a limit of bytes and of time.

    Args:
        pieces: the pieces. Finding each one may take a while on a network file system.
        most_bytes: maximum total length of the pieces in bytes.
        seconds: time after which no further piece is requested.
    """
    found: list[Piece] = []
    total, end_s = 0, time.monotonic() + seconds
    for piece in pieces:
        total += piece.length
        if found and (total > most_bytes or time.monotonic() > end_s):
            break
        found.append(piece)
    return found


def drop(files: list[Path]) -> None:
    """Drops files from the page cache, except pages that a process has mapped.

    Pages that are not on the disk yet are written first. Files that cannot be opened are skipped.
    """
    for path in files:
        with suppress(OSError):
            release(path, written=False)


def release(path: Path, offset: int = 0, length: int = 0, *, written: bool = True) -> None:
    """Advises the system to drop a part of a file from the page cache.

    Args:
        path: the path of the file.
        offset, length: the part in bytes; a length of 0 goes to the end.
        written: whether the whole part is on the disk. If False, it is flushed first, because the
            system cannot drop pages that are not yet written.

    Raises:
        OSError: it cannot be opened.
    """
    file = only_files(path, os.O_RDONLY)
    try:
        if not written:
            os.fdatasync(file)
        os.posix_fadvise(file, offset, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def can_drop() -> bool:
    """Returns whether this system supports dropping files from the page cache."""
    return hasattr(os, "posix_fadvise")


def storage_of(data: Any) -> Storage:
    """Returns where a dataset is stored, from its file system or its URL."""
    first = data[0] if isinstance(data, (list, tuple)) and data else data
    if is_remote(first):
        return "network"
    if not isinstance(first, (str, os.PathLike)):
        return "memory"
    kind = file_system(_expanded(str(first))[0]) if _expanded(str(first)) else ""
    if kind in _MEMORY:
        return "memory"
    fuse_store = kind.startswith("fuse.") and any(word in kind for word in ("s3", "gcs", "goofys"))
    return "network" if kind in _NETWORK or fuse_store else "disk"


def file_system(path: Path) -> str:
    """Returns the type of the file system of a path, as Linux names it; "" if unknown."""
    where, kind, longest = os.path.realpath(path), "", -1
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            left, _, right = line.partition(" - ")
            mount = left.split(" ")[4].replace("\\040", " ")
            inside = where == mount or where.startswith(mount.rstrip("/") + "/")
            # If several file systems are mounted at one place, the last one is visible.
            if inside and len(mount) >= longest:
                kind, longest = right.split(" ")[0], len(mount)
    return kind
