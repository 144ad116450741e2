"""Imports all that jobs of `kill_jobs` import late; for the process that they are forked from."""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import suppress

import fastio

_PACKAGES = ("cache", "dataset", "engine", "fetch", "formats", "pack", "staging", "store", "train")
_MODULES = ("tests.kill_jobs", "torch._dynamo", "pyarrow.pandas_compat", "fastio.feed.native")
_MODULES += ("fastio.device", "fastio.loader", "fastio.feed.workers", "PIL.JpegImagePlugin")

for _name in _MODULES:
    importlib.import_module(_name)
for _found in pkgutil.walk_packages(fastio.__path__, "fastio."):
    if _found.name.split(".")[1] in _PACKAGES:
        with suppress(ImportError):  # a package that is not installed
            importlib.import_module(_found.name)
