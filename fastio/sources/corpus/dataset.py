"""A packed dataset of documents as a dataset of windows of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.errors import SchemaError, TransformError
from fastio.packed import Dataset
from fastio.packed.layout import FieldKind, Ranges, Segments, ShardPlace, TableField
from fastio.packed.rows import Remote, Rows
from fastio.packed.shard import ShardReader
from fastio.schema import Array, Schema, Tokens, tokens_hint
from fastio.shown import without_secrets
from fastio.sources.corpus.readers import readers
from fastio.sources.corpus.segments import best_fit_segments, contiguous_segments
from fastio.sources.corpus.windows import TokenWindows

_KINDS = {
    "inputs": FieldKind.INPUTS,
    "targets": FieldKind.TARGETS,
    "positions": FieldKind.POSITIONS,
    "documents": FieldKind.DOCUMENTS,
}


class TokenDataset(Rows):
    """A dataset whose samples are windows of tokens. Safe to use from several threads.

    Args:
        dataset: packed dataset with the documents; closed with this one.
        field: name of the field of tokens.
        windows: specification of the windows.
        picked: int64 (n,), the documents from which windows are made, in the order of their
            numbers; None for all.

    Attributes:
        dataset, field, windows: as given.
        path: path of the packed dataset.
        schema: schema of a window.

    Raises:
        SchemaError: the field does not exist or does not hold tokens.
        TransformError: the dataset has too few tokens for a window.
        SourceNotFound, ShardCorrupt, StoreError: a shard cannot be read, with "best-fit".
    """

    def __init__(
        self,
        dataset: Dataset,
        field: str,
        windows: TokenWindows,
        picked: NDArray[np.int64] | None = None,
    ) -> None:
        kind = dataset.schema.fields.get(field)
        if not isinstance(kind, Tokens):
            raise SchemaError(
                f"TokenWindows is only for fields of tokens, and {field!r} is {kind!r}; the "
                f"token fields of {dataset.path} are: "
                f"{', '.join(dataset.schema.token_fields) or 'none'}."
                + tokens_hint({} if kind is None else {field: kind})
            )
        self.dataset, self.field, self.windows = dataset, field, windows
        self.path = dataset.path
        self._item = np.dtype(kind.dtype).itemsize
        self._picked = None if picked is None else np.sort(picked)
        self._in_parts = windows.by_document or picked is not None
        self._best_fit: dict[int, Segments] = {}
        counts = self._counts()
        self._shards = np.flatnonzero(counts)
        if not self._shards.size:
            total = int(dataset.manifest.shard_tokens(field).sum())
            raise TransformError(
                f"{self.path} has no shard with the {windows.span} tokens of a window; all shards "
                f"have {total}"
            )
        ends = np.cumsum(counts[self._shards])
        self.first_row: NDArray[np.int64] = np.append(0, ends).astype(np.int64)
        self.schema = Schema(
            {name: Array(windows.dtype, shape) for name, shape in self._shapes().items()}
        )

    @property
    def fingerprint(self) -> str:
        """Stands for the dataset's contents and how they are cut in windows."""
        about = f"{self.dataset.fingerprint} {self.field} {self.windows}".encode()
        return xxhash.xxh3_64_hexdigest(
            about if self._picked is None else about + self._picked.tobytes()
        )

    @property
    def classes(self) -> None:
        """There are none."""

    def __len__(self) -> int:
        return int(self.first_row[-1])

    def __repr__(self) -> str:
        return f"TokenDataset({without_secrets(self.path)!r}, {self.windows}, rows={len(self)})"

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        """One window: its arrays by key, without `cu_seqlens`, which are of batches.

        Raises:
            IndexError: there is no such window.
            SourceNotFound, ShardCorrupt, StoreError: its shard cannot be read.
        """
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"window {index} is out of range: there are {len(self)}")
        number, local = self._locate(row)
        reader = self.dataset.shard(self.shard(number))
        flat = reader.tokens(self.field)[1]
        how = self.windows
        if not self._in_parts:
            begin = local * how.step
            tokens = flat[begin : begin + how.span].astype(how.dtype)
            return {
                name: tokens[at : at + how.length] for at, name in enumerate(self.schema.fields)
            }
        begins, starts, lengths = self._segments(number, reader)
        first, last = begins[local : local + 2].tolist()
        pairs = zip(starts[first:last].tolist(), lengths[first:last].tolist(), strict=True)
        return self._by_document([flat[start : start + n] for start, n in pairs])

    @property
    def remote_part(self) -> Remote | None:
        """The packed dataset's."""
        return self.dataset.remote_part

    @property
    def packed(self) -> Dataset:
        """The packed dataset with the documents."""
        return self.dataset

    def fixed_columns(self, fields: Sequence[str]) -> TokenDataset:
        """Returns the layout of the windows, which is this object. It has all fields."""
        if set(fields) != set(self.schema.fields):
            raise TransformError(f"windows have {', '.join(self.schema.fields)}: all or none")
        return self

    @property
    def fields(self) -> list[TableField]:
        """Of a window, in the engine's memory."""
        how = self.windows
        nbytes = how.length * self._item
        if not self._in_parts:
            kind = FieldKind.NUMBERS  # targets are the same tokens, from the second one on
            return [
                TableField(
                    name, (how.length,), how.dtype, 0, at * self._item, nbytes, kind, self._item
                )
                for at, name in enumerate(self.schema.fields)
            ]
        fills = {"inputs": how.pad, "targets": how.ignore, "positions": 0, "documents": -1}
        return [
            TableField(
                name, (how.length,), how.dtype, 0, 0, nbytes, _KINDS[name], self._item, fills[name]
            )
            for name in self.schema.fields
        ]

    @property
    def strides(self) -> list[int]:
        """Bytes from window to window."""
        return [0 if self._in_parts else self.windows.step * self._item]

    def shard(self, number: int) -> int:
        """The shard that a number in `first_row` stands for."""
        return int(self._shards[number])

    def shard_bounds(self) -> NDArray[np.int64]:
        """The first window of each shard, and their number: int64 (shards + 1,)."""
        counts = np.zeros(self.dataset.num_shards, np.int64)
        counts[self._shards] = np.diff(self.first_row)
        return np.append(0, np.cumsum(counts)).astype(np.int64)

    def place(self, number: int, reader: ShardReader) -> ShardPlace:
        """Where its tokens lie, and which make up which window.

        Raises:
            ShardCorrupt: they are not there.
        """
        segments = self._segments(number, reader) if self._in_parts else None
        return ShardPlace([reader.token_extent(self.field)], segments)

    def ranges(self, number: int, reader: ShardReader, first: int, last: int) -> Ranges:
        """Where the tokens of windows [first, last) of a shard lie in its file.

        Raises:
            ShardCorrupt: they are not there.
        """
        how, (offset, nbytes, _) = self.windows, reader.token_extent(self.field)
        # Windows that are fitted have documents from all of the shard, and so may picked ones.
        if how.packing == "best-fit" or self._picked is not None:
            return [(offset, nbytes)]
        begin, end = first * how.step, (last - 1) * how.step + how.span
        return [(offset + begin * self._item, (end - begin) * self._item)]

    def bounds(self, batch: Mapping[str, Any]) -> tuple[NDArray[np.int32], int] | None:
        """`cu_seqlens` and `max_seqlen` of a batch; None: not wanted.

        Args:
            batch: arrays or tensors (n, length) by field.
        """
        if not self.windows.cu_seqlens:
            return None
        documents = np.asarray(batch["documents"])
        begins = np.ones(documents.shape, np.bool_)
        np.not_equal(documents[:, 1:], documents[:, :-1], out=begins[:, 1:])
        bounds = np.append(np.flatnonzero(begins), documents.size).astype(np.int32)
        return bounds, int(np.diff(bounds).max(initial=0))

    def gather_all(self, fields: Sequence[str], rows: NDArray[np.int64]) -> dict[str, Any]:
        """Fields that are not of fixed width: there are none."""
        return {}

    def sample_name(self, row: int) -> str:
        """How messages name a window: its shard's file name and its number there."""
        number, local = self._locate(row)
        return f"{self.dataset.manifest.name(self.shard(number))} window {local}"

    def close(self) -> None:
        """Closes the packed dataset."""
        self.dataset.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenDataset, (self.dataset, self.field, self.windows, self._picked)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        how = self.windows
        wanted = {
            "inputs": True,
            "targets": how.targets,
            "positions": how.positions,
            "documents": how.documents or how.cu_seqlens,
        }
        return {name: (how.length,) for name, is_wanted in wanted.items() if is_wanted}

    def _counts(self) -> NDArray[np.int64]:
        """The windows of each shard."""
        how = self.windows
        if how.packing == "best-fit":
            shards = readers(self.dataset, range(self.dataset.num_shards))
            counts = [len(self._fit(shard, reader)[0]) - 1 for shard, reader in shards]
            return np.array(counts, np.int64)
        if self._picked is None:
            tokens = self.dataset.manifest.shard_tokens(self.field)
        else:
            shards = readers(self.dataset, range(self.dataset.num_shards))
            found = [self._documents(shard, reader)[1][-1] for shard, reader in shards]
            tokens = np.array(found, np.int64)
        return np.maximum(0, (tokens - how.span) // how.step + 1)

    def _documents(
        self, shard: int, reader: ShardReader
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where documents of a shard begin, int64 (n,); and among their own tokens, (n + 1,)."""
        starts, _ = reader.tokens(self.field)
        if self._picked is None:
            return starts[:-1], starts
        first = int(self.dataset.manifest.first_row[shard])
        inside = np.searchsorted(self._picked, [first, first + len(starts) - 1])
        rows = self._picked[inside[0] : inside[1]] - first
        ends = np.cumsum(starts[rows + 1] - starts[rows])
        return starts[rows], np.append(0, ends).astype(np.int64)

    def _placed(
        self, segments: Segments, begins: NDArray[np.int64], own: NDArray[np.int64]
    ) -> Segments:
        """Segments of the tokens of some documents as those of the shard; see `_documents`."""
        if self._picked is None:
            return segments
        begin, start, length = segments
        document = np.searchsorted(own, start, side="right") - 1
        return begin, start - own[document] + begins[document], length

    def _fit(self, shard: int, reader: ShardReader) -> Segments:
        segments = self._best_fit.get(shard)
        if segments is None:
            begins, own = self._documents(shard, reader)
            segments = self._placed(best_fit_segments(own, self.windows.length), begins, own)
            self._best_fit[shard] = segments
        return segments

    def _segments(self, number: int, reader: ShardReader) -> Segments:
        how = self.windows
        if how.packing == "best-fit":
            return self._fit(self.shard(number), reader)
        begins, own = self._documents(self.shard(number), reader)
        count = int(self.first_row[number + 1] - self.first_row[number])
        return self._placed(contiguous_segments(own, count, how.step, how.span), begins, own)

    def _locate(self, row: int) -> tuple[int, int]:
        number = int(np.searchsorted(self.first_row, row, side="right")) - 1
        return number, row - int(self.first_row[number])

    def _by_document(self, parts: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """A window of parts of documents, the plain way: what the engine is tested against."""
        how = self.windows
        found = {name: np.full(how.length, 0, how.dtype) for name in self.schema.fields}
        for field in self.fields:
            found[field.name][:] = field.fill
        begin = 0
        for number, part in enumerate(parts):
            end = min(begin + len(part), how.length)
            count = end - begin
            following = np.append(part[1:].astype(np.int64), how.ignore)
            values = {
                "inputs": part[:count],
                "targets": following[:count],
                "positions": np.arange(count),
                "documents": number,
            }
            for name in found:
                found[name][begin:end] = values[name]
            begin = end
        return found
