"""The values of `Loader.sampler` and `Loader.batch_sampler` if the user gave none.

They are instances of torch's classes, because frameworks test for these, and yield the rows of the
loader's next epoch. Iterating over them does not change the loader or random generators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from fastio.feed.epochs import Epochs
from fastio.sources.torch_dataset import endless_sampler, is_iterable_dataset


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
