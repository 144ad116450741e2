"""A loader's epochs as the loop of a bench takes them, and a watch on the user's own callables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from fastio.diagnose.bench.intervals import Interval
from fastio.loader import Loader, LoaderIterator
from fastio.stats import Stats


class Timed:
    """A callable that records when it ran."""

    def __init__(self, function: Callable[[Any], Any], intervals: list[Interval]) -> None:
        self._function = function
        self._intervals = intervals

    def __call__(self, value: Any) -> Any:
        begin = time.perf_counter()
        try:
            return self._function(value)
        finally:
            self._intervals.append((begin, time.perf_counter()))

    def __repr__(self) -> str:
        return getattr(self._function, "__name__", repr(self._function))


class LoaderBatches:
    """The first epoch of a loader as (batch, samples), repeated by each iterator.

    Attributes:
        loader: which is closed with it.
        transforming: when its Python transforms ran.
    """

    def __init__(self, loader: Loader, transforming: list[Interval]) -> None:
        self.loader = loader
        self.transforming = transforming

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        self.loader.set_epoch(0)
        return _Epoch(self.loader, iter(self.loader))

    def stats(self) -> Stats:
        """Returns the loader's statistics since it was made."""
        return self.loader.stats()

    def __enter__(self) -> LoaderBatches:
        return self

    def __exit__(self, *error: object) -> None:
        self.loader.close()


class _Epoch:
    """Iterates without holding a batch, so that its slot is free as soon as the loop drops it."""

    def __init__(self, loader: Loader, iterator: LoaderIterator) -> None:
        self._loader = loader
        self._iterator = iterator

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> tuple[Any, int]:
        return next(self._iterator), self._loader.batch.valid

    def close(self) -> None:
        self._iterator.close()
