"""Names that others wrote, and URLs with secrets, are shown without harm by every command."""

from __future__ import annotations

import json
import os
import re
import tarfile
import warnings
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fastio
from fastio import ImageError, SchemaError
from fastio.cli import main
from fastio.diagnose import diagnose
from fastio.diagnose.report import bench_report, print_report, write_page
from fastio.shown import clean, shown, shown_values, without_secrets
from tests import report_samples
from tests.pictures import jpeg
from tests.saved import Dataset, Features
from tests.servers import http_folder

# Clears the screen, sets the title, colours by C1, turns the direction; markup of rich; no UTF-8.
HOSTILE = "n\x1b[2J\x1b]0;t\x07\x9b31m\u202egpj\u2066[red]\x7f"
ON_DISK = os.fsdecode(HOSTILE.encode() + b"\xff")
RAW = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\udc80-\udcff]"
)
SECRETS = ("hunter2", "SIGNATURE", "AKIASECRET")
URL = (
    "https://user:hunter2@host.example/data?sig=SIGNATURE&X-Amz-Credential=AKIASECRET"
    "&X-Amz-Signature=SIGNATURE"
)


def told(arguments: Sequence[object]) -> str:
    """What a command says, which has no raw control character and no secret."""
    done = CliRunner().invoke(main, [str(each) for each in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    said = done.stdout + done.stderr
    assert said
    assert_harmless(said)
    return said


def assert_harmless(text: str) -> None:
    assert not RAW.search(text), repr(text)
    assert not [secret for secret in SECRETS if secret in text], text


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hostile names in every kind of data."""
    root = tmp_path_factory.mktemp("names") / HOSTILE
    for folder in (root / "images" / ON_DISK, root / "images" / "plain"):
        folder.mkdir(parents=True)
        (folder / f"{ON_DISK}.jpg").write_bytes(jpeg())
    fastio.pack(root / "images", root / "packed")
    os.makedirs(root / "bad" / "class")
    (root / "bad" / "class" / f"{ON_DISK}.jpg").write_bytes(b"no image")
    (root / "bad" / "class" / "good.jpg").write_bytes(jpeg())
    table = pa.table({HOSTILE: [1, 2, 3], "label": [0, 1, 0], f"{HOSTILE}2": ["a", HOSTILE, "b"]})
    pq.write_table(table, root / "t.parquet")
    (root / "list.csv").write_text(f"path,caption\n{HOSTILE}.jpg,{HOSTILE}\n")
    features = Features({HOSTILE: __import__("datasets").Value("int64")})
    Dataset.from_dict({HOSTILE: [1, 2]}, features=features).save_to_disk(str(root / "saved"))
    with tarfile.open(root / "a.tar", "w") as tar:
        for name in (f"{HOSTILE}.jpg", f"{HOSTILE}.{HOSTILE}txt"):
            member = tarfile.TarInfo(name)
            member.size = len(jpeg())
            tar.addfile(member, BytesIO(jpeg()))
    return root


KINDS = ("packed", "t.parquet", "saved", "a.tar")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("as_json", [False, True], ids=["words", "json"])
def test_info_and_verify_show_no_raw_names(kind: str, as_json: bool, place: Path) -> None:
    more = ["--json"] if as_json else []
    said = told(["info", place / kind, *more])
    assert r"\x1b" in said
    told(["verify", place / kind, *more])
    if as_json:
        json.loads(said)


def test_columns_of_a_packed_table_are_shown_without_harm(place: Path, tmp_path: Path) -> None:
    told(["pack", place / "t.parquet", tmp_path / "out"])
    assert "[red]" in told(["info", tmp_path / "out"])
    told(["verify", tmp_path / "out", "--deep"])


def test_what_is_damaged_is_named_without_harm(place: Path, tmp_path: Path) -> None:
    assert r"\xff" in told(["pack", place / "bad", tmp_path / "a"])
    assert "skipped" in told(["pack", place / "bad", tmp_path / "b", "--on-error", "skip"])
    told(["pack", place / "bad", tmp_path / "c", "--on-error", "skip", "--json"])
    told(["pack", place / "list.csv", tmp_path / "d"])
    (place / "packed" / "shard-000000.arrow").chmod(0o600)
    told(["verify", place / "images"])


def test_show_and_export_say_no_raw_names(place: Path, tmp_path: Path) -> None:
    told(["show", place / "images", "--out", tmp_path / "sheet.png"])
    told(["show", place / "packed", "--out", tmp_path / "sheet.png"])
    told(["show", place / "t.parquet"])
    told(["export", place / "packed", tmp_path / ON_DISK])
    told(["export", place / "packed", tmp_path / ON_DISK])
    told(["export", place / "packed", tmp_path / "tars", "--to", "webdataset", "--json"])


def test_train_and_cache_say_no_raw_names(place: Path) -> None:
    told(["train", "tabular", place / "t.parquet", "--label", "none", "--device", "cpu"])
    told(["train", "image", place / f"{HOSTILE}"])
    told(["cache", "status", place / "nothing"])
    told(["doctor", place / HOSTILE])
    told(["bench", place / HOSTILE])


@pytest.mark.usefixtures("short_probes")
def test_a_doctor_shows_no_raw_names(place: Path) -> None:
    told(["doctor", place / "t.parquet", "--json"])


def test_errors_of_a_url_show_no_secret() -> None:
    url = URL.replace("host.example", "127.0.0.1:1")
    for command in ("info", "verify", "doctor"):
        told([command, url, "--storage-options", '{"timeout": 1, "retries": 0}'])


def test_a_report_has_no_secret_and_no_raw_name(tmp_path: Path) -> None:
    measured = report_samples.photos()
    for path in (URL, HOSTILE):
        changed = replace(measured, dataset=replace(measured.dataset, path=path))
        write_page(bench_report(changed, diagnose(changed)), tmp_path / "report.html")
        assert_harmless((tmp_path / "report.html").read_text())
        assert_harmless(json.dumps(shown_values(changed.to_dict()), ensure_ascii=False))


def test_a_report_on_a_terminal_has_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    measured = report_samples.photos()
    for path in (URL, HOSTILE):
        changed = replace(measured, dataset=replace(measured.dataset, path=path))
        print_report(bench_report(changed, diagnose(changed)))
    assert_harmless(capsys.readouterr().out)


def test_errors_say_no_raw_names_and_no_secrets() -> None:
    for error in (
        SchemaError(f"{HOSTILE}: {URL}"),
        ImageError(URL, 1, ON_DISK, OSError(HOSTILE)),
        fastio.SourceNotFound(f"{URL} is not there\n{HOSTILE}"),
    ):
        assert_harmless(str(error))


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("https://user:p@ss@host/a.tar", "https://host/a.tar"),
        ("s3://key:secret@bucket/x", "s3://bucket/x"),
        ("az://container@account/x", "az://container@account/x"),
        ("az://name:secret@account/x", "az://account/x"),
        ("https://h/x?sv=1&sig=abc", "https://h/x"),
        ("gs://b/x?X-Goog-Signature=1", "gs://b/x"),
        ("s3://bucket/train-?.tar", "s3://bucket/train-?.tar"),
        ("simplecache::https://u:p@h/x?token=1", "simplecache::https://h/x"),
        (
            "GET /x?AWSAccessKeyId=AK&Signature=S failed",
            "GET /x?AWSAccessKeyId=***&Signature=*** failed",
        ),
    ],
)
def test_a_url_keeps_its_place_and_loses_its_secrets(url: str, seen: str) -> None:
    assert without_secrets(url) == seen


@given(st.text())
def test_what_is_shown_is_clean_and_stays_so(text: str) -> None:
    assert not RAW.search(shown(text))
    assert "\n" not in shown(text)
    assert clean(clean(text)) == clean(text)


def test_what_is_opened_is_described_without_harm(place: Path) -> None:
    for kind in (*KINDS, "images"):
        with fastio.open(place / kind) as dataset:
            assert_harmless(repr(dataset))
            assert r"n\x1b[2J" in repr(dataset)
    with (
        http_folder(place / "packed") as url,
        fastio.open(url.replace("http://", "http://user:hunter2@")) as dataset,
    ):
        assert_harmless(repr(dataset))


def test_warnings_say_no_raw_names(tmp_path: Path) -> None:
    class Samples:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, row: int) -> int:
            return row

    Samples.__qualname__ = HOSTILE
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fastio.Loader(Samples(), 1).close()
    assert told
    for each in told:
        assert_harmless(str(each.message))
