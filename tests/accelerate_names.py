"""What the tests of Accelerate use of it; importing it takes seconds."""

from __future__ import annotations

from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration

from fastio.integrations.accelerate import PreparedLoader, TrainerLoaders, prepare

__all__ = [
    "Accelerator",
    "DataLoaderConfiguration",
    "PreparedLoader",
    "ProjectConfiguration",
    "TrainerLoaders",
    "prepare",
    "skip_first_batches",
]
