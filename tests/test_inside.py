"""sources.inside: the datasets that an object refers to are found without running its code."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from torch.utils.data import ConcatDataset

import fastio
from fastio.sources.inside import datasets_inside

GLOBAL: Any = None


class Proxy:
    """An object that forwards, and refuses, everything."""

    def __init__(self, inner: Any) -> None:
        object.__setattr__(self, "inner", inner)

    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError(f"{name} was asked for")


class Claims:
    """An object that says that it is a dataset."""

    @property  # type: ignore[misc]
    def __class__(self) -> type[fastio.Dataset]:
        return fastio.Dataset


class OddType(type):
    """A class whose classes cannot be compared."""

    def __eq__(cls, other: object) -> NoReturn:
        raise RuntimeError("classes were compared")

    def __hash__(cls) -> NoReturn:
        raise RuntimeError("a class was hashed")


class Odd(metaclass=OddType):
    def __init__(self, inner: Any) -> None:
        self.inner = inner


class LongList(list[Any]):
    """A list with an attribute."""

    inner: Any = None


def long_list(inner: Any) -> LongList:
    found = LongList(object() for _ in range(100_000))
    found.inner = inner
    return found


def object_array(inner: Any) -> Any:
    found = np.empty(2, object)
    found[1] = inner
    return found


@pytest.mark.parametrize(
    "around",
    [Proxy, Odd, long_list, object_array, lambda data: ConcatDataset([[1]] * 300 + [data])],
)
def test_a_dataset_is_found_without_running_code(
    around: Callable[[Any], Any], tmp_path: Path
) -> None:
    fastio.pack({"x": np.arange(3)}, tmp_path / "data")
    data = fastio.open(tmp_path / "data")
    assert [id(found) for found in datasets_inside([around(data)])] == [id(data)]


def of_global() -> Iterator[Any]:
    """Yields the rows of a global variable."""
    yield from GLOBAL


def row_of_global(row: int) -> Any:
    """Returns a row of a global variable."""
    return GLOBAL[row]


def test_global_variables_that_code_names_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fastio.pack({"x": np.arange(3)}, tmp_path / "data")
    data = fastio.open(tmp_path / "data")
    monkeypatch.setitem(globals(), "GLOBAL", data)
    for source in (of_global(), map(row_of_global, range(3))):
        assert list(datasets_inside(source)) == [data]
    assert list(datasets_inside(long_list)) == []


def test_what_is_no_dataset_is_passed_over() -> None:
    gone = Odd(None)
    proxy = weakref.proxy(gone)
    del gone
    gc.collect()
    assert list(datasets_inside([Claims(), Proxy(None), proxy])) == []
