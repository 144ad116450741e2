"""A read that hangs for ever, as of a file server that is gone, keeps nobody from leaving."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

# The reads of images hang; the process leaves in one of several ways, and ends.
SCRIPT = """
import os, signal, sys, threading

import fastio
import fastio.formats.folder as folder

how, data = sys.argv[1:]
reading, for_ever = threading.Event(), threading.Event()


def hang(path):
    reading.set()
    for_ever.wait()


folder.read_file = hang
loader = fastio.Loader(data, 2, num_workers=2)


def consume():
    try:
        next(iter(loader))
    except fastio.LoaderClosed:
        pass


if how == "interrupt":
    def press():
        reading.wait()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    try:
        next(iter(loader))
    except KeyboardInterrupt:
        print("left")
else:
    threading.Thread(target=consume, daemon=True).start()
    reading.wait()
    if how == "close":
        loader.close()
    print("left")
"""


@pytest.mark.parametrize("how", ["close", "exit", "interrupt"])
def test_who_leaves_does_not_wait_for_a_read_that_hangs(how: str, tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    for number in range(4):
        pixels = np.zeros((8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "class" / f"{number}.png")
    command = [sys.executable, "-c", SCRIPT, how, str(tmp_path)]
    # It takes seconds; the limit is for a machine that is busy with other things.
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "left\n"
