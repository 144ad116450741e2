"""Datasets of Python code: read in order, in worker processes or in this one."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image as PillowImage

from fastio.errors import PackError, PerformanceWarning, SampleError, SchemaError, warn
from fastio.pack.cells import (
    as_array,
    field_values,
    infer_schema,
    interleaved,
    is_tensor,
    memory_bytes,
)
from fastio.pack.images import PillowFile
from fastio.pack.items import Item, Source, ended, source_of_rows, unreadable
from fastio.schema import Field, Image, Schema
from fastio.sources.arrays import class_names

if TYPE_CHECKING:
    from fastio.sources.torch_calls import DatasetCalls

# Starting a process takes longer than reading a few samples.
_LEAST_OF_PROCESS = 16
# A worker reads samples of about so many bytes at a time, but not more samples than this.
_BYTES_AT_ONCE = 1 << 20
_MOST_AT_ONCE = 64
# Values that are sent to this process as they are.
_PICKLED = (
    *(bytes, bytearray, str, int, float, np.ndarray, np.generic),
    *(PillowFile, PillowImage.Image, ValueError),
)


def indexed_source(dataset: Any, schema: Schema | None, workers: int = 1) -> Source:
    """Returns the samples of a dataset with `__len__` and `__getitem__`.

    Worker processes read them if there are enough samples for at least two. Then this process never
    asks the dataset for a sample, because a forked worker must not use a file (HDF5) or environment
    (LMDB) that the dataset has opened here for an earlier sample.

    Args:
        dataset: The dataset.
        schema: The schema of its samples. If None, the first sample that can be read decides.
        workers: The largest number of worker processes. If 1, this thread reads the samples.
    """
    name, total = type(dataset).__name__, len(dataset)
    if not total:
        raise PackError(f"there is nothing to pack: {name} has no samples")
    processes = min(workers, total // _LEAST_OF_PROCESS)
    # Objects of Python's own classes, such as lists, have their samples in memory.
    if processes > 1 and type(dataset).__module__ != "builtins" and _can_be_sent(dataset, name):
        return _source_of_processes(dataset, name, schema, processes)
    wanted = schema or _first_schema(dataset, name=name)
    read = partial(_read, dataset, wanted=wanted, name=name)
    return source_of_rows(name, wanted, total, lambda rows: map(read, rows), has_keys=False)


def _can_be_sent(dataset: Any, name: str) -> bool:
    """Returns whether a dataset can be sent to worker processes; warns if pickling it fails."""
    # Imports torch.
    from fastio.sources.torch_calls import may_start_processes, why_not_sent

    if not may_start_processes():
        return False
    why = why_not_sent(dataset)
    if why is not None:
        warn(
            f"the {name} is read by one thread and not by worker processes: they are not forked "
            f"on this system, and the dataset cannot be pickled: {why}. Define the class of the "
            "dataset, and the functions that it uses, at the top level of a module",
            PerformanceWarning,
        )
    return why is None


def _source_of_processes(dataset: Any, name: str, schema: Schema | None, processes: int) -> Source:
    """Returns the samples of a dataset that worker processes read."""
    # Imports torch.
    from fastio.sources.torch_calls import DatasetCalls

    calls, total = DatasetCalls(dataset, processes, name), len(dataset)
    if schema is None:
        (schema,) = calls.results([partial(_first_schema, name=name)])
    reads = _Reads(calls, name, schema)

    def items(start: int) -> Iterator[Item]:
        if start > total:
            raise ended(name, total, start)
        return reads.consecutive(start, total)

    return Source(name, schema, total, False, items, reads.single, partial(_reading, calls))


@contextmanager
def _reading(calls: DatasetCalls) -> Iterator[None]:
    try:
        with calls.naming_deaths():
            yield
    finally:
        calls.close()


class _Reads:
    """Reads the samples of a dataset by its worker processes."""

    def __init__(self, calls: DatasetCalls, name: str, schema: Schema) -> None:
        self._calls, self._name, self._schema = calls, name, schema
        self._at_once = 1

    def consecutive(self, start: int, total: int) -> Iterator[Item]:
        """Yields the samples from a number on."""
        return self._items(self._ranges(start, total))

    def single(self, rows: Sequence[int]) -> Iterator[Item]:
        """Yields the samples of some numbers."""
        return self._items([row] for row in rows)

    def _ranges(self, start: int, total: int) -> Iterator[Sequence[int]]:
        while start < total:
            end = min(start + self._at_once, total)
            yield range(start, end)
            start = end

    def _items(self, rows: Iterable[Sequence[int]]) -> Iterator[Item]:
        read = partial(_read_some, wanted=self._schema, name=self._name)
        for found in self._calls.results(partial(read, rows=some) for some in rows):
            items = list(map(self._item, found))
            nbytes = sum(map(memory_bytes, items)) // len(items)
            self._at_once = min(_MOST_AT_ONCE, max(1, _BYTES_AT_ONCE // max(nbytes, 1)))
            yield from items

    def _item(self, found: Item | _Unread) -> Item:
        if isinstance(found, Item):
            return found
        return unreadable(self._name, found.row, found.error)


def iterated_source(iterable: Iterable[Any], schema: Schema | None) -> Source:
    """Returns the samples of any iterable, which is iterated over only once."""
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


def checked_item(schema: Schema, position: int, sample: Any) -> Item:
    """Returns a sample as an item, or why it does not have the structure of the schema."""
    name = f"sample {position}"
    try:
        return Item(position, name, field_values(schema, sample, name))
    except SchemaError as error:
        return Item(position, name, error=error)


def is_indexed(src: Any) -> bool:
    """Returns whether the samples of a dataset can be read by number, not only by iterating.

    torch's IterableDataset inherits a `__getitem__` that only raises. The streaming datasets of
    MosaicML and LitData are IterableDatasets with one of their own.
    """
    kind = type(src)
    if not (hasattr(src, "__len__") and hasattr(src, "__getitem__")):
        return False
    owner = next(base for base in kind.__mro__ if "__getitem__" in vars(base))
    return (owner.__module__, owner.__name__) != ("torch.utils.data.dataset", "Dataset")


# --- Called in worker processes, or here ----------------------------------------------------------


def _first_schema(dataset: Any, name: str) -> Schema:
    """Returns the schema of the first sample that can be read; packing reports bad ones."""
    first_error = None
    for position in range(len(dataset)):
        try:
            sample = dataset[position]
        except Exception as error:  # as in `_read`
            first_error = first_error or error
        else:
            return infer_schema(sample, class_names(dataset))
    raise PackError(f"no sample of {name} can be read: {first_error}") from first_error


def _read(dataset: Any, row: int, wanted: Schema, name: str) -> Item:
    try:
        sample = dataset[row]
    except Exception as error:  # a dataset's own code: which errors it has is not known
        return unreadable(name, row, error)
    return checked_item(wanted, row, sample)


@dataclass(frozen=True)
class _Unread:
    """A sample that a worker process could not read, and the error."""

    row: int
    error: Any


def _read_some(
    dataset: Any, rows: Sequence[int], wanted: Schema, name: str
) -> list[Item | _Unread]:
    """Returns samples, or why they cannot be read, in a form that can be sent to this process."""
    return [_sent(_read(dataset, row, wanted, name), wanted) for row in rows]


def _sent(item: Item, wanted: Schema) -> Item | _Unread:
    if isinstance(item.error, SampleError):
        from fastio.sources.torch_calls import portable  # imports torch, which a worker has

        return _Unread(item.position, portable(_cause(item.error)))
    values = []
    for (field, kind), value in zip(wanted.fields.items(), item.values, strict=False):
        try:
            values.append(_sent_value(value, kind))
        except Exception as error:  # what pickling an unknown object raises is not known
            problem = f"{item.name}: field {field!r}: {str(error) or type(error).__name__}"
            return Item(item.position, item.name, error=SchemaError(problem))
    return replace(item, values=values)


def _cause(error: SampleError) -> Exception:
    return error.cause if isinstance(error.cause, Exception) else error


def _sent_value(value: Any, kind: Field) -> Any:
    """Returns a value that encoding treats in the same way, and that can be pickled."""
    if isinstance(value, _PICKLED):
        return value
    if isinstance(value, memoryview):
        return bytes(value)
    if not is_tensor(value):
        pickle.dumps(value)
        return value
    array = np.asarray(as_array(value))
    return interleaved(array) if isinstance(kind, Image) and array.ndim == 3 else array
