"""runtime.lifecycle: who owns threads and locks after a fork, and what happens at exit."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

from fastio.runtime.lifecycle import Owner, after_fork, at_exit
from tests.children import in_fork

AT_EXIT = """
import os, sys
from fastio.runtime.lifecycle import at_exit

class Closed:
    def __init__(self, name):
        self.name = name
        at_exit(self.close)

    def close(self):
        os.write(1, self.name.encode())

kept, dropped = Closed("kept"), Closed("dropped")
del dropped
"""


class _Renewed:
    """Counts how often it began anew."""

    def __init__(self) -> None:
        self.begun = 0
        self.owner = Owner()

    def begin(self) -> None:
        self.begun += 1


def test_the_process_that_made_an_object_owns_it() -> None:
    thing = _Renewed()
    thing.owner.take_over(thing.begin)
    assert thing.owner.is_here
    assert thing.begun == 0


def test_a_forked_child_is_not_the_owner_until_it_takes_over() -> None:
    thing = _Renewed()

    def check() -> bool:
        before = thing.owner.is_here
        thing.owner.take_over(thing.begin)
        thing.owner.take_over(thing.begin)
        return not before and thing.owner.is_here and thing.begun == 1

    assert in_fork(check) == 0
    assert thing.owner.is_here


def test_threads_of_a_child_that_take_over_together_begin_once() -> None:
    thing = _Renewed()

    def check() -> bool:
        barrier = threading.Barrier(8)

        def take_over() -> None:
            barrier.wait()
            thing.owner.take_over(thing.begin)

        threads = [threading.Thread(target=take_over) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return thing.begun == 1

    assert in_fork(check) == 0


def test_at_exit_calls_the_methods_of_objects_that_exist() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, check=True)
    assert done.stdout == b"kept"


def test_at_exit_and_after_fork_keep_no_object_alive() -> None:
    thing = _Renewed()
    at_exit(thing.begin)
    after_fork(thing.begin)
    reference = weakref.ref(thing)
    del thing
    gc.collect()
    assert reference() is None
    assert in_fork(lambda: True) == 0  # there is nothing to call


def test_after_fork_runs_in_the_child_only() -> None:
    thing = _Renewed()
    after_fork(thing.begin)
    assert in_fork(lambda: thing.begun == 1) == 0
    assert thing.begun == 0
