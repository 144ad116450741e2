"""Packs on a Ray cluster: each unit of the source is a task, and this process is the driver.

The driver opens the source, derives the plan, and keeps the journal and the manifest, as a pack on
one machine does. Tasks write shards to the destination and return what the journal records
(`ray_tasks`); the driver gives the shards their names. It takes results in the order of the source,
so that errors and the journal are those of a pack on one machine. It submits tasks only up to a
limit ahead of the oldest unfinished unit. As in a pack on one machine, the descriptions of the
shards are in temporary files (`ShardTable`), so the memory of the driver does not grow with their
number.

Ray repeats tasks whose process or machine is lost. Of two tasks for one unit, each writes files of
its own, and the driver takes those of one.

A source whose units are only known after it was read (a single CSV or compressed file) is read by
one task, from beginning to end, which uses all cores of its machine.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastio.errors import PackageMissing, PackError
from fastio.pack.destination import Destination
from fastio.pack.encoder import Encoder
from fastio.pack.journal import FinishedUnits, Plan
from fastio.pack.ray_tasks import FileStamp, Job
from fastio.pack.task_output import WrittenUnit
from fastio.pack.units import ShardWriter
from fastio.shown import shown_lines
from fastio.store import is_remote

# Tasks that are submitted ahead of the oldest unfinished one, for each that can run at a time. One
# unit may take so many times longer than the others before cores are idle.
_AHEAD = 8
_LEAST_AHEAD = 32
_ANSWERS_S = 30.0  # within which a cluster must accept a connection
_LOOK_AGAIN_S = 5.0  # how often the driver asks how many cores the cluster has
# How often a unit is repeated whose process or machine was lost. Machines that are taken back with
# notice do not count (Ray's DRAINING nodes), nor do tasks that Ray ends to free memory.
_RETRIES = 10
_Units = Generator[WrittenUnit, None, None]
_RESUME = "; the finished units are kept: continue with resume (--resume)"


def import_ray() -> Any:
    """Returns the module; PackageMissing if it is not installed."""
    try:
        import ray  # an optional package
    except ImportError as error:
        raise PackageMissing("ray", "pack on Ray", "fastio[ray]", error) from error
    return ray


@contextmanager
def ray_cluster(address: str) -> Iterator[None]:
    """Connects this process to a Ray cluster for the duration of the block.

    Args:
        address: The address of the cluster, "auto", or "local" for a new one on this machine.

    Raises:
        PackError: Ray is missing, or there is no such cluster.
    """
    ray = import_ray()
    try:
        _check_answers(address)
        # Warnings of worker processes would break the progress bar. Errors are results of tasks.
        ray.init(address, log_to_driver=False, logging_level="warning")
    except (OSError, RuntimeError, ValueError) as error:
        raise PackError(
            f"cannot connect to the Ray cluster {address}: {shown_lines(str(error))}; check the "
            "address, and start a cluster with `ray start --head` or use the address local"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raises OSError unless something answers at HOST:PORT; ray.init() tries that for minutes."""
    host, mark, port = address.rpartition(":")
    if mark and "//" not in address:
        with socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_S):
            pass


class RayRunner:
    """Runs the units of a pack as Ray tasks; see `packer.UnitRunner`.

    Connects to a cluster as `ray.init()` does, if this process is not connected yet.

    Args:
        encoder: The encoder of this process, which reads what is asked of the source as a whole.
        make_encoder: Returns a new encoder of the source, with a number of threads.
        src: The source as it was given.
        name: The name of the source, which Ray's dashboard shows.
        destination: Where the shards go.
        workers: The number of cores and threads of a task; None for one.

    Raises:
        PackError: Ray is missing, there is no cluster, or no machine has so many cores.
    """

    def __init__(
        self,
        encoder: Encoder[Any, Any],
        make_encoder: Callable[[int], Encoder[Any, Any]],
        src: Any,
        name: str,
        destination: Destination,
        workers: int | None,
    ) -> None:
        self._ray = ray = import_ray()
        self._encoder = encoder
        self._make_encoder = make_encoder
        self._files = [FileStamp.of(path) for path in _local_paths(src)]
        self._name = f"fastio pack {name}"
        self._destination = destination
        self._workers = workers
        self._cores = 0
        self._looked_s = -math.inf
        try:
            if not ray.is_initialized():
                ray.init()
            alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
            largest = max((resources.get("CPU", 0) for resources in alive), default=0)
        except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
            raise PackError(
                f"cannot connect to a Ray cluster: {shown_lines(str(error))}; call ray.init() with "
                "the address of the cluster first"
            ) from error
        self._largest = int(largest)
        if workers is not None and 0 < self._largest < workers:
            raise PackError(
                f"workers is {workers}, but the largest machine of the Ray cluster has "
                f"{self._largest} cores: with Ray, workers is the number of cores of each task"
            )

    def run(self, plan: Plan, finished: FinishedUnits, writer: ShardWriter) -> _Units:
        """See `packer.UnitRunner`."""
        count = self._encoder.units(plan)
        if count is None:
            yield from self._run_source(
                self._put_job(plan, writer, self._cores_of_source()), finished
            )
            return
        if len(finished) < count:
            job = self._put_job(plan, writer, self._workers or 1)
            yield from self._run_units(job, range(len(finished), count), plan.unit_rows)

    def rest(self, plan: Plan, number: int) -> Iterator[Any]:
        """See `packer.UnitRunner`. There are no units left."""
        return iter(())

    def _put_job(self, plan: Plan, writer: ShardWriter, threads: int) -> Any:
        """Returns a reference to the job, which was put into Ray's object store."""
        make, output = self._make_encoder, self._destination.task_output()
        job = Job(lambda: make(threads), plan, writer, output, os.getcwd(), self._files)
        try:
            return self._ray.put(job)
        except (TypeError, AttributeError, ValueError) as error:  # as pickle raises them
            raise PackError(
                f"{self._name.split(' ', 2)[2]} cannot be sent to other processes "
                f"({shown_lines(str(error).partition(chr(10))[0])}): give a path or URL, or a "
                "dataset that can be pickled; an iterable cannot be packed on Ray"
            ) from error

    # --- Units as tasks ---------------------------------------------------------------------------

    def _run_units(self, job: Any, numbers: range, rows: int | None) -> _Units:
        ray, installed = self._ray, version("fastio")
        task = ray.remote(_tasks()[0]).options(
            name=self._name, num_cpus=self._workers or 1, max_retries=_RETRIES
        )
        left = iter(numbers)
        pending: deque[tuple[int, Any]] = deque()
        try:
            while True:
                for _ in range(self._ahead() - len(pending)):
                    number = next(left, None)
                    if number is None:
                        break
                    # In a list, so that the job is not read before the versions are compared.
                    pending.append((number, task.remote(installed, [job], number)))
                if not pending:
                    return
                number, ref = pending[0]
                where = f"unit {number}"
                if rows is not None:
                    where += f" (samples {number * rows:,} to {(number + 1) * rows - 1:,})"
                unit = self._result(ref, where)
                pending.popleft()
                yield unit
        finally:
            # The driver has stopped reading results, so tasks that still run would write files in
            # vain.
            for _, ref in pending:
                ray.cancel(ref, force=True)

    def _ahead(self) -> int:
        """Returns how many tasks may be under way. Machines may join and leave."""
        now = time.monotonic()
        if now - self._looked_s > _LOOK_AGAIN_S:
            self._cores = int(self._ray.cluster_resources().get("CPU", 0))
            self._looked_s = now
        return max(_LEAST_AHEAD, _AHEAD * self._cores // (self._workers or 1))

    # --- A source that one task reads -------------------------------------------------------------

    def _run_source(self, job: Any, finished: FinishedUnits) -> _Units:
        ray, installed = self._ray, version("fastio")
        task = ray.remote(_tasks()[1]).options(
            name=self._name,
            num_cpus=self._cores_of_source(),
            num_returns="streaming",
            max_retries=0,  # a repeated task would begin at the first unit again
        )
        # The task has to know the position only, and not each end of a unit before.
        position = sum(end.samples for end in finished.ends())
        last = [replace(end, samples=position) for end in finished.last]
        number, losses = len(finished), 0
        while True:
            results = task.remote(installed, [job], last, number)
            try:
                for ref in results:
                    unit = self._result(ref, f"unit {number}", reraise=True)
                    yield unit
                    position += unit.unit.end.samples
                    last = [replace(unit.unit.end, samples=position)]
                    # Losses are counted for one unit, not for the whole source.
                    number, losses = number + 1, 0
                return
            except _lost(ray) as error:
                losses += 1
                if losses > _RETRIES:
                    raise self._lost_unit(f"unit {number}", error) from error
            finally:
                ray.cancel(results, force=True)

    def _cores_of_source(self) -> int:
        return self._workers or max(1, self._largest)

    # --- Results ----------------------------------------------------------------------------------

    def _result(self, ref: Any, where: str, reraise: bool = False) -> Any:
        """Returns the result of a task, or raises its error.

        Args:
            ref: The reference of the result.
            where: Which unit it is, for messages.
            reraise: Whether Ray's errors of lost processes are raised as they are.
        """
        ray = self._ray
        try:
            result = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None) or error
            raise PackError(
                f"{where} failed on a machine of the Ray cluster: {type(cause).__name__}: "
                f"{shown_lines(str(cause).strip())}{_RESUME}"
            ) from error
        except _lost(ray) as error:
            if reraise:
                raise
            raise self._lost_unit(where, error) from error
        except ray.exceptions.RayError as error:  # such as a full disk of Ray's object store
            raise PackError(
                f"{where} failed on the Ray cluster: {type(error).__name__}: "
                f"{shown_lines(str(error).strip())}{_RESUME}"
            ) from error
        if isinstance(result, str):  # a machine with another fastio, or without one
            raise PackError(result)
        if isinstance(result, BaseException):
            raise result
        return result

    def _lost_unit(self, where: str, error: BaseException) -> PackError:
        reason = shown_lines(str(error).strip().partition("\n")[0])
        return PackError(
            f"{where} was lost {_RETRIES + 1} times, each time with the process or machine that "
            f"packed it ({type(error).__name__}: {reason}): check whether the "
            f"machines have enough memory, and whether a sample ends the process{_RESUME}"
        )


def _lost(ray: Any) -> tuple[type[BaseException], ...]:
    """Returns Ray's errors of a task whose process or machine was lost."""
    errors = ray.exceptions
    return (
        errors.WorkerCrashedError,
        errors.NodeDiedError,
        errors.OutOfMemoryError,
        errors.ObjectLostError,
    )


def _tasks() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns the functions of the tasks for one unit and for a whole source.

    Ray sends functions of a module by their names, and functions inside of others with their code.
    So these run where another version of fastio is installed, or none.
    """

    def other_version(wanted: str) -> str | None:
        import platform
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("fastio")
        except PackageNotFoundError:
            found = "none"
        if found == wanted:
            return None
        return (
            f"{platform.node()}, a machine of the Ray cluster, has another version of fastio: "
            f"{found}, and the driver has {wanted}: install the same version on all machines"
        )

    def fastio_pack_unit(wanted: str, job: list[Any], number: int) -> Any:
        problem = other_version(wanted)
        if problem is not None:
            return problem
        from fastio.pack.ray_tasks import run_unit

        return run_unit(job[0], number)

    def fastio_pack_source(wanted: str, job: list[Any], last: Any, number: int) -> Any:
        problem = other_version(wanted)
        if problem is not None:
            yield problem
            return
        from fastio.pack.ray_tasks import run_source

        yield from run_source(job[0], last, number)

    return fastio_pack_unit, fastio_pack_source


def _local_paths(src: Any) -> list[str]:
    """Returns the local files and folders that a source names; of a pattern, its folder."""
    found: dict[str, None] = {}
    for each in src if isinstance(src, (list, tuple)) else [src]:
        path = each if isinstance(each, (str, os.PathLike)) else getattr(each, "path", None)
        if isinstance(path, (str, os.PathLike)) and not is_remote(path):
            name = str(Path(path).absolute())
            while each is src and not os.path.exists(name):
                name = os.path.dirname(name)
            if os.path.exists(name):  # a list may also have texts
                found[name] = None
    return list(found)
