"""Paths that the system refuses and files of another kind are errors with a name."""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastio
from fastio import DatasetNotFound, FastioError, Loader, PackError, ShardCorrupt, SourceNotFound
from fastio.sources import find_data
from fastio.sources.registry import describe
from tests.children import run_code
from tests.servers import http_folder
from tests.support import numbered_folder
from tests.tars import write_tars
from tests.web_server import WebServer

READERS: dict[str, Callable[[Any], Any]] = {
    "open": fastio.open,
    "Loader": Loader,
    "info": describe,
    "find": find_data,
}
LONG = "x" * 300
# What a process without rights finds; "ok" where nothing is wrong.
_WITHOUT_RIGHTS = """
import os, sys
import fastio
from fastio import pack  # imported before the rights are dropped
from fastio.pack.tokens.files import find_texts
import fastio.sources.registry as registry
os.setgid(65534)
os.setuid(65534)
try:
    {"open": fastio.open, "pack": lambda path: fastio.pack(path, "/nothing", tokenizer=None),
     "texts": find_texts}[sys.argv[1]](sys.argv[2])
    print("ok")
except fastio.FastioError as error:
    print(type(error).__name__, error)
"""


def without_rights(what: str, path: Path) -> str:
    """What happens to a user who may read what everybody may."""
    done = run_code(_WITHOUT_RIGHTS, what, path)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize(
    "source",
    [
        *("a\0b", "a\0b.tar", "a\0b.parquet", "a\0*.parquet", "file:///a\0b", "s3://b\0b/x"),
        *(["a\0b.tar"], ["b.parquet", "a\0b.parquet"], Path("a\0b")),
        *(LONG, f"{LONG}.tar", f"{LONG}.parquet", f"{LONG}/{{00..01}}.tar", "x/" * 3000),
    ],
    ids=lambda source: repr(source)[:20],
)
def test_a_name_that_no_file_can_have_is_an_error_with_a_name(
    reader: Callable[[Any], Any], source: Any
) -> None:
    with pytest.raises(SourceNotFound, match=r"NUL|too long|does not exist"):
        reader(source)


@pytest.mark.parametrize("name", ["a\0b", "a\0b.tar", LONG])
def test_a_pack_from_or_to_such_a_name_is_an_error_with_a_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(FastioError):
        fastio.pack(name, tmp_path / "out")
    numbered_folder(tmp_path / "folder", (1, 1))
    with pytest.raises(PackError, match=r"null (byte|character)|too long"):
        fastio.pack(tmp_path / "folder", tmp_path / name)


@pytest.fixture
def place() -> Any:
    """A folder that everybody may enter, which folders of pytest are not."""
    if os.geteuid() != 0:
        pytest.skip("rights can only be dropped by root")
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        os.chmod(root, 0o755)
        yield Path(root)


@pytest.mark.parametrize("inside", [False, True], ids=["itself", "a folder in it"])
@pytest.mark.parametrize("kind", ["folder", "tars", "tables", "packed", "nothing"])
def test_a_folder_without_permission_is_named(kind: str, inside: bool, place: Path) -> None:
    root = place / "data"
    (root / "inner").mkdir(parents=True)
    if kind in ("folder", "packed"):
        numbered_folder(place / "folder", (2, 2))
        shutil.move(str(place / "folder"), root / "inner" / "folder")
        if kind == "packed":
            fastio.pack(root / "inner" / "folder", root / "inner" / "packed")
    elif kind == "tars":
        write_tars(root / "inner" / "tars", (1, 1))
    elif kind == "tables":
        (root / "inner" / "tables").mkdir()
        pq.write_table(pa.table({"a": [1]}), root / "inner" / "tables" / "0.parquet")
    os.chmod(root / "inner" if inside else root, 0)
    said = without_rights("open", root / "inner" / kind if inside else root)
    assert said.startswith("SourceNotFound")
    assert "Permission denied" in said
    assert str(root) in said


def test_rows_below_a_folder_without_permission_are_not_left_out(place: Path) -> None:
    """os.walk leaves such folders out, and with them their rows."""
    root = place / "data"
    numbered_folder(root, (2, 2))
    hidden = next(path for path in root.iterdir()) / "more"
    hidden.mkdir()
    hidden.chmod(0)
    assert "Permission denied" in without_rights("open", root)
    (place / "tables" / "more").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), place / "tables" / "0.parquet")
    (place / "tables" / "more").chmod(0)
    assert "Permission denied" in without_rights("open", place / "tables")
    (place / "texts" / "more").mkdir(parents=True)
    (place / "texts" / "a.txt").write_text("words")
    (place / "texts" / "more").chmod(0)
    assert "Permission denied" in without_rights("texts", place / "texts")


@pytest.mark.parametrize("where", ["folder", "url", "file", "pattern"])
def test_shards_without_their_manifest_are_no_tables(where: str, tmp_path: Path) -> None:
    numbered_folder(tmp_path / "folder", (2, 2))
    fastio.pack(tmp_path / "folder", tmp_path / "packed")
    (tmp_path / "packed" / "manifest.arrow").unlink()
    with http_folder(tmp_path) as url:
        source = {
            "folder": tmp_path / "packed",
            "url": f"{url}/packed/shard-000000.arrow",
            "file": tmp_path / "packed" / "shard-000000.arrow",
            "pattern": str(tmp_path / "packed" / "*.arrow"),
        }[where]
        for reader in (fastio.open, Loader, describe):
            with pytest.raises(DatasetNotFound, match=r"manifest\.arrow is missing"):
                reader(source)


def _parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"number": range(1000), "text": ["a"] * 1000}), file)
    return file.getvalue()


NO_PARQUET: dict[str, Callable[[bytes], bytes]] = {
    "other bytes": lambda data: b"a,b\n1,2\n" * 500,
    "the magic alone": lambda data: b"PAR1",
    "cut in half": lambda data: data[: len(data) // 2],
    "a cut footer": lambda data: data[:-20],
    "a footer too large": lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1",
    "a damaged footer": lambda data: data[:-200] + b"\xee" * 150 + data[-50:],
    "an encrypted footer": lambda data: data[:-4] + b"PARE",
}


@pytest.mark.parametrize("how", NO_PARQUET)
def test_a_file_that_is_no_parquet_says_so(how: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(NO_PARQUET[how](_parquet()))
    with WebServer({"a.parquet": path.read_bytes()}) as server:
        for source in (str(path), f"{server.url}/a.parquet"):
            with pytest.raises(ShardCorrupt) as caught:
                fastio.open(source)
            advice = "fastio cannot decrypt" if "encrypted" in how else "copy it again"
            expected = rf"{re.escape(source)} cannot be read as Parquet: [^\n]*[^.]; {advice}"
            assert re.match(expected, str(caught.value)), caught.value
