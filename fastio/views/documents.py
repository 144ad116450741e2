"""The packed documents that a view of tokens is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastio.errors import SchemaError, TransformError
from fastio.packed import Dataset
from fastio.packed.rows import Rows
from fastio.packed.shard import ShardReader
from fastio.runtime.ahead import in_order
from fastio.schema import Array, Field, Tokens
from fastio.shown import without_addresses
from fastio.sources import open as open_data
from fastio.sources.registry import is_named

_AHEAD = 8  # shards of a remote dataset that are fetched at once


@dataclass(frozen=True)
class Documents:
    """Documents of packed datasets.

    Attributes:
        source: what they were taken from: an open dataset, or a Subset or ConcatDataset of some.
        parts: the packed datasets, each once.
        picked: int64 (n,), which rows of `parts`, one after the other; None for all.
        opened: whether the source was opened here.
    """

    source: Any
    parts: list[Dataset]
    picked: npt.NDArray[np.int64] | None
    opened: bool

    @classmethod
    def of(cls, source: Any, view: str) -> Documents:
        """Returns the documents of a path, a packed dataset, or a Subset or ConcatDataset of some.

        Args:
            source: as above.
            view: name of the view, for messages.

        Raises:
            TypeError: the source is a number, as if the dataset were left out.
            TransformError: the source is no packed dataset.
            As `fastio.open`.
        """
        if isinstance(source, (int, float)):
            raise TypeError(
                f"{view} is a dataset, and its first argument is the dataset with the "
                f"documents: fastio.Loader(fastio.{view}(dataset, {source}), batch_size)"
            )
        opened = is_named(source)
        if opened:
            source = open_data(source)
        parts, picked = [source], None
        if not isinstance(source, Rows):
            from fastio.views.subsets import parts_of, picked_parts  # which imports torch

            parts, picked = parts_of(source)
            if picked is not None:  # a dataset without picked rows has no windows
                parts, picked = picked_parts(parts, picked)
        for part in parts:
            if not isinstance(part, Dataset):
                if opened:
                    source.close()
                raise TransformError(
                    f"{view} needs a packed dataset with a field of tokens, and "
                    f"{without_addresses(repr(part))} is not one: pack it (fastio.pack)"
                )
        return cls(source, parts, picked, opened)

    @property
    def path(self) -> str:
        """The paths of the packed datasets, for messages."""
        return ", ".join(str(part.path) for part in self.parts)

    def close(self) -> None:
        """Closes the source if it was opened here."""
        if self.opened:
            self.source.close()

    def split(self) -> list[Any]:
        """Returns each packed dataset, or a Subset of it with those of its rows that are picked."""
        if self.picked is None:
            return list(self.parts)
        from fastio.views.subsets import split_parts  # which imports torch

        return split_parts(self.parts, self.picked)

    def field(self, name: str | None, view: str) -> tuple[str, Tokens]:
        """Returns the name of the field of tokens, and what its tokens are.

        Args:
            name: as it was given; None for the only one.
            view: name of the view, for messages.

        Raises:
            SchemaError: there is no such field, or no name was given and there is not one.
        """
        kinds, fields = self.parts[0].schema.fields, self.parts[0].schema.token_fields
        if name is None and len(fields) == 1:
            name = fields[0]
        kind = None if name is None else kinds.get(name)
        if isinstance(name, str) and isinstance(kind, Tokens):
            return name, kind
        named = ", ".join(fields) or "none"
        if name is None:
            raise SchemaError(
                f"{view} without field= needs a dataset with exactly one field of tokens; the "
                f"token fields of {self.path} are: {named}."
                + ("" if fields else _tokens_hint(kinds))
            )
        raise SchemaError(
            f"{view} is only for fields of tokens, and {name!r} is {kind!r}; the token fields of "
            f"{self.path} are: {named}." + _tokens_hint({} if kind is None else {name: kind})
        )


def readers(dataset: Dataset, shards: Iterable[int]) -> Iterator[tuple[int, ShardReader]]:
    """Yields shards with their numbers, in the given order; remote ones are fetched ahead.

    Raises:
        SourceNotFound, ShardCorrupt, StoreError: a shard cannot be read.
    """
    if dataset.remote_part is None:
        # Mapping a local shard does not wait, so nothing is fetched ahead.
        yield from ((shard, dataset.shard(shard)) for shard in shards)
        return
    yield from in_order(
        lambda shard: (shard, dataset.shard(shard)), shards, _AHEAD, ahead=_AHEAD - 1
    )


def _tokens_hint(fields: Mapping[str, Field]) -> str:
    """Returns advice for when tokens are wanted and a field is an array of integers.

    Returns:
        A sentence with a leading space, or "" if there is no such field.
    """
    for name, kind in fields.items():
        if isinstance(kind, Array) and "int" in kind.dtype and len(kind.shape or (None,)) == 1:
            return (
                f" {name!r} is an array of integers: to store it as tokens, pack it with "
                f"schema=fastio.Schema({{{name!r}: fastio.Tokens('uint32'), ...}})"
            )
    return ""
