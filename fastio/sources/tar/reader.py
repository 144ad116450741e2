"""Finds the tars that a path or URL refers to, and reads their bytes, here or in a store."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from fastio.errors import SourceChanged, SourceNotFound, StoreError
from fastio.runtime.files import only_files
from fastio.runtime.lifecycle import new_lock
from fastio.runtime.threads import DaemonPool
from fastio.store import Stamp, Store, absolute_path, is_remote, join, open_store, open_together

TAR_SUFFIX = ".tar"
# Compressed tars are recognised in order to say why they cannot be read.
_SUFFIXES = (TAR_SUFFIX, ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_MOST_NAMES = 10_000_000
_SIZES_AT_ONCE = 16  # requests for the sizes of tars


def find_tars(path: Any) -> list[str] | None:
    """Returns the tars that a path refers to, in order; None if it does not refer to tars.

    Args:
        path: A file or a pattern with braces that ends in .tar; a folder that contains tars and no
            folders; or a list of files and patterns.

    Raises:
        SourceNotFound: If a named tar does not exist.
    """
    if isinstance(path, (list, tuple)):
        # Samples of a torch dataset may come as a list too: the first that is no tar decides.
        named = (isinstance(each, (str, os.PathLike)) and is_tar_name(each) for each in path)
        if not path or not all(named):
            return None
        return [tar for each in path for tar in find_tars(each) or ()]
    if not isinstance(path, (str, os.PathLike)):
        return None
    name = os.fsdecode(path)
    if os.path.isdir(name):
        return _in_folder(name)
    if not is_tar_name(name):
        return None
    if os.path.exists(name):
        return [name]
    names = expand_braces(name)
    missing = next((each for each in names if not os.path.isfile(each)), None)
    if missing is not None:
        among = "" if names == [name] else f" ({name} means {len(names):,} tars)"
        raise SourceNotFound(f"{missing} does not exist{among}")
    return names


def tars_name(path: Any, names: Sequence[str]) -> str:
    """Returns what messages call some tars, given as a path or a list."""
    if not isinstance(path, (list, tuple)):
        return os.fspath(path)  # type: ignore[no-any-return]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"


def expand_braces(pattern: str) -> list[str]:
    """Returns the names that a pattern stands for: {000..999}, {0..9..3}, {a..c}, {train,val}.

    Braces may be nested. As in bash, numbers are padded with zeros like the ends of their range,
    the rightmost brace varies fastest, and other braces are kept.

    Raises:
        SourceNotFound: If there are more than ten million names.
    """
    begin = pattern.find("{")
    while begin >= 0:
        end = _closing(pattern, begin)
        choices = None if end < 0 else _choices(pattern[begin + 1 : end])
        if choices is not None:
            heads = [pattern[:begin] + each for choice in choices for each in expand_braces(choice)]
            tails = expand_braces(pattern[end + 1 :])
            if len(heads) * len(tails) > _MOST_NAMES:
                raise SourceNotFound(f"{pattern} expands to more than {_MOST_NAMES:,} names")
            return [head + tail for head in heads for tail in tails]
        begin = pattern.find("{", begin + 1)
    return [pattern]


def is_tar_name(name: str | os.PathLike[str]) -> bool:
    """Returns whether a file's name is one of a tar, compressed or not."""
    return os.fsdecode(name).lower().endswith(_SUFFIXES)


def _in_folder(folder: str) -> list[str] | None:
    """Returns the tars of a folder; None if it has subfolders. Ignores other files."""
    tars = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                return None
            if entry.name.lower().endswith(TAR_SUFFIX):
                tars.append(entry.path)
    return sorted(tars) or None


def _closing(text: str, begin: int) -> int:
    depth = 0
    for place in range(begin, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if not depth:
            return place
    return -1


def _choices(body: str) -> list[str] | None:
    """Returns the alternatives between braces, which may be patterns; None if there are none."""
    match = _RANGE.fullmatch(body)
    if match:
        return _numbers(*match.groups())
    if re.fullmatch(r"[A-Za-z]\.\.[A-Za-z]", body):
        first, last = ord(body[0]), ord(body[-1])
        step = 1 if first <= last else -1
        return [chr(code) for code in range(first, last + step, step)]
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(body):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and not depth:
            parts.append(body[start:place])
            start = place + 1
    return [*parts, body[start:]] if parts else None


def _numbers(first: str, last: str, step: str | None) -> list[str]:
    padded = any(re.match(r"-?0\d", end) for end in (first, last))
    digits = max(len(first), len(last)) if padded else 0
    begin, end = int(first), int(last)
    stride = abs(int(step)) if step and int(step) else 1
    if abs(end - begin) // stride >= _MOST_NAMES:
        raise SourceNotFound(f"{{{first}..{last}}} expands to more than {_MOST_NAMES:,} names")
    stop = end + 1 if begin <= end else end - 1
    return [f"{n:0{digits}d}" for n in range(begin, stop, stride if begin <= end else -stride)]


# What a read returns: bytes, or another object with the buffer protocol, for which Python 3.10 has
# no type.
Buffer = Any
_MOST_OPEN = 64  # descriptors, of which a process has 1,024 by default


class TarReader(Protocol):
    """Reads ranges of tars by name. Implementations are thread-safe.

    Methods raise SourceNotFound if there is no such tar, and OSError if it cannot be read.

    Attributes:
        window_bytes: The number of bytes that the pass over headers reads at a time: few if seeking
            past file contents is faster than reading them, many if every read is a request.
    """

    window_bytes: int

    def where(self, name: str) -> str:
        """Returns the path or URL of a tar, for messages."""
        return name

    def size(self, name: str) -> int:
        """Returns the size of a tar in bytes."""
        ...

    def read(self, name: str, offset: int, length: int) -> Buffer:
        """Returns the bytes [offset, offset + length), fewer only at the end of the tar."""
        ...

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        """Returns the bytes of several ranges (offset, length), in their order."""
        ...

    def note_refetch(self) -> None:
        """Counts data that arrived damaged and is read again; of a network only."""
        return None


class LocalTars(TarReader):
    """Reads local tars by their paths; see `TarReader`. The most recently used ones stay open.

    Args:
        stamps: The stamp of each tar when it was opened. Other versions are refused.

    Attributes:
        names: The paths of the tars.
    """

    window_bytes = 8 << 10

    def __init__(self, stamps: Mapping[str, str] | None = None) -> None:
        self._stamps = dict(stamps or {})
        self.names = list(self._stamps)
        self._open: OrderedDict[str, _Descriptor] = OrderedDict()
        self._lock = new_lock()

    @property
    def folder(self) -> str:
        """The folder of the first tar."""
        return os.path.dirname(self.names[0])

    @property
    def versions(self) -> list[tuple[str, str, int]]:
        """The name, stamp and size in bytes of each tar."""
        return [(name, mark, int(mark.partition(" ")[0])) for name, mark in self._stamps.items()]

    def size(self, name: str) -> int:
        """See `TarReader`."""
        return os.fstat(self._descriptor(name).number).st_size

    def check(self, names: Iterable[str]) -> None:
        """Raises SourceChanged or SourceNotFound if a tar has changed since it was opened."""
        for name in names:
            expected = self._stamps.get(name)
            if expected is not None and stamp(name) != expected:
                raise SourceChanged(
                    f"{name} was replaced or written to while it was being read. Open it again, "
                    "and do not write to files that are being read"
                )

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Returns the bytes [offset, offset + length), fewer only at the end of the tar."""
        file = self._descriptor(name)  # this reference keeps it open
        data = os.pread(file.number, length, offset)
        while 0 < len(data) < length:  # a call reads 2 GiB at most
            more = os.pread(file.number, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Returns the bytes of several ranges (offset, length), in their order."""
        found = [self.read(name, offset, length) for offset, length in ranges]
        # Checked after the reads, so that a change before or during the reads is an error.
        self.check([name])
        return found

    def close(self) -> None:
        """Closes the files. Reading opens them again."""
        with self._lock:
            self._open.clear()

    def _descriptor(self, name: str) -> _Descriptor:
        with self._lock:
            file = self._open.get(name)
            if file is None:
                file = self._open[name] = _Descriptor(name)
                if len(self._open) > _MOST_OPEN:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(name)
            return file


def stamp(path: str) -> str:
    """Returns the size, time of modification and inode of a local tar, or SourceNotFound."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise SourceNotFound(f"{path} cannot be read: {error.strerror}") from error
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


class _Descriptor:
    """An open file, which is closed when the last reference to this object goes."""

    def __init__(self, path: str) -> None:
        self.number = -1
        try:
            self.number = only_files(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise SourceNotFound(f"{path} does not exist") from error
        except OSError as error:
            raise SourceNotFound(f"{path} cannot be read: {error.strerror}") from error

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class StoreTars(TarReader):
    """Reads tars in a store by their names; see `TarReader`.

    Attributes:
        store: The store of their folder.
        names: The names of all tars, in order.
        stamps: The version of each tar when it was opened. Only these versions are read.
    """

    window_bytes = 8 << 20

    def __init__(self, store: Store, stamps: Mapping[str, Stamp]) -> None:
        self.store = store
        self.names = list(stamps)
        self.stamps = dict(stamps)
        self.folder = store.url

    @property
    def versions(self) -> list[tuple[str, str, int]]:
        """The name, stamp and size in bytes of each tar."""
        return [(name, stamp.key, stamp.size) for name, stamp in self.stamps.items()]

    def where(self, name: str) -> str:
        """Returns the URL of a tar."""
        return join(self.folder, name)

    def size(self, name: str) -> int:
        """Returns the size of a tar in bytes."""
        return self.stamps[name].size

    def note_refetch(self) -> None:
        """See `TarReader`."""
        self.store.transfers.note_refetch()

    def read(self, name: str, offset: int, length: int) -> Any:
        """Returns the bytes [offset, offset + length), fewer only at the end of the tar."""
        stamp = self.stamps[name]
        length = min(length, stamp.size - offset)  # stores refuse ranges that begin at the end
        return self.store.read(name, offset, length, expect=stamp) if length > 0 else b""

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Any]:
        """Returns the bytes of several ranges (offset, length), in their order."""
        found: list[Any] = [b""] * len(ranges)
        places = [place for place, (_, length) in enumerate(ranges) if length]
        wanted = [ranges[place] for place in places]
        data = self.store.read_ranges(name, wanted, expect=self.stamps[name])
        for place, part in zip(places, data, strict=True):
            found[place] = part
        return found

    def close(self) -> None:
        """Closes the store."""
        self.store.close()


_NO_TARS = "{} is neither a packed dataset nor a folder that contains only tars"


def open_tars(path: Any, storage_options: Mapping[str, Any] | None = None) -> LocalTars | StoreTars:
    """Returns the reader of the tars that a path, a list of paths, or a URL refers to.

    Raises:
        SourceNotFound: If there are no tars.
        StoreError: If the store does not answer.
    """
    if isinstance(path, (str, os.PathLike)) and is_remote(path):
        folder, names = _split(str(path))
        store = open_store(folder, storage_options)
        return StoreTars(store, _stamps(store, names))
    if isinstance(path, (list, tuple)) and path and is_remote(path[0]):
        store, names = open_together(path, storage_options)
        return StoreTars(store, dict(zip(names, store.stats(names), strict=True)))
    found = find_tars(path)
    if found is None:
        raise SourceNotFound(
            f"{path} is neither a tar, nor a pattern of tars, nor a folder that contains only tars"
        )
    return LocalTars({name: stamp(name) for name in map(absolute_path, found)})


def is_tar_url(url: str) -> bool:
    """Returns whether a URL ends like a tar."""
    return url.partition("?")[0].endswith(".tar")


def _split(url: str) -> tuple[str, list[str]]:
    """Returns the folder of tars, and their names in it; no names mean all tars in it."""
    if not is_tar_url(url):
        return url, []
    stem = url.partition("{")[0]
    folder, _, _ = stem.rpartition("/")
    pattern = url[len(folder) + 1 :]
    return folder, list(expand_braces(pattern))


def _stamps(store: Store, names: Iterable[str]) -> dict[str, Stamp]:
    """Returns the tars and their versions, from a listing if the store can list."""
    wanted = list(names)
    # Asked for first: if there is no answer, a listing that fails would only take as long again.
    first = {name: store.stat(name) for name in wanted[:1]}
    try:
        if not wanted and _has_others(store):
            raise SourceNotFound(_NO_TARS.format(store.url))
        listed = {} if len(wanted) == 1 else dict(store.list())
    except (StoreError, SourceNotFound, NotImplementedError):
        if not wanted:
            raise
        listed = {}
    listed = first | listed
    # Without names, all tars of the folder are read, and the folder must contain nothing else.
    if not wanted:
        wanted = sorted(name for name in listed if name.endswith(".tar"))
        if not wanted or len(wanted) < len(listed):
            raise SourceNotFound(_NO_TARS.format(store.url))
    missing = [name for name in wanted if name not in listed]
    with DaemonPool(_SIZES_AT_ONCE, "fastio-stamps") as pool:
        listed.update(zip(missing, pool.map(store.stat, missing), strict=True))
    return {name: listed[name] for name in wanted}


def _has_others(store: Store) -> bool:
    """Returns whether the first page of a listing has objects that are no tars."""
    return not all(name.endswith(".tar") for name, _ in next(store.pages(), []))
