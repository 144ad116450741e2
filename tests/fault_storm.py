"""Epochs through a proxy that spoils a part of all answers; and every row compared.

    python -m tests.fault_storm --epochs 50 --kind packed --rate 0.02
    python -m tests.fault_storm --epochs 50 --kind tars --cache --rate 0.02

Every row has to be what a loader of the same data on this disk delivers, without an error; and what
the proxy did has to be found again in the loader's `stats()`.

All kinds of data go through all faults (see `servers.FaultProxy.storm`) but for tars, which have no
checksums of their files' bytes: faults that only those could tell are left out there, and single
bits are flipped in their headers alone, which have one.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import fastio
from fastio import Cache, Loader, Scalar, Schema, Tokens
from fastio.store import Store, open_store
from tests.pictures import jpeg
from tests.servers import HIDDEN_FAULTS, OPEN_FAULTS, STORM, FaultProxy, http_folder
from tests.staging_support import CROPS, MIB
from tests.support import open_loader
from tests.token_support import Windows

TIMEOUT_S = 0.5  # of a request that makes no progress
EPOCHS_A_LOADER = 2
_TARS = 12


@dataclass(frozen=True)
class Kind:
    """A kind of data.

    Attributes:
        make: writes it to a folder, of a version.
        source: what is opened, below that folder.
        options: of the loader.
        faults: that a reader has to notice.
        budget: of a cache that cannot hold it all.
    """

    make: Callable[[Path, int], None]
    source: str
    options: dict[str, Any]
    faults: tuple[str, ...]
    budget: int


def _make_packed(folder: Path, version: int) -> None:
    # 32 pixels: 3 KiB a row, so that there are many requests.
    rows = (row + 10_000 * version for row in range(720))
    schema = Schema({"image": fastio.Image(), "label": Scalar("int64")})
    from tests.staging_support import noise

    with fastio.Writer(folder / "data", schema, codec="raw", shard_size=24 << 10) as writer:
        for row in rows:
            writer.write({"image": noise(row, 32), "label": row})


def _make_table(folder: Path, version: int) -> None:
    samples = (
        {"x": np.full(8, row, np.float32), "y": row + 10_000 * version} for row in range(4000)
    )
    fastio.pack(samples, folder / "data", shard_size=2 << 10)


def _make_tokens(folder: Path, version: int) -> None:
    schema = Schema({"tokens": Tokens("uint16"), "label": Scalar("int64")})
    with fastio.Writer(folder / "data", schema, shard_size=4 << 10) as writer:
        for row in range(1200):
            length = int(np.random.default_rng(row).integers(1, 400))
            tokens = (row * 7919 + version + np.arange(length)) % 65536
            writer.write({"tokens": tokens.astype(np.uint16), "label": row})


def _make_tars(folder: Path, version: int) -> None:
    (folder / "data").mkdir(parents=True)
    for number in range(_TARS):
        path = folder / "data" / f"train-{number:06}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for index in range(30):
                seed = 100 * number + index + 10_000 * version
                files = {
                    "jpg": jpeg(24 + index % 5, 32, seed=seed),
                    "cls": str(seed % 7).encode(),
                    "txt": f"sample {index} of {number}, {version}".encode(),
                }
                for extension, data in files.items():
                    member = tarfile.TarInfo(f"{number:02}{index:04}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def _header_spans(folder: Path) -> dict[str, list[tuple[int, int]]]:
    """Where the headers of tars are, by their paths at the server."""
    found = {}
    for path in folder.glob("data/*.tar"):
        with tarfile.open(path) as tar:
            spans = [(member.offset, member.offset + tarfile.BLOCKSIZE) for member in tar]
        found[f"/data/{path.name}"] = spans
    return found


KINDS = {
    "packed": Kind(_make_packed, "data", {"transforms": CROPS}, STORM, 3 * MIB),
    "table": Kind(_make_table, "data", {"batch_size": 64}, STORM, 160 << 10),
    "tokens": Kind(
        _make_tokens,
        "data",
        {"view": Windows(64), "batch_size": 32},
        STORM,
        3 * MIB // 2,
    ),
    "tars": Kind(
        _make_tars,
        f"data/train-{{000000..{_TARS - 1:06}}}.tar",
        {"transforms": {"jpg": [fastio.RandomResizedCrop(16)]}},
        (*OPEN_FAULTS, "flip"),
        3 * MIB // 2,
    ),
}


@dataclass
class Outcome:
    """What a storm saw.

    Attributes:
        rows: that were compared.
        requests: that the proxy was asked.
        struck: faults, by kind.
        retries, refetched: what the loaders counted.
        wrong: everything that must not be, in words.
        loaders: how many there were.
    """

    rows: int = 0
    requests: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    refetched: int = 0
    wrong: list[str] = field(default_factory=list)
    loaders: int = 0

    @property
    def open(self) -> int:
        """Faults that who speaks HTTP notices."""
        return sum(self.struck[name] for name in OPEN_FAULTS)

    @property
    def hidden(self) -> int:
        """Faults that only who knows the bytes notices."""
        return sum(self.struck[name] for name in HIDDEN_FAULTS)

    def __str__(self) -> str:
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.struck.items()))
        text = (
            f"{self.rows:,} rows compared in {self.loaders} loaders, {self.requests:,} requests; "
            f"{self.open} faults of HTTP, {self.retries} retries; {self.hidden} of bytes, "
            f"{self.refetched} fetched again; {len(self.wrong)} failures\n  ({kinds})"
        )
        return "\n".join([text, *self.wrong])


def storm(
    kind: str,
    root: Path,
    *,
    epochs: int,
    rate: float,
    seed: int = 0,
    cache: bool = False,
    epochs_a_loader: int = EPOCHS_A_LOADER,
    faults: tuple[str, ...] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Reads epochs through a storm, with a new loader now and then.

    Args:
        kind: of data; see `KINDS`.
        root: an empty folder.
        epochs: in all.
        rate: of requests that are spoilt.
        seed: of the faults.
        cache: whether there is one; it is too small for all the data.
        epochs_a_loader: after which the next loader begins, and opens the dataset.
        faults: others than the kind's.
        say: is told how far it is.
    """
    about = KINDS[kind]
    for version, name in enumerate(("now", "old")):
        about.make(root / name, version)
    outcome = Outcome()
    where = Cache(root / "cache", about.budget) if cache else None
    with ExitStack() as stack:
        now, old = (stack.enter_context(http_folder(root / name)) for name in ("now", "old"))
        proxy = stack.enter_context(FaultProxy(now, seed))
        stack.enter_context(_short_timeouts())
        stack.enter_context(mock.patch.dict(os.environ, XDG_CACHE_HOME=str(root / "indexes")))
        local = stack.enter_context(_loader(root / "now" / about.source, about))
        proxy.storm(
            rate,
            about.faults if faults is None else faults,
            seed=seed,
            old=old,
            spans=_header_spans(root / "now") if kind == "tars" else None,
        )
        for first in range(0, epochs, epochs_a_loader):
            shutil.rmtree(root / "indexes", ignore_errors=True)
            chosen = range(first, min(epochs, first + epochs_a_loader))
            try:
                with _loader(f"{proxy.url}/{about.source}", about, cache=where) as loader:
                    outcome.loaders += 1
                    for epoch in chosen:
                        _compare(outcome, loader, local, epoch)
                    stats = loader.stats()
                    outcome.retries += stats.retries
                    outcome.refetched += stats.refetched
            except fastio.FastioError as error:
                outcome.wrong.append(f"from epoch {first} on: {type(error).__name__}: {error}")
            say(f"{chosen[-1] + 1} epochs, {sum(proxy.struck().values())} faults")
        outcome.struck = proxy.struck()
        outcome.requests = len(proxy.answers())
    return outcome


def _loader(source: Any, about: Kind, **options: Any) -> Loader:
    given: dict[str, Any] = {"batch_size": 16, "num_workers": 2, "shuffle": True, "seed": 3}
    return open_loader(str(source), **(given | about.options | options))


def _compare(outcome: Outcome, loader: Loader, local: Loader, epoch: int) -> None:
    expected = _rows(local, epoch)
    found = _rows(loader, epoch)
    outcome.rows += len(found)
    if found.keys() != expected.keys():
        outcome.wrong.append(f"epoch {epoch}: {len(expected)} rows, {len(found)} came")
    if wrong := [row for row in found if found[row] != expected.get(row)]:
        outcome.wrong.append(f"epoch {epoch}: {len(wrong)} rows are wrong, the first {wrong[:9]}")


def _rows(loader: Loader, epoch: int) -> dict[int, list[Any]]:
    """All values of an epoch, by row; a row that comes twice is an error."""
    loader.set_epoch(epoch)
    found: dict[int, list[Any]] = {}
    for batch in loader:
        columns = list(batch.values()) if isinstance(batch, dict) else list(batch)
        rows = loader.batch.rows
        assert rows is not None
        for place, row in enumerate(rows[: loader.batch.valid].tolist()):
            if row in found:
                raise AssertionError(f"row {row} came twice in epoch {epoch}")
            found[row] = [_value(column, place) for column in columns]
    return found


def _value(column: Any, place: int) -> Any:
    value = column[place]
    return value.numpy().tobytes() if isinstance(value, torch.Tensor) else value


@contextmanager
def _short_timeouts() -> Iterator[None]:
    """Stores give requests up early that make no progress, and go on asking for long."""
    short = partial(Store, deadline_s=60.0, timeout_s=TIMEOUT_S)
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("fastio.") and getattr(module, "open_store", None) is open_store:
                stack.enter_context(mock.patch.object(module, "open_store", short))
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kind", choices=list(KINDS), required=True)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", action="store_true")
    parser.add_argument("--faults", nargs="*", choices=STORM)
    arguments = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fault-storm-") as folder:
        outcome = storm(
            arguments.kind,
            Path(folder),
            epochs=arguments.epochs,
            rate=arguments.rate,
            seed=arguments.seed,
            cache=arguments.cache,
            faults=tuple(arguments.faults) if arguments.faults else None,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
    cached = "with" if arguments.cache else "without"
    print(f"{arguments.kind}, {cached} a cache, {arguments.epochs} epochs, {arguments.rate:.0%}:")
    print(f"{outcome}\ntook {time.monotonic() - begin:.0f} s")
    raise SystemExit(1 if outcome.wrong else 0)


if __name__ == "__main__":
    main()
