"""How the user loads and trains, as far as told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Use:
    """How the user loads data and trains.

    Attributes:
        batch_size: samples per step.
        threads: `num_workers` of the loader; None for one per core, the default.
        crop: height and width of the crops, in pixels.
        model_rate: samples per second of the model when it never waits; None if unknown.
        cache: cache folder of a remote dataset; None if there is none.
        storage_options: options of the store of a URL.
        scratch: folder for temporary files; None writes only small ones, to the system's folder.
        epochs: planned epochs; None for many, so that the first one does not matter.
    """

    batch_size: int = 256
    threads: int | None = None
    crop: int = 224
    model_rate: float | None = None
    cache: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    scratch: str | None = None
    epochs: int | None = None
