"""What a kind of data is: how it is recognised, opened, described, checked and packed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from fastio.cache import Cache
from fastio.errors import FastioError, OptionError
from fastio.packed import BadImage, ImagesCheck, ShardCheck, check_file, row_spans
from fastio.packed.image_lists import NULL_LIST, null_list
from fastio.packed.rows import Rows
from fastio.runtime.ahead import in_order
from fastio.runtime.cores import available_cores
from fastio.shown import without_secrets
from fastio.sources.table.options import TableOptions
from fastio.store import is_remote

if TYPE_CHECKING:
    from fastio.sources.table.opening import Opened

# Progress(title, counted, total) is a context manager that returns a function. The function is
# called with the number that was done since its last call.
Progress = Callable[[str, str, int], AbstractContextManager[Callable[[int], object]]]


@dataclass(frozen=True)
class Options:
    """The options of `fastio.open`, in its meaning; None where one was not given."""

    storage_options: Mapping[str, Any] | None = None
    cache: Cache | str | os.PathLike[str] | None = None
    fields: tuple[str, ...] | None = None
    incomplete: Literal["raise", "skip", "keep"] | None = None
    columns: Iterable[str] | None = None
    groups: Mapping[str, Iterable[str]] | None = None
    dtypes: Mapping[str, str] | None = None
    nulls: Mapping[str, Any] | None = None
    filters: Any = None
    memory: int | str | None = None
    resident: bool | None = None
    roots: Iterable[str | os.PathLike[str]] | None = None
    max_pixels: int | None = None
    max_unzipped_bytes: int | None = None
    images: tuple[str | int, ...] | None = None
    version: int | None = None
    split: str | None = None
    config: str | None = None
    separator: int | None = None
    partitions: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("groups", "['A', 'B']"), ("dtypes", "'float32'"), ("nulls", "0")):
            given = getattr(self, name)
            if not isinstance(given, (Mapping, type(None))):
                example = f"{name}={{'NAME': {value}}}"
                raise OptionError(f"{name} must be a dict, as in {example}, got {given!r}")

    @property
    def given(self) -> list[str]:
        """The names of the options that were given."""
        return [each.name for each in fields(self) if getattr(self, each.name) is not None]

    @property
    def kept(self) -> Cache | None:
        """The cache; a new object if its folder was given."""
        given = self.cache
        return given if given is None or isinstance(given, Cache) else Cache(given)

    @property
    def tables(self) -> TableOptions:
        """The options of a table's columns; SchemaError or ValueError if they are not valid."""
        for what, names in {"columns": self.columns, **(self.groups or {})}.items():
            if isinstance(names, str):
                raise ValueError(f"{what} must be a list of names: [{names!r}]")
        columns = None if self.columns is None else tuple(self.columns)
        groups = {name: tuple(members) for name, members in (self.groups or {}).items()}
        return TableOptions(columns, groups, self.dtypes or {}, self.nulls or {})


# Options that every kind has.
# The registry takes split and config itself, for hf:// URLs only.
COMMON = frozenset({"storage_options", "split", "config"})
# Those of kinds whose samples may be images, and compressed files or sounds.
LIMITS = frozenset({"max_pixels", "max_unzipped_bytes"})


@dataclass(frozen=True)
class LackedField:
    """A field that some samples of tars lack.

    Attributes:
        field: The name of the field.
        samples: The number of samples that lack it.
        tar, key: The tar and key of the first of them.
        problem: What is wrong with that sample.
    """

    field: str
    samples: int
    tar: str
    key: str
    problem: str


@dataclass
class Images:
    """What decoding all images found.

    Attributes:
        damaged: The images that cannot be decoded.
        not_decoded: The number of images that could not be reached; None if that is unknown.
    """

    damaged: list[BadImage] = field(default_factory=list)
    not_decoded: int | None = 0


@dataclass
class Findings:
    """What was checked, and what is wrong with it.

    Attributes:
        path: The path of the dataset.
        files, nbytes, rows: How much was checked.
        damaged: The damaged files.
        images: None if they were not decoded.
        lacked: Of tars, the fields that not every sample has; None for others.
        kind: What the files are called: "shard", "tar", or "file" of data that others wrote.
    """

    path: str
    files: int
    nbytes: int
    rows: int
    damaged: list[ShardCheck]
    images: Images | None = None
    lacked: list[LackedField] | None = None
    kind: Literal["shard", "tar", "file"] = "shard"

    @property
    def all_well(self) -> bool:
        """Whether nothing is wrong."""
        return not self.damaged and not self.lacked and self.images in (None, Images())


@dataclass(frozen=True)
class Kind:
    """A kind of data. The registry has one of each, in the order in which they are asked.

    Attributes:
        key: A word for it, for JSON: "packed".
        name: Its name with an article, for messages: "a packed dataset".
        classes: The classes of its datasets.
        options: The options of `fastio.open` that it takes beside `COMMON`.
        sniff: Returns what a source consists of, from its name and as few reads as possible; None
            if it is of another kind. Raises an error if it is of this kind and cannot be read.
        open: Returns the dataset.
        describe: Returns what it consists of, as JSON values (`fastio info`).
        check: Reads all of it, and decodes its images too if `deep` (`fastio verify`).
        pack: Returns what `fastio.pack` packs: rows that are encoded one by one, or tables whose
            rows are encoded by the thousand. The last argument is whether to leave out files that
            cannot be opened. Raises PackError if it cannot be packed.
    """

    key: str
    name: str
    classes: tuple[type[Rows], ...]
    options: frozenset[str]
    sniff: Callable[[Any, Options], Any | None]
    open: Callable[[Found], Rows]
    describe: Callable[[Found], dict[str, Any]]
    check: Callable[[Found, bool, Progress], Findings]
    pack: Callable[[Found, bool], Rows | Opened]


@dataclass(frozen=True)
class Found:
    """A source whose kind is known.

    Attributes:
        kind, source, options: The kind, the source as it was given, and how to open it.
        parts: What `Kind.sniff` returned.
    """

    kind: Kind
    source: Any
    options: Options
    parts: Any

    @property
    def name(self) -> str:
        """The name of the source in messages."""
        source = self.source
        named = isinstance(source, (str, os.PathLike))
        return without_secrets(os.fspath(source)) if named else f"a {type(source).__name__}"

    def close(self) -> None:
        """Closes what was opened to recognise a source that is not going to be opened."""
        if self.parts is not self.source and hasattr(self.parts, "close"):
            self.parts.close()

    @property
    def remote(self) -> bool:
        """Whether it is behind a URL."""
        source = self.source
        return any(map(is_remote, source if isinstance(source, (list, tuple)) else [source]))


def checked_files(
    checks: Iterable[ShardCheck], counted: str, count: int, progress: Progress
) -> list[ShardCheck]:
    """Returns the checks of files, and shows progress while they run."""
    done = []
    with progress("checking", counted, count) as advance:
        for check in checks:
            done.append(check)
            advance(1)
    return done


def file_check(name: str, nbytes: int, problems: Sequence[str | BaseException]) -> ShardCheck:
    """Returns the check of a file with its first problem, without the name if it begins so."""
    if not problems:
        return ShardCheck(name, nbytes, None)
    first = " ".join(str(problems[0]).split()).removeprefix(name).lstrip(":, ")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return ShardCheck(name, nbytes, first + more)


def check_values(array: pa.Array | pa.Table, where: str) -> Iterator[str]:
    """Yields what is wrong with a column: offsets outside of it, strings that are not UTF-8, ..."""
    try:
        array.validate(full=True)
    except pa.ArrowException as error:
        yield f"{where}: {' '.join(str(error).split())}"


def check_image_files(dataset: Rows, name_of: Callable[[int], str], progress: Progress) -> Images:
    """Decodes all images of a dataset of files; `name_of` returns the name of a row's file."""

    def decoded(span: tuple[int, range]) -> ImagesCheck:
        bad, (_, rows) = [], span
        for row in rows:
            for name in dataset.schema.image_fields:
                try:
                    check_file(dataset.read(name, row), dataset.max_pixels)
                except (FastioError, OSError, ValueError) as error:
                    bad.append(BadImage(row, name_of(row), row, name, str(error)))
            for name in dataset.schema.list_fields:
                bad += _check_list(dataset, name, row, name_of(row))
        return ImagesCheck(len(rows), bad)

    checks = in_order(decoded, row_spans([0, len(dataset)]), available_cores())
    return decoded_images(checks, len(dataset), progress)


def _check_list(dataset: Rows, field: str, row: int, name: str) -> Iterator[BadImage]:
    """Yields the damaged images of a row's list."""
    count = int(dataset.image_counts(field, np.array([row], np.int64))[0])
    if count == NULL_LIST:
        yield BadImage(row, name, row, field, null_list(field))
    for index in range(count):
        try:
            check_file(dataset.read_listed(field, row, index), dataset.max_pixels)
        except (FastioError, OSError, ValueError) as error:
            yield BadImage(row, name, row, f"{field}[{index}]", str(error))


def decoded_images(checks: Iterable[ImagesCheck], rows: int, progress: Progress) -> Images:
    """Returns what decoding all images found, and shows progress meanwhile."""
    damaged: list[BadImage] = []
    not_decoded = 0
    with progress("decoding", "samples", rows) as advance:
        for check in checks:
            damaged += check.bad
            not_decoded += check.not_decoded
            advance(check.rows)
    return Images(damaged, not_decoded)


def described(dataset: Rows, nbytes: int | None = None, **more: Any) -> dict[str, Any]:
    """Returns the description of a dataset, as JSON values; `more` are those of its kind."""
    rows = len(dataset)
    sizes = {} if nbytes is None else {"bytes": nbytes, "bytes_per_sample": nbytes / rows}
    about = {"path": dataset.path, "rows": rows, **more, **sizes, **dataset.schema.to_json()}
    return {**about, "fingerprint": dataset.fingerprint}


def files_findings(path: str, checks: list[ShardCheck], rows: int, **more: Any) -> Findings:
    """Returns the findings of checks of files; `more` are other attributes of `Findings`."""
    return Findings(
        path=path,
        files=len(checks),
        nbytes=sum(check.nbytes for check in checks),
        rows=rows,
        damaged=[check for check in checks if check.problem is not None],
        **{"kind": "file", **more},
    )
