"""fastio for users of `lightning`: a DataModule, and a callback that logs what loaders waited for.

For users of the package `pytorch_lightning`, the same is in `fastio.pytorch_lightning`.
"""

from __future__ import annotations

from lightning.pytorch import Callback, LightningDataModule

from fastio.lightning_hooks import DataModuleHooks, StatsMonitorHooks

__all__ = ["DataModule", "StatsMonitor"]


class DataModule(DataModuleHooks, LightningDataModule):
    """Loaders for a Trainer: each process gets its part, and a checkpoint knows where to go on.

    Loaders are made when the Trainer asks for them: on its device, for its ranks, with what it says
    about epochs. What is trained on after `fit(ckpt_path=...)`, of checkpoints taken anywhere in an
    epoch, is what would have been trained on, sample by sample; to be so in the middle of an epoch,
    the number of processes and the batch size have to be the same, as the Trainer counts batches.

    Args:
        train: the arguments of a `fastio.Loader`, as a mapping, or a Loader. A mapping's `device`,
            `rank` and `world_size` are the Trainer's unless it has some.
        val, test, predict: likewise, or a list of several. They give the same samples each time,
            with the same augmentations: those of epoch 0.
    """


class StatsMonitor(StatsMonitorHooks, Callback):
    """Logs what the training loader did since the last time.

    `loader/samples_per_s` is of this process, the first one; `loader/wait_share` is the part of the
    time, 0 to 1, that training waited for data.

    Args:
        every_n_steps: batches from one log to the next; 0 for no logs. None: the Trainer's
            `log_every_n_steps`.

    Raises:
        TypeError: from `fit`, the Trainer does not train on one fastio Loader.
    """
