"""Code in a process of its own, forked from one that has imported torch, fastio and the rest.

The imports take seconds, which each `python -c` would spend again; a fork takes milliseconds. What
is tested of the imports themselves, and of interpreters, is run by `python -c` all the same.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# pyarrow imports pandas, where it is installed, when it makes an array of a list.
_IMPORTED = ("PIL.Image", "torch.distributed", "pandas", "numpy.random", "fastio.loader")
_IMPORTED += ("fastio.train", "tests.staging_support")
LIMIT_S = 240.0  # for a machine that is busy with other things
HANGS_S = 120  # what a forked child does takes milliseconds


def run_code(
    code: str,
    *arguments: Any,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    whole_exit: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs code as `python -c CODE ARGUMENTS...` does.

    Args:
        code: the program.
        arguments: sys.argv[1:], as text.
        env: variables that are set beside those of this process.
        cwd: the folder that it runs in; None for this process's.
        whole_exit: the interpreter and the libraries exit in their own way, as tests of exits need:
            modules are deleted and static objects destroyed, which takes 0.35 s with torch. If not,
            code that ends without an exception is followed by `_leave`.

    Returns:
        The exit status, negative for a signal, and what was written to stdout and stderr.
    """
    return _run(code, arguments, [env or {}], cwd, whole_exit)


def run_together(
    code: str, environments: Sequence[Mapping[str, str]], *arguments: Any
) -> subprocess.CompletedProcess[str]:
    """Runs code in several processes at once, each with variables of its own; see `run_ranks`."""
    return _run(code, arguments, environments)


def run_ranks(
    code: str, *arguments: Any, ranks: int = 2, nodes: int = 1
) -> subprocess.CompletedProcess[str]:
    """Runs code in several processes at once, with the environment that torchrun gives them.

    Args:
        code, arguments: as for `run_code`.
        ranks: number of processes.
        nodes: number of machines on which they believe to be.

    Returns:
        The first exit status that is not 0, if any, and what all of them wrote.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # The meeting point is here, as with torchrun: no port is chosen before it is taken.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks // nodes),
        "GROUP_WORLD_SIZE": str(nodes),
        "OMP_NUM_THREADS": "1",
    }
    each = []
    for rank in range(ranks):
        node, local = divmod(rank, ranks // nodes)
        own = {"RANK": str(rank), "LOCAL_RANK": str(local), "GROUP_RANK": str(node)}
        each.append({**common, **own})
    done = _run(code, arguments, each)
    del store
    return done


def killed_at(
    number: int, owner: Any = os, names: Sequence[str] = ("fsync", "replace", "unlink")
) -> None:
    """Has this process killed right before so manieth call of a function that changes files.

    Args:
        number: of the call, from 1 on.
        owner: the module or class whose functions are counted.
        names: of these functions.
    """
    calls = count(1)

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        return call

    for name in names:
        setattr(owner, name, deadly(getattr(owner, name)))


def in_fork(work: Callable[[], object]) -> int:
    """Calls `work` in a forked child of this process itself, whose threads may hold any lock.

    Returns:
        0 if `work` returned something true, 1 if not; negative for the signal that ended the child:
        -SIGALRM if it hung.
    """
    with warnings.catch_warnings():  # newer Pythons warn of threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            # Says where each thread hangs, and then ends the child.
            faulthandler.register(signal.SIGALRM, file=sys.__stderr__, chain=True)
            signal.alarm(HANGS_S)
            status = 0 if work() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return _status(child)


def _run(
    code: str,
    arguments: Sequence[Any],
    environments: Sequence[Mapping[str, str]],
    cwd: str | os.PathLike[str] | None = None,
    whole_exit: bool = False,
) -> subprocess.CompletedProcess[str]:
    """One process for each environment, all at once."""
    with tempfile.TemporaryDirectory(prefix="fastio-child-") as folder:
        out, errors = Path(folder, "stdout"), Path(folder, "stderr")
        request = {
            "code": code,
            "arguments": [str(argument) for argument in arguments],
            "environments": [{**os.environ, **environment} for environment in environments],
            "cwd": os.fspath(cwd or os.getcwd()),
            "whole_exit": whole_exit,
            "stdout": str(out),
            "stderr": str(errors),
        }
        status = _server(os.getpid()).run(request)
        return subprocess.CompletedProcess(
            ["python", "-c", code], status, out.read_text(), errors.read_text()
        )


class _Server:
    """The process that forks; one request at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # or a line that was read ahead would not be seen by select
            cwd=ROOT,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # threads do not outlive a fork
        )

    def run(self, request: dict[str, Any]) -> int:
        """The exit status of processes that were forked for the request."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        line = memoryview(json.dumps(request).encode() + b"\n")
        while line:
            line = line[stdin.write(line) :]
        children = json.loads(stdout.readline())
        if not select.select([stdout], [], [], LIMIT_S)[0]:
            for child in children:
                with contextlib.suppress(ProcessLookupError):  # another one hangs
                    os.kill(child, signal.SIGUSR1)  # see _become
            time.sleep(1)
            for child in children:
                os.killpg(child, signal.SIGKILL)
            stdout.readline()
            said = Path(request["stderr"]).read_text()
            raise AssertionError(f"it did not end within {LIMIT_S} s: {said}\n{request['code']}")
        return next((status for status in json.loads(stdout.readline()) if status), 0)


@cache
def _server(process: int) -> _Server:
    """The one of this process; it ends with it, at the end of its standard input."""
    return _Server()


def _next_child() -> dict[str, Any] | None:
    """Forks for each request; returns it in the children, and None at the end of the requests."""
    for line in sys.stdin:
        request = json.loads(line)
        children = []
        for environment in request["environments"]:
            children.append(os.fork())
            if not children[-1]:
                return {**request, "env": environment}
        print(json.dumps(children), flush=True)
        print(json.dumps([_status(child) for child in children]), flush=True)
    return None


def _status(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _become(request: dict[str, Any]) -> None:
    """Makes this process what `python -c` would have begun with."""
    os.setsid()
    for fd, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["stdout"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        (2, request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    faulthandler.register(signal.SIGUSR1)  # says where all threads are if this process hangs
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None  # asked for anew, where TMPDIR is another
    sys.argv = ["-c", *request["arguments"]]


def _leave(inherited: Iterable[weakref.finalize[..., Any]]) -> None:
    """Ends this process with the first steps of the end of an interpreter.

    Threads are joined, functions of `atexit` are called and garbage is collected. Modules and
    static objects stay: each page of memory that deleting them writes to would have to be copied,
    for the process was forked.

    Args:
        inherited: what the imports before the fork have registered for the end; torch's removes
            its operators, one by one.
    """
    for finalizer in inherited:
        finalizer.atexit = False
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "tools")]  # as pytest has it
    for name in _IMPORTED:
        with contextlib.suppress(ImportError):  # pandas need not be installed
            importlib.import_module(name)
    sys.modules["PIL.Image"].init()
    multiprocessing.set_start_method("fork", force=True)  # as in conftest
    registered = list(weakref.finalize._registry)  # type: ignore[attr-defined]
    gc.freeze()  # what is imported is not looked through at the end of each child
    if asked := _next_child():
        _become(asked)
        # Here, where the end of the code is followed by the interpreter's own.
        exec(compile(asked["code"], "<string>", "exec"), {"__name__": "__main__"})
        if not asked["whole_exit"]:
            _leave(registered)
