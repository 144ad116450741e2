"""`fastio.integrations.lightning` for users of the package `pytorch_lightning`."""

from __future__ import annotations

from fastio import PackageMissing

try:
    from pytorch_lightning import Callback, LightningDataModule
except ImportError as error:
    raise PackageMissing(
        "pytorch-lightning", f"import {__name__}", "pytorch-lightning", error
    ) from error

from fastio.integrations.lightning_hooks import DataModuleHooks, StatsMonitorHooks

__all__ = ["DataModule", "StatsMonitor"]


class DataModule(DataModuleHooks, LightningDataModule):
    """`fastio.integrations.lightning.DataModule`, for the Trainer of `pytorch_lightning`."""


class StatsMonitor(StatsMonitorHooks, Callback):
    """`fastio.integrations.lightning.StatsMonitor`, for the Trainer of `pytorch_lightning`."""
