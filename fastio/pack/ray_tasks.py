"""What a Ray task does: packs one unit of a source, or all units of one that is read as a whole.

A task is given the source as the driver has opened it: paths, indexes and options, or data in
memory. It writes the shards of a unit to the destination, under names of its own (`task_output`),
and returns what the journal records, which is small. `ray_engine` has the driver's side.
"""

from __future__ import annotations

import errno
import os
import pickle
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fastio.errors import FastioError, PackError
from fastio.pack.encoder import Encoder
from fastio.pack.journal import FinishedUnit, Plan, UnitEnd, writing_to
from fastio.pack.task_output import TaskOutput, WrittenUnit, new_ending
from fastio.pack.units import ShardWriter, pack_unit, pack_units


@dataclass(frozen=True)
class FileStamp:
    """A file or folder of the source, as it is on the driver's machine.

    Attributes:
        path: Its path.
        modified_ns: The time of its last change.
        nbytes: The size of a file; 0 for a folder.
    """

    path: str
    modified_ns: int
    nbytes: int

    @classmethod
    def of(cls, path: str) -> FileStamp:
        """Returns the stamp of a file or folder; raises OSError."""
        status = os.stat(path)
        return cls(path, status.st_mtime_ns, 0 if os.path.isdir(path) else status.st_size)


@dataclass(frozen=True)
class Job:
    """A pack, as tasks need it.

    Attributes:
        make_encoder: Returns a new encoder of the source.
        plan: How the source is divided into units.
        writer: Writes the shards; tasks replace its folder.
        output: Where the shards go.
        folder: The driver's working directory, to which paths may be relative.
        files: The local files and folders of the source.
    """

    make_encoder: Callable[[], Encoder[Any, Any]]
    plan: Plan
    writer: ShardWriter
    output: TaskOutput
    folder: str
    files: Sequence[FileStamp]


# What a task returns: errors are values, which Ray passes on as they are.
Result = WrittenUnit | FastioError


def run_unit(ref: Any, number: int) -> Result:
    """Packs one unit of a job and returns it, or the error that stopped it.

    Args:
        ref: The Ray reference of the `Job`.
        number: The number of the unit.
    """
    try:
        job = _open_job(ref)
        with writing_to(job.output.name, job.writer.when_full), job.output.folder() as folder:
            writer = replace(job.writer, folder=folder, ending=new_ending())
            unit = pack_unit(job.make_encoder(), job.plan, number, writer)
            return _put(job.output, writer, unit)
    except FastioError as error:
        return _portable(_with_disk(error))


def run_source(ref: Any, finished: Sequence[UnitEnd], number: int) -> Iterator[Result]:
    """Packs the units of a source from one on, and yields each when its shards are in the output.

    Args:
        ref: The Ray reference of the `Job`.
        finished: The end of the unit before, if there is one.
        number: The number of the first unit.
    """
    try:
        job = _open_job(ref)
        encoder = job.make_encoder()
        with writing_to(job.output.name, job.writer.when_full), job.output.folder() as folder:
            writer = replace(job.writer, folder=folder, ending=new_ending())
            parts = encoder.begin(job.plan, finished)
            for unit in pack_units(encoder, parts, writer, number):
                yield _put(job.output, writer, unit)
    except FastioError as error:
        yield _portable(_with_disk(error))


def _put(output: TaskOutput, writer: ShardWriter, unit: FinishedUnit) -> WrittenUnit:
    """Puts the shards of a unit, which the writer has written, in the output."""
    output.put(writer.folder, [entry.name + writer.ending for entry in unit.entries])
    return WrittenUnit(unit, writer.ending)


@lru_cache(maxsize=1)  # a worker process runs many tasks of a job, and reads it once
def _open_job(ref: Any) -> Job:
    import ray  # an optional package, which runs this task

    job: Job = ray.get(ref)
    # Paths may be relative to the driver's working directory. If this machine does not have it,
    # `_check_file` reports what is missing.
    with suppress(OSError):
        os.chdir(job.folder)
    for wanted in job.files:
        _check_file(wanted)
    return job


def _check_file(wanted: FileStamp) -> None:
    """Raises PackError unless this machine has the same file or folder of the source."""
    try:
        found = FileStamp.of(wanted.path)
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        if found == wanted:
            return
        reason = "its size or modification time is different"
    raise PackError(
        f"{platform.node()}, a machine of the Ray cluster, does not have {wanted.path} as the "
        f"driver has it: {reason}; with Ray, the source must be a URL or lie on a file system that "
        "all machines have under the same path"
    )


def _with_disk(error: FastioError) -> FastioError:
    """Returns an error; if a full disk caused it, one that also names this machine and the disk."""
    cause = error.__cause__
    if not isinstance(cause, OSError) or cause.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    disk = ""
    if cause.filename is not None:
        path = os.path.abspath(os.fsdecode(cause.filename))
        while not os.path.ismount(path):
            path = os.path.dirname(path)
        disk = f" (the file system mounted at {path})"
    full = PackError(
        f"a disk of {platform.node()}, a machine of the Ray cluster, is full{disk}: {error}"
    )
    full.__cause__ = cause
    return full


def _portable(error: FastioError) -> FastioError:
    """Returns an error that the driver can read; its cause may be of a class that it has not."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return PackError(str(error))
