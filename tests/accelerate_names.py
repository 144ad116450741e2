"""What the tests of Accelerate use of it; importing it takes seconds."""

from __future__ import annotations

from accelerate import Accelerator as Accelerator
from accelerate import skip_first_batches as skip_first_batches
from accelerate.utils import DataLoaderConfiguration as DataLoaderConfiguration
from accelerate.utils import ProjectConfiguration as ProjectConfiguration

from fastio.integrations.accelerate import PreparedLoader as PreparedLoader
from fastio.integrations.accelerate import TrainerLoaders as TrainerLoaders
from fastio.integrations.accelerate import prepare as prepare
