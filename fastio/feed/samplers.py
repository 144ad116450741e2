"""Makes a loader an instance of DataLoader, with the samplers and attributes that libraries expect.

Samplers that the user did not give are instances of torch's classes, because frameworks test for
these, and yield the rows of the loader's next epoch. Iterating over them does not change the loader
or random generators.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from inspect import signature
from types import FrameType
from typing import Any, ClassVar, NoReturn

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler
from typing_extensions import TypeVar

from fastio.feed.epochs import Epochs
from fastio.order.sampling import Ranks
from fastio.sources.torch_dataset import dataset_kind, endless_sampler, is_iterable_dataset

_Batch = TypeVar("_Batch", covariant=True, default=Any)


class RowsInOrder(SequentialSampler):
    """A sampler with the rows of a loader that does not shuffle."""

    def __init__(self, data_source: Any, epochs: Epochs) -> None:
        super().__init__(data_source)
        self._epochs = epochs

    def __iter__(self) -> Iterator[int]:
        return self._epochs.rows()

    def __len__(self) -> int:
        return len(self._epochs)


class ShuffledRows(RandomSampler):
    """A sampler with the rows of a loader that shuffles, in the next epoch's order."""

    def __init__(self, data_source: Any, epochs: Epochs) -> None:
        # RandomSampler's own __init__ counts the rows, and the data may have no length.
        self.data_source = data_source
        self.replacement = False
        self.generator = epochs.generator
        self._epochs = epochs

    @property
    def num_samples(self) -> int:
        return len(self._epochs)

    def __iter__(self) -> Iterator[int]:
        return self._epochs.rows()


def refuse_accelerate(caller: FrameType) -> None:
    """Raises an error if Accelerate reads a loader's sampler, to make a DataLoader of its parts.

    Its prepare and skip_first_batches make a plain DataLoader from a loader's dataset and sampler,
    without its transforms and threads. There is no other place at which to stop them with a clear
    error.

    Raises:
        RuntimeError: the caller is Accelerate.
    """
    if caller.f_globals.get("__name__") == "accelerate.data_loader":
        raise RuntimeError(
            "Accelerate would replace this fastio.Loader by a plain DataLoader. Instead of "
            "accelerator.prepare(loader), use "
            "fastio.integrations.accelerate.prepare(accelerator, loader); "
            "skip_first_batches accepts its result. For the Trainer of transformers, use "
            "fastio.integrations.accelerate.TrainerLoaders"
        )


def shown_samplers(
    dataset: Any, epochs: Epochs, batch_size: int | None
) -> tuple[Sampler[Any] | Iterable[Any], Sampler[Any] | Iterable[Any] | None]:
    """Returns the sampler and the batch sampler of a loader, as DataLoader has them.

    Args:
        dataset: dataset of the loader.
        epochs: epochs of the loader.
        batch_size: number of samples per batch on each rank; None for single samples.
    """
    sampling = epochs.feed.sampling
    sampler: Any
    if sampling.sampler is not None:
        sampler = sampling.sampler
    elif is_iterable_dataset(dataset):
        sampler = endless_sampler()
    elif sampling.batch_sampler is None and sampling.mode != "sequential":
        sampler = ShuffledRows(dataset, epochs)
    elif sampling.batch_sampler is None:
        sampler = RowsInOrder(dataset, epochs)
    else:
        sampler = SequentialSampler(dataset)
    if sampling.batch_sampler is not None:
        return sampler, sampling.batch_sampler
    if batch_size is None:
        return sampler, None
    return sampler, BatchSampler(sampler, batch_size, sampling.drop_last)


def own_arguments(init: Callable[..., None]) -> frozenset[str]:
    """Returns the names of a loader's arguments that DataLoader lacks, except `distributed`.

    The attributes of these names cannot be assigned. `distributed` may be set by libraries that run
    the training loop.
    """
    own = signature(init).parameters.keys() - signature(DataLoader).parameters.keys()
    return frozenset(own - {"self", "distributed"})


class LikeDataLoader(DataLoader[_Batch]):
    """A subclass of DataLoader with its attributes, but without its way of loading batches.

    DataLoader's own `__init__` is not called. A subclass sets `_epochs` and the attributes that are
    named like its arguments, and calls `_imitate` last.
    """

    _fixed: ClassVar[frozenset[str]] = frozenset()  # attributes that cannot be assigned
    _epochs: Epochs

    def _imitate(self, dataset: Any, batch_size: int | None, drop_last: bool) -> None:
        """Sets the attributes that DataLoader's `__init__` would set last.

        After this call, DataLoader's `__setattr__` protects attributes.
        """
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.__dict__["sampler"], self.__dict__["batch_sampler"] = shown_samplers(
            self.dataset, self._epochs, batch_size
        )
        if self.num_workers:
            # The setter of DataLoader would refuse a context without workers.
            self.multiprocessing_context = self.__dict__["_DataLoader__multiprocessing_context"]
            if self.prefetch_factor is None:
                self.prefetch_factor = 2
        self._dataset_kind = dataset_kind(dataset)
        self._iterator = None
        object.__setattr__(self, "_DataLoader__initialized", True)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._fixed and "_DataLoader__initialized" in self.__dict__:
            raise ValueError(f"{name} attribute should not be set after Loader is initialized")
        super().__setattr__(name, value)

    @property
    def sampler(self) -> Sampler[Any] | Iterable[Any]:  # type: ignore[override]
        """The given sampler, or one of torch's sampler classes with the rows of the next epoch.

        Raises:
            RuntimeError: Accelerate is about to make a DataLoader from this loader's parts.
        """
        found: Sampler[Any] | Iterable[Any] = self._shown("sampler")
        return found

    @property
    def batch_sampler(self) -> Sampler[Any] | Iterable[Any] | None:  # type: ignore[override]
        """The given batch sampler, or torch's BatchSampler; None if samples are delivered singly.

        Raises:
            RuntimeError: Accelerate is about to make a DataLoader from this loader's parts.
        """
        found: Sampler[Any] | Iterable[Any] | None = self._shown("batch_sampler")
        return found

    def _shown(self, name: str) -> Any:
        refuse_accelerate(sys._getframe(2))
        self._epochs.ranks = self._ranks()
        return self.__dict__[name]

    def _ranks(self) -> Ranks:
        """Returns the part of each global batch that this process delivers."""
        raise NotImplementedError

    # Not __getitem__: NumPy would then take a loader for a sequence.
    def __getitems__(self, indices: object) -> NoReturn:
        """Raises a TypeError: a DataLoader, such as the Trainer's, has a loader as its dataset."""
        raise TypeError(
            "a fastio.Loader has batches to iterate over, and no items: where a dataset is wanted, "
            "pass loader.dataset. For the Trainer of transformers, use "
            "fastio.integrations.accelerate.TrainerLoaders"
        )
