"""Datasets of Python code: read in order, in worker processes or in this one."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from PIL import Image as PillowImage

from fastio.errors import (
    DatasetClosed,
    FastioError,
    PackError,
    PerformanceWarning,
    SampleError,
    SchemaError,
    warn,
)
from fastio.pack.cells import as_array, field_values, infer_schema, interleaved, memory_bytes
from fastio.pack.images import PillowFile, is_tensor
from fastio.pack.items import Item, Row, Source, SourceProcesses, ended, source_of_rows, unreadable
from fastio.schema import Field, Image, Images, Schema
from fastio.sources.arrays import class_names

if TYPE_CHECKING:
    from fastio.sources.torch_calls import DatasetCalls

# Starting a process takes longer than reading a few samples.
_LEAST_OF_PROCESS = 16
# A worker reads samples of about so many bytes at a time, but not more samples than this.
_BYTES_AT_ONCE = 1 << 20
_MOST_AT_ONCE = 64
# Up to so many samples are read, for up to so many seconds, to learn how long one takes.
_TRIED, _TRIED_S = 64, 0.2
# About how long it takes to send a message through shared memory, beside pickling.
_MESSAGE_S = 1e-3
# Values that are sent to this process as they are.
_PICKLED = (
    *(bytes, bytearray, str, int, float, np.ndarray, np.generic),
    *(PillowFile, PillowImage.Image, ValueError),
)

_Found = TypeVar("_Found", Item, Row, "_Bad")


def indexed_source(dataset: Any, schema: Schema | None, workers: int = 1) -> Source:
    """Returns the samples of a dataset with `__len__` and `__getitem__`.

    Worker processes read and encode them if there are enough samples for at least two, and if it
    takes longer to read a sample than to send it to this process. Otherwise, this process reads
    them, but whole units are still packed in worker processes (`process_units`). If there are
    worker processes, this process does not ask the dataset for a sample before they have started.

    Args:
        dataset: The dataset.
        schema: The schema of its samples. If None, the first sample that can be read decides.
        workers: The largest number of worker processes. If 1, this thread reads the samples.

    Raises:
        PackError: The dataset has no samples.
    """
    name, total = type(dataset).__name__, len(dataset)
    if not total:
        raise PackError(f"there is nothing to pack: {name} has no samples")
    processes = min(workers, total // _LEAST_OF_PROCESS)
    # Objects of Python's own classes, such as lists, have their samples in memory.
    if processes > 1 and type(dataset).__module__ != "builtins" and _can_be_sent(dataset, name):
        return _source_of_processes(dataset, name, schema, processes)
    return _source_here(dataset, name, schema)


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
    try:
        # The first sample is read in a worker process, because a forked worker must not use a file
        # (HDF5) or an environment (LMDB) that the dataset has opened in this process.
        (found,) = calls.results([partial(_tried, wanted=schema, name=name)])
    except BaseException:
        calls.close()
        raise
    schema = found.schema
    reads = _Reads(calls, name, schema, total)
    if found.pays:
        source = Source(name, schema, total, False, reads.items, reads.single, rows=reads.rows)
    else:
        source = _source_here(dataset, name, schema)
    in_processes = SourceProcesses(processes, reads.with_source)
    return replace(source, reading=partial(_reading, calls), processes=in_processes)


def _source_here(dataset: Any, name: str, schema: Schema | None) -> Source:
    """Returns the samples of a dataset that the packing thread reads."""
    return _source_of(dataset, schema or _first_schema(dataset, name), name, len(dataset))


@contextmanager
def _reading(calls: DatasetCalls) -> Iterator[None]:
    try:
        with calls.naming_deaths():
            yield
    finally:
        calls.close()


class _Reads:
    """Reads the samples of a dataset by its worker processes."""

    def __init__(self, calls: DatasetCalls, name: str, schema: Schema, total: int) -> None:
        self._calls, self._name, self._schema, self._total = calls, name, schema, total
        self._at_once = 1

    def items(self, start: int) -> Iterator[Item]:
        """Yields the samples from a number on."""
        return self._items(self._ranges(start))

    def rows(self, start: int, encode: Callable[[Item], Row]) -> Iterator[Row]:
        """Yields the samples from a number on as rows."""
        read = partial(_encode_some, wanted=self._schema, name=self._name, encode=encode)
        calls = (partial(read, rows=some) for some in self._ranges(start))
        for found in self._calls.results(calls):
            self._at_once = _at_once(sum(row.nbytes for row in found), len(found))
            yield from map(_received, found)

    def with_source(
        self, functions: Iterable[Callable[[Source], Any]]
    ) -> Generator[Any, None, None]:
        """Yields what functions return that are called with the source in a worker process."""
        # The plan was made for the length in this process. A copy of the dataset in another process
        # may say another one, if files are added meanwhile; its units would have other rows.
        make = partial(_source_of, wanted=self._schema, name=self._name, total=self._total)
        return call_with_source(self._calls, make, functions)

    def single(self, rows: Sequence[int]) -> Iterator[Item]:
        """Yields the samples of some numbers."""
        return self._items([row] for row in rows)

    def _ranges(self, start: int) -> Iterator[Sequence[int]]:
        if start > self._total:
            raise ended(self._name, self._total, start)
        while start < self._total:
            end = min(start + self._at_once, self._total)
            yield range(start, end)
            start = end

    def _items(self, rows: Iterable[Sequence[int]]) -> Iterator[Item]:
        read = partial(_read_some, wanted=self._schema, name=self._name)
        for found in self._calls.results(partial(read, rows=some) for some in rows):
            self._at_once = _at_once(sum(map(memory_bytes, found)), len(found))
            yield from map(_received, found)


def _at_once(nbytes: int, count: int) -> int:
    """Returns how many samples are read at once, given the bytes of some samples."""
    return min(_MOST_AT_ONCE, max(1, _BYTES_AT_ONCE * count // max(nbytes, 1)))


def call_with_source(
    calls: DatasetCalls,
    make: Callable[[Any], Source],
    functions: Iterable[Callable[[Source], Any]],
) -> Generator[Any, None, None]:
    """Yields what functions return that are called with a source in worker processes, in order.

    Args:
        calls: The processes. They are closed if an error ends the iteration.
        make: Returns the source, given the dataset of a process. Can be pickled.
        functions: The functions. Can be pickled.
    """
    call = partial(_call_with_source, make=make)
    try:
        for found in calls.results(partial(call, function=each) for each in functions):
            if isinstance(found, _Bad):
                raise _received(found).error
            yield found
    except BaseException:
        calls.close()
        raise


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
    if _gives_several(src):
        return True
    owner = next(base for base in kind.__mro__ if "__getitem__" in vars(base))
    return (owner.__module__, owner.__name__) != ("torch.utils.data.dataset", "Dataset")


# --- Called in worker processes, or here ----------------------------------------------------------


def _first_schema(dataset: Any, name: str) -> Schema:
    """Returns the schema of the first sample that can be read; packing reports bad ones."""
    first_error = None
    for position in range(len(dataset)):
        try:
            (sample,) = _samples(dataset, [position], name)
        except _NOT_OF_SAMPLES:
            raise
        except Exception as error:  # as in `_read`
            first_error = first_error or error
        else:
            return infer_schema(sample, class_names(dataset))
    raise PackError(f"no sample of {name} can be read: {first_error}") from first_error


class _WrongCountError(PackError):
    """A dataset returned another number of samples than it was asked for."""


# Errors of a dataset's methods that end the pack; all others are about the samples asked for.
_NOT_OF_SAMPLES = (_WrongCountError, DatasetClosed)


def _gives_several(dataset: Any) -> bool:
    """Returns whether a dataset has `__getitems__`, which returns several samples at once."""
    return bool(getattr(dataset, "__getitems__", None))


def _samples(dataset: Any, rows: Sequence[int], name: str) -> list[Any]:
    """Returns samples of a dataset, from `__getitems__` if it has that method.

    Raises:
        _WrongCountError: `__getitems__` returned another number of samples.
    """
    if not _gives_several(dataset):
        return [dataset[row] for row in rows]
    found = list(dataset.__getitems__(list(rows)))
    if len(found) != len(rows):
        raise _WrongCountError(
            f"{name}.__getitems__ returned {len(found)} samples for {len(rows)} indices: it must "
            "return a list with one sample for each index, in the order of the indices"
        )
    return found


def _read(dataset: Any, row: int, wanted: Schema, name: str) -> Item:
    try:
        (sample,) = _samples(dataset, [row], name)
    except _NOT_OF_SAMPLES:
        raise
    except Exception as error:  # a dataset's own code: which errors it has is not known
        return unreadable(name, row, error)
    return checked_item(wanted, row, sample)


def _read_many(dataset: Any, rows: Sequence[int], wanted: Schema, name: str) -> list[Item]:
    """Returns samples, read at once if the dataset can; one by one if that raises an error."""
    if len(rows) > 1 and _gives_several(dataset):
        try:
            samples = _samples(dataset, rows, name)
        except _NOT_OF_SAMPLES:
            raise
        except Exception:  # one of them may be bad: reading them one by one finds it
            pass
        else:
            return [checked_item(wanted, *each) for each in zip(rows, samples, strict=True)]
    return [_read(dataset, row, wanted, name) for row in rows]


def _read_in_turn(dataset: Any, rows: Sequence[int], wanted: Schema, name: str) -> Iterator[Item]:
    """Yields consecutive samples. Only those that `__getitems__` returns at once are read ahead."""
    count = begin = 0
    while begin < len(rows):
        some = rows[begin : begin + max(1, count)]
        items = _read_many(dataset, some, wanted, name)
        yield from items
        begin += len(some)
        if _gives_several(dataset):
            count = _at_once(sum(map(memory_bytes, items)), len(items))


@dataclass(frozen=True)
class _Tried:
    """The schema of a dataset, and whether it pays to read its samples in worker processes."""

    schema: Schema
    pays: bool


@dataclass(frozen=True)
class _Bad:
    """The error of a function that was called with a source."""

    error: FastioError


def _call_with_source(
    dataset: Any,
    is_wanted: Callable[[], bool],
    make: Callable[[Any], Source],
    function: Callable[[Source], Any],
) -> Any:
    """Returns what a function returns that is called with a source, or its error."""
    source = make(dataset)

    def items(start: int) -> Iterator[Item]:
        for item in source.items(start):
            # After the pack has failed, a worker that is ahead stops within its unit.
            if not is_wanted():
                raise PackError(f"the samples of {source.name} are no longer wanted")
            yield item

    try:
        return function(replace(source, items=items))
    except FastioError as error:
        return _Bad(_sent_error(error))


def _source_of(dataset: Any, wanted: Schema, name: str, total: int) -> Source:
    """Returns `total` samples of a dataset, or of its copy in a worker process."""
    read = partial(_read_in_turn, dataset, wanted=wanted, name=name)
    return source_of_rows(name, wanted, total, read, has_keys=False)


def _tried(dataset: Any, is_wanted: Callable[[], bool], wanted: Schema | None, name: str) -> _Tried:
    """Reads some samples and compares how long it takes to read them and to send them."""
    schema = wanted or _first_schema(dataset, name)
    read_s, sent_s = [], []
    for row in range(min(len(dataset), _TRIED)):
        begin = time.perf_counter()
        item = _sent(_read(dataset, row, schema, name), schema)
        read_s.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        pickle.loads(pickle.dumps(item, pickle.HIGHEST_PROTOCOL))
        messages = max(memory_bytes(item) / _BYTES_AT_ONCE, 1 / _MOST_AT_ONCE)
        sent_s.append(time.perf_counter() - begin + messages * _MESSAGE_S)
        # Without the slowest ones, which may have opened a file or been interrupted.
        usual_s = sorted(read_s)[: max(1, len(read_s) - 2)]
        if len(read_s) > 2 and sum(usual_s) > _TRIED_S:
            break
    return _Tried(schema, sum(usual_s) / len(usual_s) > min(sent_s))


def _read_some(
    dataset: Any, is_wanted: Callable[[], bool], rows: Sequence[int], wanted: Schema, name: str
) -> list[Item]:
    """Returns samples in a form that can be sent to this process."""
    return [_sent(item, wanted) for item in _read_many(dataset, rows, wanted, name)]


def _encode_some(
    dataset: Any,
    is_wanted: Callable[[], bool],
    rows: Sequence[int],
    wanted: Schema,
    name: str,
    encode: Callable[[Item], Row],
) -> list[Row]:
    """Returns samples as rows, which can be sent to this process."""
    found = map(encode, _read_many(dataset, rows, wanted, name))
    return [
        row if row.error is None else row._replace(error=_sent_error(row.error)) for row in found
    ]


def _sent(item: Item, wanted: Schema) -> Item:
    if item.error is not None:
        return item._replace(error=_sent_error(item.error))
    values = []
    for (field, kind), value in zip(wanted.fields.items(), item.values, strict=False):
        try:
            values.append(_sent_value(value, kind))
        except Exception as error:  # what pickling an unknown object raises is not known
            problem = f"{item.name}: field {field!r}: {str(error) or type(error).__name__}"
            return Item(item.position, item.name, error=SchemaError(problem))
    return item._replace(values=values)


def _sent_error(error: FastioError) -> FastioError:
    """Returns an error whose cause can be pickled."""
    if not isinstance(error, SampleError) or not isinstance(error.cause, Exception):
        return error
    from fastio.sources.torch_calls import portable  # imports torch, which a worker has

    return type(error)(error.dataset, error.row, error.name, portable(error.cause))


def _received(found: _Found) -> _Found:
    """Returns what a worker has sent, with the cause of its error as Python shows it."""
    if isinstance(found.error, SampleError) and isinstance(found.error.cause, Exception):
        found.error.__cause__ = found.error.cause
    return found


def _sent_value(value: Any, kind: Field) -> Any:
    """Returns a value that encoding treats in the same way, and that can be pickled."""
    if isinstance(value, _PICKLED):
        return value
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(kind, Images) and isinstance(value, (list, tuple)):
        return [_sent_value(each, kind.each) for each in value]
    if not is_tensor(value):
        # A value that cannot be pickled raises its error here, where the error names the sample.
        pickle.dumps(value)
        return value
    array = np.asarray(as_array(value))
    return interleaved(array) if isinstance(kind, Image) and array.ndim == 3 else array
