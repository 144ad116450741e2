"""What the tests of Lightning, Accelerate and the Trainer of transformers share."""

from __future__ import annotations

import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support import torchvision_first

ROWS, BATCH = 44, 8
STEPS = -(-ROWS // BATCH)


def import_trainers(name: str, into: dict[str, Any]) -> None:
    """Imports all names of a module of tests that imports trainers, which takes seconds.

    Called by a fixture: each of pytest's processes imports all files of tests, and one runs a file.
    """
    torchvision_first()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that they import, about each other
        module = import_module(name)
    into.update({name: value for name, value in vars(module).items() if name[0] != "_"})


def trainers_script(name: str) -> str:
    """The script of docs/trainers.md (marked py, its model given) that imports a package."""
    text = (Path(__file__).parent.parent / "docs" / "trainers.md").read_text()
    scripts = re.findall(r"^```py\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    [script] = [s for s in scripts if re.search(rf"^(import|from) {name}\b", s, re.MULTILINE)]
    return str(script)
