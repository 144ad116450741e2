"""Imports the native module first, so that a checkout that was not built says so."""

from __future__ import annotations

from fastio.errors import BuildMissing

try:
    from fastio import _native as _native
except ImportError as error:
    raise BuildMissing(
        f"fastio's native module cannot be loaded ({error}). In a checkout, `tools/setup` builds "
        "it into .venv/; elsewhere, `pip install` the package. It is built for one Python version "
        "and machine at a time"
    ) from error
