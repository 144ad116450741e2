"""Samples of an iterable, which is iterated over only once, as the source of a pack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from typing import Any

from fastio.errors import DatasetClosed, PackError, SampleError
from fastio.pack.cells import infer_schema
from fastio.pack.items import Item, Source, ended
from fastio.pack.objects import checked_item
from fastio.schema import Schema
from fastio.sources.arrays import class_names


def numbered_samples(name: str, iterable: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Yields the samples of an iterable of this name with their numbers.

    Raises:
        SampleError: The iterable raised an error.
    """
    samples = iter(iterable)
    for position in count():
        try:
            sample = next(samples)
        except StopIteration:
            return
        except DatasetClosed:
            raise
        except Exception as error:  # the iterable's own code, which cannot go on after it
            raise SampleError(name, position, f"sample {position}", error) from error
        yield position, sample


def iterated_source(iterable: Iterable[Any], schema: Schema | None) -> Source:
    """Returns the samples of any iterable, which is iterated over only once.

    Raises:
        PackError: It has no samples.
        SampleError: It failed to give the first sample.
        SchemaError: The first sample cannot be stored.
    """
    name = type(iterable).__name__
    samples = numbered_samples(name, iterable)
    if schema is None:
        first = list(islice(samples, 1))
        if not first:
            raise PackError(f"there is nothing to pack: {name} has no samples")
        samples = chain(first, samples)
        schema = infer_schema(first[0][1], class_names(iterable))
    wanted = schema

    def items(start: int) -> Iterator[Item]:
        total = 0
        for position, sample in samples:
            if position >= start:
                yield checked_item(wanted, position, sample)
            total = position + 1
        if total < start:
            raise ended(name, total, start)

    def pick(rows: Sequence[int]) -> Iterator[Item]:
        raise PackError(
            f"a codebook cannot be trained on a {name}, which can be iterated over only once: "
            "give a dataset with __len__ and __getitem__, a folder or a list, or use the default "
            "codebook or one from a file"
        )

    return Source(name, wanted, None, False, items, pick)
