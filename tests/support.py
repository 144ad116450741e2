"""What several test files need: images that tell their row; torchvision, whatever its build.

It does not import torch: some tests run where there is none (tools/arm).
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from inspect import signature
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

import fastio
from fastio.pack.encoder import Filled
from fastio.pack.packer import Packer
from fastio.pack.units import ShardWriter
from fastio.packed import ShardEntry
from fastio.runtime import memory
from fastio.runtime.files import AnyPath
from fastio.sources import folder


@contextmanager
def interrupted_at(unit: int, method: str = "_record_written") -> Iterator[None]:
    """A pack is interrupted, as by Ctrl-C, where `Packer` would record a unit."""
    record, seen = getattr(Packer, method), 0

    def stop(self: Packer[Any, Any], finished: Any) -> None:
        nonlocal seen
        if seen == unit:
            raise KeyboardInterrupt
        seen += 1
        record(self, finished)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Packer, method, stop)
        with pytest.raises(KeyboardInterrupt):
            yield


def pack_stopped(units: int, source: Any, out: Path, **options: Any) -> None:
    """Packs a source, and stops it as by Ctrl-C when some units are finished."""
    with interrupted_at(units, "_commit"):
        fastio.pack(source, out, **options)


def threads() -> set[str]:
    """The numbers of this process's threads. A joined thread stays among them for a moment."""
    return set(os.listdir("/proc/self/task"))


def descriptors() -> set[tuple[str, str]]:
    """This process's open descriptors: the number of each, and what it stands for.

    Garbage of earlier tests may be closed at any time: compare by `<=`, not by number.
    """
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one of this listing
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def until(condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
    """Waits for a condition; AssertionError if it does not come true."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come true"
        time.sleep(0.005)


_OF_DATA = frozenset(signature(fastio.open).parameters)


def open_loader(source: Any, *args: Any, view: Any = None, **options: Any) -> fastio.Loader:
    """A Loader of a source that is opened with those of the options that are options of data.

    Of a `view`, which is called with the source, all of them are, but for the fields.
    """
    few = view is None and _OF_DATA & options.keys() <= {"cache", "fields"}
    own = {"cache", "fields"} if few else {"fields"}
    of_data = {name: options.pop(name) for name in _OF_DATA - own if name in options}
    data = fastio.open(source, **of_data) if of_data else source
    return fastio.Loader(data if view is None else view(data), *args, **options)


def give_memory(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Makes the machine one with so much memory, in whole KiB, all free, whichever module asks."""
    told = SimpleNamespace(read_text=lambda: f"MemAvailable: {nbytes >> 10} kB")
    monkeypatch.setattr(memory, "_MEMINFO", told)
    monkeypatch.setattr(memory, "_CGROUPS", ())
    monkeypatch.setattr(memory, "total_memory", lambda: nbytes)


@contextmanager
def packing_ends_after(
    shards: int, error: type[BaseException] = KeyboardInterrupt
) -> Iterator[None]:
    """Packing ends with an error, as by a kill, when a process has written so many shards."""
    write = ShardWriter.write
    written = 0

    def write_some(self: ShardWriter, filled: Filled, unit: int, part: int) -> ShardEntry:
        nonlocal written
        if written == shards:
            raise error
        written += 1
        return write(self, filled, unit, part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardWriter, "write", write_some)
        yield


@cache
def import_torchvision() -> Any:
    """torchvision with its transforms and datasets; skips the test where it is not installed."""
    import plain_torchvision  # in tools/, which is not on the path of every process of the tests

    try:
        return plain_torchvision.load()
    except ImportError:
        pytest.skip("torchvision is not installed")


def import_transformers() -> Any:
    """Hugging Face's models, which import torchvision where there is one; skips the test where
    they are not installed."""
    transformers = pytest.importorskip("transformers")
    torchvision_first()
    return transformers


def torchvision_first() -> None:
    """Imports torchvision where it is installed, before a package that imports it."""
    if find_spec("torchvision") is not None:
        import_torchvision()


def tell(row: int) -> tuple[int, int, int]:
    """The colour of the image of a row, which `told` recognises after any crop and resize."""
    return 8 * (row % 32), 8 * (row // 32), 128


def told(images: Any) -> list[int]:
    """The rows of images made by `numbered_folder`: tensors (N, C, H, W), or a list (C, H, W)."""
    means = [image.double().mean(dim=(1, 2)) for image in images]
    return [round(float(mean[0]) / 8) + 32 * round(float(mean[1]) / 8) for mean in means]


def flat(lists: Iterable[Iterable[Any]]) -> list[Any]:
    """The items of all lists in one."""
    return list(chain.from_iterable(lists))


def numbered_folder(path: Path, per_class: tuple[int, ...] = (9, 7, 8)) -> Path:
    """A folder of JPEGs of unequal sizes, each of one colour that tells its row."""
    row = 0
    for label, count in enumerate(per_class):
        folder = path / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(count):
            size = (24 + 8 * (row % 3), 32 + 4 * (row % 5))
            image = Image.new("RGB", size, tell(row))
            image.save(folder / f"{number:03}.jpg", quality=95, subsampling=0)
            row += 1
    return path


def slow_reads(patch: pytest.MonkeyPatch) -> threading.Event:
    """Has the files of image folders that Pillow decodes wait for the event that is returned."""
    arrived, read = threading.Event(), folder.read_file

    def wait_and_read(path: AnyPath) -> bytes:
        arrived.wait()
        return read(path)

    patch.setattr(folder, "read_file", wait_and_read)
    return arrived


def contents(path: Path) -> dict[str, bytes]:
    """A folder's files by name."""
    return {item.name: item.read_bytes() for item in sorted(path.iterdir())}


def without_ids(files: Mapping[str, bytes]) -> dict[str, bytes | str]:
    """Returns what does not depend on where and how a dataset was packed, by file name.

    In a store, the names of shards contain a random id, which is left out here. The manifest, which
    has these names, becomes its fingerprint.
    """
    found: dict[str, bytes | str] = {}
    for name, data in files.items():
        plain = re.sub(r"-[0-9a-f]{16}(?=\.arrow)", "", name)
        assert plain not in found, f"two of {plain}"
        found[plain] = data
        if name.startswith("manifest"):
            found[plain] = pa.ipc.open_file(data).schema.metadata[b"fastio.xxh3"].decode()
    return found
