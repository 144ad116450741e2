"""Samples of an iterable, which is iterated over only once, as the source of a pack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from fastio.errors import DatasetClosed, PackError, SampleError
from fastio.pack.cells import infer_schema
from fastio.pack.items import Item, Source, ended
from fastio.pack.objects import checked_item
from fastio.schema import Schema
from fastio.sources.arrays import class_names


def iterated_source(iterable: Iterable[Any], schema: Schema | None) -> Source:
    """Returns the samples of any iterable, which is iterated over only once.

    Raises:
        PackError: It has no samples.
        SchemaError: The first sample cannot be stored.
    """
    name = type(iterable).__name__
    samples = iter(iterable)
    if schema is None:
        first = list(islice(samples, 1))
        if not first:
            raise PackError(f"there is nothing to pack: {name} has no samples")
        samples = chain(first, samples)
        schema = infer_schema(first[0], class_names(iterable))
    wanted = schema

    def items(start: int) -> Iterator[Item]:
        position = 0
        while True:
            try:
                sample = next(samples)
            except StopIteration:
                if position < start:
                    raise ended(name, position, start) from None
                return
            except DatasetClosed:
                raise
            except Exception as error:  # the iterable's own code, which cannot go on after it
                raise SampleError(name, position, f"sample {position}", error) from error
            if position >= start:
                yield checked_item(wanted, position, sample)
            position += 1

    def pick(rows: Sequence[int]) -> Iterator[Item]:
        raise PackError(
            f"a codebook cannot be trained on a {name}, which can be iterated over only once: "
            "give a dataset with __len__ and __getitem__, a folder or a list, or use the default "
            "codebook or one from a file"
        )

    return Source(name, wanted, None, False, items, pick)
