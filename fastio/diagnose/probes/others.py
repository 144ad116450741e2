"""How much of the cores other processes take: measured over a while, from processor times.

The kernel counts how long each core was busy, whoever kept it so (/proc/stat). What this process
and those that it started used is taken off; the rest was used by others. The load average would not
tell: it counts threads that wait for a disk, too, and those of a container's whole host.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
# Of the fields user, nice, system, idle, iowait, irq, softirq, steal. Guests' time is in user's.
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True)
class CoreTimes:
    """A reading of processor times. The difference of two readings is the use in between.

    Attributes:
        at_s: when it was taken.
        busy_s: how long the cores of this process have been busy, all added up.
        own_s: processor time of this process and of those that it started.
    """

    at_s: float
    busy_s: float
    own_s: float

    @classmethod
    def now(cls, stat: Path = _STAT) -> CoreTimes | None:
        """Returns a reading, or None if the system does not provide one."""
        with suppress(OSError, ValueError):
            # Its own time is read last: what is used meanwhile never counts as others'.
            at_s, busy_s = time.monotonic(), _busy_s(stat.read_text())
            return cls(at_s, busy_s, own_cpu_s())
        return None


def cores_of_others(before: CoreTimes | None, after: CoreTimes | None) -> float | None:
    """Returns the mean number of cores that other processes used between two readings, or None."""
    if before is None or after is None or after.at_s <= before.at_s:
        return None
    others_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return max(0.0, others_s) / (after.at_s - before.at_s)


def own_cpu_s() -> float:
    """Returns the processor seconds of this process and its children, running workers included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = time.process_time() + ended.ru_utime + ended.ru_stime
    for child in multiprocessing.active_children():
        with suppress(OSError, ValueError, IndexError):
            # The name, in parentheses, may hold spaces; user and system time are fields 14 and 15.
            values = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            spent += (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
    return spent


def _busy_s(stat: str) -> float:
    """Returns the busy seconds of the cores that this process may run on.

    Raises:
        ValueError: it is not told of any of them.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    found = []
    for line in stat.splitlines():
        name, *fields = line.split()
        one_core = name.startswith("cpu") and name[3:].isdigit()
        if one_core and (allowed is None or int(name[3:]) in allowed):
            found.append(sum(int(fields[number]) for number in _BUSY if number < len(fields)))
    if not found:
        raise ValueError("no core of this process in /proc/stat")
    return sum(found) / os.sysconf("SC_CLK_TCK")
