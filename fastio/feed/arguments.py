"""Checks the arguments of a loader, and opens the dataset that they name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fastio.cache import Cache
from fastio.errors import DatasetNotFound, SchemaError
from fastio.feed.seeds import is_mesh, mesh_ranks, process_ranks
from fastio.order.sampling import Ranks
from fastio.packed.rows import Rows
from fastio.runtime.cores import available_cores
from fastio.sources import Options, find_data, open_found
from fastio.sources import open as open_data
from fastio.sources.arrays import is_columns
from fastio.sources.registry import is_named, kind_of
from fastio.sources.table.names import of_table_package
from fastio.sources.torch_dataset import is_iterable_dataset

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Names that people expect a loader's argument to have, and what to write instead.
_ELSEWHERE = {
    "threads": "num_workers is the number of threads: fastio.Loader(source, num_workers='auto')",
    "mesh": "pass the mesh as distributed: fastio.Loader(source, distributed=mesh)",
    "dims": "pass a part of the mesh: fastio.Loader(source, distributed=mesh['dp', 'fsdp'])",
}


class GivenDataset(NamedTuple):
    """The dataset of a loader, as given or opened.

    Attributes:
        dataset: the dataset.
        opened: the dataset if it was opened here and is to be closed; None if an object was given.
        fields: names of the wanted fields as the dataset has them; None for all.
        cache: cache for the images of a dataset object, or for the sources of a mix.
    """

    dataset: Any
    opened: Any
    fields: tuple[str, ...] | None
    cache: Any


def open_named(dataset: Any, cache: Any, fields: Iterable[str] | None) -> GivenDataset:
    """Opens a path, a URL, a list of them or plain arrays; returns other objects unchanged.

    Raises:
        As `fastio.open`.
    """
    wanted = None if fields is None else tuple(fields)
    if is_columns(dataset):
        # torch's DataLoader takes a tuple for samples, but a dict of columns is a KeyError there.
        others = (SchemaError,) if type(dataset) is tuple else ()
        with suppress(DatasetNotFound, *others):
            dataset = open_data(dataset)
    if not is_named(dataset) and not _is_frame(dataset):
        return GivenDataset(dataset, None, wanted, cache)
    found = find_data(dataset, Options(cache=cache))
    # Some kinds read only the wanted fields when they are opened.
    if "fields" in found.kind.options:
        found = replace(found, options=replace(found.options, fields=wanted))
    opened = open_found(found)
    if wanted is not None:
        wanted = _names_in(opened, wanted)
    return GivenDataset(opened, opened, wanted, None)


def _is_frame(dataset: Any) -> bool:
    """Returns whether an object is a table in memory, whose items are columns and not samples."""
    named = type(dataset).__name__ in ("DataFrame", "Table", "RecordBatch")
    return named and of_table_package(dataset)


def refuse_cache(given: Any, by_rows: bool, reason: str = "") -> None:
    """Raises ValueError if a cache is given for data that cannot use it.

    Args:
        given: the argument `cache` of a loader.
        by_rows: whether the data are one of several datasets, of which others may use the cache.
        reason: why they cannot use it, if that is known.
    """
    if given is not None and not by_rows:
        raise ValueError(
            "cache= is for URLs and image files that are read natively"
            + (reason and f", but {reason}")
            + ". Leave it out; to open a URL with a cache, use fastio.open(url, cache=...)"
        )


def cache_for(dataset: Rows, given: Any, by_rows: bool) -> Cache | None:
    """Returns the cache for recoded images and indexes of a dataset; None if there is none.

    Args:
        dataset: the dataset, which may have been opened with a cache.
        given, by_rows: as for `refuse_cache`.

    Raises:
        ValueError: a cache was given for this dataset, which cannot use it.
        CacheError: the cache cannot be used.
    """
    if not dataset.recodes or not dataset.schema.image_fields:
        refuse_cache(given, by_rows)
        return None
    cache = Cache(given) if isinstance(given, (str, os.PathLike)) else given or dataset.cache
    if cache is not None:
        cache.folder()
    return cache


def _names_in(dataset: Any, fields: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names that the dataset has for the wanted fields; tars name "seg.png" seg_png."""
    kind = kind_of(dataset)
    if kind is None or "fields" not in kind.options:
        return fields
    return tuple(dataset.schema.fields)


def check_shuffled(dataset: Any, count: Callable[[], int]) -> None:
    """Checks that there is a row to shuffle, as RandomSampler does.

    Args:
        dataset: dataset of the loader.
        count: returns the number of rows of an epoch.

    Raises:
        ValueError: the dataset has none.
    """
    if is_iterable_dataset(dataset):
        return
    try:
        rows = count()
    except TypeError:  # of a dataset without a length, which the first iterator tells
        return
    if not rows:
        raise ValueError(
            "num_samples should be a positive integer value, but got num_samples=0: there is no "
            "row to shuffle"
        )


def check_names(unknown: Set[str], of_loader: Set[str]) -> None:
    """Raises an error that says where an argument belongs which a loader does not have.

    Args:
        unknown: names that were given and that the loader's class does not have.
        of_loader: names of the arguments of `Loader`.

    Raises:
        TypeError: one of them is an argument of `fastio.open`, or a name in `_ELSEWHERE`.
    """
    of_data = signature(open_data).parameters.keys() - {"source"} - of_loader
    for name in sorted(of_data & unknown):
        raise TypeError(
            f"{name} is an option of fastio.open: fastio.Loader(fastio.open(source, {name}=...))"
        )
    for name, how in _ELSEWHERE.items():
        if name in unknown:
            raise TypeError(f"{name} is no argument of a Loader: {how}")


def given_ranks(
    distributed: bool | DeviceMesh | None,
    rank: int | None,
    world_size: int | None,
    seed: int | None,
) -> Ranks | None:
    """Returns the rank and world size that were given as numbers; None if none were.

    Raises:
        TypeError: `seed` or `distributed` has a wrong type.
        ValueError: the arguments exclude one another, or `distributed` finds impossible ranks.
    """
    if not hasattr(seed, "__index__") and seed is not None:
        raise TypeError(f"seed must be an integer or None, got {seed!r}")
    if (rank is None) != (world_size is None):
        raise ValueError("rank and world_size must be given together")
    if distributed is not None and rank is not None:
        raise ValueError("distributed option is mutually exclusive with rank and world_size")
    if is_mesh(distributed):
        if seed is None:
            raise ValueError(
                "distributed with a DeviceMesh needs seed=, so that all ranks have the same order"
            )
        mesh_ranks(distributed)  # raises here if this process is not in the mesh
    elif not isinstance(distributed, (bool, type(None))):
        raise TypeError(
            f"distributed should be True, False, None or a DeviceMesh, got {distributed!r}"
        )
    elif distributed:
        process_ranks()  # raises here if rank or world size are impossible
    return None if rank is None or world_size is None else Ranks(rank, world_size)


def check_arguments(
    num_workers: int | str,
    timeout: float,
    prefetch_factor: int | None,
    generator: object,
    fields: object,
) -> int:
    """Checks arguments of a loader, and returns its number of workers.

    For num_workers="auto" it is the number that the loader starts with.

    Raises:
        TypeError, ValueError: a value has a wrong type or is out of range, as in DataLoader.
    """
    if num_workers == "auto":
        num_workers = available_cores()
    if isinstance(num_workers, str):
        raise ValueError(f"num_workers option should be a number or 'auto', got {num_workers!r}")
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
    if isinstance(fields, str):
        raise ValueError(f"fields must be a list of names: fields=[{fields!r}]")
    return num_workers
