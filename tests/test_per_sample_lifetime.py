"""The worker processes of PerSample end with whoever needs them, however that ends."""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import select
import signal
import threading
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset

import fastio
from fastio import Loader, PerSample, Resize
from tests.children import LIMIT_S, in_fork, run_code
from tests.support import numbered_folder, told

SMALL = [Resize((8, 8))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbered_folder(tmp_path_factory.mktemp("data") / "images")


def process(image: Any) -> int:
    return os.getpid()


def negative(image: Any) -> Any:
    return 255 - image


def wait_for_end(pids: set[int]) -> None:
    """Waits until processes have ended; fails if they do not within minutes."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([handle], [], [], LIMIT_S)[0], f"process {pid} goes on"
        finally:
            os.close(handle)


def workers_of(batches: Any) -> set[int]:
    return {int(pid) for pids, _ in batches for pid in pids}


class OfThisProcess:
    """A function that other processes do not have, like one of `__main__` in a notebook.

    Args:
        folder: where each process that tries to load it leaves a file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, image: Any) -> int:
        return 0

    def __reduce__(self) -> Any:
        return _absent, (self.folder,)


def _absent(folder: Path) -> Any:
    (folder / str(os.getpid())).touch()
    raise AttributeError("it is not here")


def test_what_no_process_can_import_fails_in_one_and_the_error_says_what_to_do(
    folder: Path, tmp_path: Path
) -> None:
    steps = [*SMALL, PerSample(OfThisProcess(tmp_path), workers="processes", count=3)]
    with Loader(folder, 4, transforms=steps, multiprocessing_context="forkserver") as loader:
        for tries in (1, 2):
            with pytest.raises(fastio.WorkerDied, match="exit code 1") as caught:
                next(iter(loader))
            assert 'if __name__ == "__main__":' in str(caught.value)
            assert "notebook" in str(caught.value)
            assert len(list(tmp_path.iterdir())) == tries


BEGUN = """
import os, signal, sys, fastio

def process(image):
    return os.getpid()

loader = fastio.Loader(
    sys.argv[1], 2, num_workers=1,
    transforms=[fastio.Resize((8, 8)), fastio.PerSample(process, count=2)],
)
batches = iter(loader)
pids = {int(pid) for _ in range(6) for pid in next(batches)[0]}
print(*pids, flush=True)
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("sys.exit(3)", 3),
        ("", 0),
        ("loader.close()", 0),
        ("os._exit(4)", 4),
    ],
)
def test_processes_end_however_the_main_process_ends(folder: Path, end: str, status: int) -> None:
    done = run_code(BEGUN + end, folder, whole_exit=True)
    assert (done.returncode, done.stderr) == (status, "")
    pids = {int(pid) for pid in done.stdout.split()}
    assert pids
    wait_for_end(pids)


def test_processes_of_a_loader_that_nobody_has_end_without_the_garbage_collector(
    folder: Path,
) -> None:
    gc.disable()
    try:
        loader = Loader(folder, 2, transforms=[*SMALL, PerSample(process, count=1)])
        batches = iter(loader)
        pids = {int(pid) for pid in next(batches)[0]}
        del loader, batches  # in the middle of an epoch, as a cell of a notebook that runs again
        wait_for_end(pids)
    finally:
        gc.enable()


def fails(image: Any) -> Any:
    raise ValueError("no")


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
@pytest.mark.parametrize(
    ("bad", "function"), [("", fails), ("jpg", negative), ("png", negative), ("jpg", fails)]
)
def test_errors_do_not_keep_what_nobody_has_without_the_garbage_collector(
    tmp_path: Path, bad: str, function: Any, on_error: Any
) -> None:
    folder = numbered_folder(tmp_path / "images", (6,))
    if bad:
        path = min(folder.rglob("*.*"))
        path.with_suffix(f".{bad}").write_bytes(_image(bad)[:200])
    raises = on_error == "raise" or (function is fails and on_error == "replace")
    before = set(threading.enumerate())
    gc.disable()
    try:
        step = PerSample(function, count=1)
        loader = Loader(folder, 2, transforms=[*SMALL, step], on_error=on_error)
        batches = iter(loader)
        with pytest.raises(fastio.SampleError) if raises else nullcontext():
            list(batches)
        pids = {child.pid for child in multiprocessing.active_children()}
        assert pids
        del loader, batches
        wait_for_end(pids)
        for thread in set(threading.enumerate()) - before:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
    finally:
        gc.enable()


def _image(kind: str) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(file, {"jpg": "JPEG", "png": "PNG"}[kind])
    return file.getvalue()


INTERRUPTED = """
try:
    os.killpg(0, signal.SIGINT)
    for _ in batches:
        pass
except KeyboardInterrupt:
    loader.close()
    print("interrupted")
"""


def test_ctrl_c_ends_an_epoch_and_no_worker_complains(folder: Path) -> None:
    done = run_code(BEGUN + INTERRUPTED, folder)
    assert (done.returncode, done.stderr) == (0, "")
    pids, said = done.stdout.splitlines()
    assert said == "interrupted"
    wait_for_end({int(pid) for pid in pids.split()})


def test_a_function_that_does_not_return_does_not_keep_a_loader_open(
    folder: Path, tmp_path: Path
) -> None:
    def waits(image: Any) -> Any:
        if told([torch.from_numpy(image).permute(2, 0, 1)]) == [5]:
            (tmp_path / str(os.getpid())).touch()
            threading.Event().wait()
        return image

    loader = Loader(folder, 4, transforms=[*SMALL, PerSample(waits, count=1)])
    batches = iter(loader)
    next(batches)
    loader.close()
    wait_for_end({int(path.name) for path in tmp_path.iterdir()})
    with pytest.raises(fastio.LoaderClosed):
        next(batches)


def test_a_worker_that_is_stopped_within_an_answer_does_not_keep_a_loader_open(
    folder: Path, tmp_path: Path
) -> None:
    def stops(image: Any) -> str:
        def send_half(connection: Any, data: Any) -> None:
            os.write(connection.fileno(), bytes(data[: len(data) // 2]))
            (tmp_path / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGSTOP)

        Connection._send = send_half  # type: ignore[attr-defined]
        return "x" * 100_000

    loader = Loader(folder, 1, transforms=[*SMALL, PerSample(stops, count=1)], num_workers=1)

    def wait() -> None:
        with pytest.raises(fastio.LoaderClosed):
            next(iter(loader))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    while not (found := list(tmp_path.iterdir())):
        assert waiting.is_alive()
        waiting.join(0.05)
    closing = threading.Thread(target=loader.close, daemon=True)
    closing.start()
    closing.join(LIMIT_S)
    pid = int(found[0].name)
    if hangs := closing.is_alive():
        os.kill(pid, signal.SIGKILL)
    assert not hangs
    wait_for_end({pid})


def test_a_loader_that_is_garbage_ends_its_workers(folder: Path) -> None:
    loader = Loader(folder, 4, transforms=[*SMALL, PerSample(process, count=2)])
    pids = workers_of(loader)
    batches = iter(loader)
    next(batches)
    del batches, loader
    gc.collect()
    wait_for_end(pids)


def test_a_forked_child_starts_workers_of_its_own(folder: Path) -> None:
    with Loader(folder, 4, transforms=[*SMALL, PerSample(negative, count=1)]) as loader:
        expected = torch.cat([images for images, _ in loader])

        def work() -> bool:
            found = torch.cat([images for images, _ in loader])
            loader.close()
            return torch.equal(found, expected)

        assert in_fork(work) == 0
        assert torch.equal(torch.cat([images for images, _ in loader]), expected)


def test_several_sources_call_functions_too(folder: Path, tmp_path: Path) -> None:
    fastio.pack(folder, tmp_path / "packed")
    steps = [*SMALL, PerSample(negative, count=1)]
    with Loader(folder, 4, transforms=steps) as loader:
        expected = torch.cat([images for images, _ in loader])
    both = ConcatDataset([fastio.open(folder), fastio.open(folder)])
    with Loader(both, 5, transforms=steps) as loader:
        found = torch.cat([images for images, _ in loader])
    assert torch.equal(found, torch.cat([expected, expected]))
    mixed = fastio.mix([(str(folder), 1), (str(tmp_path / "packed"), 2)])
    options: dict[str, Any] = {"shuffle": True, "seed": 1}
    with Loader(mixed, 6, transforms=SMALL, **options) as loader:
        expected = torch.cat([255 - images for images, _ in loader])
    with Loader(mixed, 6, transforms=steps, **options) as loader:
        assert torch.equal(torch.cat([images for images, _ in loader]), expected)
