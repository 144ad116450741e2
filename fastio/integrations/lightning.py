"""fastio for `lightning`: a DataModule, and a callback that logs the wait time of loaders.

`fastio.integrations.pytorch_lightning` has the same for users of the package `pytorch_lightning`.
"""

from __future__ import annotations

from fastio import PackageMissing

try:
    from lightning.pytorch import Callback, LightningDataModule
except ImportError as error:
    raise PackageMissing("lightning", f"import {__name__}", "fastio[lightning]", error) from error

from fastio.integrations.lightning_hooks import DataModuleHooks, StatsMonitorHooks

__all__ = ["DataModule", "StatsMonitor"]


class DataModule(DataModuleHooks, LightningDataModule):
    """Makes the sharded loaders of a Trainer, and saves the training position in checkpoints.

    Loaders are made when the Trainer asks for them, with its device and ranks, and follow its
    epochs. After `fit(ckpt_path=...)` training continues with exactly the samples that would have
    followed, wherever in an epoch the checkpoint was taken. In the middle of an epoch this requires
    the same number of processes and the same batch size, because the Trainer counts batches.

    Args:
        train: arguments of a `fastio.Loader` as a mapping, or a Loader. `device`, `rank` and
            `world_size` come from the Trainer unless the mapping has them.
        val, test, predict: likewise, or a list of several. They deliver the same samples each time,
            with the same augmentations: those of epoch 0.
    """


class StatsMonitor(StatsMonitorHooks, Callback):
    """Logs the throughput and the wait time of the training loader.

    `loader/samples_per_s` is the throughput of the first process. `loader/wait_share` is the
    fraction of the time, 0 to 1, that training waited for data. Both cover the time since the last
    log.

    Args:
        every_n_steps: number of batches between two logs; 0 disables them. None uses the Trainer's
            `log_every_n_steps`.

    Raises:
        TypeError: the Trainer does not train on one fastio Loader; raised by `fit`.
    """
