"""Names of the files of a packed dataset, and which files only a pack can have written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from fastio.pack.stored_journal import PART_ENDING
from fastio.pack.task_output import WRITTEN_ENDING
from fastio.packed import JOURNAL_NAME
from fastio.runtime.files import TEMPORARY_ENDING
from fastio.runtime.texts import Names

# The name of a shard may contain the number of its version, the number of its part in the unit, and
# the id of its pack or the hash of its bytes.
_OWN_NAME = re.compile(
    r"(?:shard-(?:v[0-9]+-)?[0-9]{6,}(?:-[0-9]+)?(?:-[0-9a-f]{16})?|manifest(?:-[0-9]{6,})?)\.arrow"
    rf"(?:{WRITTEN_ENDING})?(?:{TEMPORARY_ENDING})?"
    rf"|{re.escape(JOURNAL_NAME)}(?:{PART_ENDING}|{TEMPORARY_ENDING})?"
)
_WRITTEN = re.compile(WRITTEN_ENDING)


def is_own_name(name: str) -> bool:
    """Returns whether only a pack can have written a file, judging by its name."""
    return _OWN_NAME.fullmatch(name) is not None


def own_files(folder: Path) -> Iterator[str]:
    """Yields the names of the files in a folder that only a pack can have written."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_own_name(entry.name):
                yield entry.name


def remove_strays(folder: Path, kept: set[str]) -> None:
    """Deletes the files that a killed pack has left in a folder: all of a pack except `kept`."""
    for name in Names(own_files(folder)):  # lists the whole folder before a file is deleted
        if name not in kept:
            (folder / name).unlink()


def is_task_output_name(name: str) -> bool:
    """Returns whether a file is a shard that its driver has not accepted; see `task_output`."""
    return is_own_name(name) and _WRITTEN.search(name) is not None


def shard_prefix(version: int) -> str:
    """Returns how the file names of the shards that a version adds begin."""
    return f"shard-v{version}-" if version > 1 else "shard-"


def shard_name(unit: int, part: int, version: int = 1, pack_id: str = "") -> str:
    """Returns the file name of a shard.

    Args:
        unit, part: The unit, and the number of the shard in the unit.
        version: The version of the dataset that gets the shard.
        pack_id: See `Destination.pack_id`.
    """
    of_part = f"-{part}" if part else ""
    return f"{shard_prefix(version)}{unit:06d}{of_part}{pack_id and '-' + pack_id}.arrow"


def with_hash(name: str, xxh3: str) -> str:
    """Returns the name of a shard that is appended in a folder, with the hash of its bytes.

    Two processes that append at the same time may write the same version. The hash ensures that
    neither replaces a shard of the other with a different one.
    """
    return name.replace(".arrow", f"-{xxh3}.arrow")
