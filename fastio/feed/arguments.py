"""Checks the arguments of a loader, and opens the dataset that they name."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from inspect import signature
from typing import Any

import torch

from fastio.feed.base import Feed
from fastio.sources import Options, find_data, open_found
from fastio.sources import open as open_data
from fastio.sources.registry import is_named, kind_of
from fastio.views.mixing import mix_of


def open_named(dataset: Any, cache: Any, fields: tuple[str, ...] | None) -> Any:
    """Opens the dataset at a path, a URL or a list of them; returns None if an object was given.

    Raises:
        ValueError: `cache` is given with an object, which is already open.
        As `fastio.open`.
    """
    if not is_named(dataset):
        if cache is not None and mix_of(dataset) is None:
            raise ValueError(
                "cache= can be passed only together with a URL; for an open dataset, use "
                "fastio.open(url, cache=...)"
            )
        return None
    found = find_data(dataset, Options(cache=cache))
    if "fields" in found.kind.options:
        found = replace(found, options=replace(found.options, fields=fields))
    return open_found(found)


def read_fields(dataset: Any, fields: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names that the dataset has for the wanted fields; tars name "seg.png" seg_png."""
    kind = kind_of(dataset)
    if kind is None or "fields" not in kind.options:
        return fields
    return tuple(dataset.schema.fields)


def check_rows(feed: Feed) -> None:
    """Sees to it that there is a row to shuffle, as RandomSampler does.

    Raises:
        ValueError: the dataset has none.
    """
    from fastio.sources.torch_dataset import is_iterable_dataset

    if is_iterable_dataset(feed.dataset):
        return
    try:
        rows = feed.epoch_rows()
    except TypeError:  # of a dataset without a length, which the first iterator tells
        return
    if not rows:
        feed.close()
        raise ValueError(
            "num_samples should be a positive integer value, but got num_samples=0: there is no "
            "row to shuffle"
        )


def first_workers(num_workers: str) -> int:
    """Returns the number of threads with which "auto" starts; raises ValueError for other text."""
    from fastio.feed.tuning import first_threads

    if num_workers != "auto":
        raise ValueError(f"num_workers option should be a number or 'auto', got {num_workers!r}")
    return first_threads()


def check_names(unknown: Set[str], of_loader: Set[str]) -> None:
    """Raises an error that says where an argument belongs which a loader does not have.

    Args:
        unknown: names that were given and that the loader's class does not have.
        of_loader: names of the arguments of `Loader`.

    Raises:
        TypeError: one of them is an argument of `fastio.open`, or a former name.
    """
    of_data = signature(open_data).parameters.keys() - {"source"} - of_loader
    for name in sorted(of_data & unknown):
        raise TypeError(
            f"{name} is an option of fastio.open: fastio.Loader(fastio.open(source, {name}=...))"
        )
    if "threads" in unknown:
        raise TypeError(
            "the number of threads is set by num_workers: fastio.Loader(source, num_workers='auto')"
        )


def check_arguments(
    num_workers: int, timeout: float, prefetch_factor: int | None, generator: object
) -> None:
    """Raises what DataLoader raises for values that are out of range."""
    if not isinstance(generator, (torch.Generator, type(None))):
        raise TypeError(
            f"generator should be a torch.Generator or None, got {generator!r}: create one "
            "with torch.Generator().manual_seed(seed)"
        )
    if num_workers < 0:
        raise ValueError(
            f"num_workers option should be non-negative, got {num_workers}; 0 means all cores "
            "on the native path, and no worker process on the torch path"
        )
    if timeout < 0:
        raise ValueError(f"timeout option should be non-negative, got {timeout}")
    if prefetch_factor is not None and prefetch_factor < 0:
        raise ValueError(f"prefetch_factor option should be non-negative, got {prefetch_factor}")
