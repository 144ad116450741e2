"""Tars for tests, and what the webdataset package makes of them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pictures import jpeg, png

Members = Iterable[tuple[str, bytes]]


def write_tar(path: Path, members: Members, form: int = tarfile.PAX_FORMAT) -> Path:
    """A tar of files with these names and bytes."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def npy(array: Any) -> bytes:
    """An array as a file's bytes."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def sample_files(number: int) -> list[tuple[str, bytes]]:
    """One sample of all kinds of fields."""
    files = {
        "jpg": jpeg(30 + number % 5, 40, seed=number),
        "cls": str(number % 4).encode(),
        "txt": f"sämple {number}".encode(),
        "json": json.dumps({"number": number}).encode(),
        "weight.json": json.dumps(number / 2).encode(),
        "emb.npy": npy(np.arange(3, dtype=np.float32) + number),
        "seg.png": png(30, 40, seed=number),
        "bin": bytes([number, 255]),
    }
    return [(f"part/{number:04d}.{extension}", data) for extension, data in files.items()]


def write_tars(folder: Path, rows: tuple[int, ...] = (5, 4, 6)) -> str:
    """Tars of samples of all kinds; returns the pattern that means them."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, count in enumerate(rows):
        samples = range(first, first + count)
        members = [file for sample in samples for file in sample_files(sample)]
        write_tar(folder / f"train-{number:03d}.tar", members)
        first += count
    return f"{folder}/train-{{000..{len(rows) - 1:03d}}}.tar"


def webdataset_samples(paths: Any, *decoders: str) -> list[dict[str, Any]]:
    """What the webdataset package makes of tars, without what it adds of its own.

    These are the steps of its WebDataset, which would leave the files to the garbage collector.

    Args:
        paths: a tar or a pattern, or a list of tars.
        decoders: as of its `decode`; none leaves bytes.
    """
    pytest.importorskip("webdataset", reason="webdataset is what to compare with")
    from webdataset import autodecode, shardlists, tariterators

    own = ("__url__", "__local_path__")
    urls = shardlists.expand_urls(paths) if isinstance(paths, str) else paths
    with ExitStack() as files:
        streams = [{"url": url, "stream": files.enter_context(open(url, "rb"))} for url in urls]
        samples = tariterators.group_by_keys(tariterators.tar_file_expander(streams))
        if decoders:
            handlers = [autodecode.imagehandler(name) for name in decoders]
            samples = map(autodecode.Decoder(handlers), samples)
        return [{k: v for k, v in sample.items() if k not in own} for sample in samples]
