"""How windows of tokens are cut from the documents of a packed dataset, and where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastio import _native
from fastio.errors import TransformError
from fastio.packed import Dataset
from fastio.packed.grouping import starts_of
from fastio.packed.layout import FieldKind, Ranges, Segments, ShardExtents, TableField
from fastio.packed.shard import ShardReader
from fastio.views.base import check_options
from fastio.views.documents import readers

Packing = Literal["contiguous", "best-fit"]

_KINDS = {
    "inputs": FieldKind.INPUTS,
    "targets": FieldKind.TARGETS,
    "positions": FieldKind.POSITIONS,
    "documents": FieldKind.DOCUMENTS,
}


@dataclass(frozen=True)
class WindowOptions:
    """The options of `fastio.TokenWindows`, in its meaning.

    Raises:
        TransformError: an option is out of range.
    """

    length: int
    stride: int | None = None
    packing: Packing = "contiguous"
    targets: bool = True
    positions: bool = False
    documents: bool = False
    cu_seqlens: bool = False
    dtype: Literal["int32", "int64"] = "int64"
    pad: int = 0
    ignore: int = -100

    def __post_init__(self) -> None:
        lengths = {"length": self.length, "stride": self.step}
        check_options("TokenWindows", lengths, self.dtype)
        if self.packing not in ("contiguous", "best-fit"):
            raise TransformError(
                f"packing must be 'contiguous' or 'best-fit', got {self.packing!r}"
            )
        if self.stride is not None and self.packing == "best-fit":
            raise TransformError(
                "stride cannot be used with best-fit windows, where each document occurs once"
            )

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields of a window."""
        wanted = {
            "inputs": True,
            "targets": self.targets,
            "positions": self.positions,
            "documents": self.documents or self.cu_seqlens,
        }
        return tuple(name for name, is_wanted in wanted.items() if is_wanted)

    @property
    def by_document(self) -> bool:
        """Whether windows are made of parts of documents, not only of consecutive tokens."""
        marks = self.positions or self.documents or self.cu_seqlens
        return marks or self.packing == "best-fit"

    @property
    def step(self) -> int:
        """The number of tokens from one contiguous window to the next."""
        return self.length if self.stride is None else self.stride

    @property
    def span(self) -> int:
        """The number of tokens of a contiguous window; the last one is only a target."""
        return self.length + int(self.targets)


class WindowLayout:
    """The windows of a packed dataset and where they lie in its shards; see `packed.layout.Layout`.

    Args:
        dataset: packed dataset with the documents.
        field: name of the field of tokens.
        options: how windows are cut.
        picked: int64 (n,), the documents from which windows are made; None for all.

    Raises:
        TransformError: the dataset has too few tokens for a window.
        SourceNotFound, ShardCorrupt, StoreError: a shard cannot be read, with "best-fit" or
            picked documents.
    """

    def __init__(
        self,
        dataset: Dataset,
        field: str,
        options: WindowOptions,
        picked: NDArray[np.int64] | None = None,
    ) -> None:
        self.dataset, self.field, self.options = dataset, field, options
        self._item = np.dtype(dataset.schema.fields[field].dtype).itemsize  # type: ignore[union-attr]
        # Windows are made in the order of the documents in their shards, whatever the order of the
        # Subset.
        self._picked = None if picked is None else np.sort(picked)
        self._in_parts = options.by_document or picked is not None
        self._best_fit: dict[int, Segments] = {}
        counts = self._counts()
        # Shards with fewer tokens than one window are left out, because they have no row.
        self._shards = np.flatnonzero(counts)
        if not self._shards.size:
            of_these = "" if picked is None else " of the documents of the Subset"
            raise TransformError(
                f"{dataset.path} has no shard with {options.span} tokens{of_these}, which one "
                f"window needs; all shards together have {int(self._tokens().sum())}. Use shorter "
                "windows, or pack larger shards"
            )
        self.first_row: NDArray[np.int64] = starts_of(counts[self._shards])

    @property
    def identity(self) -> bytes:
        """Bytes that identify the documents that were picked; empty for all."""
        return b"" if self._picked is None else self._picked.tobytes()

    @property
    def fields(self) -> list[TableField]:
        """The fields of a window in the engine's memory."""
        how = self.options
        nbytes = how.length * self._item
        if not self._in_parts:
            kind = FieldKind.NUMBERS  # targets are the same tokens, from the second one on
            return [
                TableField(
                    name, (how.length,), how.dtype, 0, at * self._item, nbytes, kind, self._item
                )
                for at, name in enumerate(how.fields)
            ]
        fills = {"inputs": how.pad, "targets": how.ignore, "positions": 0, "documents": -1}
        return [
            TableField(
                name, (how.length,), how.dtype, 0, 0, nbytes, _KINDS[name], self._item, fills[name]
            )
            for name in how.fields
        ]

    @property
    def strides(self) -> list[int]:
        """The distance from window to window in bytes."""
        return [0 if self._in_parts else self.options.step * self._item]

    def shard(self, number: int) -> int:
        """Returns the shard of an index of `first_row`."""
        return int(self._shards[number])

    def shard_bounds(self) -> NDArray[np.int64]:
        """Returns the first window of each shard and the number of windows, int64 (shards + 1,)."""
        counts = np.zeros(self.dataset.num_shards, np.int64)
        counts[self._shards] = np.diff(self.first_row)
        return starts_of(counts)

    def extents(self, number: int, reader: ShardReader) -> ShardExtents:
        """Returns where the tokens of a shard lie, and which of them make up which window.

        Raises:
            ShardCorrupt: the tokens are not there.
        """
        segments = self._segments(number, reader) if self._in_parts else None
        return ShardExtents([reader.extent(self.field)], segments)

    def ranges(self, number: int, reader: ShardReader, first: int, last: int) -> Ranges:
        """Returns where the tokens of windows [first, last) of a shard lie in its file.

        Raises:
            ShardCorrupt: the tokens are not there.
        """
        how, (offset, nbytes) = self.options, reader.extent(self.field)
        # Windows that are fitted have documents from all of the shard, and so may picked ones.
        if how.packing == "best-fit" or self._picked is not None:
            return [(offset, nbytes)]
        begin, end = first * how.step, (last - 1) * how.step + how.span
        return [(offset + begin * self._item, (end - begin) * self._item)]

    def locate(self, row: int) -> tuple[int, int]:
        """Returns a window's index into the shards of `first_row`, and its number in the shard."""
        number = int(np.searchsorted(self.first_row, row, side="right")) - 1
        return number, row - int(self.first_row[number])

    def window(self, row: int) -> dict[str, NDArray[Any]]:
        """Returns one window, read in Python; the engine's windows are tested against it."""
        how = self.options
        number, local = self.locate(row)
        reader = self.dataset.shard(self.shard(number))
        flat = reader.tokens(self.field)[1]
        if not self._in_parts:
            begin = local * how.step
            tokens = flat[begin : begin + how.span].astype(how.dtype)
            return {name: tokens[at : at + how.length] for at, name in enumerate(how.fields)}
        begins, starts, lengths = self._segments(number, reader)
        first, last = begins[local : local + 2].tolist()
        pairs = zip(starts[first:last].tolist(), lengths[first:last].tolist(), strict=True)
        return self._by_document([flat[start : start + n] for start, n in pairs])

    def _counts(self) -> NDArray[np.int64]:
        """Returns the number of windows of each shard."""
        how = self.options
        if how.packing == "best-fit":
            shards = readers(self.dataset, range(self.dataset.num_shards))
            counts = [len(self._fit(shard, reader)[0]) - 1 for shard, reader in shards]
            return np.array(counts, np.int64)
        return np.maximum(0, (self._tokens() - how.span) // how.step + 1)

    def _tokens(self) -> NDArray[np.int64]:
        """Returns the number of tokens of the documents of each shard."""
        if self._picked is None:
            return self.dataset.manifest.shard_tokens(self.field)
        shards = readers(self.dataset, range(self.dataset.num_shards))
        found = [self._documents(shard, reader)[1][-1] for shard, reader in shards]
        return np.array(found, np.int64)

    def _documents(
        self, shard: int, reader: ShardReader
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns where documents of a shard begin, among its tokens and among their own tokens.

        Returns:
            int64 (n,), and int64 (n + 1,) with the number of their tokens at the end.
        """
        starts, _ = reader.tokens(self.field)
        if self._picked is None:
            return starts[:-1], starts
        first = int(self.dataset.manifest.first_row[shard])
        inside = np.searchsorted(self._picked, [first, first + len(starts) - 1])
        rows = self._picked[inside[0] : inside[1]] - first
        return starts[rows], starts_of(starts[rows + 1] - starts[rows])

    def _placed(
        self, segments: Segments, begins: NDArray[np.int64], own: NDArray[np.int64]
    ) -> Segments:
        """Returns segments of the documents' own tokens as segments of the shard's tokens."""
        if self._picked is None:
            return segments
        begin, start, length = segments
        # Of several documents that begin at one token, all but the last are empty.
        document = np.searchsorted(own, start, side="right") - 1
        return begin, start - own[document] + begins[document], length

    def _fit(self, shard: int, reader: ShardReader) -> Segments:
        segments = self._best_fit.get(shard)
        if segments is None:
            begins, own = self._documents(shard, reader)
            segments = self._placed(_best_fit_segments(own, self.options.length), begins, own)
            self._best_fit[shard] = segments
        return segments

    def _segments(self, number: int, reader: ShardReader) -> Segments:
        how = self.options
        if how.packing == "best-fit":
            return self._fit(self.shard(number), reader)
        begins, own = self._documents(self.shard(number), reader)
        count = int(self.first_row[number + 1] - self.first_row[number])
        return self._placed(_contiguous_segments(own, count, how.step, how.span), begins, own)

    def _by_document(self, parts: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Returns a window made of parts of documents."""
        how = self.options
        found = {name: np.full(how.length, 0, how.dtype) for name in how.fields}
        for field in self.fields:
            found[field.name][:] = field.fill
        begin = 0
        for number, part in enumerate(parts):
            end = min(begin + len(part), how.length)
            count = end - begin
            # The next token of a document's last one is that of another document: no target.
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


def _contiguous_segments(starts: NDArray[np.int64], windows: int, step: int, span: int) -> Segments:
    """Returns the parts of documents in windows that follow one another.

    Args:
        starts: int64 (documents + 1,), the first token of each document, and the number of tokens.
        windows: number of windows.
        step: number of tokens from one window to the next.
        span: number of tokens of a window.
    """
    first_token = np.arange(windows, dtype=np.int64) * step
    filled = starts[np.append(np.diff(starts) > 0, True)]  # where documents begin that have tokens
    first = np.searchsorted(filled, first_token, side="right") - 1
    last = np.searchsorted(filled, first_token + span, side="left")  # one behind the last document
    counts = last - first
    begin = starts_of(counts)
    window = np.repeat(np.arange(windows), counts)
    document = np.arange(begin[-1]) - begin[window] + first[window]
    start = np.maximum(filled[document], first_token[window])
    end = np.minimum(filled[document + 1], first_token[window] + span)
    return begin, start, (end - start).astype(np.int32)


def _best_fit_segments(starts: NDArray[np.int64], length: int) -> Segments:
    """Returns the parts of whole documents in windows, packed by best-fit decreasing.

    Documents longer than a window are cut into parts of its length and a rest. Windows, and the
    parts in each, are in the order of their first documents.

    Args:
        starts: int64 (documents + 1,), the first token of each document, and the number of tokens.
        length: number of tokens of a window.
    """
    sizes = np.diff(starts)
    parts = -(-sizes // length)
    document = np.repeat(np.arange(len(sizes)), parts)
    within = np.arange(len(document)) - np.repeat(np.cumsum(parts) - parts, parts)
    start = starts[:-1][document] + within * length
    sizes_of_parts = np.minimum(sizes[document] - within * length, length).astype(np.int32)
    window = _native.best_fit(sizes_of_parts, length)
    # The algorithm places the longest documents first, and numbers windows in the order in which it
    # opens them. They are numbered again, by their first documents.
    _, first_part, window = np.unique(window, return_index=True, return_inverse=True)
    rank = np.empty(len(first_part), np.int64)
    rank[np.argsort(first_part, kind="stable")] = np.arange(len(first_part))
    window = rank[window]
    order = np.argsort(window, kind="stable")
    begin = starts_of(np.bincount(window, minlength=len(first_part)))
    return begin, start[order], sizes_of_parts[order]
