"""What is not closed when the interpreter exits must not hang or end it with an error.

A daemon thread that came back from native code after the interpreter's end ended the process with
"terminate called without an active exception".
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.children import run_code
from tests.pictures import jpeg, png

_HANGS_S = 120

# Python forgets that an interrupt ends it where another thread evaluates a string meanwhile, as the
# modules of Pillow's formats do (namedtuple): then it ends with 1 and not by the signal.
_IMPORTS = """
import os, sys, threading, time
from PIL import Image
Image.init()
from fastio import transforms as T
from fastio.engine import Engine, EngineSettings
from fastio.sources.folder import FolderDataset
from fastio.order.order import Order
from fastio.order.plan import Plan
import fastio
"""

# Four processes, one after the other; the first that fails is told of.
_FOUR_TIMES = """
for _ in range(4):
    child = os.fork()
    if not child:
        break
    status = os.waitpid(child, 0)[1]
    if status:
        os._exit(os.waitstatus_to_exitcode(status) % 256)
else:
    os._exit(0)
"""

_START = """
dataset = FolderDataset(sys.argv[1])
steps = [T.Resize((24, 24))]

def engine():
    return Engine(dataset, EngineSettings(transforms={"image": T.compile(steps)}, threads=2))

def run(engine):
    return engine.run(Plan(Order(len(dataset)), 2), epoch=0, ahead=6)

def run_for_ever(engine, started):
    while True:
        for batch in run(engine):
            started.set()

def in_a_daemon_thread(engine):
    started = threading.Event()
    threading.excepthook = lambda _: None  # "closed", at most
    threading.Thread(target=run_for_ever, args=(engine, started), daemon=True).start()
    started.wait()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("photos")
    (root / "a").mkdir()
    for number in range(16):
        (root / "a" / f"{number:02}.jpg").write_bytes(jpeg(200, 300, number))
        (root / "a" / f"{number:02}.png").write_bytes(png(200, 300, number))
    return root


def script(code: str, folder: Path) -> subprocess.Popen[str]:
    """An interpreter that does `code`."""
    command = [sys.executable, "-c", _IMPORTS + _START + code, str(folder)]
    pipe = subprocess.PIPE
    no_threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=os.environ | no_threads,
        start_new_session=True,
    )
    _running.append(process)
    return process


_running: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def no_script_goes_on() -> Iterator[None]:
    yield
    while _running:
        with _running.pop() as process:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # and what it forked


@pytest.mark.parametrize(
    "code",
    [
        "e = engine(); s = run(e); next(s)",
        "e = engine(); s = run(e); batch = next(s); s.self = s; e.self = [e, batch]",
        "s = run(engine()); next(s); sys.exit()",
        "e = engine(); in_a_daemon_thread(e)",
        "import builtins; builtins.kept = run(engine()); next(builtins.kept)",
        "loader = fastio.Loader(sys.argv[1], 4, transforms=steps); batches = iter(loader); "
        "next(batches)",
    ],
)
def test_an_exit_is_clean_whatever_is_left_open(code: str, folder: Path) -> None:
    done = run_code(_IMPORTS + _FOUR_TIMES + _START + code, folder, whole_exit=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_ends_a_program_that_waits_for_batches(folder: Path) -> None:
    process = script(
        "print('at work', flush=True); run_for_ever(engine(), threading.Event())", folder
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=_HANGS_S)
    assert process.returncode == -signal.SIGINT, messages
    assert "KeyboardInterrupt" in messages
    assert "terminate" not in messages


def test_an_interrupt_while_a_thread_is_started_ends_the_program(folder: Path) -> None:
    process = script(
        """
start = threading.Thread.start

def interrupted(thread):
    start(thread)
    if "pillow" in thread.name:
        raise KeyboardInterrupt

threading.Thread.start = interrupted
run_for_ever(engine(), threading.Event())
""",
        folder,
    )
    _, messages = process.communicate(timeout=_HANGS_S)
    assert process.returncode == -signal.SIGINT
    assert messages.rstrip().endswith("KeyboardInterrupt")
