"""A packed dataset of documents, each padded to a row of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.errors import SchemaError, TransformError
from fastio.packed import Dataset
from fastio.packed.fixed import FixedWidth
from fastio.packed.layout import FieldKind, Ranges, ShardPlace, TableField
from fastio.packed.ragged import RaggedRows
from fastio.packed.rows import Remote, Rows
from fastio.packed.shard import ShardReader
from fastio.schema import Array, Field, Schema, Tokens, is_fixed_width, tokens_hint
from fastio.shown import without_secrets
from fastio.sources.corpus.readers import readers

INPUTS, MASK = "input_ids", "attention_mask"


@dataclass(frozen=True)
class TokenPad:
    """Pads documents to the longest document of their batch, for fine-tuning.

    Used as `Loader(path, transforms={"tokens": TokenPad(512)})`. The field of tokens becomes two
    tensors of the batch: `input_ids` (n, length), the first tokens of each document, and
    `attention_mask`, which is 1 for tokens and 0 for padding. Other fields do not change.

    With `pool`, shuffled batches consist of documents of similar lengths, which reduces padding:
    the documents of `pool` batches, in the epoch's order, are sorted by length and cut into
    batches, which are delivered in random order. Making the loader then reads the offsets of all
    documents. The order depends on the number of samples per step over all ranks, and a loader's
    state can be loaded only with the same number.

    Args:
        max_length: maximum number of tokens of a document; the rest is cut off.
        multiple_of: the length of a batch is a multiple of it, which suits tensor cores.
        pad: token used for padding.
        pool: number of batches whose documents are sorted together; 0 keeps the order.
        dtype: dtype of both tensors.

    Raises:
        TransformError: an argument is out of range.
    """

    max_length: int
    multiple_of: int = 8
    pad: int = 0
    pool: int = 0
    dtype: Literal["int32", "int64"] = "int64"

    def __post_init__(self) -> None:
        for name in ("max_length", "multiple_of"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 1 << 24:
                raise TransformError(f"TokenPad({name}={value!r}): 1 to {1 << 24} is possible")
        if type(self.pool) is not int or self.pool < 0:
            raise TransformError(f"TokenPad(pool={self.pool!r}): 0 or more is possible")
        if self.dtype not in ("int32", "int64"):
            raise TransformError(f"dtype is 'int32' or 'int64', not {self.dtype!r}")

    def length(self, longest: int) -> int:
        """Of a batch whose longest document has so many tokens."""
        rounded = -(-max(1, longest) // self.multiple_of) * self.multiple_of
        return min(rounded, self.max_length)


class PaddedDataset(Rows):
    """Documents of a packed dataset as rows of one length. Safe to use from several threads.

    Args:
        dataset: packed; closed with this one.
        field: the field of tokens.
        padding: how.

    Attributes:
        dataset, field, padding: as given.
        path: the packed dataset's.
        schema: of a row.

    Raises:
        SchemaError: the field is not there, or has no tokens, or a name is taken.
    """

    def __init__(self, dataset: Dataset, field: str, padding: TokenPad) -> None:
        kinds = dataset.schema.fields
        kind = kinds.get(field)
        if not isinstance(kind, Tokens):
            raise SchemaError(
                f"TokenPad is only for fields of tokens, and {field!r} is {kind!r}; the token "
                f"fields of {dataset.path} are: {', '.join(dataset.schema.token_fields) or 'none'}."
                + tokens_hint({} if kind is None else {field: kind})
            )
        taken = [name for name in (INPUTS, MASK) if name in kinds and name != field]
        if taken or dataset.schema.image_fields:
            raise SchemaError(f"{dataset.path} has {taken or 'images'} beside its tokens")
        self.dataset, self.field, self.padding = dataset, field, padding
        self.path = dataset.path
        self._item = np.dtype(kind.dtype).itemsize
        fields: dict[str, Field] = {}
        for name, other in kinds.items():
            if name == field:
                shape = (padding.max_length,)
                fields |= {new: Array(padding.dtype, shape) for new in (INPUTS, MASK)}
            else:
                fields[name] = other
        self.schema = Schema(fields, vocabularies=dataset.schema.vocabularies)

    @property
    def fingerprint(self) -> str:
        """Stands for the dataset's contents and how documents are cut."""
        return xxhash.xxh3_64_hexdigest(
            f"{self.dataset.fingerprint} {self.field} {self.padding}".encode()
        )

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The packed dataset's."""
        return self.dataset.classes

    def __len__(self) -> int:
        return len(self.dataset)

    def __repr__(self) -> str:
        return f"PaddedDataset({without_secrets(self.path)!r}, {self.padding}, rows={len(self)})"

    def lengths(self) -> NDArray[np.int32]:
        """How many tokens of each document are kept: int32 (rows,).

        Raises:
            SourceNotFound, ShardCorrupt, StoreError: a shard cannot be read.
        """
        shards = readers(self.dataset, range(self.dataset.num_shards))
        starts = (reader.tokens(self.field)[0] for _, reader in shards)
        most = self.padding.max_length
        return np.concatenate([np.minimum(np.diff(each), most).astype(np.int32) for each in starts])

    @property
    def remote_part(self) -> Remote | None:
        """The packed dataset's."""
        return self.dataset.remote_part

    @property
    def packed(self) -> Dataset:
        """The packed dataset."""
        return self.dataset

    def shard_bounds(self) -> NDArray[np.int64]:
        """Returns the packed dataset's."""
        return self.dataset.shard_bounds()

    def ragged_rows(self, field: str) -> RaggedRows | None:
        """Returns where the rows of another field than the tokens lie."""
        return self.dataset.ragged_rows(field)

    def sound_file(self, field: str, row: int) -> str | NDArray[np.uint8]:
        """Returns a row's bytes."""
        return self.dataset.sound_file(field, row)

    def fixed_columns(self, fields: Sequence[str]) -> PaddedLayout:
        """Returns where the tokens, and those of `fields` that have one size, lie."""
        return PaddedLayout(self, fields)

    def place_tokens(self, reader: ShardReader) -> ShardPlace:
        """Where a shard's tokens lie, and which make up which row.

        Raises:
            ShardCorrupt: they are not there.
        """
        starts, _ = reader.tokens(self.field)
        lengths = np.minimum(np.diff(starts), self.padding.max_length).astype(np.int32)
        there = lengths > 0
        begin = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(there, out=begin[1:])
        segments = begin, np.ascontiguousarray(starts[:-1][there]), lengths[there]
        return ShardPlace([reader.token_extent(self.field)], segments)

    def token_fields(self, column: int) -> list[TableField]:
        """`input_ids` and `attention_mask`, of tokens in a column."""
        how, nbytes = self.padding, self.padding.max_length * self._item
        shape = (how.max_length,)
        return [
            TableField(
                INPUTS, shape, how.dtype, column, 0, nbytes, FieldKind.INPUTS, self._item, how.pad
            ),
            TableField(MASK, shape, how.dtype, column, 0, nbytes, FieldKind.MASK, self._item, 0),
        ]

    def longest(self, arrays: Mapping[str, Any]) -> int:
        """Tokens of the longest document of a batch.

        Args:
            arrays: (n, max_length) of `attention_mask`, and other fields.
        """
        if MASK not in arrays:
            return 0
        return int(np.count_nonzero(arrays[MASK], axis=1).max(initial=0))

    def cut(self, batch: dict[str, Any], longest: int) -> dict[str, Any]:
        """A batch of tensors, as long as its longest document asks for.

        Args:
            batch: tensors (n, max_length) of `input_ids` and `attention_mask`, and other fields.
            longest: tokens of that document.
        """
        length = self.padding.length(longest)
        cut = [(name, batch[name][:, :length]) for name in (INPUTS, MASK) if name in batch]
        # What is in pinned memory is copied once more, to the device, and contiguous there.
        return {**batch, **{n: part if part.is_pinned() else part.contiguous() for n, part in cut}}

    def gather_all(self, fields: Sequence[str], rows: NDArray[np.int64]) -> dict[str, Any]:
        """Fields that are not of fixed width, as `Dataset.gather_all`."""
        return self.dataset.gather_all(fields, rows)

    def sample_name(self, row: int) -> str:
        """How messages name a row."""
        return self.dataset.sample_name(row)

    def close(self) -> None:
        """Closes the packed dataset."""
        self.dataset.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return PaddedDataset, (self.dataset, self.field, self.padding)


class PaddedLayout:
    """The layout of padded tokens, with fixed-width fields beside them; see `fetch.Layout`."""

    def __init__(self, padded: PaddedDataset, names: Sequence[str]) -> None:
        self.dataset = padded.dataset
        self._padded = padded
        kinds = padded.schema.fields
        others = [n for n in names if n not in (INPUTS, MASK) and is_fixed_width(kinds[n])]
        self._fixed = FixedWidth(padded.dataset, others)
        column = len(self._fixed.strides)
        self.fields = [*self._fixed.fields, *padded.token_fields(column)]
        self.strides = [*self._fixed.strides, 0]
        self.first_row = self._fixed.first_row

    def shard(self, number: int) -> int:
        """The shard that a number in `first_row` stands for."""
        return number

    def place(self, number: int, reader: ShardReader) -> ShardPlace:
        """Where the columns lie in its file."""
        tokens = self._padded.place_tokens(reader)
        fixed = self._fixed.place(number, reader)
        return ShardPlace([*fixed.columns, *tokens.columns], tokens.segments)

    def ranges(self, number: int, reader: ShardReader, first: int, last: int) -> Ranges:
        """Where rows [first, last) of a shard lie in its file."""
        field = self._padded.field
        starts, flat = reader.tokens(field)
        begin, end = (int(starts[row]) * flat.itemsize for row in (first, last))
        offset = reader.token_extent(field)[0]
        fixed = self._fixed.ranges(number, reader, first, last)
        return [*fixed, (offset + begin, end - begin)]
