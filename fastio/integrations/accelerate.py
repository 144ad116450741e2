"""fastio for users of Hugging Face Accelerate, and of the Trainer of transformers.

A prepared `fastio.Loader` delivers each process's part on its device (unless it was made with
`distributed=False`) and keeps its own position. `Accelerator.prepare` would add the same to a
DataLoader, and leaves a Loader as it is. This module tells Accelerate which batch is the last of an
epoch, which gradient accumulation and `gather_for_metrics` need, and resumes from checkpoints.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import SequentialSampler

from fastio import Loader, PackageMissing, ShardingWarning

try:
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.state import GradientState
    from accelerate.utils import send_to_device
except ImportError as error:
    raise PackageMissing("accelerate", f"import {__name__}", "fastio[accelerate]", error) from error

__all__ = ["PreparedLoader", "TrainerLoaders", "prepare"]

_END = object()


def prepare(accelerator: Accelerator, loader: Loader) -> PreparedLoader:
    """Return a loader for a training loop with Accelerate; `save_state` saves its position.

    After `load_state` the next iterator continues at the saved position, so no batches need to be
    skipped. Make the loader with `device=accelerator.device` to copy batches ahead; without a
    device they are moved there when they are requested.

    Args:
        accelerator: made before the loader, because it initialises torch.distributed.
        loader: loader to prepare; several loaders must be prepared in the same order as in the run
            that saved the state, each once.

    Raises:
        TypeError: the argument is not a Loader, or is already prepared.
        ValueError: the loader delivers to another device, or is sharded for other processes; or the
            accelerator splits batches, or does not even them out, among several processes.

    Warns:
        ShardingWarning: several processes receive the same samples, because the loader's sampler or
            its iterable dataset gives all of them to each.
    """
    _check_kind(loader)
    prepared = PreparedLoader(accelerator, loader)
    accelerator.register_for_checkpointing(prepared)
    return prepared


class PreparedLoader(DataLoaderStateMixin):  # type: ignore[misc]
    """A loader with the attributes that Accelerate expects of a DataLoader.

    Iterating reads one batch ahead, to recognise the last one. `gather_for_metrics` then drops the
    samples that pad it. `accelerate.skip_first_batches` does not read the batches that it skips,
    and counts from the beginning of the epoch, regardless of the loader's position.

    Args:
        accelerator: accelerator on whose device batches are delivered.
        loader: loader to iterate over.

    Attributes:
        loader: as given. It is one batch ahead of the batch delivered last.
        batch: information about the batch delivered last; see `Loader.batch`.
        end_of_dataloader: whether that batch was the last of the epoch.
        remainder: number of samples of the last batch without padding, over all processes; -1
            before it, and 0 if several processes get the same samples, of which
            `gather_for_metrics` must drop none.

    Raises:
        ValueError: as for `prepare`.
    """

    def __init__(self, accelerator: Accelerator, loader: Loader) -> None:
        self.loader = loader
        self.batch: Any = None
        self.device = accelerator.device
        self._move = loader.device is None and accelerator.device_placement
        self._non_blocking = accelerator.non_blocking
        self._state: dict[str, Any] | None = None
        if loader.distributed is None and loader.rank is None:
            loader.distributed = True
        if loader.device is not None and not _same_device(loader.device, accelerator.device):
            raise ValueError(
                f"the loader delivers to {loader.device}, but the device of this process is "
                f"{accelerator.device}: create the loader with device=accelerator.device"
            )
        _check_sharding(accelerator, loader)
        _check_batches(accelerator, loader)
        # Whether the batches of a step are those of all processes, without repetitions.
        world_sizes = (None, accelerator.num_processes)
        self._parts = loader.distributed is not False and loader.world_size in world_sizes
        # What accelerate's functions look for.
        self.gradient_state = GradientState()
        self._drop_last = True  # the remainder is found here
        self.drop_last = loader.drop_last
        self.batch_size = loader.batch_size
        self.sampler = self.prefetch_factor = None
        self.batch_sampler = _Steps(self)
        self.dataset = _Batches(self)
        self.collate_fn = _only
        if accelerator.num_processes > 2 and not loader.drop_last and _pads_each_rank(loader):
            warnings.warn(
                "gather_for_metrics removes padding only from the last process, but with table "
                "files in place several processes have padding: use drop_last=True, or pack "
                "the tables",
                stacklevel=3,
            )

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch.

        Raises:
            TypeError: the number is not known.
        """
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        loader = self.loader
        # `begin` of Accelerate makes this the active loader, which gradient accumulation asks
        # whether an epoch ends.
        self.begin()
        try:
            batches = iter(loader)
            # Read after iter(), which may begin the next epoch.
            position = loader.state_dict()["position"]
            ahead = next(batches, _END)
            while ahead is not _END:
                batch, info, state = ahead, loader.batch, loader.state_dict()
                ahead = next(batches, _END)
                if ahead is _END:
                    self.end_of_dataloader = True
                    divided = info.rows is not None and state["order"] != "sampler"
                    # With a remainder of 0, gather_for_metrics drops nothing.
                    self.remainder = info.next_position - position if divided and self._parts else 0
                    state = loader.state_dict()
                position = info.next_position
                self.batch, self._state = info, state
                if self._move:
                    batch = send_to_device(batch, self.device, non_blocking=self._non_blocking)
                yield batch
        finally:
            self.end()

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that the next iterator delivers; see `Loader.set_epoch`."""
        self.loader.set_epoch(epoch)
        self._state = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the loader's state after the batch that was delivered last."""
        return self.loader.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iterator continue at a saved state; see `Loader.load_state_dict`."""
        self.loader.load_state_dict(state)
        self._state = None

    def from_step(self, step: int) -> Iterator[Any]:
        """Yields the batches of the loader's current epoch from a step on, counted from 0."""
        loader = self.loader
        state = loader.state_dict()
        at_start = {"position": 0, "stateful": None} if state["position"] else {}
        self.load_state_dict({**state, **at_start})
        if step:
            batches = iter(loader)
            next(batches, None)
            state = loader.state_dict()
            one_size = loader.batch_size is not None or loader.batch_sampler is None
            if state["stateful"] is None and one_size:
                state["position"] = step * loader.batch.next_position
            else:  # the position, or the state there, is known only after reading
                for _ in zip(range(step - 1), batches, strict=False):
                    pass
                state = loader.state_dict()
            self.load_state_dict(state)
        return iter(self)


class TrainerLoaders:
    """Lets the Trainer of transformers take Loaders in place of datasets::

        class MyTrainer(fastio.integrations.accelerate.TrainerLoaders, transformers.Trainer): ...

        trainer = MyTrainer(model, args, train_dataset=loader, eval_dataset=other_loader)

    Make the loaders with `batch_size=args.train_batch_size` (or `args.eval_batch_size`),
    `device=args.device`, and the `fields` that the model takes, because the Trainer does not remove
    columns of a Loader. A training loader that shuffles or has random transforms also needs
    `seed=args.seed`. `train(resume_from_checkpoint=...)` continues at the next sample. Evaluation
    sees the same samples each time. Datasets are passed to the Trainer's own DataLoaders.

    Raises:
        ValueError: a loader's batch size is not that of the Trainer's arguments; it delivers to
            another device; the training loader draws at random without a seed or from a generator;
            or its sampler may yield another order when the Trainer resumes. A sampler must be a
            sequence or torch's SequentialSampler, or have a `set_epoch` method.
    """

    accelerator: Any
    args: Any
    train_dataset: Any
    eval_dataset: Any

    def get_train_dataloader(self) -> Any:
        loader = self.train_dataset
        if not isinstance(loader, Loader):
            return super().get_train_dataloader()  # type: ignore[misc]
        # The Trainer saves the state of torch's generator, but not the state of loaders.
        left = "a Trainer that resumes within an epoch would not deliver the samples that are left"
        by_generator = loader._epochs.draws_order
        if by_generator or (loader.seed is None and loader._feed.random):
            how = "from its generator" if by_generator else "at random without a seed"
            raise ValueError(
                f"the loader draws {how}: pass seed=args.seed and no generator. Otherwise {left}"
            )
        sampler = loader._feed.sampling.sampler
        if not _repeats(sampler):
            raise ValueError(
                f"the loader's {type(sampler).__name__} may yield another order in a new process: "
                "pass shuffle=True and seed=args.seed in its place, or a sampler whose "
                f"set_epoch(epoch) decides the order. Otherwise {left}"
            )
        return self._prepared(loader, "train", self.args.train_batch_size)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        loader = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(loader, str):
            loader = self.eval_dataset[loader]
        if not isinstance(loader, Loader):
            return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        return self._prepared(loader, "eval", self.args.eval_batch_size)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        if not isinstance(test_dataset, Loader):
            return super().get_test_dataloader(test_dataset)  # type: ignore[misc]
        return self._prepared(test_dataset, "eval", self.args.eval_batch_size)

    def _prepared(self, loader: Loader, kind: str, batch_size: int) -> PreparedLoader:
        if loader.batch_size != batch_size:
            raise ValueError(
                f"the loader's batch_size is {loader.batch_size}, but args.{kind}_batch_size "
                f"of the Trainer is {batch_size}: both must be equal"
            )
        loader.set_epoch(0)
        return PreparedLoader(self.accelerator, loader)


def _repeats(sampler: Any) -> bool:
    """Returns whether a sampler yields the same rows when an epoch is iterated over again."""
    fixed = sampler is None or hasattr(sampler, "__getitem__") or type(sampler) is SequentialSampler
    return fixed or callable(getattr(sampler, "set_epoch", None))


class _Steps:
    """The numbers of an epoch's batches, in place of a DataLoader's batch sampler."""

    def __init__(self, prepared: PreparedLoader) -> None:
        self._prepared = prepared
        self.batch_size = prepared.batch_size
        self.drop_last = prepared.drop_last

    def __len__(self) -> int:
        return len(self._prepared)

    def __iter__(self) -> Iterator[list[int]]:
        try:
            return ([step] for step in range(len(self)))
        except TypeError:  # the batches' end is the end
            return ([step] for step in itertools.count())

    def set_epoch(self, epoch: int) -> None:
        self._prepared.set_epoch(epoch)


class _Batches:
    """The batches of an epoch by number, in place of a DataLoader's dataset.

    A DataLoader made from both, as `skip_first_batches` does, gives the loader's batches.
    """

    def __init__(self, prepared: PreparedLoader) -> None:
        self._prepared = prepared
        self._batches: Iterator[Any] = iter(())
        self._next = 0

    def __len__(self) -> int:
        """Returns the number of samples over all processes."""
        return len(self._prepared.loader.dataset)

    def __getitem__(self, step: int) -> Any:
        if step == 0 or step != self._next:
            self._batches = self._prepared.from_step(step)
        self._next = step + 1
        return next(self._batches)


def _only(items: list[Any]) -> Any:
    [item] = items
    return item


def _same_device(one: torch.device, other: torch.device) -> bool:
    # The device of Accelerate may have no index.
    return one.type == other.type and (one.index or 0) == (other.index or 0)


def _check_kind(loader: Any) -> None:
    if isinstance(loader, PreparedLoader):
        raise TypeError(
            "the loader was already prepared: use the object that the first call returned"
        )
    if not isinstance(loader, Loader):
        raise TypeError(
            f"prepare takes a fastio.Loader, got {type(loader).__name__}: pass other objects "
            "to accelerator.prepare"
        )


def _check_sharding(accelerator: Accelerator, loader: Loader) -> None:
    """Raises an error or warns if the loader's sharding does not fit Accelerate's processes."""
    processes, process = accelerator.num_processes, accelerator.process_index
    how = _sharded_by(loader)
    if how is not None:
        said, rank, world_size = how
        if processes % world_size or (world_size == processes and rank != process):
            raise ValueError(
                f"the loader was created with {said}, as rank {rank} of {world_size}, but this "
                f"is process {process} of {processes}: leave these arguments out; prepare "
                "gives each process its part"
            )
    elif processes > 1 and loader.distributed is not False and not _takes_parts(loader):
        warnings.warn(
            f"each of the {processes} processes gets all samples of this loader, which follows "
            "its sampler or its iterable dataset. Divide the data there (a "
            "DistributedSampler, a dataset split by node), or use no sampler; pass "
            "distributed=False if every process should get everything",
            ShardingWarning,
            stacklevel=4,
        )


def _check_batches(accelerator: Accelerator, loader: Loader) -> None:
    """Raises an error if the accelerator wants other batches per process than the loader's."""
    processes = accelerator.num_processes
    if processes > 1 and accelerator.split_batches:
        raise ValueError(
            f"split_batches=True divides each batch among the {processes} processes, but the "
            "batch_size of a fastio.Loader is that of one process: leave split_batches out, and "
            "create the loader with the batch size divided by the number of processes"
        )
    pads = not loader.drop_last and loader.distributed is not False and _takes_parts(loader)
    if processes > 1 and pads and not accelerator.even_batches:
        raise ValueError(
            "even_batches=False asks for a last batch without padding, but a fastio.Loader gives "
            f"all {processes} processes batches of one size, and repeats samples for it: create "
            "the loader with drop_last=True, or leave even_batches out, in which case "
            "gather_for_metrics drops the repeated samples"
        )


def _sharded_by(loader: Loader) -> tuple[str, int, int] | None:
    """Returns what shards the loader, with its rank and world size; None if it is not sharded."""
    if loader.rank is not None and loader.world_size is not None:
        return "rank= and world_size=", loader.rank, loader.world_size
    shown = vars(loader)  # the properties refuse Accelerate
    for sampler in (shown["batch_sampler"], shown["sampler"]):
        for one in (sampler, getattr(sampler, "sampler", None)):
            rank, world_size = (getattr(one, name, None) for name in ("rank", "num_replicas"))
            if isinstance(rank, int) and isinstance(world_size, int):
                return type(one).__name__, rank, world_size
    return None


def _takes_parts(loader: Loader) -> bool:
    """Returns whether the loader or its dataset gives each process a different part."""
    split = getattr(loader.dataset, "_distributed", None) is not None  # split_dataset_by_node
    iterates = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    ours = type(vars(loader)["sampler"]).__module__.startswith("fastio.")
    return split or (ours and not iterates)


def _pads_each_rank(loader: Loader) -> bool:
    """Returns whether each process pads its own part of the data, not the last ranks only."""
    return str(loader.state_dict()["order"]).startswith("row groups")
