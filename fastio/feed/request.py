"""The arguments of a loader, from which its feed is chosen and made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastio.cache import Cache
from fastio.device import Device
from fastio.engine import OnError
from fastio.engine.ragged import Form
from fastio.order.sampling import Sampling
from fastio.sources.torch_dataset import WorkerSettings
from fastio.sources.torch_rows import TorchRows


@dataclass(frozen=True)
class Request:
    """The arguments of a `Loader`, with their meaning there.

    Attributes:
        dataset: a dataset object; paths are opened before.
        cache: cache for recoded images, and for the sources of a mix that are paths.
        auto_threads: whether `num_workers` is "auto".
        by_rows: whether any row may be read at any time, because several datasets are loaded.
        found: the rows of a torch dataset, if they were determined before; else None.
    """

    dataset: Any
    sampling: Sampling
    workers: WorkerSettings
    transforms: Any
    device: Device | None
    on_error: OnError
    fields: tuple[str, ...] | None
    channels_last: bool
    ragged: Form | Mapping[str, Form] | None = None
    cache: Cache | str | os.PathLike[str] | None = None
    auto_threads: bool = False
    by_rows: bool = False
    found: TorchRows | None = None
