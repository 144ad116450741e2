"""Where processes on other machines put the shards of a pack: a shared folder, or a store.

A process may go on after its driver has died, and after another pack to the same destination has
begun. So no process but a driver writes to the name of a shard: the others write under names of
their own, with a random ending, and the driver gives a shard its name when it accepts the unit.
What no driver accepts is deleted by the next one, or by `gc`.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fastio.errors import PackError
from fastio.pack.journal import FinishedUnit
from fastio.packed import JOURNAL_NAME, ShardEntry
from fastio.runtime.files import flush_folder
from fastio.store import Store

# The ending of shards that the driver has not accepted, as a regular expression.
WRITTEN_ENDING = r"\.[0-9a-f]{16}\.written"


def new_ending() -> str:
    """Returns an ending that no other process uses."""
    return f".{secrets.token_hex(8)}.written"


@dataclass(frozen=True)
class WrittenUnit:
    """A unit whose shards another process has written.

    Attributes:
        unit: The unit, with the names that its shards get.
        ending: The ending that they have in addition until the driver accepts the unit.
    """

    unit: FinishedUnit
    ending: str


class TaskOutput(Protocol):
    """Where shards go; can be pickled.

    Attributes:
        name: The path or URL, for messages.
    """

    @property
    def name(self) -> str: ...

    def folder(self) -> AbstractContextManager[Path]:
        """Returns a folder to write the shards of a unit to.

        Raises:
            PackError: The destination does not belong to this pack, or is not on this machine.
        """
        ...

    def put(self, folder: Path, names: Sequence[str]) -> None:
        """Puts shards that were written to the folder to the output, under these names."""
        ...


@dataclass(frozen=True)
class FolderOutput:
    """The folder of the dataset, on a file system that all machines have.

    Attributes:
        path: Its absolute path.
        journal_id: The id in the journal of the pack, which lies in the folder.
    """

    path: Path
    journal_id: str

    @property
    def name(self) -> str:
        """See `TaskOutput`."""
        return str(self.path)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """See `TaskOutput`. Shards are written here at once."""
        try:
            with open(self.path / JOURNAL_NAME, "rb") as file:
                found = json.loads(file.readline())["id"]
        except (OSError, KeyError, TypeError, ValueError):
            found = None
        if found != self.journal_id:
            raise PackError(
                f"{platform.node()}, a machine of the Ray cluster, does not find the journal of "
                f"this pack in {self.path}: the destination must be a URL, or a folder on a file "
                "system that all machines have under the same path, and no other pack may have "
                "started there"
            )
        yield self.path

    def put(self, folder: Path, names: Sequence[str]) -> None:
        """See `TaskOutput`."""


@dataclass(frozen=True)
class StoreOutput:
    """The folder of the dataset in a store, to which each process uploads its shards.

    Attributes:
        store: The store.
        staging: The folder for shards that are not uploaded yet; None for a temporary folder.
    """

    store: Store
    staging: str | os.PathLike[str] | None

    @property
    def name(self) -> str:
        """See `TaskOutput`."""
        return self.store.url

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """See `TaskOutput`."""
        if self.staging is not None:
            os.makedirs(self.staging, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fastio-pack-", dir=self.staging) as folder:
            yield Path(folder)

    def put(self, folder: Path, names: Sequence[str]) -> None:
        """See `TaskOutput`."""
        for name in names:
            upload(self.store, folder / name)
            (folder / name).unlink()


def give_names(folder: Path, written: WrittenUnit) -> None:
    """Renames the shards of a unit to their final names; FileNotFoundError if one is missing."""
    for entry in written.unit.entries:
        os.replace(folder / (entry.name + written.ending), folder / entry.name)
    # The names must be on the disk before the journal records these shards.
    flush_folder(folder)


def upload(store: Store, path: Path) -> None:
    """Uploads a file; raises PackError if the store has another size afterwards."""
    store.write(path.name, path)
    _check_size(store, path.name, path.stat().st_size)


def accept(store: Store, entry: ShardEntry, ending: str) -> None:
    """Gives a shard in a store its name; raises PackError if it has another size afterwards."""
    store.copy(entry.name + ending, entry.name, entry.bytes)
    _check_size(store, entry.name, entry.bytes)
    store.delete(entry.name + ending)


def _check_size(store: Store, name: str, expected: int) -> None:
    found = store.size(name)
    if found != expected:
        raise PackError(
            f"{store.url.rstrip('/')}/{name} has {found:,} bytes after it was written, "
            f"expected {expected:,}"
        )
