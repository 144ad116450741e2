"""How the user loads and trains, as far as told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Use:
    """How the user loads and trains.

    Attributes:
        batch_size: samples a step.
        threads: `num_workers` of the loader; None: one for each core, fastio's default.
        crop: edge of the square that images are cropped to, in pixels.
        model_rate: samples a second that the model takes when data is there; None: not known.
        cache: folder that a remote dataset is kept in; None: none is.
        storage_options: for a URL.
        scratch: a folder in which files may be written and deleted again; None: only small ones,
            where temporary files go.
        epochs: that are trained; None: so many that the first one does not count.
    """

    batch_size: int = 256
    threads: int | None = None
    crop: int = 224
    model_rate: float | None = None
    cache: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    scratch: str | None = None
    epochs: int | None = None
