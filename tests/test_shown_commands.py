"""Commands that measure, train and fetch show strangers' names and secrets of URLs harmlessly."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch import nn
from typer.testing import CliRunner

import fastio
from fastio.cli import main
from fastio.train.models import ENCODER_SIZES, EncoderSize
from tests.pictures import jpeg
from tests.servers import http_folder
from tests.test_shown import HOSTILE, ON_DISK, assert_harmless

SCRIPT = "<script>alert(1)<|script>"  # a name on disk has no "/"
NAME = f"{HOSTILE}\n{SCRIPT}"
# Columns and classes may be URLs, too.
COLUMN = f"{NAME}s3://key:hunter2@bucket/x?X-Amz-Signature=SIGNATURE https://h/?sig=SIGNATURE"
TRAIN = ("--epochs", "1", "--batch-size", "16", "--device", "cpu", "--threads", "1")
QUICK = (*("--seconds", "1", "--steps", "3", "--batch-size", "4", "--threads", "1", "--no-cold"),)
BENCH = (*QUICK, "--json", "{out}/bench.json", "--html", "{out}/bench.html")
MODEL = f"{__name__}:small_model"


def small_model() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))


@dataclass(frozen=True)
class Place:
    """Where the data lies, and its URL.

    Attributes:
        root: A folder with a hostile name.
        url: The URL of root, with a user's password.
    """

    root: Path
    url: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    base = tmp_path_factory.mktemp("names")
    root = base / NAME
    for name in (f"{ON_DISK}{SCRIPT}\n", f"b{NAME}"):
        folder = root / "images" / name
        folder.mkdir(parents=True)
        for number in range(12):
            (folder / f"{ON_DISK}{number}.jpg").write_bytes(jpeg(40, 56, seed=number))
    fastio.pack(root / "images", root / "packed")
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 64)
    table = {COLUMN: rng.normal(size=64).astype(np.float32), f"{COLUMN}y": label}
    pq.write_table(pa.table(table), root / "t.parquet")
    fastio.pack(root / "t.parquet", root / "table")
    documents = [{"text": f"{NAME} {row}", COLUMN: f"{COLUMN}{row}"} for row in label.tolist()]
    (root / "a.jsonl").write_text("\n".join(map(json.dumps, documents)))
    fastio.pack(root / "a.jsonl", root / "tokens", tokenizer="bytes", columns=[COLUMN])
    with http_folder(base) as url:
        yield Place(root, f"{url.replace('http://', 'http://user:hunter2@')}/{quote(NAME)}")


IMAGES = ("--size", "16", *BENCH, "--accelerator", "500")
CACHE = "{out}/cache"
COMMANDS = {
    "bench, images": (
        "bench",
        "{root}/images",
        "--size",
        "16",
        *BENCH,
        "--device",
        "cpu",
        "--model",
        MODEL,
    ),
    "bench, packed": ("bench", "{root}/packed", *IMAGES),
    "bench, baseline": ("bench", "{root}/packed", "--baseline", "{root}/images", *IMAGES),
    "bench, url": ("bench", "{url}/packed", *IMAGES),
    "bench, table": ("bench", "{root}/t.parquet", *BENCH, "--accelerator", "500"),
    "bench, tokens": ("bench", "{root}/tokens", "--length", "16", *BENCH, "--accelerator", "500"),
    "bench, json": ("bench", "{root}/packed", "--size", "16", *QUICK, "--json", "-"),
    "train, images": (
        *("train", "image", "{root}/images", "--size", "32", *TRAIN, "--val-split", "0.3"),
    ),
    "train, table": (
        *("train", "tabular", "{root}/t.parquet", "--label", f"{COLUMN}y", "--model", "mlp"),
        *("--dense", COLUMN, *TRAIN, "--tensorboard", "{out}/board", "--visdom", "localhost"),
    ),
    "train, packed table": (
        *("train", "tabular", "{root}/table", "--label", f"{COLUMN}y", "--model", "mlp"),
        *("--val", "{root}/table", *TRAIN, "--json", "--checkpoint-dir", "{out}/" + NAME),
    ),
    "train, documents": (
        *("train", "text", "{root}/tokens", "--label", COLUMN, "--model", "tiny", *TRAIN),
        *("--length", "32", "--val", "{root}/tokens", "--tensorboard", "{out}/board"),
    ),
}
ON_A_CACHE = (
    ("warm", "{url}/packed", CACHE),
    ("warm", "{url}/packed", CACHE, "--json"),
    ("status", CACHE),
    ("status", CACHE, "--json"),
    ("verify", CACHE),
    ("verify", CACHE, "--json"),
    ("clear", CACHE, "--dataset", "{url}/packed", "--json"),
)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


class _Visdom:
    """Stands in for the client of a visdom server; collects what it is sent."""

    sent: ClassVar[list[str]] = []

    def __init__(self, **options: Any) -> None:
        self.sent.append(repr(options))

    def check_connection(self, timeout_seconds: float) -> bool:
        return True

    def line(self, *values: Any, **options: Any) -> None:
        self.sent.append(f"{options['win']} {options['opts']}")


def run(place: Place, out: Path, command: Sequence[str]) -> str:
    """Runs a command whose output has no raw name and no secret, and returns its stdout."""
    where = {"root": place.root, "url": place.url, "out": out}
    done = CliRunner().invoke(main, [part.format(**where) for part in command])
    assert done.exception is None, (ascii(done.output), done.exception)
    assert_harmless(done.stdout + done.stderr)
    if "--json" in command and done.stdout.startswith("{"):
        assert_harmless(json.dumps(json.loads(done.stdout), ensure_ascii=False))
    return done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_shows_no_raw_name_and_no_secret(
    name: str, place: Place, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENCODER_SIZES, "tiny", EncoderSize(32, 1, 2))
    visdom: Any = ModuleType("visdom")
    visdom.Visdom = _Visdom
    monkeypatch.setitem(sys.modules, "visdom", visdom)
    monkeypatch.setattr(_Visdom, "sent", [])
    out.mkdir()
    command = COMMANDS[name]
    said = run(place, out, command)
    assert said or "--quiet" in command
    written = 0
    if page := next(out.glob("*.html"), None):
        assert_harmless(page.read_text())
        assert SCRIPT not in page.read_text()
        written += 1
    if file := next(out.glob("*.json"), None):
        assert_harmless(json.dumps(json.loads(file.read_text()), ensure_ascii=False))
        written += 1
    assert written == 2 * ("--html" in command)
    events = [path.read_bytes() for path in out.glob("board/*")]
    assert bool(events) == ("--tensorboard" in command)
    assert bool(_Visdom.sent) == ("--visdom" in command)
    assert_harmless(" ".join(_Visdom.sent))
    for data in events:
        assert not [each for each in (b"\x1b[2J", b"hunter2", b"SIGNATURE") if each in data]


def test_commands_on_a_cache_show_no_secret(place: Place, out: Path) -> None:
    for command in ON_A_CACHE:
        assert run(place, out, ("cache", *command))
    where = {"url": place.url, "out": out}
    unknown = ("cache", "clear", CACHE, "--dataset", "{url}/packed?sig=SIGNATURE")
    done = CliRunner().invoke(main, [part.format(**where) for part in unknown])
    assert done.exit_code == 1
    assert_harmless(done.output)
    assert "has no pieces of" in done.stderr


@pytest.mark.parametrize("command", ["info", "bench", "train image", "cache status"])
def test_wrong_usage_shows_no_raw_name(command: str, place: Place) -> None:
    """A shell's pattern gives more names than a command takes, and some look like options."""
    for more in (NAME, f"--{NAME}", place.url, f"--steps={COLUMN}"):
        done = CliRunner().invoke(main, [*command.split(), str(place.root), more])
        assert done.exit_code == 2
        assert_harmless(done.output)
