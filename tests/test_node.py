"""Memory that processes of one machine share: copies of tables, and notes of what was verified."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from weakref import WeakSet

import numpy as np
import pytest

import fastio
from fastio import _native
from fastio.engine.fields.columns import Columns
from fastio.packed import comparisons
from fastio.runtime import node
from fastio.runtime.node import NodeMemory
from tests.children import run_code, run_ranks
from tests.staging_support import pack_table

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs memfd_create and /proc")

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> fastio.Dataset:
    return fastio.open(pack_table(tmp_path_factory.mktemp("table") / "ds"))  # type: ignore[return-value]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files with users, of this test alone."""
    monkeypatch.setattr(node, "_SHM", str(tmp_path))
    return tmp_path / f"fastio-{os.geteuid()}"


@contextmanager
def child(work: Callable[[], object]) -> Iterator[int]:
    """A forked process that has called `work` and sleeps; it is killed at the end."""
    ready, told = os.pipe()
    pid = os.fork()
    if not pid:
        kept = work()
        os.write(told, b"x" if kept else b"-")
        signal.pause()
        os._exit(1)
    try:
        assert os.read(ready, 1) == b"x"
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(ready)
        os.close(told)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


# --- Who finds whose memory -----------------------------------------------------------------------


def test_processes_with_the_same_key_share_memory(folder: Path) -> None:
    mine = NodeMemory("key", 4)

    def work() -> NodeMemory:
        theirs = NodeMemory("key", 4)
        theirs.native.publish(3, 99)
        return theirs

    with child(work):
        assert mine.native.published(3) == 99
    other = NodeMemory("other", 4)
    assert other.native.published(3) == 0
    mine.close()
    other.close()


def test_memory_stays_when_the_process_that_made_it_is_killed(folder: Path) -> None:
    def work() -> NodeMemory:
        made = NodeMemory("key", 1)
        made.native.publish(0, 7)
        return made

    with child(work) as pid:
        mine = NodeMemory("key", 1)
        kill(pid)
        later = NodeMemory("key", 1)  # finds this process's
        assert (mine.native.published(0), later.native.published(0)) == (7, 7)
    mine.close()
    later.close()


def test_memory_is_gone_when_all_its_processes_were_killed(folder: Path) -> None:
    def work() -> NodeMemory:
        made = NodeMemory("key", 1, 1 << 20)
        made.native.publish(0, 7)
        return made

    with child(work) as one, child(work) as two:
        kill(one)
        kill(two)
    left = list(folder.iterdir())
    assert [path.stat().st_size < 100 for path in left] == [True]  # a line each, and no memory
    mine = NodeMemory("key", 1, 1 << 20)
    assert mine.native.published(0) == 0
    assert len(left[0].read_text().splitlines()) == 1
    mine.close()


def test_who_closes_last_leaves_no_file(folder: Path) -> None:
    one, two = NodeMemory("key", 1), NodeMemory("key", 1)
    one.close()
    one.close()
    assert len(list(folder.iterdir())) == 1
    two.close()
    assert list(folder.iterdir()) == []


def test_files_of_killed_processes_are_deleted_when_memory_is_made(folder: Path) -> None:
    with child(lambda: NodeMemory("old", 1)) as pid:
        kill(pid)
    assert len(list(folder.iterdir())) == 1
    mine = NodeMemory("new", 1)
    assert [path.name.split("-")[0] for path in folder.iterdir()] == ["new"]
    mine.close()


def test_lines_that_name_something_else_are_not_followed(folder: Path, tmp_path: Path) -> None:
    mine = NodeMemory("key", 1)
    mine.native.publish(0, 7)
    path = next(folder.iterdir())
    pid, fd, device, inode = path.read_text().split()
    mine.close()
    with open(tmp_path / "file", "wb") as file:
        file.truncate(_native.NodeMemory.bytes_for(1, 0))
        same = os.fstat(file.fileno())
        wrong = (
            f"{pid} {file.fileno()} {same.st_dev} {same.st_ino}",  # not sealed
            f"{pid} {file.fileno()} {device} {inode}",
            f"1 {fd} {device} {inode}",
            f"999999999 0 {device} {inode}",
            "nonsense",
            "\0" * 50,
        )
        path.write_text("\n".join(wrong))
        found = NodeMemory("key", 1)
        assert found.native.published(0) == 0
        found.native.publish(0, 1)
        found.close()
        assert not any((tmp_path / "file").read_bytes())


def test_a_folder_that_others_can_enter_is_not_used(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match="only you can enter"):
        NodeMemory("key", 1)
    folder.rmdir()
    folder.symlink_to("/")
    with pytest.raises(PermissionError, match="only you can enter"):
        NodeMemory("key", 1)


def test_a_process_that_was_stopped_with_the_lock_is_not_waited_for(folder: Path) -> None:
    first = NodeMemory("key", 1)
    path = next(folder.iterdir())
    held = node._locked(path)
    with held, pytest.raises(BlockingIOError), node._locked(path, wait_s=0.01):
        pass
    first.close()


def test_files_of_containers_whose_processes_are_not_visible_stay(folder: Path) -> None:
    first = NodeMemory("key", 1)
    path = next(folder.iterdir())
    foreign = path.with_name(path.name + "9")  # of another namespace of processes
    foreign.write_text("1 2 3 4\n")
    NodeMemory("new", 1).close()
    assert foreign.read_text() == "1 2 3 4\n"
    first.close()


def test_memory_of_another_format_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = NodeMemory("key", 1)
    first.native.publish(0, 7)
    monkeypatch.setattr(node, "_FORMAT", node._FORMAT + 1)
    second = NodeMemory("key", 1)
    assert second.native.published(0) == 0
    first.close()
    second.close()


def test_lines_of_others_survive_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = NodeMemory("key", 1)
    path = next(folder.iterdir())
    lines = path.read_text()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            NodeMemory("key", 1)
    assert path.read_text() == lines
    first.close()


def test_a_file_that_somebody_deletes_is_no_error(folder: Path) -> None:
    first = NodeMemory("key", 1)
    with pytest.raises(FileNotFoundError), node._locked(next(folder.iterdir())):
        raise FileNotFoundError
    for path in folder.iterdir():
        path.unlink()
    first.close()
    assert list(folder.iterdir()) == []


def test_memory_takes_a_quarter_of_the_descriptors_at_most(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (16, 16))
    monkeypatch.setattr(node, "_in_use", WeakSet())
    one, two = NodeMemory("one", 1), NodeMemory("two", 1)
    with pytest.raises(OSError, match="the limit is 2"):
        NodeMemory("three", 1)
    two.close()
    NodeMemory("three", 1).close()
    one.close()


def test_a_process_that_ends_without_closing_leaves_no_file(tmp_path: Path) -> None:
    code = """
import sys
from fastio.runtime import node
node._SHM = sys.argv[1]
kept = node.NodeMemory("key", 1)
"""
    done = run_code(code, tmp_path, whole_exit=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [list(path.iterdir()) for path in tmp_path.iterdir()] == [[]]


@pytest.mark.parametrize(
    ("setting", "release", "has"),
    [
        ("always [never] deny", "6.1.0-13-amd64", True),
        ("always [never] deny", "5.15.0", False),
        ("always [advise] never deny", "5.15.0", True),
        ("always never [deny]", "6.8.0", False),
        ("", "6.8.0", False),
    ],
)
def test_whether_shared_memory_has_huge_pages(
    setting: str, release: str, has: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_SHMEM_PAGES", tmp_path / "setting")
    (tmp_path / "setting").write_text(setting)
    monkeypatch.setattr("platform.release", lambda: release)
    assert node.has_shared_huge_pages() is has


# --- Claims ---------------------------------------------------------------------------------------


def test_a_claim_ends_with_its_process(folder: Path) -> None:
    def work() -> NodeMemory | None:
        theirs = NodeMemory("key", 2)
        return theirs if theirs.native.claim(1) else None

    mine = NodeMemory("key", 2)
    with child(work) as pid:
        assert mine.native.claim(0)
        assert not mine.native.claim(1)
        kill(pid)
        assert mine.native.claim(1)
    mine.native.release(1)
    other = NodeMemory("key", 2)
    assert other.native.claim(1)
    assert not other.native.claim(0)
    for each in (mine, other):
        each.close()


# --- Tables ---------------------------------------------------------------------------------------


def columns_of(table: fastio.Dataset) -> Columns:
    layout = table.fixed_columns(list(table.schema.fields))
    assert layout is not None
    return Columns(layout, resident=True)


def right(table: fastio.Dataset, columns: Columns) -> bool:
    """Whether all rows are what they should be."""
    place = [field.name for field in columns.fields].index("y")
    y = np.empty(len(table), np.int64)
    rows = np.random.default_rng(0).permutation(len(table))
    engine = _native.Engine(1)
    out = [y if at == place else None for at in range(len(columns.fields))]
    slot = columns.gather(engine, rows, out)
    return slot.wait(LIMIT_S) and bool((y == rows).all())


def wait_for(columns: Columns, shards: int) -> bool:
    deadline_s = time.monotonic() + LIMIT_S
    while columns.table.resident < shards and time.monotonic() < deadline_s:
        time.sleep(0.001)
    return columns.table.resident == shards


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")


def test_a_shard_whose_rank_is_killed_while_it_copies_is_copied_by_another(
    table: fastio.Dataset, folder: Path, ranks: None
) -> None:
    """Until then it is read from its file: nobody waits."""
    shards = table.num_shards
    assert shards > 1

    def work() -> object:
        columns = columns_of(table)
        columns._begin_copies()
        assert columns._node is not None
        return columns if columns._node.native.claim(0) else None

    with child(work) as pid:
        mine = columns_of(table)
        assert right(table, mine)
        assert wait_for(mine, shards - 1)
        assert right(table, mine)
        kill(pid)
        assert wait_for(mine, shards)
        assert right(table, mine)
    mine.close()


def test_a_late_rank_uses_the_copy_that_is_there(
    table: fastio.Dataset, folder: Path, ranks: None
) -> None:
    def work() -> object:
        columns = columns_of(table)
        return columns if right(table, columns) and wait_for(columns, table.num_shards) else None

    with child(work) as pid:
        mine = columns_of(table)
        mine._begin_copies()
        kill(pid)  # what it has copied stays
        assert mine._node is not None
        published = [mine._node.native.published(shard) for shard in range(table.num_shards)]
        assert all(published)
        assert right(table, mine)
        assert wait_for(mine, table.num_shards)
        assert right(table, mine)
    mine.close()


def test_a_copy_of_another_file_is_not_used(
    table: fastio.Dataset, folder: Path, ranks: None
) -> None:
    mine = columns_of(table)
    mine._begin_copies()
    assert mine._node is not None
    mine._node.native.publish(0, 12345)
    assert right(table, mine)
    assert wait_for(mine, table.num_shards - 1)
    assert right(table, mine)
    mine.close()


def test_ranks_that_cannot_share_memory_have_copies_of_their_own(
    table: fastio.Dataset, folder: Path, ranks: None
) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    mine = columns_of(table)
    with pytest.warns(fastio.PerformanceWarning, match="each of the 2 ranks .* makes its own copy"):
        assert right(table, mine)
    assert wait_for(mine, table.num_shards)
    assert mine._node is None
    assert right(table, mine)
    mine.close()


def test_copying_is_left_out_if_it_is_automatic_and_not_shared(
    table: fastio.Dataset, folder: Path, ranks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page cache has the files once for all ranks."""
    monkeypatch.setattr("fastio.engine.fields.columns.huge_page_share", lambda files: 0.0)
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    layout = table.fixed_columns(list(table.schema.fields))
    assert layout is not None
    mine = Columns(layout, resident=None)
    for _ in range(3):
        assert right(table, mine)
    assert not mine._copies
    mine.close()


_SHARING = """
import json, re, sys, time
import torch.distributed as dist
import fastio

path, out, bytes_wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo")

def mapped():
    kib = dict.fromkeys(("Rss", "Pss"), 0)
    ours = False
    for line in open("/proc/self/smaps", errors="surrogateescape"):
        name, value, *rest = line.split(maxsplit=5)
        if not name.endswith(":"):
            ours = "memfd:fastio-table" in line
        elif ours and name[:-1] in kib:
            kib[name[:-1]] += int(value)
    return {name: value * 1024 for name, value in kib.items()}

rows, deadline_s = [], time.monotonic() + 60
with fastio.Loader(
    fastio.open(path, resident=True), 64, shuffle=True, seed=0, distributed=True
) as loader:
    for batch in loader:
        valid = loader.batch.valid
        rows += batch["y"].tolist()[:valid]
        assert batch["y"].tolist()[:valid] == loader.batch.rows[:valid].tolist()
    while mapped()["Rss"] < bytes_wanted and time.monotonic() < deadline_s:
        for batch in loader:
            pass
    dist.barrier()
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, (rows, mapped()))
    dist.barrier()
if dist.get_rank() == 0:
    open(out, "w").write(json.dumps(found))
dist.destroy_process_group()
"""


def test_the_ranks_of_a_machine_have_one_copy_of_a_table(tmp_path: Path) -> None:
    path, out = tmp_path / "packed", tmp_path / "out"
    rows, width = 4096, 512
    schema = fastio.Schema({"x": fastio.Array("uint8", (width,)), "y": fastio.Scalar("int64")})
    with fastio.Writer(path, schema, shard_size="512KiB") as writer:
        for row in range(rows):
            writer.write({"x": np.full(width, row % 251, np.uint8), "y": row})
    done = run_ranks(_SHARING, path, out, rows * width, ranks=3)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert sorted(row for own, _ in found for row in own) == list(range(rows))
    assert all(memory["Rss"] >= rows * width for _, memory in found)
    together = sum(memory["Pss"] for _, memory in found)
    assert together < 1.5 * max(memory["Rss"] for _, memory in found)


def test_a_repaired_file_is_not_read_from_the_copy_of_the_damaged_one(
    tmp_path: Path, folder: Path, ranks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if its time of modification is set back, as `cp -p` and rsync do."""
    table = fastio.open(pack_table(tmp_path / "ds"))
    shard = sorted(Path(table.path).glob("shard-*"))[0]
    good, status = shard.read_bytes(), shard.stat()
    data = bytearray(good)
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    copied = columns_of(table)
    copied._begin_copies()
    with monkeypatch.context() as late:
        late.setattr(comparisons.Comparisons, "add_shard", lambda *_: None)
        with copied._mapped(range(table.num_shards)):
            pass
    assert wait_for(copied, table.num_shards)

    shard.write_bytes(good)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    again = fastio.open(table.path)
    mine = columns_of(again)
    assert right(again, mine)
    assert wait_for(mine, table.num_shards - 1)
    assert right(again, mine)
    assert mine.table.resident == table.num_shards - 1
    copied.close()
    mine.close()


_FULL = """
import os, sys, time
import numpy as np
import fastio
from fastio.runtime import node
from tests.test_node import columns_of, right

def create(key, size):
    fd = os.open(os.path.join(sys.argv[2], key), os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, size)
    return fd

node._create = create
table = fastio.open(sys.argv[1])
columns = columns_of(table)
assert right(table, columns)
native, deadline_s = columns._node.native, time.monotonic() + 60
while not native.published(0) and time.monotonic() < deadline_s:
    time.sleep(0.01)
for _ in range(20):
    assert right(table, columns)
    time.sleep(0.01)
assert right(table, columns)
columns.close()
print(0 < columns.table.resident < table.num_shards)
"""


def test_where_memory_is_full_shards_stay_mapped(tmp_path: Path) -> None:
    """Writing to memory that the system does not have would end the process."""
    path, small = tmp_path / "ds", tmp_path / "small"
    schema = fastio.Schema({"x": fastio.Array("uint8", (1024,)), "y": fastio.Scalar("int64")})
    with fastio.Writer(path, schema, shard_size="1MiB") as writer:
        for row in range(8192):
            writer.write({"x": np.full(1024, row % 251, np.uint8), "y": row})
    small.mkdir()
    mount = 'mount -t tmpfs -o size=5m fastio "$1" 2> /dev/null || exit 77; shift; exec "$@"'
    done = subprocess.run(
        [
            "unshare",
            "-Urm",
            "sh",
            "-c",
            mount,
            "sh",
            small,
            sys.executable,
            "-c",
            _FULL,
            path,
            small,
        ],
        env={**os.environ, "LOCAL_WORLD_SIZE": "2"},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode in (1, 77) and "True" not in done.stdout and "Traceback" not in done.stderr:
        pytest.skip(f"cannot mount here: {done.stderr}")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


# --- Notes of what was verified -------------------------------------------------------------------


@pytest.fixture
def verifying(table: fastio.Dataset, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the shards that this process verifies."""
    monkeypatch.setattr(comparisons, "_CHECKED_BYTES", 0)
    monkeypatch.setattr(comparisons, "_verified", set())
    done: list[str] = []
    check = fastio.packed.shard.ShardReader.check_columns

    def checked(reader: object, **options: object) -> None:
        done.append(reader.path)  # type: ignore[attr-defined]
        check(reader, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(fastio.packed.shard.ShardReader, "check_columns", checked)
    return done


def read_all(path: str) -> None:
    dataset = fastio.open(path)
    with fastio.Loader(dataset, 64, num_workers=1, distributed=False) as loader:
        for _ in loader:
            pass
    dataset.close()


def test_what_a_rank_has_verified_no_other_verifies(
    table: fastio.Dataset, folder: Path, ranks: None, verifying: list[str]
) -> None:
    def work() -> object:
        dataset = fastio.open(table.path)
        with fastio.Loader(dataset, 64, num_workers=1, distributed=False) as loader:
            for _ in loader:
                pass
        return dataset  # which is open still

    with child(work):
        read_all(table.path)
        assert verifying == []
    comparisons._verified.clear()
    read_all(table.path)  # the notes were those of living processes
    assert len(verifying) == table.num_shards


def claimed_shard(table: fastio.Dataset) -> object:
    """The notes of a rank that claims the first shard and does not verify it."""
    notes = NodeMemory(*table.shards._comparisons._notes_of)
    return notes if notes.native.claim(0) else None


def test_a_shard_whose_rank_hangs_while_it_verifies_is_verified_here(
    table: fastio.Dataset,
    folder: Path,
    ranks: None,
    verifying: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparisons, "_WAIT_S", 0.1)
    with child(partial(claimed_shard, table)):
        read_all(table.path)
    assert len(verifying) == table.num_shards


def test_a_small_shard_that_another_rank_verifies_is_opened_after_that(
    table: fastio.Dataset,
    folder: Path,
    ranks: None,
    verifying: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparisons, "_CHECKED_BYTES", 1 << 30)
    monkeypatch.setattr(comparisons, "_WAIT_SMALL_S", 60.0)
    with child(partial(claimed_shard, table)) as pid, ThreadPoolExecutor(1) as pool:
        mine = fastio.open(table.path)
        assert isinstance(mine, fastio.Dataset)
        opening = pool.submit(mine.shard, 0)
        with pytest.raises(FutureTimeout):
            opening.result(0.3)
        assert verifying == []
        kill(pid)  # it has not noted anything
        assert opening.result(60).path == verifying[0]
        mine.close()
    assert len(verifying) == 1


def test_shards_that_wait_for_long_are_verified_once_all_the_same(
    table: fastio.Dataset,
    folder: Path,
    ranks: None,
    verifying: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparisons, "_WAIT_S", 0.0)  # of a shard that another rank verifies

    def work() -> object:
        dataset = fastio.open(table.path)
        with fastio.Loader(dataset, 64, num_workers=1, distributed=False) as loader:
            for _ in loader:
                pass
        return dataset

    mine = fastio.open(table.path)
    queued: list[Callable[[], bool]] = []
    monkeypatch.setattr(mine.shards._comparisons, "_queue", queued.append)
    for shard in range(table.num_shards):
        mine.shard(shard)
    with child(work):
        assert all(compare() for compare in queued)
    assert len(queued) == table.num_shards
    assert verifying == []
    mine.close()


def test_every_rank_finds_the_damage_of_a_shard(
    tmp_path: Path, folder: Path, ranks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparisons, "_CHECKED_BYTES", 0)
    path = pack_table(tmp_path / "ds")
    shard = sorted(Path(path).glob("shard-*"))[0]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)

    def raises() -> bool:
        with pytest.raises(fastio.ShardCorrupt):
            read_all(path)
        return True

    with child(raises):
        raises()
