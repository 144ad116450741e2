"""The loaders of a run for training and evaluation data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import fastio
from fastio.train.options import Options
from fastio.train.parallel import Place

Groups = Mapping[str, Sequence[str]] | None
Opener = Callable[[str], Any]  # returns what a loader is given for the data at a path or URL


def opened(data: str, groups: Groups = None) -> Any:
    """Opens tables whose columns form groups; returns other data as it is."""
    return data if groups is None else fastio.open(data, groups=groups)


def training_loader(
    options: Options, place: Place, opener: Opener = str, **settings: Any
) -> fastio.Loader:
    """Returns a loader of shuffled training batches, without the rows of `val_split`.

    A last batch that is not full is left out, unless it is the only one: see `has_full_batch`.

    Args:
        options: of the run.
        place: of this process.
        opener: returns the dataset of a path or URL, which the loader reads; by default the path.
        settings: further arguments of `fastio.Loader` (transforms, fields, ...).

    Raises:
        TrainError: there is no sample, or just one.
    """
    settings = _common(options, place) | settings
    data = opener(options.data)
    if options.val_split:
        rows = split_rows(_rows(data, settings), options.val_split, options.seed)[0]
        _check_count(len(rows), f"{options.data} less what val_split holds out")
        subset = Subset(rows, options.batch_size, True, options.seed, place)
        return _subset_loader(data, subset, settings)
    settings |= {"batch_size": options.batch_size, "shuffle": True}
    loader = fastio.Loader(data, drop_last=True, **settings)
    if len(loader):
        return loader
    loader.close()
    _check_count(_rows(data, settings), options.data)
    return fastio.Loader(data, **settings)


def has_full_batch(loader: fastio.Loader) -> bool:
    """Returns whether a training loader has at least one batch of the requested size."""
    if isinstance(loader.batch_sampler, Subset):
        return loader.batch_sampler.has_full_batch
    return loader.drop_last or len(loader) > 1


def evaluation_loader(
    options: Options, place: Place, opener: Opener = str, **settings: Any
) -> fastio.Loader | None:
    """Returns a loader of `val` or of the rows of `val_split`, in order; None without either.

    Nothing is left out: see `valid_samples`. The arguments are those of `training_loader`.
    """
    settings = _common(options, place) | settings
    batch_size = options.val_batch_size or 2 * options.batch_size
    if options.val is not None:
        return fastio.Loader(opener(options.val), batch_size=batch_size, **settings)
    if not options.val_split:
        return None
    data = opener(options.data)
    rows = split_rows(_rows(data, settings), options.val_split, options.seed)[1]
    subset = Subset(rows, batch_size, False, options.seed, place)
    return _subset_loader(data, subset, settings)


def valid_samples(loader: fastio.Loader) -> int:
    """Returns how many samples of the latest batch count; those after them are repetitions."""
    if isinstance(loader.batch_sampler, Subset):
        return loader.batch_sampler.valid(loader.batch.step)
    return loader.batch.valid


def rescaled(state: dict[str, Any], loader: fastio.Loader, before: int, now: int) -> dict[str, Any]:
    """Returns a loader's state for another number of processes than it was saved with.

    Positions are those of all processes together, but of a `Subset` those of each.
    """
    if not isinstance(loader.batch_sampler, Subset):
        return state
    return {**state, "position": state["position"] * before // now}


def _common(options: Options, place: Place) -> dict[str, Any]:
    return {
        "num_workers": options.threads,
        "device": place.device,
        "seed": options.seed,
        "rank": place.rank,
        "world_size": place.world_size,
    }


def _subset_loader(data: Any, subset: Subset, settings: dict[str, Any]) -> fastio.Loader:
    """Returns a loader of a subset; each row comes on one process, with the same draws on any."""
    alone = {"rank": 0, "world_size": 1}
    return fastio.Loader(data, batch_sampler=subset, **(settings | alone))


def _check_count(samples: int, data: str) -> None:
    if samples < 2:  # of which a norm over the batch makes nothing
        raise fastio.TrainError(
            f"{data} has {('no samples' if samples == 0 else '1 sample')} to train on: at "
            "least 2 are needed"
        )


def _rows(data: Any, settings: dict[str, Any]) -> int:
    alone = settings | {"batch_size": 1, "shuffle": False, "rank": 0, "world_size": 1}
    with fastio.Loader(data, **alone) as single:
        return len(single)


class Subset:
    """A batch sampler over some rows, with this process's part of every global batch.

    Shuffled batches are full ones where there is at least one; unshuffled ones are all, each
    process having as many: the last one is padded with rows that `valid` does not count.
    """

    def __init__(
        self, rows: npt.NDArray[np.int64], batch_size: int, shuffle: bool, seed: int, place: Place
    ) -> None:
        self.rows = rows
        self.epoch = 0
        self._size = batch_size * place.world_size
        self._shuffle = shuffle
        self._seed = seed
        self._place = place

    def set_epoch(self, epoch: int) -> None:
        """Sets the next epoch, from 0; `Loader.set_epoch` calls it."""
        self.epoch = epoch

    @property
    def has_full_batch(self) -> bool:
        """Returns whether a training loader has at least one batch of the requested size."""
        return len(self.rows) >= self._size

    def __len__(self) -> int:
        full, rest = divmod(len(self.rows), self._size)
        return full if self._shuffle and full else full + (rest > 0)

    def __iter__(self) -> Iterator[list[int]]:
        rows = self.rows
        if self._shuffle:
            rows = np.random.default_rng([self._seed, self.epoch]).permutation(rows)
        for step in range(len(self)):
            begin, share = self._part(step)
            yield rows[np.arange(begin, begin + share) % len(rows)].tolist()

    def valid(self, step: int) -> int:
        """Returns how many samples of a step's batch count; the others are repetitions."""
        begin, share = self._part(step)
        return max(0, min(share, len(self.rows) - begin))

    def _part(self, step: int) -> tuple[int, int]:
        left = len(self.rows) - step * self._size
        share = -(-min(left, self._size) // self._place.world_size)
        return step * self._size + self._place.rank * share, share


def split_rows(
    rows: int, part: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the rows for training and those for evaluation, at least one of each.

    Raises:
        TrainError: there are fewer than two rows.
    """
    if rows < 2:
        raise fastio.TrainError(f"val_split needs at least 2 samples, and there are {rows}")
    order = np.random.default_rng(seed).permutation(rows)
    held_out = min(max(1, round(rows * part)), rows - 1)
    return np.sort(order[held_out:]), np.sort(order[:held_out])
