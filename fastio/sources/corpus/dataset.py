"""Token files as a packed dataset whose shards others wrote: each file is a shard.

What reads tokens of packed datasets (windows, padded documents, the native engine) asks a shard for
a column of tokens and its offsets, and the manifest for the number of tokens of each shard. Both
are derived from the files here instead of being read from a manifest.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from fastio.errors import SchemaError, SourceChanged
from fastio.packed import Dataset
from fastio.packed.ipc import MappedFile, number_array, stamp
from fastio.packed.manifest import FORMAT_VERSION, Manifest
from fastio.packed.packed import reopened
from fastio.packed.shard import ShardReader
from fastio.packed.shards import Shards
from fastio.schema import Schema, Tokens
from fastio.sources.corpus.formats import TokenFile, open_token_file
from fastio.store import absolute_path

FIELD = "tokens"
# The fingerprint hashes samples of the files: bytes of a sample, samples of all files together, and
# the least samples of each file.
_HASHED = 4096
_SAMPLES = 256
_LEAST_SAMPLES = 4
_CHECKED = 1 << 22  # tokens that are looked at at a time


class TokenFiles(Dataset):
    """Documents in token files of Megatron, llm.c or nanoGPT, which are mapped. Thread-safe.

    A sample is a dict with the tokens of a document. `fastio.TokenWindows` and `fastio.TokenPad`
    take the dataset as they take a packed one.

    Args:
        paths: The paths of the files.
        dtype, separator: See `open_token_file`.

    Attributes:
        files: What the files consist of.

    Raises:
        As `open_token_file`.
    """

    def __init__(
        self, paths: Sequence[str], dtype: str | None = None, separator: int | None = None
    ) -> None:
        paths = tuple(map(absolute_path, paths))
        self._arguments = paths, dtype, separator
        self.files = [open_token_file(path, dtype, separator) for path in paths]
        kinds = {file.dtype: file.path for file in self.files}
        if len(kinds) > 1:
            raise SchemaError(
                "token files that are opened together must have tokens of one type, but they have "
                + ", ".join(f"{kind} ({path})" for kind, path in kinds.items())
            )
        self.manifest: Manifest = _DerivedManifest(self.files)
        self.shards = _FilesOfTokens(self.manifest, self.files)
        self.path = self.shards.path
        # The base class takes these attributes from a manifest. There is none, so its __init__ is
        # not called.
        self.whole, self.cache, self._codebook = True, None, None
        self.schema = self.manifest.schema

    def shard_path(self, shard: int) -> str:
        """See `Dataset`."""
        return self.files[shard].path

    def row_key(self, row: int) -> str:
        """See `Rows`."""
        return f"{self.fingerprint} {row}"

    def __repr__(self) -> str:
        return f"TokenFiles({self.path!r}, rows={len(self)}, files={self.num_shards})"

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened, (TokenFiles, self._arguments, self.fingerprint)


class _DerivedManifest(Manifest):
    """The manifest of token files. It is not a file, and has no hashes of the shards."""

    def __init__(self, files: Sequence[TokenFile]) -> None:
        self.folder = self.path = (
            files[0].path if len(files) == 1 else os.path.commonpath([file.path for file in files])
        )
        self._files = files
        self.checked, self.version, self.history = True, 1, ()
        self.format_version = FORMAT_VERSION
        self.codebook, self.statistics = None, []
        self.packing = {"source": os.path.basename(self.path)}
        self.schema = Schema({FIELD: Tokens(files[0].dtype, separator=files[0].separator)}, "dict")
        self.shard_rows = np.array([len(file.starts) - 1 for file in files], np.int64)
        ends = np.cumsum(self.shard_rows)
        self.first_row = (ends - self.shard_rows).astype(np.int64)
        self.shard_bytes = np.array([file.stamp.nbytes for file in files], np.int64)
        self.rows, self.shards = int(ends[-1]), len(files)
        self.nbytes = int(self.shard_bytes.sum())
        self.fingerprint = _fingerprint(files)

    def name(self, shard: int) -> str:
        return os.path.basename(self._files[shard].path)

    def shard_tokens(self, field: str) -> NDArray[np.int64]:
        return np.array([file.tokens for file in self._files], np.int64)

    def codec_counts(self) -> dict[str, dict[str, int]]:
        return {}

    def check(self) -> None:
        self.check_unchanged()

    def check_unchanged(self) -> None:
        for file in self._files:
            try:
                same = stamp(file.path) == file.stamp
            except OSError:
                same = False
            if not same:
                raise _changed(file)


def _changed(file: TokenFile) -> SourceChanged:
    return SourceChanged(
        f"{file.path} was replaced, written to or deleted after it was opened: open it again"
    )


def _fingerprint(files: Sequence[TokenFile]) -> str:
    """Returns 16 hexadecimal digits, computed from the documents and evenly spaced samples.

    Times of modification are left out: copies of the files on other machines are the same data.
    """
    digest = xxhash.xxh3_64()
    samples = max(_LEAST_SAMPLES, _SAMPLES // len(files))
    for file in files:
        nbytes = file.stamp.nbytes
        digest.update(f"{file.format} {file.dtype} {nbytes}".encode())
        digest.update(file.starts.data)
        places = np.linspace(0, max(0, nbytes - _HASHED), samples).astype(np.int64)
        with open(file.path, "rb", buffering=0) as opened:
            for place in np.unique(places).tolist():
                digest.update(os.pread(opened.fileno(), _HASHED, place))
    return digest.hexdigest()


class _FilesOfTokens(Shards):
    """The files of tokens as shards. Nothing is verified in the background: there are no hashes."""

    def __init__(self, manifest: Manifest, files: Sequence[TokenFile]) -> None:
        super().__init__(manifest.folder, manifest=manifest)
        self._files = files

    def _opened(self, shard: int) -> ShardReader:
        self.manifest.check_unchanged()
        return _Reader(self._files[shard], self.manifest.schema)

    def check(self, shard: int) -> str | None:
        """Reads a file. Returns what is wrong with its index, its size or its tokens, or None."""
        file = self._files[shard]
        if not file.signed:
            return None  # what there is to check was checked when it was opened
        # Signed integers are read as unsigned ones: negative ones are in the upper half of the
        # range.
        flat = self.readers.get(shard).tokens(FIELD)[1]
        largest = np.iinfo(flat.dtype).max // 2
        for begin in range(0, len(flat), _CHECKED):
            wrong = flat[begin : begin + _CHECKED] > largest
            if wrong.any():
                return f"token {begin + int(np.argmax(wrong))} is negative"
        return None


class _Reader(ShardReader):
    """The column of tokens of a file."""

    def __init__(self, file: TokenFile, schema: Schema) -> None:
        self._file = file
        super().__init__(file.path, schema=schema)

    def _parsed(self, mapped: MappedFile, schema: Schema | None) -> tuple[pa.RecordBatch, int, int]:
        file, data = self._file, mapped.data
        if mapped.stamp != file.stamp:
            raise _changed(file)
        kind = pa.from_numpy_dtype(file.dtype)
        values = pa.Array.from_buffers(kind, file.tokens, [None, pa.py_buffer(data[file.at :])])
        column = pa.LargeListArray.from_arrays(number_array(file.starts), values)
        return pa.RecordBatch.from_arrays([column], [FIELD]), file.at, len(data)
