"""The journal of a pack records what is finished, so that an interrupted pack can be resumed.

`pack.journal` lies in the destination while packing goes on. It is a file of JSON lines: first
the options that the dataset's bytes depend on, then the plan, which was derived from the whole
source, then one line for each finished unit. A line is written after the unit's shards are on the
disk, so that a kill at any point loses only unfinished units. The journal is deleted after the
manifest was written.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from fastio.errors import FastioError, PackError
from fastio.pack.items import AGAIN
from fastio.pack.journal_file import complete_lines, in_use, lock, no_link, open_journal, unlink
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME, ShardEntry, ShardTable
from fastio.packed.codebook import open_codebook
from fastio.runtime.files import flush_folder, temporary_name

APPEND_TO = "append_to"  # the option with the fingerprint of the version that is appended to
WRITER = "Writer"  # the source of a pack that cannot be resumed
GC = "fastio gc"  # in the place of a source: gc has written the journal, so that no append begins


@dataclass(frozen=True)
class Plan:
    """How a source is packed, derived from the whole source before its first unit is packed.

    A unit is a range of consecutive samples of the source. Its shards depend on these samples, the
    options and the plan only, and no shard has samples of two units.

    Attributes:
        codebook: The trained codebook, or None.
        unit_rows: The number of samples of each unit except the last one, or None.
        unit_bytes: About how many bytes of the source each unit has, or None. If both are None, the
            source can only be read from beginning to end; then each shard is a unit.
    """

    codebook: bytes | None = None
    unit_rows: int | None = None
    unit_bytes: int | None = None


@dataclass(frozen=True)
class UnitEnd:
    """What a pack knows of a unit at its end. It does not depend on other units.

    Attributes:
        samples: The number of the source's samples in the unit, with those that were skipped.
        source: A hash that identifies the samples of the unit.
        last: Whether the source ended with the unit before the unit was full.
        skipped: (name, reason) of the samples of the unit that were left out.
        statistics: JSON values for the columns of a table in the unit; None for other sources.
        left_out: The number of documents without text, which are not samples.
    """

    samples: int
    source: str
    last: bool
    skipped: list[tuple[str, str]] = field(default_factory=list)
    statistics: list[Any] | None = None
    left_out: int = 0


@dataclass(frozen=True)
class FinishedUnit:
    """One line of the journal: a unit's shards as the manifest will describe them, and its end.

    There are no shards if all of its samples were left out.
    """

    entries: Sequence[ShardEntry]
    end: UnitEnd


class FinishedUnits(Sized):
    """The finished units that a journal lists. Their ends are read from its file each time.

    Args:
        lines: Returns the lines of the journal after the first one.
        folder: A folder on the file system to use for temporary files.

    Attributes:
        shards: Their shards.
        last: The end of the last unit, if there is one.
    """

    def __init__(self, lines: Callable[[], Iterator[bytes]], folder: Path | None = None) -> None:
        self.shards = ShardTable(folder=folder)
        self.last: Sequence[UnitEnd] = ()
        self._lines = lines
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def ends(self) -> Iterator[UnitEnd]:
        """Yields the ends of the units. Called before anything is written to the journal."""
        for value in map(json.loads, self._lines()):
            if "end" in value:
                yield _parse_end(value["end"])

    def take(self, line: Any) -> None:
        """Adds the unit of a line; KeyError, TypeError or ValueError if it is damaged."""
        end = _parse_end(line["end"])
        if line["number"] != self._count:
            raise ValueError(f"unit {line['number']} is in the place of unit {self._count}")
        self.shards.extend(map(_parse_entry, line["entries"]))
        self.last = (end,)
        self._count += 1


class Journal:
    """The journal of one destination, locked against other packs while it is open.

    Args:
        folder: The destination.
        options: JSON values that the dataset's bytes depend on.
        resume: Whether to continue the existing journal, if there is one.
        destination: The path or URL of the destination, for messages. If None, the folder.
        overwrite: Whether a new pack replaces a dataset in the folder.

    Attributes:
        id: The random id in its first line.
        finished: The finished units that it listed when it was opened.
        plan: The plan that it holds, or None.

    Raises:
        PackConflict: Another process packs there.
        PackError: The journal has other options, or is unreadable beside a complete dataset.
        OSError: It cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, Any],
        resume: bool,
        destination: str | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path = folder / JOURNAL_NAME
        self._destination = destination or str(folder)
        self._when_full = when_full(options)
        self.finished = FinishedUnits(partial(self._lines, 1), folder)
        self.plan: Plan | None = None
        self.id = new_id()
        first = {"journal": 1, "id": self.id, "options": dict(options)}
        if overwrite:
            self._replace(folder, first)
            self._number = 0
            return
        self._file = open_journal(self.path)
        try:
            lock(self._file, folder)
            good_bytes = self._read(options) if resume else 0
            is_known = good_bytes or APPEND_TO in options
            if not is_known and (folder / MANIFEST_NAME).exists():
                raise unreadable_journal(folder)
            # Of a killed pack, the last line may be incomplete: the next one would continue it.
            self._file.truncate(good_bytes)
            if not good_bytes:
                self._append(first)
                flush_folder(folder)
            self._number = len(self.finished)  # of the next unit
        except BaseException:
            self.close()
            raise

    def _replace(self, folder: Path, first: Mapping[str, Any]) -> None:
        """Puts a new journal in place that has its first line from the beginning.

        If the pack is killed, either the old journal is there, or the dataset that is overwritten
        is not taken for the new one, because there is a journal.
        """
        temporary = temporary_name(self.path)
        with ExitStack() as stack:
            try:
                lock(stack.enter_context(open(self.path, "r+b", opener=no_link)), folder)
                place = os.replace
            except FileNotFoundError:
                place = os.link  # fails if another pack has begun
            self._file = open_journal(temporary)
            try:
                lock(self._file, folder)
                self._append(first)
                try:
                    place(temporary, self.path)
                except FileExistsError as error:
                    raise in_use(folder) from error
                except OSError:  # some file systems have no links
                    os.replace(temporary, self.path)
                flush_folder(folder)
            except BaseException:
                self.close()
                raise
            finally:
                temporary.unlink(missing_ok=True)

    def append(self, unit: FinishedUnit) -> None:
        """Records a unit whose shards are on the disk."""
        self._append({"number": self._number, **asdict(unit)})
        self._number += 1

    def keep_plan(self, plan: Plan) -> None:
        """Records the plan before any unit, because a resumed pack must use the same plan."""
        book = None if plan.codebook is None else base64.b64encode(plan.codebook).decode()
        with writing_to(self.path, self._when_full):
            self._append({"plan": {**asdict(plan), "codebook": book}})
        self.plan = plan

    def remove(self) -> None:
        """Deletes the journal, after the manifest was written, and closes it. Idempotent."""
        if not self._file.closed:
            # The journal is deleted while it is locked: after `close`, another pack could begin its
            # own journal at this path, and it would be deleted here.
            unlink(self._file, self.path)
            flush_folder(self.path.parent)
            self.close()

    def close(self) -> None:
        """Closes the file, which also unlocks it."""
        self._file.close()

    def _append(self, line: Mapping[str, Any]) -> None:
        before = os.fstat(self._file.fileno()).st_size
        left = memoryview(json.dumps(line).encode() + b"\n")
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except BaseException:
            with suppress(OSError):
                self._file.truncate(before)  # a part of a line has no meaning
            raise

    def _read(self, options: Mapping[str, Any]) -> int:
        """Reads the journal, and returns the number of bytes of its complete lines."""
        good_bytes = 0  # stays 0 if the pack was killed before the first line was complete
        try:
            for line in self._lines():
                value = json.loads(line)
                if good_bytes:
                    self._take(value)
                else:
                    _check_options(self._destination, value["options"], options)
                    self.id = str(value["id"])
                good_bytes += len(line)
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise PackError(
                f"{self.path} is damaged ({type(error).__name__}: {error}); {AGAIN}"
            ) from error
        return good_bytes

    def _lines(self, start: int = 0) -> Iterator[bytes]:
        """Yields the complete lines from a number on. Meanwhile, no lines may be added."""
        with open(os.dup(self._file.fileno()), "rb") as file:
            file.seek(0)
            yield from islice(complete_lines(file), start, None)

    def _take(self, line: Any) -> None:
        if isinstance(line, dict) and "plan" in line:
            plan = Plan(**line["plan"])
            if plan.codebook is not None:
                plan = replace(plan, codebook=base64.b64decode(plan.codebook, validate=True))
                open_codebook(plan.codebook or b"")
            self.plan = plan
        else:
            self.finished.take(line)


def new_id() -> str:
    """Returns the random id of a process's journal, so that no two have the same bytes."""
    return secrets.token_hex(8)


def unreadable_journal(destination: Path | str) -> PackError:
    """Returns the error of a pack that is to be resumed beside a manifest, without its options."""
    return PackError(
        f"{destination} contains a complete dataset and a journal without options, so it is "
        "unknown what to resume: resume an append with append and resume (--append --resume), or "
        "discard it with `fastio gc --unfinished`"
    )


def _check_options(destination: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    if APPEND_TO in found and APPEND_TO not in wanted:
        raise PackError(
            f"cannot resume this pack to {destination}: the unfinished one there is an append; "
            "resume it with append and resume (--append --resume)"
        )
    different = differences(found, wanted, {*found, *wanted})
    if different:
        raise PackError(
            f"cannot resume the pack to {destination}, the options or the source differ from the "
            f"interrupted pack: {different}. Use the same options and source, or {AGAIN}"
        )


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any], keys: Collection[str]) -> str:
    """Returns a text on which of the options `keys` differ; an empty one if none does."""
    found, wanted = (json.loads(json.dumps(each)) for each in (found, wanted))  # tuples as lists
    return "; ".join(
        f"{key} was {_short(found.get(key))}, now {_short(wanted.get(key))}"
        for key in sorted(keys)
        if found.get(key) != wanted.get(key)
    )


def _parse_end(value: Any) -> UnitEnd:
    end = UnitEnd(**value)
    return replace(end, skipped=[(name, reason) for name, reason in end.skipped])


def _parse_entry(value: Any) -> ShardEntry:
    entry = ShardEntry(**value)
    for digest in (entry.xxh3, entry.head_xxh3, entry.columns_xxh3):
        if len(bytes.fromhex(digest)) != 8:
            raise ValueError(f"{entry.name} has no hash")
    return entry


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else text[:117] + "..."


def when_full(options: Mapping[str, Any]) -> str:
    """Returns what to do after there is room on a full disk, for a pack with these options."""
    if options.get("source") == WRITER:
        return ", then write the samples again"
    if APPEND_TO in options:
        return ", then continue with append and resume (--append --resume)"
    return ", then continue with resume (--resume)"


@contextmanager
def writing_to(path: Path | str, when_full: str = "") -> Iterator[None]:
    """Raises errors of the file system as PackError with the path that could not be written.

    Args:
        path: The path to name if the error has none.
        when_full: The end of the advice on a full disk, after "make room".
    """
    try:
        yield
    except FastioError:
        raise  # some of them are OSErrors too
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = f"; make room{when_full}" if is_full else ""
        raise PackError(
            f"cannot write {error.filename or path}: {error.strerror}{advice}"
        ) from error
