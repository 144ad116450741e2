"""Pieces of a cache that are wrong: each is found when a process first opens it, and fetched again.

What a power cut leaves looks the same: pieces are not flushed to the disk before they are said to
be ready, so the index may outlive some of their bytes.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastio
from fastio import Cache, Loader, Schema, Tokens
from fastio.cache import CacheFolder, report
from tests.servers import http_folder
from tests.staging_support import MIB, pack_noise, pack_table, piece_files
from tests.support import open_loader
from tests.token_support import Windows

PIECE = 64 << 10


def zeros_in_the_middle(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 4)
        file.write(bytes(path.stat().st_size // 2))


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zeros_at_the_end(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, size // 2)
    os.truncate(path, size)


def nothing_in_it(path: Path) -> None:
    path.write_bytes(b"")


HOW = [zeros_in_the_middle, cut_off, zeros_at_the_end, nothing_in_it]


def pack_text(path: Path) -> Path:
    """Tokens in shards of some 100 KB, of which no window is like another."""
    rng = np.random.default_rng(0)
    with fastio.Writer(path, Schema({"tokens": Tokens("uint16")}), shard_size=100_000) as writer:
        for _ in range(100):
            writer.write({"tokens": rng.integers(1, 60_000, 4000, dtype=np.uint16)})
    return path


def write_tars(path: Path) -> Path:
    """Two tars of texts and numbers, without a checksum anywhere."""
    path.mkdir()
    for number in range(2):
        with tarfile.open(path / f"{number}.tar", "w") as tar:
            for sample in range(64):
                key = 64 * number + sample
                for extension, data in (("cls", b"%d" % key), ("txt", b"%06d" % key * 700)):
                    member = tarfile.TarInfo(f"{key:06}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return path


MAKE = {
    "photos": lambda path: pack_noise(path, 96),
    "table": lambda path: pack_table(path, 2000),
    "text": pack_text,
    "tars": write_tars,
}


@pytest.fixture(scope="module", params=MAKE)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(MAKE[kind](tmp_path_factory.mktemp("data") / kind))


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with http_folder(folder.parent) as served:
        name = f"{folder.name}/{{0..1}}.tar" if folder.name == "tars" else folder.name
        yield f"{served}/{name}"


def epoch(url: str, kind: str, cache: Cache | None) -> tuple[list[Any], int]:
    """All samples of an epoch in their order, and how many pieces were fetched again."""
    view = Windows(128) if kind == "text" else None
    found: list[Any] = []
    with open_loader(url, 16, view=view, num_workers=2, cache=cache) as loader:
        for batch in loader:
            for value in batch.values() if isinstance(batch, dict) else batch:
                found += value if isinstance(value, list) else [each.tolist() for each in value]
        return found, loader.stats().refetched


@pytest.fixture(scope="module")
def expected(url: str, kind: str) -> list[Any]:
    return epoch(url, kind, None)[0]


@pytest.mark.parametrize("damage", HOW)
def test_damaged_pieces_of_another_process_are_fetched_again(
    damage: Any, url: str, kind: str, expected: list[Any], tmp_path: Path
) -> None:
    with Cache(tmp_path / "cache", 64 * MIB) as cache:
        assert epoch(url, kind, cache) == (expected, 0)
    pieces = list(piece_files(tmp_path / "cache"))
    assert pieces
    for path in pieces:
        damage(path)
    # A cache that is opened anew knows nothing of what it has: as in another process.
    with Cache(tmp_path / "cache", 64 * MIB) as cache:
        assert epoch(url, kind, cache)[0] == expected
        assert cache.status().damaged > 0
        assert cache.verify().damaged == []


def test_a_damaged_piece_is_counted_and_anybodys(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "cache", 8 * MIB)
    source = folder.source("http://host/data", "0" * 16, 10, 1, 10 * PIECE)
    for number in range(2):
        folder.claim(source, {number: PIECE})
        folder.store(source, number, [bytes([number]) * PIECE])
    zeros_in_the_middle(folder.file(source, 1))
    other = CacheFolder(tmp_path / "cache", 8 * MIB)
    assert other.look(source, 0) == "whole"
    assert other.look(source, 1) == "damaged"
    assert other.look(source, 1) == "missing"
    assert other.claim(source, {0: PIECE, 1: PIECE}) == {0: "ready", 1: "mine"}
    assert report.status(other).damaged == 1
    folder.close()
    other.close()


def test_a_piece_is_read_once_to_be_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CacheFolder(tmp_path / "cache", 8 * MIB)
    source = folder.source("http://host/data", "0" * 16, 10, 1, 10 * PIECE)
    folder.claim(source, {1: PIECE})
    folder.store(source, 1, [b"1" * PIECE])
    other = CacheFolder(tmp_path / "cache", 8 * MIB)
    read: list[CacheFolder] = []
    for each in (folder, other):
        before = each.files.read
        monkeypatch.setattr(
            each.files, "read", lambda *a, of=each, go=before: (read.append(of), go(*a))[1]
        )
        assert all(each.has(source, 1, PIECE) for _ in range(3))
    assert read == [other]  # the one that wrote it knows what it wrote
    folder.close()
    other.close()


def test_zeros_in_a_large_shard_of_tokens_are_never_seen(tmp_path: Path) -> None:
    """Shards of more than 16 MiB are not compared with their own hash when they are opened."""
    tokens = np.random.default_rng(0).integers(1, 60_000, 10 << 20, dtype=np.uint16)
    with fastio.Writer(tmp_path / "text", Schema({"tokens": Tokens("uint16")})) as writer:
        writer.write({"tokens": tokens})

    def zeros(url: str) -> int:
        with (
            Cache(tmp_path / "cache") as cache,
            fastio.open(url, cache=cache) as dataset,
            Loader(fastio.TokenWindows(dataset, 65_535), 16, num_workers=1) as loader,
        ):
            return sum(int((value == 0).sum()) for batch in loader for value in batch.values())

    with http_folder(tmp_path) as url:
        assert zeros(f"{url}/text") == 0
        (shard,) = piece_files(tmp_path / "cache")
        with open(shard, "r+b") as file:
            file.seek(8 << 20)
            file.write(bytes(4 << 20))
        assert zeros(f"{url}/text") == 0
