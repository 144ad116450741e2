"""The commands on tars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from fastio.cli import main
from tests.servers import http_folder
from tests.tars import write_tar, write_tars


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    write_tars(tmp_path / "tars")
    return tmp_path / "tars"


def run(*arguments: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_info_tells_samples_and_fields(tars: Path) -> None:
    code, out, _ = run("info", f"{tars}/train-{{000..002}}.tar")
    assert code == 0
    assert "samples      15" in out
    assert "tars         3, " in out
    assert "  emb_npy      Array float32 (3,)" in out
    code, out, _ = run("info", tars, "--json")
    found = json.loads(out)
    assert (found["rows"], found["tars"], found["structure"]) == (15, 3, "dict")


def test_info_of_damaged_tars_says_what_is_wrong(tars: Path) -> None:
    (tars / "train-001.tar").write_bytes(b"no tar")
    code, _, err = run("info", tars)
    assert (code, err) == (1, f"fastio: {tars}/train-001.tar is not a tar\n")


def test_show_draws_tars(tars: Path, tmp_path: Path) -> None:
    for more in ([], ["--transform", "CenterCrop(8)"]):
        code, out, _ = run("show", tars, "--out", tmp_path / "sheet.png", "--count", 4, *more)
        assert (code, out) == (0, f"{tmp_path}/sheet.png: 4 of 15 samples\n")
        Image.open(tmp_path / "sheet.png").load()


def test_show_draws_tars_behind_a_url_as_local_ones(tars: Path, tmp_path: Path) -> None:
    crop = ["--count", 4, "--transform", "RandomResizedCrop(8)"]
    assert run("show", tars, "--out", tmp_path / "local.png", *crop)[0] == 0
    with http_folder(tars) as url:
        pattern = f"{url}/train-{{000..002}}.tar"
        assert run("show", pattern, "--out", tmp_path / "url.png", *crop)[0] == 0
    assert (tmp_path / "local.png").read_bytes() == (tmp_path / "url.png").read_bytes()


def test_pack_and_export_go_both_ways(tars: Path, tmp_path: Path) -> None:
    code, out, _ = run("pack", tars, tmp_path / "packed", "--codec", "jpeg")
    assert code == 0
    assert "15 samples" in out
    code, out, _ = run(
        *("export", tmp_path / "packed", tmp_path / "out"),
        *("--to", "webdataset", "--shard-size", "40kB"),
    )
    assert code == 0
    count = len(list((tmp_path / "out").iterdir()))
    assert count > 1
    assert "30 images, " in out
    assert f" in {count} tars, in " in out
    code, out, _ = run("info", tmp_path / "out", "--json")
    assert json.loads(out)["rows"] == 15


def test_pack_leaves_out_samples_that_lack_a_field(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.cls", b"1"), ("a.txt", b"x"), ("b.cls", b"2")])
    code, _, err = run("pack", path, tmp_path / "packed")
    assert code == 1
    assert "x.tar sample 'b': it has no .txt" in err
    code, out, err = run("pack", path, tmp_path / "packed", "--on-error", "skip")
    assert code == 0
    assert "x.tar sample 'b': it has no .txt" in err
    assert "1 sample in 1 shard" in out


def test_commands_for_packed_datasets_say_that_tars_are_none(tars: Path) -> None:
    code, _, err = run("export", tars, "--to", "webdataset", "out")
    assert code == 1
    assert "is not a packed dataset" in err
