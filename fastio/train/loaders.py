"""The loaders of a run for training and evaluation data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Subset

import fastio
from fastio.train.options import Options
from fastio.train.parallel import Process

Opener = Callable[[str], Any]  # returns what a loader is given for the data at a path or URL


def training_loader(
    options: Options, process: Process, opener: Opener = str, **settings: Any
) -> fastio.Loader:
    """Returns a loader of shuffled training batches, without the rows of `val_split`.

    A last batch that is not full is left out, unless it is the only one: see `has_full_batch`.

    Args:
        options: The options of the run.
        process: This process.
        opener: Returns what the loader reads, given the path or URL of the data. By default, the
            path or URL itself.
        settings: Further arguments of `fastio.Loader` (transforms, fields, ...).

    Raises:
        TrainError: There is no sample, or just one.
    """
    settings = {**_common(options, process), "batch_size": options.batch_size, **settings}
    data = opener(options.data)
    if options.val_split:
        data = _part(data, options)[0]
    loader = fastio.Loader(data, shuffle=True, drop_last=True, **settings)
    if len(loader):
        return loader
    loader.close()
    # There is less than one batch: one step with all samples is better than none.
    loader = fastio.Loader(data, shuffle=True, **settings)
    samples = len(loader.dataset)
    if samples < 2:  # of which a norm over the batch makes nothing
        loader.close()
        held_out = " less what val_split holds out" if options.val_split else ""
        raise fastio.TrainError(
            f"{options.data}{held_out} has {('no samples' if samples == 0 else '1 sample')} to "
            "train on: at least 2 are needed"
        )
    return loader


def has_full_batch(loader: fastio.Loader) -> bool:
    """Returns whether a training loader has at least one batch of the requested size."""
    return loader.drop_last or len(loader) > 1


def evaluation_loader(
    options: Options, process: Process, opener: Opener = str, **settings: Any
) -> fastio.Loader | None:
    """Returns a loader of `val` or of the rows of `val_split`, in order; None without either.

    Nothing is left out: samples after the first `loader.batch.valid` of a batch are repetitions.
    The arguments are those of `training_loader`.
    """
    if options.val is None and not options.val_split:
        return None
    data = opener(options.data if options.val is None else options.val)
    if options.val is None:
        data = _part(data, options)[1]
    batch_size = options.val_batch_size or 2 * options.batch_size
    return fastio.Loader(data, batch_size, **{**_common(options, process), **settings})


def _common(options: Options, process: Process) -> dict[str, Any]:
    return {
        "num_workers": options.threads,
        "device": process.device,
        "seed": options.seed,
        "rank": process.rank,
        "world_size": process.world_size,
    }


def _part(data: Any, options: Options) -> tuple[Subset[Any], Subset[Any]]:
    """Returns the parts of a dataset for training and for evaluation."""
    dataset = fastio.open(data) if isinstance(data, str) else data
    train, held_out = split_rows(len(dataset), options.val_split, options.seed)
    return Subset(dataset, train), Subset(dataset, held_out)  # type: ignore[arg-type]


def split_rows(
    rows: int, part: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the rows for training and those for evaluation, at least one of each.

    Raises:
        TrainError: There are fewer than two rows.
    """
    if rows < 2:
        raise fastio.TrainError(f"val_split needs at least 2 samples, and there are {rows}")
    order = np.random.default_rng(seed).permutation(rows)
    held_out = min(max(1, round(rows * part)), rows - 1)
    return np.sort(order[held_out:]), np.sort(order[:held_out])
