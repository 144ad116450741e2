"""What others could have put in a cache folder is refused, and never leads out of the folder."""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from fastio import Cache, CacheError
from fastio.cache import CacheFolder, Source, report
from fastio.cache.held import Access, HeldFolder

MIB = 1 << 20
OTHER = 54_321  # a user whom no machine has
FINGERPRINT = "0123456789abcdef"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def fill(path: Path, pieces: int = 3, **options: Any) -> Source:
    """Makes a cache of some pieces."""
    folder = CacheFolder(path, 8 * MIB, **options)
    source = folder.source("http://host/data", FINGERPRINT, 1000, 10, 1 << 20)
    for number in range(pieces):
        assert folder.claim(source, {number: 10}) == {number: "mine"}
        assert folder.store(source, number, [b"0123456789"])
    folder.close()
    return source


def edit(path: Path, *statements: str) -> None:
    """Writes to a cache's index what fastio never would."""
    with closing(sqlite3.connect(path / "index.sqlite")) as db:
        db.execute("PRAGMA ignore_check_constraints=ON")
        db.execute("PRAGMA writable_schema=ON")
        for statement in statements:
            db.execute(statement)
        db.commit()


def modes(path: Path) -> set[tuple[bool, int]]:
    """(is a folder, mode) of a cache's folder and of all that is in it."""
    found = [path, *path.rglob("*")]
    return {(p.is_dir(), stat.S_IMODE(p.lstat().st_mode)) for p in found}


@pytest.fixture(params=[0o000, 0o077], ids=("umask-000", "umask-077"))
def umask(request: pytest.FixtureRequest) -> Any:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_a_cache_is_the_users_alone(tmp_path: Path) -> None:
    fill(tmp_path / "cache")
    assert modes(tmp_path / "cache") == {(True, 0o700), (False, 0o600)}


@pytest.mark.usefixtures("umask")
def test_a_shared_cache_is_its_groups(tmp_path: Path) -> None:
    fill(tmp_path / "cache", shared=True)
    assert modes(tmp_path / "cache") == {(True, 0o2770), (False, 0o660)}
    with Cache(tmp_path / "cache", shared=True) as cache:
        assert cache.status().pieces == 3


def let_write(path: Path, kind: str, *, tag: int, mask: int = 7) -> None:
    """Puts a user (tag 2) or group (tag 8) on a folder's access control list."""
    entries = [(1, 7, -1), (4, 7, -1), (tag, 7, OTHER), (16, mask, -1), (32, 0, -1)]
    ordered = sorted(entries, key=lambda entry: entry[0])
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in ordered)
    try:
        os.setxattr(path, f"system.posix_acl_{kind}", data)
    except (OSError, AttributeError) as error:
        pytest.skip(f"the file system of {path} has no access control lists: {error}")


@pytest.mark.parametrize(("tag", "who"), [(2, f"user {OTHER}"), (8, f"group {OTHER}")])
@pytest.mark.parametrize(
    ("kind", "shared"), [("access", False), ("access", True), ("default", True)]
)
def test_a_folder_whose_access_control_list_lets_others_write_is_refused(
    kind: str, shared: bool, tag: int, who: str, tmp_path: Path
) -> None:
    fill(tmp_path / "cache", shared=shared)
    let_write(tmp_path / "cache", kind, tag=tag)
    with pytest.raises(CacheError, match=rf"control list by which {who} may write.*setfacl -b"):
        CacheFolder(tmp_path / "cache", MIB, shared=shared)


def test_a_folder_whose_access_control_list_lets_nobody_write_is_taken(tmp_path: Path) -> None:
    fill(tmp_path / "cache")
    let_write(tmp_path / "cache", "access", tag=2, mask=5)
    fill(tmp_path / "cache", pieces=0)


@pytest.mark.parametrize("mode", [0o775, 0o720, 0o2770])
def test_a_folder_that_its_group_may_write_is_refused(mode: int, tmp_path: Path) -> None:
    fill(tmp_path / "cache")
    os.chmod(tmp_path / "cache", mode)
    with pytest.raises(CacheError, match=rf"mode {mode:04o}.*its group.*chmod g-w.*shared=True"):
        CacheFolder(tmp_path / "cache", MIB)


@pytest.mark.parametrize("shared", [False, True])
def test_a_folder_that_everybody_may_write_is_refused(shared: bool, tmp_path: Path) -> None:
    fill(tmp_path / "cache", shared=shared)
    os.chmod(tmp_path / "cache", 0o2777)
    with pytest.raises(CacheError, match=r"mode 2777: everybody may write to it.*chmod o-w"):
        CacheFolder(tmp_path / "cache", MIB, shared=shared)


def test_a_folder_that_was_not_made_for_sharing_is_not_shared(tmp_path: Path) -> None:
    fill(tmp_path / "cache")
    with pytest.raises(CacheError, match="mode 0700: it was not made for sharing"):
        CacheFolder(tmp_path / "cache", MIB, shared=True)


@needs_root
def test_a_folder_of_somebody_elses_is_refused_unless_it_is_shared(tmp_path: Path) -> None:
    for shared in (False, True):
        path = tmp_path / str(shared)
        fill(path, shared=shared)
        for each in (path, *path.rglob("*")):
            os.chown(each, OTHER, -1)
        with pytest.raises(CacheError, match=rf"belongs to user {OTHER}.*shared=True"):
            CacheFolder(path, MIB)
    CacheFolder(tmp_path / "True", MIB, shared=True).close()


@needs_root
def test_a_shared_folder_of_a_group_that_one_is_not_in_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "cache", shared=True)
    os.chown(tmp_path / "cache", OTHER, OTHER)
    with pytest.raises(CacheError, match=rf"group {OTHER}, and you .* are not in it"):
        CacheFolder(tmp_path / "cache", MIB, shared=True)


@needs_root
@pytest.mark.parametrize("name", ["data", "tmp", "members", "index.sqlite"])
def test_what_others_made_in_a_folder_of_ones_own_is_refused(name: str, tmp_path: Path) -> None:
    fill(tmp_path / "cache")
    os.chown(tmp_path / "cache" / name, OTHER, OTHER)
    with pytest.raises(CacheError, match=rf"{name} belongs to user {OTHER}"):
        CacheFolder(tmp_path / "cache", MIB)


@pytest.mark.parametrize("name", ["data", "tmp", "members"])
def test_a_link_in_the_place_of_a_folder_is_not_followed(name: str, tmp_path: Path) -> None:
    fill(tmp_path / "cache")
    place, victim = tmp_path / "cache" / name, tmp_path / "victim"
    place.rename(victim)
    (victim / "mine").write_text("important")
    place.symlink_to(victim)
    with pytest.raises(CacheError, match="cannot be used"):
        CacheFolder(tmp_path / "cache", MIB)
    assert (victim / "mine").read_text() == "important"


@pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("how", ["symbolic", "hard"])
def test_a_link_in_the_place_of_the_index_is_refused(end: str, how: str, tmp_path: Path) -> None:
    fill(tmp_path / "cache")
    victim, place = tmp_path / "victim", tmp_path / "cache" / f"index.sqlite{end}"
    victim.write_text("")
    place.unlink(missing_ok=True)
    place.symlink_to(victim) if how == "symbolic" else place.hardlink_to(victim)
    with pytest.raises(CacheError, match=rf"index\.sqlite{end} is a link"):
        CacheFolder(tmp_path / "cache", MIB)
    assert victim.read_text() == ""


@pytest.mark.parametrize("how", ["symbolic", "hard", "file"])
def test_a_file_that_lies_at_a_new_file_s_name_is_not_opened(how: str, tmp_path: Path) -> None:
    """Names of temporary files are random; should one be guessed, nothing is written there."""
    victim, place = tmp_path / "victim", tmp_path / "cache" / "guessed"
    victim.write_text("important")
    with HeldFolder.top(tmp_path / "cache", Access()) as folder:
        if how == "symbolic":
            place.symlink_to(victim)
        elif how == "hard":
            place.hardlink_to(victim)
        else:
            place.write_text("important")
        with pytest.raises(FileExistsError):
            folder.create("guessed")
        if how == "symbolic":
            with pytest.raises(FileNotFoundError, match="not a regular file"):
                folder.open("guessed", os.O_RDWR)
    assert victim.read_text() == place.read_text() == "important"


def test_a_piece_is_not_written_through_a_link_in_its_way(tmp_path: Path) -> None:
    source = fill(tmp_path / "cache", 0)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "7").write_text("important")
    (tmp_path / "cache" / "data" / source.key).mkdir()
    (tmp_path / "cache" / "data" / source.key / "0").symlink_to(victim)
    folder = CacheFolder(tmp_path / "cache", 8 * MIB)
    source = folder.source("http://host/data", FINGERPRINT, 1000, 10, 1 << 20)
    assert folder.claim(source, {7: 10}) == {7: "mine"}
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        folder.store(source, 7, [b"0123456789"])
    folder.abandon(source, [7])
    folder.drop(source, [7])
    assert not folder.exists(source, 7, 9)
    folder.close()
    assert (victim / "7").read_text() == "important"


def test_a_piece_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    source = fill(tmp_path / "cache")
    victim = tmp_path / "victim"
    victim.write_bytes(b"0123456789")
    folder = CacheFolder(tmp_path / "cache", 8 * MIB)
    folder.file(source, 1).unlink()
    folder.file(source, 1).symlink_to(victim)
    assert not folder.has(source, 1, 10)
    folder.drop(source, [1])
    folder.close()
    assert victim.exists()


LEADS_OUT = f"""INSERT INTO sources VALUES
    (99, '../../victim', 'http://host', '{FINGERPRINT}', 1000, 10, 1000, 0)"""
PIECE_OF = """INSERT INTO pieces VALUES (99, 7, 4096, 10, '0123456789abcdef', 1, '1-0', 1.0)"""


def test_an_index_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "cache")
    victim = tmp_path / "victim" / "0" / "7"
    victim.parent.mkdir(parents=True)
    victim.write_text("important")
    edit(tmp_path / "cache", LEADS_OUT, PIECE_OF)
    with pytest.raises(CacheError, match=r"index\.sqlite has rows of sources that fastio never"):
        Cache(tmp_path / "cache").prune(1)
    assert victim.read_text() == "important"


COMMANDS: dict[str, Callable[[CacheFolder], object]] = {
    "status": report.status,
    "prune": lambda folder: folder.shrink(0),
    "clear": report.clear,
    "verify": report.verify,
    "claim": lambda folder: folder.claim(
        folder.source("http://host/data", FINGERPRINT, 1000, 10, 1 << 20),
        dict.fromkeys(range(100), 100_000),
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_index_that_leads_out_meanwhile_deletes_nothing(command: str, tmp_path: Path) -> None:
    fill(tmp_path / "cache")
    victims = [tmp_path / "victim" / "0" / "7", tmp_path / "members"]
    victims[0].parent.mkdir(parents=True)
    for victim in victims:
        victim.write_text("important")
    folder = CacheFolder(tmp_path / "cache", 8 * MIB)
    edit(
        tmp_path / "cache",
        LEADS_OUT,
        PIECE_OF,
        PIECE_OF.replace("7, 4096", "8, 4096").replace("1, '1-0'", "0, '../../members'"),
    )
    with suppress(CacheError):
        COMMANDS[command](folder)
    folder.close()
    assert [victim.read_text() for victim in victims] == ["important"] * 2


def test_an_index_with_a_trigger_of_somebody_elses_is_refused(tmp_path: Path) -> None:
    for number, more in enumerate(
        (
            "CREATE TRIGGER mine AFTER INSERT ON runs BEGIN DELETE FROM pieces; END",
            "CREATE VIEW mine AS SELECT * FROM pieces",
            "CREATE TABLE mine (x)",
            "DROP TRIGGER piece_gone",
        )
    ):
        fill(tmp_path / str(number))
        edit(tmp_path / str(number), more)
        with pytest.raises(CacheError, match="tables, views or triggers that are not fastio's"):
            CacheFolder(tmp_path / str(number), MIB)


def column_edits() -> list[str]:
    """One for each kind of wrong value in each column."""
    columns = {
        "sources": ("key", "url", "fingerprint", "rows", "block_rows", "bytes"),
        "pieces": ("source", "number", "bytes", "size", "xxh3", "state", "owner", "used"),
        "runs": ("owner", "run", "source", "forecast", "position", "ahead"),
        "totals": ("name", "value"),
    }
    return [
        f"UPDATE {table} SET {column} = {value} WHERE rowid = 1"
        if table in ("sources", "runs")
        else f"UPDATE {table} SET {column} = {value} WHERE {which}"
        for table, names in columns.items()
        for which in ("number = 1" if table == "pieces" else "name = 'bytes'",)
        for column in names
        for value in ("x'ff00'", "'x'", "-9", "9e99", "9223372036854775807", "CAST(x'ff' AS TEXT)")
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trust") / "cache"
    fill(path)
    with closing(sqlite3.connect(path / "index.sqlite")) as db:
        db.execute("INSERT INTO runs VALUES ('1-0123456789ab', 1, 1, '{}', 0, 0)")
        db.commit()
    return path


def test_whatever_its_columns_hold_a_broken_index_is_a_cache_error(
    whole: Path, tmp_path: Path
) -> None:
    index = (whole / "index.sqlite").read_bytes()
    path = tmp_path / "cache"
    fill(path)
    for statement in column_edits():
        for name in ("index.sqlite-wal", "index.sqlite-shm"):
            (path / name).unlink(missing_ok=True)
        (path / "index.sqlite").write_bytes(index)
        try:
            edit(path, statement)
        except sqlite3.Error:
            continue  # SQLite does not take it
        told = cache_errors(path)
        assert all("index" in each for each in told), (statement, told)


def cache_errors(path: Path) -> list[str]:
    """What opening and using a cache refuses."""
    told = []
    try:
        folder = CacheFolder(path, MIB)
    except CacheError as error:
        return [str(error)]
    for command in COMMANDS.values():
        try:
            command(folder)
        except CacheError as error:
            told.append(str(error))
    folder.close()
    return told


def test_an_index_that_breaks_meanwhile_is_a_cache_error(tmp_path: Path) -> None:
    fill(tmp_path / "cache")
    folder = CacheFolder(tmp_path / "cache", 8 * MIB)
    source = folder.source("http://host/data", FINGERPRINT, 1000, 10, 1 << 20)
    edit(tmp_path / "cache", "UPDATE pieces SET size = 'x', used = 'x', xxh3 = NULL")
    with pytest.raises(CacheError, match=r"index\.sqlite"):
        folder.look(source, 1)
    with pytest.raises(CacheError, match=r"index\.sqlite"):
        folder.claim(source, dict.fromkeys(range(100, 107), MIB))  # wants something to go
    folder.close()
