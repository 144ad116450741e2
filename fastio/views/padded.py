"""Padded documents: the rows of this view are a dataset's documents as rows of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.errors import SchemaError, TransformError
from fastio.order.buckets import Buckets
from fastio.packed import Dataset
from fastio.packed.grouping import starts_of
from fastio.packed.layout import FieldKind, FixedWidth, RaggedRows, Ranges, ShardExtents, TableField
from fastio.packed.shard import ShardReader
from fastio.schema import Array, Field, Schema, is_fixed_width
from fastio.shown import without_secrets
from fastio.views.base import View, check_options, part_of
from fastio.views.documents import Documents, readers

_INPUTS, _MASK = "input_ids", "attention_mask"


@dataclass(frozen=True)
class _Options:
    """The options of `TokenPad`, in its meaning.

    Raises:
        TransformError: an option is out of range.
    """

    max_length: int
    multiple_of: int = 8
    pad: int = 0
    pool: int = 0
    dtype: Literal["int32", "int64"] = "int64"

    def __post_init__(self) -> None:
        lengths = {"max_length": self.max_length, "multiple_of": self.multiple_of}
        check_options("TokenPad", lengths, self.dtype)
        if type(self.pool) is not int or self.pool < 0:
            raise TransformError(f"TokenPad: pool must be at least 0, got {self.pool!r}")

    def length(self, longest: int) -> int:
        """Returns the length of a batch whose longest document has `longest` tokens."""
        rounded = -(-max(1, longest) // self.multiple_of) * self.multiple_of
        return min(rounded, self.max_length)


class TokenPad(View):
    """A dataset of documents that are padded to the longest of their batch, for fine-tuning.

        documents = fastio.TokenPad("tokens/", 512, pool=50)
        loader = fastio.Loader(documents, batch_size=8, shuffle=True)

    The field of tokens becomes two tensors of the batch: `input_ids` (n, length), the first tokens
    of each document, and `attention_mask`, which is 1 for tokens and 0 for padding. Other fields do
    not change. A collate_fn gets the documents as arrays (length,), padded to the longest of their
    batch, as from torch's DataLoader.

    With `pool`, the batches that a `Loader` shuffles consist of documents of similar lengths, which
    reduces padding: the documents of `pool` batches, in the epoch's order, are sorted by length and
    cut into batches, which are delivered in random order. The order depends on the number of
    samples per step over all ranks, and a loader's state can be loaded only with the same number.

    The object can be used from several threads.

    Args:
        dataset: packed documents, or token files: a path or URL, which is opened; an open dataset;
            or a torch Subset or ConcatDataset of open datasets.
        max_length: maximum number of tokens of a document; the rest is cut off.
        field: name of the field of tokens; None for the only one.
        multiple_of: the length of a batch is a multiple of it, which suits tensor cores.
        pad: token used for padding.
        pool: number of batches whose documents are sorted together; 0 keeps the order.
        dtype: dtype of both tensors. int32 is for tokens below 2**31; larger ones are not checked
            for, and become negative.

    Attributes:
        dataset: what has the documents, as given or opened.
        field: name of the field of tokens.
        max_length: as given.
        schema: schema of a row, whose documents have `max_length` tokens.

    Raises:
        TransformError: an option is out of range, or the dataset is not packed.
        SchemaError: the field does not exist or does not hold tokens, another field has the name of
            a new one, or there are images.
        SourceNotFound, ShardCorrupt, StoreError: the dataset cannot be read.
    """

    def __init__(
        self,
        dataset: Any,
        max_length: int = 0,
        *,
        field: str | None = None,
        multiple_of: int = 8,
        pad: int = 0,
        pool: int = 0,
        dtype: Literal["int32", "int64"] = "int64",
    ) -> None:
        found = Documents.of(dataset, "TokenPad")
        try:
            self._options = _Options(max_length, multiple_of, pad, pool, dtype)
            self.field, _ = found.field(field, "TokenPad")
            self.path = found.path
            self.schema = self._padded_schema(found.parts[0].schema)
        except BaseException:
            found.close()
            raise
        self._documents, self.dataset, self.max_length = found, found.source, max_length
        self.picked = found.picked
        # A part reads whole shards, so a view with picked rows cannot be its own part.
        alone = len(found.parts) == 1 and found.picked is None
        again = partial(TokenPad, field=self.field, **asdict(self._options))
        self.parts: tuple[TokenPad, ...] = (self,) if alone else tuple(map(again, found.parts))

    def _padded_schema(self, schema: Schema) -> Schema:
        how, fields = self._options, dict[str, Field]()
        taken = [name for name in (_INPUTS, _MASK) if name in schema.fields and name != self.field]
        if taken or schema.pictured:
            raise SchemaError(
                f"TokenPad cannot read {self.path}, which has {', '.join(taken) or 'images'} "
                "beside its tokens: pack it without these fields"
            )
        for name, kind in schema.fields.items():
            if name == self.field:
                shape = (how.max_length,)
                fields |= {new: Array(how.dtype, shape) for new in (_INPUTS, _MASK)}
            else:
                fields[name] = kind
        return Schema(fields, vocabularies=schema.vocabularies)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields of a row."""
        return tuple(self.schema.fields)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that identify the documents and how they are cut."""
        # The fingerprint depends on the documents and not on paths: a loader's state can be loaded
        # with a copy of them.
        documents = [part.fingerprint for part in self._documents.parts]
        about = f"{documents} {self.field} {self._options}".encode()
        return xxhash.xxh3_64_hexdigest(
            about if self.picked is None else about + self.picked.tobytes()
        )

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes of the packed dataset, or None."""
        return self._documents.parts[0].classes

    def __len__(self) -> int:
        if self.picked is not None:
            return len(self.picked)
        return sum(map(len, self._documents.parts))

    def __repr__(self) -> str:
        return (
            f"TokenPad({without_secrets(self.path)!r}, {self.max_length}, field={self.field!r}, "
            f"rows={len(self)})"
        )

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns one document: a dict with arrays (length,), padded as a batch of its own.

        Raises:
            IndexError: there is no such row.
            SourceNotFound, ShardCorrupt, StoreError: the row cannot be read.
        """
        (row,) = self.__getitems__([index])
        return row

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Returns the rows of a batch, padded to its longest; torch's DataLoader asks for them."""
        found = [part._row_values(row) for part, row in (self._at(index) for index in indices)]
        how = self._options
        kept = [row[self.field][: how.max_length] for row in found]
        length = how.length(max(map(len, kept), default=0))
        return [self._padded_row(row, part, length) for row, part in zip(found, kept, strict=True)]

    def _at(self, index: int) -> tuple[TokenPad, int]:
        return part_of(self, self._row(index))

    def _row_values(self, row: int) -> dict[str, Any]:
        """Returns the values of a row of the packed dataset, by field."""
        packed = self._documents.parts[0]
        values = packed[row]
        if packed.schema.structure == "dict":
            return dict(values)
        values = values if packed.schema.structure == "tuple" else (values,)
        return dict(zip(packed.schema.fields, values, strict=True))

    def _padded_row(
        self, row: Mapping[str, Any], tokens: NDArray[Any], length: int
    ) -> dict[str, Any]:
        inputs = np.full(length, self._options.pad, self._options.dtype)
        inputs[: len(tokens)] = tokens
        mask = (np.arange(length) < len(tokens)).astype(self._options.dtype)
        new = {_INPUTS: inputs, _MASK: mask}
        return {name: new[name] if name in new else row[name] for name in self.fields}

    def shard_bounds(self) -> NDArray[np.int64] | None:
        """Returns the first row of each shard and the number of rows, int64 (shards + 1,)."""
        return self._documents.parts[0].shard_bounds()

    def ragged_rows(self, field: str) -> RaggedRows | None:
        """Returns where the rows of another field than the tokens lie; see `Rows`."""
        return self._documents.parts[0].ragged_rows(field)

    def sound_file(self, field: str, row: int) -> str | NDArray[np.uint8]:
        """Returns the path of a row's sound file, or its bytes; see `Rows`."""
        return self._documents.parts[0].sound_file(field, row)

    def sampling_rate(self, field: str) -> int | None:
        """See `Rows`."""
        return self._documents.parts[0].sampling_rate(field)

    def fixed_columns(self, fields: Sequence[str]) -> PaddedLayout:
        """Returns where the tokens, and those of `fields` that have one size, lie."""
        packed = self.packed
        assert packed is not None
        return PaddedLayout(packed, self.field, self._options, self.schema, fields)

    def gather_all(self, fields: Sequence[str], rows: NDArray[np.int64]) -> Mapping[str, Any]:
        """Returns the values of other fields than the tokens, for rows int64 (n,) in any order."""
        if self.parts == (self,):
            return self._documents.parts[0].gather_all(fields, rows)
        # The rows are those of several datasets, or picked ones: no column has all of them.
        found = [self[row] for row in np.asarray(rows).tolist()]
        return {name: [row[name] for row in found] for name in fields}

    def sample_name(self, row: int) -> str:
        """Returns how messages name a row: the packed dataset's name for it."""
        part, row = part_of(self, row)
        packed: Dataset = part._documents.parts[0]
        return packed.sample_name(row)

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"field": self.field, **asdict(self._options)}
        return partial(TokenPad, **options), (self.dataset,)

    # What a loader asks a view; see `views.base.View`.

    def check(self, fields: Sequence[str] | None, *, batched: bool, collates: bool) -> None:
        """Checks the arguments of a loader; see `View`."""
        wanted = {_INPUTS, _MASK} & set(self.fields if fields is None else fields)
        if len(wanted) == 1:
            raise TransformError(
                f"fields= names only {', '.join(wanted)}, but {_INPUTS} and {_MASK} are "
                "delivered together"
            )

    def buckets(self) -> Buckets | None:
        """Returns how many tokens of each document are kept, if batches are made by lengths."""
        if not self._options.pool:
            return None
        packed, field = self._documents.parts[0], self.field
        return Buckets(_Lengths(packed, field, self.max_length), self._options.pool)

    def of_one_length(self, parts: Sequence[Any], arrays: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Returns the parts of a batch, cut to the length of its longest document; see `View`."""
        if not parts or _MASK not in parts[0]:
            return list(parts)
        tokens = [np.count_nonzero(each[_MASK], axis=1).max(initial=0) for each in arrays]
        length = self._options.length(int(max(tokens)))
        return [_cut(part, length) for part in parts]


class _Lengths:
    """How many tokens of each document are kept; see `order.buckets.Lengths`.

    The lengths of a shard are read when one of its documents is first needed, so a loader of a
    corpus in a store does not fetch the whole corpus before the first batch.

    Args:
        packed: the dataset of the documents.
        field: name of the field of tokens.
        most: the most tokens that are kept.
    """

    def __init__(self, packed: Dataset, field: str, most: int) -> None:
        self._packed, self._field, self._most = packed, field, most
        self._of_shards: dict[int, NDArray[np.int32]] = {}

    def __getitem__(self, rows: NDArray[np.int64], /) -> NDArray[np.int32]:
        """Returns the lengths of rows, int32 (n,).

        Raises:
            SourceNotFound, ShardCorrupt, StoreError: a shard cannot be read.
        """
        found = np.empty(len(rows), np.int32)
        of_shards = self._packed.by_shard(rows)
        lacking = [shard for shard, _, _ in of_shards if shard not in self._of_shards]
        for shard, reader in readers(self._packed, lacking):
            lengths = np.diff(reader.tokens(self._field)[0])
            self._of_shards[shard] = np.minimum(lengths, self._most).astype(np.int32)
        for shard, places, local in of_shards:
            found[places] = self._of_shards[shard][local]
        return found


def _cut(batch: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Returns a batch of tensors or arrays (n, max_length) with `length` tokens of each row."""
    cut = {name: batch[name][:, :length] for name in (_INPUTS, _MASK)}
    # Arrays are split into rows, which are contiguous. What is in pinned memory is copied once
    # more, to the device, and contiguous there.
    as_is = {n for n, p in cut.items() if isinstance(p, np.ndarray) or p.is_pinned()}
    return {**batch, **{n: p if n in as_is else p.contiguous() for n, p in cut.items()}}


class PaddedLayout:
    """Where padded tokens and fixed-width fields lie; see `packed.layout.Layout`."""

    def __init__(
        self, packed: Dataset, field: str, options: _Options, schema: Schema, names: Sequence[str]
    ) -> None:
        self.dataset, self._field, self._most = packed, field, options.max_length
        kinds = schema.fields
        others = [n for n in names if n not in (_INPUTS, _MASK) and is_fixed_width(kinds[n])]
        self._fixed = FixedWidth(packed, others)
        item = np.dtype(packed.schema.fields[field].dtype).itemsize  # type: ignore[union-attr]
        lie = len(self._fixed.strides), 0, self._most * item  # the tokens are the last column
        made = {_INPUTS: (FieldKind.INPUTS, options.pad), _MASK: (FieldKind.MASK, 0)}
        self.fields = [
            *self._fixed.fields,
            *(
                TableField(name, (self._most,), options.dtype, *lie, kind, item, fill)
                for name, (kind, fill) in made.items()
            ),
        ]
        self.strides = [*self._fixed.strides, 0]
        self.first_row = self._fixed.first_row

    def shard(self, number: int) -> int:
        """Returns the shard of an index of `first_row`."""
        return number

    def extents(self, number: int, reader: ShardReader) -> ShardExtents:
        """Returns where the columns lie in a shard's file, and which tokens make up which row.

        Raises:
            ShardCorrupt: the tokens are not there.
        """
        starts, _ = reader.tokens(self._field)
        lengths = np.minimum(np.diff(starts), self._most).astype(np.int32)
        there = lengths > 0  # an empty document has a row, but no segment
        segments = starts_of(there), np.ascontiguousarray(starts[:-1][there]), lengths[there]
        fixed = self._fixed.extents(number, reader)
        return ShardExtents([*fixed.columns, reader.extent(self._field)], segments)

    def ranges(self, number: int, reader: ShardReader, first: int, last: int) -> Ranges:
        """Returns where rows [first, last) of a shard lie in its file."""
        starts, flat = reader.tokens(self._field)
        begin, end = (int(starts[row]) * flat.itemsize for row in (first, last))
        offset = reader.extent(self._field)[0]
        fixed = self._fixed.ranges(number, reader, first, last)
        return [*fixed, (offset + begin, end - begin)]
