"""Commands say what went wrong in one line, and exit with a code that scripts can use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pillow
from typer.testing import CliRunner

from fastio import Array, Bytes, Image, Scalar, Schema, Text, Writer, pack
from fastio import Dataset as open_dataset
from fastio.cli import main
from fastio.cli.command import descriptions
from fastio.pack import ray_engine
from fastio.pack.progress import _bar
from tests.pictures import jpeg, pixels, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "images")


@pytest.fixture
def blocks(folder: Path, tmp_path: Path) -> Path:
    """The folder packed as it is by default."""
    pack(folder, tmp_path / "blocks")
    return tmp_path / "blocks"


@pytest.fixture
def packed(folder: Path, tmp_path: Path) -> Path:
    """The folder packed to a few shards."""
    pack(folder, tmp_path / "packed", codec="jpeg", shard_size=4000)
    return tmp_path / "packed"


def run(*arguments: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def damage(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_version_is_that_of_the_package() -> None:
    assert run("--version") == (0, version("fastio") + "\n", "")


def test_data_that_is_not_there_is_named_before_all_else(folder: Path) -> None:
    for given in (
        ["train", "image", "nowhere/", "--model", "no-such"],
        ["train", "image", folder, "--val", "nowhere/", "--model", "no-such"],
        ["bench", "nowhere/", "--model", "no-such"],
        ["doctor", "nowhere/"],
    ):
        code, _, err = run(*given)
        assert (code, err) == (1, "fastio: nowhere/ does not exist\n")


@pytest.mark.parametrize(
    "given",
    [
        "train image DATA --warmup -1",
        "train image DATA --val DATA --val-split 0.5",
        "train image DATA --resume",
        "train image DATA --mixup -1",
        "train image DATA --early-stopping 2 --device cpu",
        "train image DATA --device abacus",
        "train image DATA --device mps",
        "train image DATA --parallel ddp",
        "train image DATA --device cpu --model vit-tiny --size 33",
        "train text DATA --length 0",
        "bench",
        "bench DATA --preset abacus",
        "bench DATA --model convnet --accelerator 5",
        "bench DATA --model abacus",
        "bench DATA --amp bf16",
        "bench DATA --accelerator 0",
        "bench DATA --pipeline abacus",
        "bench DATA --json OUT/",
        "bench DATA --val DATA",
        "bench --preset dlrm-b200",
        "bench DATA --ladder --amp bf16",
        "doctor DATA --pipeline abacus",
        "doctor DATA --cache s3://bucket/cache",
        "pack DATA OUT/x --columns a",
        "pack DATA OUT/x --append --overwrite",
        "pack DATA OUT/x --resume --overwrite",
        "pack DATA OUT/x --staging OUT/y",
        "pack DATA OUT/x --source-options a=b",
        "pack DATA OUT/x --shard-size many",
        "pack DATA OUT/x --max-unzipped many",
        "pack DATA OUT/x --codec raw --quality 50",
        "pack DATA OUT/x --root a",
        "pack TABLE OUT/x --codec raw",
        "pack TABLE OUT/x --dtype a=abacus",
        "pack TABLE OUT/x --tokenizer bytes --separator 999",
        "info TABLE --dtype a=abacus",
        "info DATA --config x",
        "verify TABLE --version 2",
        "show DATA --out OUT/sheet.abacus",
        "export DATA s3://bucket/out",
        "export DATA OUT/x --shard-size many",
        "cache warm s3://bucket/data OUT/x --budget many",
        "cache warm DATA OUT/x",
    ],
)
def test_wrong_usage_ends_with_2(folder: Path, tmp_path: Path, given: str) -> None:
    table = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1.5, 2.5], "text": ["x", "y"]}), table)
    (tmp_path / "out").mkdir()
    places = {"DATA": folder, "TABLE": table, "OUT": tmp_path / "out"}
    for name, path in places.items():
        given = given.replace(name, str(path))
    assert run(*given.split())[:2] == (2, "")
    assert not any((tmp_path / "out").iterdir())


def test_a_size_that_is_none_is_named_by_its_option(folder: Path, tmp_path: Path) -> None:
    for option in ("shard-size", "max-unzipped"):
        err = run("pack", folder, tmp_path / "out", f"--{option}", "many")[2]
        assert f"{option.replace('-', '_')} 'many' is not a size" in err


def test_a_ray_cluster_that_does_not_answer_is_said_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(*_: Any, **__: Any) -> None:
        pytest.fail("ray.init was called, which tries for minutes")

    monkeypatch.setattr(ray_engine, "import_ray", lambda: SimpleNamespace(init=init))
    for address in ("127.0.0.1:1", "127.0.0.1:port"):
        code, out, err = run("pack", folder, tmp_path / "out", "--ray", address)
        assert (code, out) == (1, "")
        assert f"cannot connect to the Ray cluster {address}: " in err
    assert not (tmp_path / "out").exists()


def test_pack_makes_a_dataset_and_says_so(folder: Path, tmp_path: Path) -> None:
    code, out, _ = run("pack", folder, tmp_path / "out", "--shard-size", "4KB", "--workers", 2)
    assert code == 0
    assert "15 samples in" in out
    with open_dataset(tmp_path / "out") as dataset:
        assert len(dataset) == 15
        assert dataset.manifest.packing["shard_bytes"] == 4000


def test_pack_stores_pixels_if_told_to(folder: Path, tmp_path: Path) -> None:
    assert run("pack", folder, tmp_path / "out", "--codec", "raw")[0] == 0
    assert open_dataset(tmp_path / "out").manifest.codec_counts()["image"]["raw"] == 15


def test_pack_makes_blocks_of_jpegs(folder: Path, tmp_path: Path) -> None:
    for name, options in (("a", []), ("b", ["--codec", "blocks", "--codebook", "default"])):
        assert run("pack", folder, tmp_path / name, *options)[0] == 0
        assert open_dataset(tmp_path / name).manifest.codec_counts()["image"]["blocks"] == 15


def test_pack_trains_a_codebook_or_takes_one(folder: Path, tmp_path: Path) -> None:
    assert run("pack", folder, tmp_path / "a", "--codebook", "train")[0] == 0
    trained = open_dataset(tmp_path / "a").manifest.codebook
    assert trained is not None
    (tmp_path / "book").write_bytes(trained)
    assert run("pack", folder, tmp_path / "b", "--codebook", tmp_path / "book")[0] == 0
    assert open_dataset(tmp_path / "b").manifest.codebook == trained
    code, _, err = run("pack", folder, tmp_path / "c", "--codebook", tmp_path / "nothing")
    assert code == 1
    assert "nothing is not a codebook" in err


def test_training_shows_what_is_read_of_what(folder: Path, tmp_path: Path) -> None:
    lines = run("pack", folder, tmp_path / "out", "--codebook", "train")[2].splitlines()
    assert any("reading images" in line and "15/15" in line for line in lines)
    (training,) = (line for line in lines if "training a codebook" in line)
    assert "/" not in training


def test_pack_makes_images_smaller_if_told_to(folder: Path, tmp_path: Path) -> None:
    options = ["--max-side", 16, "--quality", 70]
    assert run("pack", folder, tmp_path / "out", *options)[0] == 0
    with open_dataset(tmp_path / "out") as dataset:
        assert all(max(image.shape) == 16 for image, _ in dataset)
        assert dataset.manifest.packing["quality"] == 70


def test_one_is_singular(folder: Path, tmp_path: Path) -> None:
    (folder / "class0" / "bad.jpg").write_bytes(b"no image")
    out = run("pack", folder, tmp_path / "out", "--on-error", "skip")[1]
    assert "15 samples in 1 shard, " in out
    assert "; 1 bad one skipped" in out
    assert "1 bad sample skipped" in run("info", tmp_path / "out")[1]


def test_pack_is_quiet_if_told_to(folder: Path, tmp_path: Path) -> None:
    assert run("pack", folder, tmp_path / "out", "--quiet") == (0, "", "")


def test_pack_stops_at_a_bad_file_and_names_it(folder: Path, tmp_path: Path) -> None:
    (folder / "class1" / "3.jpg").write_bytes(b"")
    code, out, err = run("pack", folder, tmp_path / "out", "--quiet")
    assert (code, out) == (1, "")
    assert err.startswith("fastio: ")
    assert len(err.splitlines()) == 1
    assert str(folder / "class1" / "3.jpg") in err
    assert "0 bytes" in err


def test_pack_skips_bad_files_and_names_each(folder: Path, tmp_path: Path) -> None:
    bad = [folder / "class0" / "2.jpg", folder / "class1" / "3.jpg"]
    for path in bad:
        path.write_bytes(b"")
    code, out, err = run("pack", folder, tmp_path / "out", "--on-error", "skip")
    assert code == 0
    assert "2 bad ones skipped" in out
    for path in bad:
        assert f"fastio: skipped {path}: the file is empty" in err


def test_pack_s_report_can_be_read_by_scripts(folder: Path, tmp_path: Path) -> None:
    (folder / "class1" / "3.jpg").write_bytes(b"")
    code, out, _ = run("pack", folder, tmp_path / "out", "--on-error", "skip", "--json")
    assert code == 0
    report = json.loads(out)
    assert report["rows"] == 14
    assert report["skipped"][0][0] == str(folder / "class1" / "3.jpg")


def test_pack_resumes_and_overwrites(folder: Path, tmp_path: Path) -> None:
    (folder / "class2" / "4.jpg").write_bytes(b"")
    arguments = ["pack", folder, tmp_path / "out", "--shard-size", "4000", "--quiet"]
    assert run(*arguments)[0] == 1
    code, _, err = run(*arguments)
    assert code == 1
    assert "--resume" in err
    (folder / "class2" / "4.jpg").write_bytes(jpeg())
    assert run(*arguments, "--resume") == (0, "", "")
    code, _, err = run(*arguments)
    assert code == 1
    assert "--overwrite" in err
    assert run(*arguments, "--overwrite") == (0, "", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["pack"],
        ["pack", "src"],
        ["pack", "src", "dst", "--codec", "png"],
        ["pack", "src", "dst", "--on-error", "ignore"],
        ["pack", "src", "dst", "--workers", "0"],
        ["pack", "src", "dst", "--max-side", "0"],
        ["pack", "src", "dst", "--quality", "101"],
        ["export", "src"],
        ["export", "src", "dst", "--rows", "5"],
        ["export", "src", "dst", "--rows=-5:"],
        ["info"],
        ["verify", "a", "b"],
        ["show", "a", "--out", "sheet.txt"],
        ["show", "a", "--out", "sheet.png", "--count", "0"],
        ["nothing"],
        ["--nothing"],
    ],
)
def test_wrong_usage_has_an_exit_code_of_its_own(arguments: list[str]) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("pack photos", "Missing argument 'SRC'. Give SRC and DST."),
        ("train photos", "No such command 'photos'. Choose one of image, text, tabular."),
        ("pakc a b", "No such command 'pakc'. Did you mean 'pack'?"),
        ("pack a b --codec jpg", "'--codec': 'jpg' is not one of 'blocks', 'jpeg', 'raw'."),
    ],
)
def test_wrong_usage_says_what_is_possible(arguments: str, message: str) -> None:
    assert message in " ".join(run(*arguments.split())[2].replace("│", " ").split())


def test_a_progress_bar_shows_the_mean_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    bar = _bar("samples")
    monkeypatch.setattr(bar, "get_time", lambda: now[0])
    number = bar.add_task("decoding", total=100, completed=70, begun=70)
    now[0] = 10.0
    for _ in range(3):
        bar.advance(number, 10)
    (task,) = bar.tasks
    assert "3 samples/s" in [str(column(task)) for column in bar.columns if column is not None]


@pytest.mark.parametrize("command", [["info"], ["verify"], ["verify", "--deep"], ["export", "out"]])
def test_what_is_no_dataset_is_an_error_in_a_line(command: list[str], tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        code, out, err = run(command[0], path, *command[1:])
        assert (code, out) == (1, "")
        assert len(err.splitlines()) == 1
        assert str(path) in err


def test_info_tells_what_is_in_a_dataset(packed: Path) -> None:
    code, out, _ = run("info", packed)
    assert code == 0
    dataset = open_dataset(packed)
    for text in ("15", str(dataset.num_shards), "image", "RGB", "15 jpeg", "label", "int64"):
        assert text in out
    assert "3: class0, class1, class2" in out
    assert dataset.fingerprint in out


def test_info_tells_the_codebook_and_the_bytes_of_a_sample(blocks: Path, packed: Path) -> None:
    code, out, _ = run("info", blocks)
    found = json.loads(run("info", blocks, "--json")[1])
    dataset = open_dataset(blocks)
    assert code == 0
    assert "15 blocks" in out
    assert f"default, xxh3 {found['codebook']['xxh3']}" in out
    assert found["codebook"]["origin"] == "default"
    assert found["format_version"] == 1
    assert found["bytes_per_sample"] == dataset.manifest.nbytes / 15
    assert json.loads(run("info", packed, "--json")[1])["codebook"] is None
    assert "xxh3" not in run("info", packed)[1]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], None),
        (["--max-side", 20], "made with    max side 20"),
        (["--quality", 85], "made with    quality 85 (re-encoded)"),
        (["--max-side", 20, "--quality", 85], "made with    max side 20, quality 85 (re-encoded)"),
    ],
)
def test_info_tells_what_was_done_to_the_images(
    folder: Path, tmp_path: Path, options: list[Any], line: str | None
) -> None:
    run("pack", folder, tmp_path / "out", *options)
    lines = run("info", tmp_path / "out")[1].splitlines()
    assert [text for text in lines if text.startswith("made with")] == [line] * (line is not None)


def test_info_tells_every_kind_of_field(tmp_path: Path) -> None:
    fields = {
        "a": Image("L"),
        "b": Array("float32", (2, 3)),
        "c": Array("int8"),
        "d": Scalar("bool"),
        "e": Text(),
        "f": Bytes(),
    }
    values = [pixels(3, 3, channels=1), np.zeros((2, 3), "f4"), np.zeros(2, "i1"), True, "", b""]
    with Writer(tmp_path / "out", Schema(fields, "tuple")) as writer:
        writer.write(tuple(values))
    out = run("info", tmp_path / "out")[1]
    for text in ("Image L (1 raw)", "Array float32 (2, 3)", "Array int8 None", "Text", "Bytes"):
        assert text in out
    assert "classes" not in out


def test_info_can_be_read_by_scripts(packed: Path) -> None:
    found = json.loads(run("info", packed, "--json")[1])
    dataset = open_dataset(packed)
    assert found["rows"] == 15
    assert found["shards"] == dataset.num_shards
    assert found["bytes"] == dataset.manifest.nbytes
    assert found["classes"] == ["class0", "class1", "class2"]
    assert found["fields"][0]["codecs"] == {"jpeg": 15, "raw": 0, "encoded": 0, "blocks": 0}
    assert found["fingerprint"] == dataset.fingerprint


def test_verify_finds_nothing_wrong_with_a_whole_dataset(packed: Path) -> None:
    code, out, _ = run("verify", packed)
    assert code == 0
    assert "all checksums hold" in out
    assert run("verify", packed, "--quiet") == (0, "", "")


def test_verify_names_the_damaged_shards(packed: Path) -> None:
    damage(packed / "shard-000001.arrow")
    (packed / "shard-000000.arrow").unlink()
    code, out, err = run("verify", packed, "--quiet")
    assert (code, out) == (1, "")
    first, second, total = err.splitlines()
    assert first == "fastio: shard-000000.arrow: missing"
    assert "shard-000001.arrow: its xxh3 is" in second
    assert "2 of" in total


def test_verify_tells_sizes_that_differ(packed: Path) -> None:
    sizes = [(packed / f"shard-00000{number}.arrow").stat().st_size for number in (0, 1)]
    with open(packed / "shard-000000.arrow", "r+b") as file:
        file.truncate(1000)
    with open(packed / "shard-000001.arrow", "ab") as file:
        file.write(b"more")
    err = run("verify", packed, "--quiet")[2]
    assert f"shard-000000.arrow: truncated: 1,000 of {sizes[0]:,} bytes\n" in err
    assert f"shard-000001.arrow: too long: {sizes[1] + 4:,} of {sizes[1]:,} bytes\n" in err


def test_verify_without_deep_has_no_limit_of_pixels(packed: Path) -> None:
    code, out, err = run("verify", packed, "--max-pixels", "10")
    assert (code, out) == (2, "")
    assert "max_pixels needs deep (--deep)" in err


def test_verify_deep_counts_the_images_that_it_cannot_reach(packed: Path) -> None:
    with open_dataset(packed) as dataset:
        rows = int(dataset.manifest.shard_rows[0])
    (packed / "shard-000000.arrow").unlink()
    code, _, err = run("verify", packed, "--deep", "--quiet")
    assert code == 1
    assert f"{packed}: {rows} images not decoded, in shards that cannot be opened\n" in err
    found = json.loads(run("verify", packed, "--deep", "--json")[1])
    assert (found["damaged_images"], found["images_not_decoded"]) == ([], rows)


def test_verify_s_findings_can_be_read_by_scripts(packed: Path) -> None:
    found = json.loads(run("verify", packed, "--json")[1])
    assert found["damaged"] == []
    damage(packed / "shard-000001.arrow")
    code, out, _ = run("verify", packed, "--json")
    assert code == 1
    assert [item["name"] for item in json.loads(out)["damaged"]] == ["shard-000001.arrow"]


@pytest.mark.parametrize("kind", ["blocks", "packed"])
def test_verify_deep_decodes_everything(kind: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(kind)
    code, out, _ = run("verify", path, "--deep")
    assert code == 0
    assert "all images of 15 samples" in out
    assert run("verify", path, "--deep", "--quiet") == (0, "", "")
    assert json.loads(run("verify", path, "--deep", "--json")[1])["damaged_images"] == []


@pytest.mark.parametrize("kind", ["blocks", "packed"])
def test_verify_deep_names_the_damaged_images(kind: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(kind)
    with open_dataset(path) as dataset:
        reader = dataset.shard(0)
        place = reader.extent("image")[0] + int(reader.offsets("image")[2]) + 50
    data = bytearray((path / "shard-000000.arrow").read_bytes())
    data[place] ^= 1
    (path / "shard-000000.arrow").write_bytes(data)
    code, out, err = run("verify", path, "--deep", "--quiet")
    assert (code, out) == (1, "")
    assert "shard-000000.arrow: its xxh3 is" in err
    assert f"{path}: shard-000000.arrow row 2: image: its CRC-32C is" in err
    code, out, _ = run("verify", path, "--deep", "--json")
    assert code == 1
    (bad,) = json.loads(out)["damaged_images"]
    assert (bad["row"], bad["shard"], bad["local_row"]) == (2, "shard-000000.arrow", 2)


def test_export_gives_the_images_back(blocks: Path, tmp_path: Path) -> None:
    code, out, _ = run("export", blocks, tmp_path / "out", "--rows", "3:6")
    assert code == 0
    assert "3 images" in out
    names = sorted(
        str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").glob("*/*")
    )
    assert names == ["class0/000003.jpg", "class0/000004.jpg", "class1/000005.jpg"]
    assert run("export", blocks, tmp_path / "quiet", "--quiet") == (0, "", "")


def test_export_refuses_a_folder_that_is_not_empty(blocks: Path, tmp_path: Path) -> None:
    arguments = ["export", blocks, tmp_path / "out", "--field", "image"]
    assert run(*arguments)[0] == 0
    code, out, err = run(*arguments, "--quiet")
    assert (code, out) == (1, "")
    assert "--overwrite" in err
    assert run(*arguments, "--overwrite")[0] == 0


def test_export_s_report_can_be_read_by_scripts(blocks: Path, tmp_path: Path) -> None:
    report = json.loads(run("export", blocks, tmp_path / "out", "--json")[1])
    assert (report["images"], report["index"]) == (15, None)


@pytest.mark.parametrize(
    "command",
    [["info"], ["verify"], ["show", "--out", "{out}.png"], ["export", "{out}"], ["pack", "{out}"]],
)
def test_json_of_an_error_is_nothing_on_stdout(command: list[str], tmp_path: Path) -> None:
    words = [word.format(out=tmp_path / "out") for word in command[1:]]
    code, out, err = run(command[0], tmp_path / "nothing", *words, "--json")
    assert (code, out) == (1, "")
    assert err.startswith("fastio: ")
    assert len(err.splitlines()) == 1


def test_numbers_that_are_not_finite_are_null_in_json(tmp_path: Path) -> None:
    table = pa.table({"x": [float("inf"), 1.0], "y": [float("nan")] * 2})
    pq.write_table(table, tmp_path / "x.parquet")
    assert run("pack", tmp_path / "x.parquet", tmp_path / "out", "--quiet")[0] == 0
    text = run("info", tmp_path / "out", "--json")[1]
    statistics = json.loads(text, parse_constant=pytest.fail)["statistics"]
    assert statistics[0]["max"] is None


def test_statistics_that_are_zero_are_shown(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [0, 0, 0]}), tmp_path / "x.parquet")
    run("pack", tmp_path / "x.parquet", tmp_path / "out", "--quiet")
    heading = next(row for row in run("info", tmp_path / "out")[1].splitlines() if "count" in row)
    assert heading.split() == ["column", "count", "min", "max", "mean", "std"]


def test_what_is_shown_can_be_read_by_scripts(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    found = json.loads(run("show", packed, "--out", out, "--count", 3, "--json")[1])
    assert (found["out"], len(found["rows"]), found["samples"]) == (str(out), 3, 15)


@pytest.mark.parametrize("kind", ["packed", "folder", "blocks"])
def test_show_draws_packed_datasets_and_folders(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path = request.getfixturevalue(kind)
    code, out, _ = run("show", path, "--out", tmp_path / "sheet.png", "--count", 6)
    assert code == 0
    assert "6 of 15" in out
    with Pillow.open(tmp_path / "sheet.png") as sheet:
        assert sheet.mode == "RGB"
        assert sheet.width > 3 * 192


def test_show_chooses_by_its_seed(packed: Path, tmp_path: Path) -> None:
    sheets = []
    for seed in (0, 0, 1):
        out = tmp_path / f"{len(sheets)}.png"
        run("show", packed, "--out", out, "--count", 4, "--seed", seed)
        sheets.append(out.read_bytes())
    assert sheets[0] == sheets[1] != sheets[2]


def test_show_says_when_there_are_no_images(tmp_path: Path) -> None:
    pack([1, 2], tmp_path / "out")
    code, _, err = run("show", tmp_path / "out", "--out", tmp_path / "sheet.png")
    assert code == 1
    assert "no images" in err


def test_show_says_when_it_cannot_write(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "nothing" / "sheet.png"
    code, _, err = run("show", packed, "--out", out)
    assert code == 1
    assert err == f"fastio: cannot write {out}: there is no folder {out.parent}\n"


@pytest.mark.parametrize(
    "sample",
    [jpeg(), (jpeg(), 7, "caption"), {"x": 1.5, "photo": jpeg(), "words": "größe", "b": b"\0"}],
)
def test_show_takes_any_structure(sample: Any, tmp_path: Path) -> None:
    pack([sample], tmp_path / "out")
    assert run("show", tmp_path / "out", "--out", tmp_path / "sheet.jpg")[0] == 0


def test_help_names_every_command() -> None:
    code, out, _ = run("--help")
    assert code == 0
    for command in ("pack", "info", "verify", "show", "export"):
        assert command in out
        assert run(command, "--help")[0] == 0


def fastio(*arguments: Any, script: str = "") -> subprocess.Popen[str]:
    """The command in a process of its own, `script` running first."""
    code = f"{script}\nfrom fastio.cli import main; main()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_torch_is_not_imported_by_commands_that_do_not_need_it(packed: Path) -> None:
    script = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules))"
    out, _ = fastio("info", packed, script=script).communicate()
    assert out.splitlines()[-1] == "False"


def test_progress_in_a_pipe_moves_no_cursor_even_if_colours_are_forced(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as ipykernel and many CI systems do
    process = fastio("pack", folder, tmp_path / "out")
    _, err = process.communicate()
    assert process.returncode == 0
    assert "packing" in err
    assert not set("\r\x1b") & set(err)


@pytest.mark.parametrize("stderr", ["None", "Log()"])
@pytest.mark.parametrize("command", ["pack", "doctor"])
def test_commands_work_in_processes_without_stderr(
    folder: Path, tmp_path: Path, command: str, stderr: str
) -> None:
    """As of daemons, or after `2>&-` in a shell."""
    arguments = [folder, tmp_path / "out"] if command == "pack" else [folder]
    log = "class Log:\n    def write(self, text): pass\n    def flush(self): pass\n"
    process = fastio(command, *arguments, script=f"import sys\n{log}sys.stderr = {stderr}")
    out, _ = process.communicate()
    assert process.returncode in ((0,) if command == "pack" else (0, 3))  # 3: findings
    assert out


def test_ctrl_c_ends_a_pack_that_can_be_resumed(folder: Path, tmp_path: Path) -> None:
    # The second shard is never written: the pack waits for the signal instead.
    script = """
import os, time
replace = os.replace
def stopping(src, dst):
    if str(dst).endswith("shard-000001.arrow"):
        print("waiting", flush=True)
        time.sleep(600)
    replace(src, dst)
os.replace = stopping
"""
    arguments = ["pack", folder, tmp_path / "out", "--shard-size", "4000"]
    process = fastio(*arguments, script=script)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "interrupted" in err
    code, _, _ = run(*arguments, "--resume")
    assert code == 0
    pack(folder, tmp_path / "expected", shard_size=4000)
    for path in (tmp_path / "expected").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_names_that_are_not_utf8_can_be_printed(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", 1, 1)
    with open(bytes(folder / "class0") + b"/\xff.jpg", "wb"):
        pass
    process = fastio("pack", folder, tmp_path / "out", "--on-error", "skip", "--quiet")
    _, err = process.communicate()
    assert process.returncode == 0
    assert "skipped" in err
    assert "empty" in err


def test_show_draws_crops_as_a_loader_delivers_them(packed: Path, tmp_path: Path) -> None:
    crop = ["--transform", "RandomResizedCrop(16, scale=(0.5, 1.0))"]
    sheets = []
    for name, options in {
        "a.png": crop,
        "b.png": [*crop, "--epoch", "1"],
        "c.png": [*crop, "--transform", "RandomHorizontalFlip(p=1.0)"],
        "again.png": crop,
    }.items():
        assert run("show", packed, "--out", tmp_path / name, *options)[0] == 0
        sheets.append((tmp_path / name).read_bytes())
    assert len(set(sheets)) == 3
    assert sheets[0] == sheets[3]


@pytest.mark.parametrize(
    "transform", ["Resize(", "Resize(8).x", "exit()", "Normalize([0], [1])", "Resize(size=open)"]
)
def test_show_takes_literal_transforms_only(packed: Path, tmp_path: Path, transform: str) -> None:
    code, _, error = run("show", packed, "--out", tmp_path / "a.png", "--transform", transform)
    assert code == 2
    assert "--transform" in error


def test_show_says_which_transform_is_impossible(packed: Path, tmp_path: Path) -> None:
    options = ["--transform", "RandomApply([RandomCrop(4)])"]
    code, _, error = run("show", packed, "--out", tmp_path / "a.png", *options)
    assert code == 2
    assert "cannot stand inside" in " ".join(error.replace("│", " ").split())


def test_show_draws_augmentations(packed: Path, tmp_path: Path) -> None:
    for name, options in {
        "a.png": [],
        "b.png": ["--transform", "RandomApply([ColorJitter(0.9, hue=0.5), RandomInvert], p=1.0)"],
        "c.png": ["--transform", "RandAugment(2, 9)"],
    }.items():
        assert run("show", packed, "--out", tmp_path / name, *options)[0] == 0
    assert len({(tmp_path / f"{name}.png").read_bytes() for name in "abc"}) == 3


def test_the_help_of_pack_is_the_docstring_of_the_function() -> None:
    shown = " ".join(run("pack", "--help")[1].replace("│", " ").split())
    for name, (text, _) in descriptions(pack).items():
        if name not in ("progress", "schema", "vocabulary_size", "storage_options", "engine"):
            assert text.replace("\\[", "[") in shown, name


def test_commands_print_names_that_the_locale_has_no_characters_for(tmp_path: Path) -> None:
    write_folder(tmp_path / "images", 1, 2)
    (tmp_path / "images" / "class0").rename(tmp_path / "images" / "été")
    pack(tmp_path / "images", tmp_path / "packed")
    pq.write_table(pa.table({"größe": [1.0, 2.0]}), tmp_path / "table.parquet")
    locale = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {**os.environ, **locale}
    environment.pop("PYTHONIOENCODING", None)

    def command(*words: str | Path) -> str:
        line = [sys.executable, "-m", "fastio", *map(str, words)]
        done = subprocess.run(line, env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode("ascii")

    assert r"\xe9t\xe9" in command("info", tmp_path / "packed")
    assert r"gr\xf6\xdfe" in command("info", tmp_path / "table.parquet")
    command("export", tmp_path / "packed", tmp_path / "out")
    assert [path.parent.name for path in (tmp_path / "out").rglob("*.jpg")] == ["été"] * 2
