"""One rung of a ladder, in processes of its own.

Run as `python -m fastio.diagnose.bench.rung RECIPE RESULT`.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fastio.diagnose.bench.baseline import Delivery, PillowFolder, TorchLoader
from fastio.diagnose.bench.compute import image_model
from fastio.diagnose.bench.ladder import Recipe
from fastio.diagnose.bench.training import ImageTrial
from fastio.diagnose.measured import Rung
from fastio.diagnose.options import Options
from fastio.train.fields import schema_of
from fastio.train.loaders import training_loader
from fastio.train.loop import time_epochs
from fastio.train.parallel import Process, processes


def train(recipe: Recipe) -> Rung:
    """Trains a recipe, and returns the mean duration of an epoch and the accuracy at the end."""
    how = recipe.training
    # The processes of a rung together have the same number of samples in a step as other rungs.
    options = replace(how, batch_size=how.batch_size // recipe.processes)
    classes = len(schema_of(how.data).classes or ())
    asked = Options(data=how.data, model=recipe.model, size=recipe.size)
    task = ImageTrial(
        options,
        recipe.size,
        lambda process: _loader(replace(recipe, training=options), process),
        lambda: image_model(asked, classes),
    )
    with processes(options) as process:
        timed = time_epochs(task, options, process)
    return Rung(recipe.name, timed.seconds / how.epochs, timed.val["accuracy"])


def _loader(recipe: Recipe, process: Process) -> Any:
    """Returns a loader of full shuffled batches: float32 images (n, 3, size, size), labels (n,)."""
    options = recipe.training
    if not recipe.torch_loader:
        threads = max(1, options.threads // recipe.processes)
        return training_loader(
            replace(options, threads=threads),
            process,
            transforms=recipe.transforms,
            device=process.device if recipe.prefetch else None,
            channels_last=options.channels_last,
        )
    return TorchLoader(
        PillowFolder(options.data, recipe.size, normalized=True),
        options.batch_size,
        options.threads,
        delivery=Delivery(process.device, options.channels_last),
        pin_memory=recipe.pin_memory,
    )


def main() -> None:
    """Trains the recipe in the first file, and writes the result to the second."""
    result = train(Recipe.read(sys.argv[1]))
    if int(os.environ.get("RANK", "0")) == 0:
        Path(sys.argv[2]).write_text(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
