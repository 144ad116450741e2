"""A fastio without its native module says what to do."""

from __future__ import annotations

import subprocess
import sys


def test_a_checkout_that_was_not_built_says_so() -> None:
    code = """
import sys
sys.modules["fastio._native"] = None  # as if it could not be found
try:
    import fastio
except ImportError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("BuildMissing")
    assert "tools/setup" in done.stdout
