"""The manifest: the description of a dataset's shards, in one Arrow file that is mapped.

One row describes one shard, in the order of the dataset's rows:

    name            large_utf8   file name within the dataset's folder
    rows            int64        rows in the shard, at least 1
    first_row       int64        global number of its first row
    bytes           int64        size of the file
    xxh3            large_utf8   xxh3_64 of the file, 16 hexadecimal digits
    head_bytes, foot_bytes
                    int64        bytes before its columns and after them
    head_xxh3       large_utf8   xxh3_64 of head and foot together
    columns_xxh3    large_utf8   xxh3_64 of all bytes between them, except the images' bytes
    FIELD.offset, FIELD.bytes
                    int64        for each image field: position of its images' bytes in the file
    FIELD.jpeg, FIELD.raw, FIELD.encoded, FIELD.blocks
                    int64        for each image field: its rows by codec
    FIELD.tokens    int64        for each field of tokens: number of tokens in all rows

The schema metadata has two keys. `fastio` is JSON with `format_version`, `schema`, `packing`, the
`codebook` of the block codec in base64 or null, `statistics` of the columns of a packed table if it
was one, the sums `rows`, `bytes` and `shards`, `columns_xxh3`, the hash of the columns above
except `name`, `version`, the number of this version, and `history`, which describes the versions
before it. `fastio.xxh3` is the xxh3_64 of that JSON's bytes, 16 hexadecimal digits. It is also the
dataset's fingerprint: it depends on every byte of the shards but not on their names, which contain
a random id in a store, and its cost does not depend on the number of shards. The file is sealed: it
contains a hash of all its bytes, see `fastio.packed.ipc`.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from fastio.cache import edition
from fastio.errors import (
    DatasetNotFound,
    FormatUnsupported,
    ManifestInvalid,
    SchemaError,
    SourceChanged,
)
from fastio.packed.ipc import FileStamp, MappedFile, hash_columns, seal_is_whole, stamp
from fastio.packed.shard_writer import ShardEntry
from fastio.schema import CODEC_NAMES, Schema

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.arrow"  # of the newest version; older ones have `version_name`
METADATA_KEY = b"fastio"
HASH_KEY = b"fastio.xxh3"
COPY_KEY = b"fastio.copy"  # a random text, by which the bytes of a copy differ

TEXTS = ("name", "xxh3", "head_xxh3", "columns_xxh3")
_COLUMNS = (
    *("name", "rows", "first_row", "bytes", "xxh3"),
    *("head_bytes", "foot_bytes", "head_xxh3", "columns_xxh3"),
)
FIRST_ROW = "first_row"
_IMAGE_PARTS = ("offset", "bytes", *CODEC_NAMES)
_CODEBOOK_BYTES = 16_640
JOURNAL_NAME = "pack.journal"

_COUNTS = (".tokens", *(f".{codec}" for codec in CODEC_NAMES))
# Errors that parsing a forged description may raise.
_DAMAGE = (
    *(ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError),
    *(SchemaError, pa.ArrowException, MemoryError),
)
_MOST = 2**63 - 1
_SHARDS_AT_ONCE = 8192
# Manifests up to this size are verified when opened, which takes milliseconds; larger ones later.
_CHECKED_BYTES = 16 << 20


@dataclass(frozen=True)
class Version:
    """A version of a dataset. Its rows are the first rows of all later versions.

    Attributes:
        version: The number of the version, from 1.
        fingerprint: See `Manifest`.
        rows, shards, bytes: The number of rows, the number of shards and the size of all shards.
        source: The name of the source that was packed or appended last.
    """

    version: int
    fingerprint: str
    rows: int
    shards: int
    bytes: int
    source: str


def version_name(version: int) -> str:
    """Returns the file name of the manifest of a version that is not the newest."""
    return f"manifest-{version:06d}.arrow"


class Manifest:
    """A memory-mapped manifest. Opening takes the same time and memory for any number of shards.

    Args:
        folder: The dataset's folder, or its URL.
        file: A local copy of a remote dataset's manifest, which is that of an older version if
            `version` is given. If None, the manifest in the folder.
        version: The version to open; None for the newest.

    Attributes:
        folder, path: The folder as given, and the path or URL of the manifest.
        version, history: The number of this version, and the versions before it, oldest first.
        format_version: 1.
        schema: The fields of the samples.
        packing: A description of how the dataset was made.
        codebook: The codebook of the block codec, 16,640 bytes, not validated; None without one.
        statistics: JSON values for each column of the packed table; empty if it was not a table.
        fingerprint: 16 hexadecimal digits that identify the dataset's contents.
        rows, shards, nbytes: The number of rows and of shards, and the size of all shards in bytes.
        shard_rows, first_row, shard_bytes: int64 (shards,), the number of rows of each shard, the
            global number of its first row, and the size of its file.
        batch: The rows of the manifest, with its metadata.
        checked: Whether the whole file was verified.

    Raises:
        DatasetNotFound: There is no manifest.
        ManifestInvalid: It is truncated, damaged or not a manifest.
        FormatUnsupported: A newer fastio wrote it.
    """

    def __init__(
        self, folder: str | os.PathLike[str], file: str | None = None, version: int | None = None
    ) -> None:
        self.folder = os.fspath(folder)
        self._stamp: FileStamp | None
        self.path = self._newest = os.path.join(self.folder, MANIFEST_NAME)
        if file is None and not os.path.isfile(self.path):
            raise DatasetNotFound(_why_no_dataset(self.folder))
        older = os.path.join(self.folder, version_name(version or 0))
        if version is not None and file is not None:
            self.path = older
        self._open(file)
        # The newest manifest comes first: a killed pack that has overwritten a dataset may have
        # left manifests of the old one.
        if version not in (None, self.version) and file is None and os.path.isfile(older):
            self.path = older
            self._open(None)
        if version not in (None, self.version):
            raise DatasetNotFound(
                f"{self.folder} has no version {version}: the newest one is {self.version}; "
                "`fastio info` lists the versions that can be opened"
            )
        if file is None and self.path != self._newest:
            self._stamp = None
            self.check_unchanged()

    def _open(self, file: str | None) -> None:
        """Maps `path`, or its local copy."""
        mapped = MappedFile(file or self.path, ManifestInvalid, self.path)
        self._file = mapped
        self._stamp = mapped.stamp
        self.checked = file is not None or len(mapped.data) <= _CHECKED_BYTES
        if self.checked and not seal_is_whole(mapped.data.data):
            self._raise_damaged()
        text = self._description(mapped.schema().metadata or {})
        description = self._parse(text)
        self.rows: int = description["rows"]
        self.shards: int = description["shards"]
        self.nbytes: int = description["bytes"]
        self._columns_xxh3: str = description["columns_xxh3"]
        self.batch = mapped.batch(self._columns)[0]
        self.shard_rows = self._integers("rows")
        self.first_row = self._integers("first_row")
        self.shard_bytes = self._integers("bytes")
        if len(self.batch) != self.shards:
            raise ManifestInvalid(
                f"{self.path} describes {len(self.batch)} shards, but states {self.shards}; copy "
                "it again, or pack again"
            )
        # All entries of a large manifest would take long to check. The last one has the number of
        # rows; `entry` checks the others when they are used.
        self._check_shards(0, 1)
        self._check_shards(self.shards - 1, self.shards)
        if int(self.first_row[-1]) + int(self.shard_rows[-1]) != self.rows:
            raise ManifestInvalid(
                f"{self.path} is damaged: its shards do not add up to {self.rows} rows; copy it "
                "again, or pack again"
            )
        if self.checked:
            self._check_rows()

    def check(self) -> None:
        """Verifies the whole file. Opening does this if the file is at most 16 MiB.

        For a larger file, opening verifies the description, and `entry` checks that of a shard.
        """
        if not seal_is_whole(self._file.data.data):
            self._raise_damaged()
        self._check_rows()
        self.checked = True

    def check_unchanged(self) -> None:
        """Raises SourceChanged unless the folder still has this version or a later one of it.

        Looks at the newest manifest, whichever version was opened, and reads it if it has changed.
        """
        try:
            found = stamp(self._newest)
            if found != self._stamp and not self.is_version_of(Manifest(self.folder)):
                raise SourceChanged(
                    f"{self._newest} was replaced or written to after it was opened: "
                    f"{self.folder} may contain another dataset now; open it again"
                )
        except (OSError, ManifestInvalid) as error:
            raise SourceChanged(
                f"{self._newest} was deleted or became unreadable after it was opened ({error}); "
                "open the dataset again"
            ) from error
        self._stamp = found

    def is_version_of(self, newest: Manifest) -> bool:
        """Returns whether `newest` is this version or a later one, with the same shards."""
        # The fingerprint alone is not enough: a dataset that was packed again may have the same
        # bytes in shards with other names.
        versions = newest.fingerprint, *(each.fingerprint for each in newest.history)
        names = newest.column("name").slice(0, self.shards)
        return self.fingerprint in versions and bool(names.equals(self.column("name")))

    def as_version(self) -> Version:
        """Returns this version as it is described in the `history` of later versions."""
        source = str(self.packing.get("source"))
        sizes = self.rows, self.shards, self.nbytes
        return Version(self.version, self.fingerprint, *sizes, source)

    def name(self, shard: int) -> str:
        """Returns the file name of a shard; ManifestInvalid if it is none."""
        name = self._text("name", shard)
        if name in ("", ".", "..") or os.path.basename(name) != name or "\0" in name:
            raise ManifestInvalid(f"{self.path}: {name!r} is not the name of a shard")
        return name

    def entry(self, shard: int) -> ShardEntry:
        """Returns the description of a shard."""
        if not self.checked:
            # The first row of the next entry must follow the last row of this one.
            self._check_shards(shard, min(shard + 2, self.shards))
        row = {
            name: self._text(name, shard) if name in TEXTS else int(self._integers(name)[shard])
            for name in self._columns.names
        }
        own: dict[str, Any] = {name: row.pop(name) for name in _COLUMNS}
        del own[FIRST_ROW]
        return ShardEntry(**own, of_fields=row)  # type: ignore[arg-type]

    @property
    def lineage(self) -> str:
        """The fingerprint of the first version, under which caches store all versions."""
        return self.history[0].fingerprint if self.history else self.fingerprint

    def piece(self, shard: int) -> int:
        """Returns the number of the piece of a shard's head in caches."""
        return edition(shard, self.entry(shard).xxh3.encode())

    def column(self, name: str) -> pa.Array:
        """Returns a column of the manifest, one value for each shard."""
        return self.batch.column(name)

    def codec_counts(self) -> dict[str, dict[str, int]]:
        """Returns the images of each field by codec: {"image": {"jpeg": 10, ...}}."""
        return {
            field: {codec: int(self._integers(f"{field}.{codec}").sum()) for codec in CODEC_NAMES}
            for field in self.schema.pictured
        }

    def shard_tokens(self, field: str) -> NDArray[np.int64]:
        """Returns the number of tokens of a field in each shard: int64 (shards,)."""
        return self._integers(f"{field}.tokens")

    def _text(self, column: str, shard: int) -> str:
        try:
            return str(self.batch.column(column)[shard].as_py())
        except ValueError as error:
            raise ManifestInvalid(
                f"{self.path}: {column!r} of shard {shard} is not valid UTF-8: {error}"
            ) from error

    def _raise_damaged(self) -> None:
        raise ManifestInvalid(
            f"{self.path} is damaged, truncated or not a manifest: its {len(self._file.data)} "
            "bytes do not match the hash that it contains; copy it again, or pack again"
        )

    def _description(self, metadata: Mapping[bytes, bytes]) -> bytes:
        """Returns the description after checking its hash, which is the fingerprint."""
        text = metadata.get(METADATA_KEY)
        if text is None:
            raise ManifestInvalid(f"{self.path} is an Arrow file, but not a fastio manifest")
        self.fingerprint: str = xxhash.xxh3_64(text).hexdigest()
        expected = metadata.get(HASH_KEY, b"").decode("ascii", "replace")
        if expected != self.fingerprint:
            raise ManifestInvalid(
                f"{self.path} is damaged: its description has the XXH3 hash {self.fingerprint}, "
                f"expected {expected or 'a hash in its metadata'}; copy it again, or pack again"
            )
        return text

    def _parse(self, text: bytes) -> dict[str, Any]:
        try:
            description = dict(json.loads(text))
            version = description["format_version"]
            if type(version) is not int or version != FORMAT_VERSION:
                raise FormatUnsupported(
                    f"{self.path} has the format version {version!r}; this fastio reads version "
                    f"{FORMAT_VERSION}: update fastio, or pack again with this one"
                )
            self.format_version = version
            self.schema = Schema.from_json(description["schema"])
            self._columns = arrow_schema(self.schema)
            self.schema.arrow_schema()  # raises for numbers that Arrow cannot represent
            self.packing: dict[str, Any] = dict(description["packing"])
            for key in ("rows", "shards", "bytes"):
                if type(description[key]) is not int or not 0 < description[key] <= _MOST:
                    raise ValueError(f"{key} is {description[key]!r}"[:100])
            if not isinstance(description["columns_xxh3"], str):
                raise TypeError("columns_xxh3 is not a string")
            self.version, self.history = _parse_versions(description)
            self.codebook = _parse_codebook(description["codebook"])
            self.statistics: list[dict[str, Any]] = [
                dict(each) for each in description.get("statistics", ())
            ]
        except FormatUnsupported:
            raise
        except _DAMAGE as error:
            raise ManifestInvalid(
                f"{self.path}: its description is damaged ({type(error).__name__}: "
                f"{str(error)[:300]})"
            ) from error
        return description

    def _check_rows(self) -> None:
        for begin in range(0, self.shards, _SHARDS_AT_ONCE):
            self._check_shards(begin, min(begin + _SHARDS_AT_ONCE, self.shards))
        found = hash_columns(self.batch)
        if found != self._columns_xxh3:
            raise ManifestInvalid(
                f"{self.path} is damaged: its columns have the XXH3 hash {found}, expected "
                f"{self._columns_xxh3}; copy it again, or pack again"
            )

    def _check_shards(self, begin: int, end: int) -> None:
        """Raises ManifestInvalid unless the entries of shards [begin, end) are possible."""
        for problem, wrong in self._rules(slice(begin, end)):
            if wrong.any():
                shard = begin + int(np.argmax(wrong))
                raise ManifestInvalid(
                    f"{self.path} is damaged: shard {shard} of {self.shards}: {problem}; copy it "
                    "again, or pack again"
                )

    def _rules(self, some: slice) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Yields each possible problem, and a mask of the shards that have it."""
        rows, first = self.shard_rows[some], self.first_row[some]
        yield "it has no rows", rows < 1
        yield (
            "its first row does not follow the last row of the shard before",
            self._ends(some.start, first, rows),
        )
        size = self.shard_bytes[some]
        yield "its size is not possible", (size < 1) | (size > self.nbytes)
        end = size - self._integers("foot_bytes")[some]
        at = self._integers("head_bytes")[some]
        yield (
            "its head and foot do not lie inside the file",
            (at < 8) | (end < at) | (end > size - 8),
        )
        for name in self.schema.pictured:
            offset, nbytes = (
                self._integers(f"{name}.{part}")[some] for part in ("offset", "bytes")
            )
            wrong = (nbytes < 0) | (offset < at) | (offset > end)
            yield (
                f"the bytes of {name!r} do not lie inside the file",
                wrong | (nbytes > end - offset),
            )
            at = np.where(nbytes > 0, offset + nbytes, at)
        for name in TEXTS:
            _, buffer, data = self.batch.column(name).buffers()
            ends = np.frombuffer(buffer, np.int64, self.shards + 1)[some.start : some.stop + 1]
            wrong = (ends[:-1] < 0) | (ends[1:] < ends[:-1])
            yield (
                f"its {name} is not a valid string",
                wrong | (ends[1:] > (0 if data is None else data.size)),
            )
        for name in self.batch.schema.names:
            if name.endswith(_COUNTS):
                yield f"{name} is negative", self._integers(name)[some] < 0

    def _ends(
        self, begin: int, first: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Returns a mask of the shards that do not begin where the one before ends."""
        before = int(self.first_row[begin - 1]) + int(self.shard_rows[begin - 1]) if begin else 0
        wrong = first < 0
        wrong[0] |= int(first[0]) != before
        wrong[1:] |= first[1:] - first[:-1] != rows[:-1]
        return wrong

    def _integers(self, column: str) -> NDArray[np.int64]:
        # Not `to_numpy`, which imports pandas where it is installed.
        values: NDArray[Any] = np.from_dlpack(self.batch.column(column))
        return values


def is_dataset(folder: str | os.PathLike[str]) -> bool:
    """Returns whether a folder holds a manifest."""
    return os.path.isfile(os.path.join(folder, MANIFEST_NAME))


def is_half_written(folder: str | os.PathLike[str]) -> bool:
    """Returns whether a folder holds an unfinished pack, that is, a journal but no manifest."""
    return not is_dataset(folder) and os.path.isfile(os.path.join(folder, JOURNAL_NAME))


def _why_no_dataset(folder: str) -> str:
    if not os.path.exists(folder):
        return f"{folder} does not exist"
    if not os.path.isdir(folder):
        return f"{folder} is a file; a packed dataset is the folder that `fastio pack` writes"
    if is_half_written(folder):
        return (
            f"{folder} contains an incomplete dataset: finish it with `fastio pack SOURCE "
            f"{folder} --resume`"
        )
    return (
        f"{folder} is not a packed dataset, it has no {MANIFEST_NAME}: create one with `fastio "
        "pack SOURCE DESTINATION`"
    )


def _parse_versions(description: Mapping[str, Any]) -> tuple[int, tuple[Version, ...]]:
    """Returns the number of a version, and the versions before it."""
    history = tuple(
        Version(**{each.name: found[each.name] for each in fields(Version)})
        for found in description["history"]
    )
    for number, each in enumerate(history, 1):
        kinds = [type(value) for value in astuple(each)]
        if kinds != [int, str, int, int, int, str] or each.version != number:
            raise ValueError(f"{each} is not version {number}")
    if description["version"] != len(history) + 1:
        raise ValueError(f"version {description['version']!r} follows {len(history)} others")
    return len(history) + 1, history


def _parse_codebook(text: Any) -> bytes | None:
    """Returns a codebook from its base64 form."""
    if text is None:
        return None
    data = base64.b64decode(text, validate=True)
    if len(data) != _CODEBOOK_BYTES:
        raise ValueError(f"the codebook has {len(data)} bytes, expected {_CODEBOOK_BYTES}")
    return data


def arrow_schema(schema: Schema) -> pa.Schema:
    """Returns the columns of a manifest, in order."""
    images = [f"{name}.{part}" for name in schema.pictured for part in _IMAGE_PARTS]
    tokens = [f"{name}.tokens" for name in schema.token_fields]
    return pa.schema(
        [
            pa.field(name, pa.large_utf8() if name in TEXTS else pa.int64(), nullable=False)
            for name in (*_COLUMNS, *images, *tokens)
        ]
    )
