"""The methods of fastio's DataModule and callback, for either of Lightning's two packages.

`lightning` and `pytorch_lightning` have different base classes, and the Trainer of each accepts
only its own. `integrations.lightning` and `integrations.pytorch_lightning` combine them with these
hooks.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from fastio import Loader, Stats

Split: TypeAlias = Loader | Mapping[str, Any]


class TrainEpochs:
    """A loader as the Trainer iterates over it for training.

    The Trainer makes iterators that it never uses: one to test that it can, another when it
    resumes. An epoch therefore starts with the first batch of an iterator. The Trainer also does
    not iterate to the end of an epoch whose length it knows; its `is_last_batch` says that the
    epoch is over.

    Args:
        loader: loader to iterate over.
        trainer: Lightning's Trainer.
        state: state of a loader from a checkpoint, where the first epoch continues. None starts at
            the beginning of the Trainer's `current_epoch`.

    Attributes:
        loader: as given. Its `batch` describes the batch of the current training step.
    """

    def __init__(self, loader: Loader, trainer: Any, state: Mapping[str, Any] | None) -> None:
        self.loader = loader
        self._trainer = trainer
        self._placed = self._resumed = False
        # Of this epoch: before its first batch, or before the last three that were handed out.
        self._states: deque[dict[str, Any]] = deque(maxlen=3)
        if state is not None:
            self.load_state_dict(state)

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch.

        Raises:
            TypeError: the number is not known. The Trainer then prefetches one batch.
        """
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        loader, trainer = self.loader, self._trainer
        if trainer.overfit_batches:
            loader.set_epoch(0)  # the same batches in every epoch
        elif not self._placed:
            loader.set_epoch(trainer.current_epoch)
        self._placed = True
        resumed, self._resumed = self._resumed, False
        batches = iter(loader)
        self._states.clear()
        self._states.append(loader.state_dict())
        for batch in batches:
            self._states.append(loader.state_dict())
            if resumed and len(self._states) == 2:
                self._check_count()
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Returns the loader's state after the last batch that was trained on."""
        loader = self.loader
        if len(self._states) < 2:
            return loader.state_dict()
        progress = self._trainer.fit_loop.epoch_loop.batch_progress
        in_work = progress.current.ready > progress.current.processed
        if progress.is_last_batch and not in_work:
            loader.set_epoch(loader.batch.epoch + 1)
            return loader.state_dict()
        ahead = in_work + (not self._has_length())
        return self._states[-1 - min(ahead, len(self._states) - 1)]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next epoch continue at the saved state."""
        self.loader.load_state_dict(state)
        self._states.clear()
        self._placed = self._resumed = True

    def _check_count(self) -> None:
        """Warns if the Trainer, which counts batches, resumes the epoch at another position."""
        done = self._trainer.fit_loop.epoch_loop.batch_progress.current.ready
        step = self.loader.batch.step
        if self._has_length() and self.loader.batch_size is not None and step != done:
            warnings.warn(
                "the checkpoint was saved with another batch size or number of processes: the "
                f"Trainer counts {done} of {len(self)} batches of this epoch as done, but the "
                f"loader is at batch {step}. No sample is repeated, but samples of this epoch "
                "that the Trainer does not reach are left out: resume from checkpoints saved "
                "at the end of an epoch",
                stacklevel=2,
            )

    def _has_length(self) -> bool:
        try:
            len(self.loader)
        except TypeError:
            return False
        return True


class EvaluationEpochs:
    """A loader as the Trainer iterates over it for evaluation: always epoch 0.

    Attributes:
        loader: loader to iterate over. Its `batch.valid` is the number of samples of the step's
            batch without padding; with several processes, the last batch may be padded.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.loader.set_epoch(0)
        yield from self.loader


class DataModuleHooks:
    """The methods of `fastio.integrations.lightning.DataModule`; its base class sets `trainer`."""

    trainer: Any

    def __init__(
        self,
        train: Split | None = None,
        val: Split | Sequence[Split] | None = None,
        test: Split | Sequence[Split] | None = None,
        predict: Split | Sequence[Split] | None = None,
    ) -> None:
        super().__init__()
        self._splits = {"train": train, "val": val, "test": test, "predict": predict}
        for name, split in self._splits.items():
            if split is None:  # as if this class had no such method, which the Trainer asks
                method = f"{name}_dataloader"
                setattr(self, method, getattr(super(), method))
        self._opened: dict[str, list[Loader]] = {}
        self._train: TrainEpochs | None = None
        self._state: Mapping[str, Any] | None = None

    def train_dataloader(self) -> Any:
        self._close("train")
        loader = self._loader("train", self._splits["train"])
        if self.trainer is None:
            return loader
        self._train, self._state = TrainEpochs(loader, self.trainer, self._state), None
        return self._train

    def val_dataloader(self) -> Any:
        return self._evaluation("val")

    def test_dataloader(self) -> Any:
        return self._evaluation("test")

    def predict_dataloader(self) -> Any:
        return self._evaluation("predict")

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the training loader, which Lightning saves in the checkpoint."""
        return {} if self._train is None else {"train": self._train.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the state of the training loader from a checkpoint."""
        # Lightning gives the same state to the training loader, but not where it was made before
        # the checkpoint was read (`estimated_stepping_batches`), nor behind the end of an epoch.
        fitting = self.trainer is not None and self.trainer.state.fn == "fit"
        self._state = state_dict.get("train") if fitting else None

    def teardown(self, stage: str) -> None:
        """Closes the loaders that this object made."""
        for name in list(self._opened):
            self._close(name)

    def _evaluation(self, name: str) -> Any:
        split: Any = self._splits[name]
        self._close(name)
        if isinstance(split, (Loader, Mapping)):
            return EvaluationEpochs(self._loader(name, split))
        return [EvaluationEpochs(self._loader(name, one)) for one in split]

    def _loader(self, name: str, split: Any) -> Loader:
        if isinstance(split, Loader):
            chosen = split.distributed is not None or split.rank is not None
            if self.trainer is not None and not chosen:
                split.distributed = self.trainer.distributed_sampler_kwargs is not None
            return split
        place = self._place()
        if "distributed" in split:
            place = {"device": place["device"]} if place else {}
        loader = Loader(**{**place, **split})
        self._opened.setdefault(name, []).append(loader)
        return loader

    def _place(self) -> dict[str, Any]:
        """Returns the device, rank and world size of this process as Loader arguments."""
        if self.trainer is None:
            return {}
        place: dict[str, Any] = {"device": self.trainer.strategy.root_device}
        # Data-parallel ranks, also where other processes share a model.
        ranks = self.trainer.distributed_sampler_kwargs
        if ranks is None:
            return place | {"rank": 0, "world_size": 1}
        return place | {"rank": ranks["rank"], "world_size": ranks["num_replicas"]}

    def _close(self, name: str) -> None:
        for loader in self._opened.pop(name, []):
            loader.close()


class StatsMonitorHooks:
    """The methods of `fastio.integrations.lightning.StatsMonitor`."""

    def __init__(self, every_n_steps: int | None = None) -> None:
        super().__init__()
        self._every_n_steps = every_n_steps
        self._before = Stats()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._before = _train_loader(trainer).stats()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        every = self._every_n_steps
        if every is None:
            every = trainer.log_every_n_steps
        if not trainer.loggers or not every or (trainer.fit_loop.total_batch_idx + 1) % every:
            return
        now = _train_loader(trainer).stats()
        since, self._before = now - self._before, now
        values = {
            "loader/samples_per_s": since.samples_per_s,
            "loader/wait_share": since.wait_share,
        }
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)


def _train_loader(trainer: Any) -> Loader:
    loader = getattr(trainer.train_dataloader, "loader", trainer.train_dataloader)
    if not isinstance(loader, Loader):
        raise TypeError(
            "StatsMonitor needs a Trainer that trains on one fastio.Loader, and this one has "
            f"{type(loader).__name__}"
        )
    return loader
