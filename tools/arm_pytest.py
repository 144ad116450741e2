"""A plugin of pytest for tools/arm python: tests that need torch or a fork are skipped."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


def _fork() -> int:
    pytest.skip("qemu's user mode ends when a process with threads forks")


os.fork = _fork


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    """Skips tests whose fixtures need torch."""
    yield from _skipped_without_torch()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Skips tests that need torch."""
    yield from _skipped_without_torch()


def _skipped_without_torch() -> Generator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        pytest.skip("torch is not installed")
