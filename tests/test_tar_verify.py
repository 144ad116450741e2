"""fastio verify of WebDataset tars: headers, ends, fields, and images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fastio.cli import main
from tests.pictures import jpeg
from tests.servers import http_folder
from tests.tars import sample_files, write_tar, write_tars

BLOCK = 512


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """3 tars of 15 samples with 2 images each."""
    write_tars(tmp_path / "tars")
    return tmp_path / "tars"


def run(*arguments: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `fastio verify`."""
    result = CliRunner().invoke(main, ["verify", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def findings(*arguments: Any) -> dict[str, Any]:
    """What `fastio verify --json` prints."""
    found: dict[str, Any] = json.loads(run(*arguments, "--json", "--quiet")[1])
    return found


def damage(path: Path, offset: int) -> None:
    """Flips a bit."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def header_of(path: Path, name: str) -> int:
    """Where the header of a member is."""
    return path.read_bytes().index(name.encode())


def test_sound_tars_are_found_sound(tars: Path) -> None:
    code, out, _ = run(tars)
    assert code == 0
    assert out.startswith(f"{tars}: 3 tars, ")
    assert out.endswith("all headers are sound, and 15 samples have the same fields\n")
    assert run(tars, "--quiet") == (0, "", "")


def test_findings_have_the_shape_of_those_of_packed_datasets(tars: Path) -> None:
    size = sum(path.stat().st_size for path in tars.iterdir())
    expected = {"shards": 3, "bytes": size, "damaged": [], "incomplete": []}
    assert findings(tars) == expected
    more = {"damaged_images": [], "images_not_decoded": 0}
    assert findings(tars, "--deep") == expected | more


def test_deep_decodes_all_images(tars: Path) -> None:
    code, out, _ = run(tars, "--deep")
    assert code == 0
    assert "all images of 15 samples can be decoded" in out


def cut_in_a_body(data: bytes, header: int) -> bytes:
    return data[: header + BLOCK + 9]


def cut_between_members(data: bytes, header: int) -> bytes:
    return data[:header]


def cut_in_the_end(data: bytes, header: int) -> bytes:
    last = len(data.rstrip(b"\0"))
    return data[: last + -last % BLOCK + BLOCK]  # one block of zeros, of two


@pytest.mark.parametrize("cut", [cut_in_a_body, cut_between_members, cut_in_the_end])
def test_a_tar_that_is_cut_off_is_named(tars: Path, cut: Callable[[bytes, int], bytes]) -> None:
    path = tars / "train-001.tar"
    path.write_bytes(cut(path.read_bytes(), header_of(path, "part/0007.jpg")))
    code, out, err = run(tars, "--quiet")
    assert (code, out) == (1, "")
    assert f"{path}: truncated: " in err
    assert f"{tars}: 1 of 3 tars damaged; copy or make it again" in err


def test_a_damaged_header_is_named_and_the_other_tars_are_looked_at(tars: Path) -> None:
    path = tars / "train-000.tar"
    header = header_of(path, "part/0002.txt")
    damage(path, header + 5)
    (tars / "train-002.tar").unlink()
    write_tar(tars / "train-002.tar", [("a.jpg", b"\xff\xd8\xff no more")])
    found = findings(tars, "--deep")
    (damaged,) = found["damaged"]
    assert damaged["name"] == str(path)
    assert damaged["problem"].startswith(f"damaged: there is no tar header at byte {header:,}")
    assert [image["shard"] for image in found["damaged_images"]] == [str(tars / "train-002.tar")]
    assert found["images_not_decoded"] is None


def test_what_stands_behind_the_end_of_a_tar_is_told(tars: Path) -> None:
    first, second = tars / "train-000.tar", tars / "train-001.tar"
    first.write_bytes(first.read_bytes() + second.read_bytes())
    code, _, err = run(tars, "--quiet")
    assert code == 1
    assert f"{first}: continues after its end marker at byte " in err


@pytest.mark.parametrize(
    ("data", "problem"),
    [(b"no tar", "not a tar"), (b"", "not a tar"), (b"\x1f\x8bxx", "compressed")],
)
def test_what_is_no_tar_is_named(tars: Path, data: bytes, problem: str) -> None:
    (tars / "train-001.tar").write_bytes(data)
    (damaged,) = findings(tars)["damaged"]
    assert damaged["problem"].startswith(problem)


def test_a_missing_field_is_named_with_its_first_sample(tars: Path) -> None:
    lacking = [file for file in sample_files(9) if not file[0].endswith(".txt")]
    path = write_tar(tars / "train-001.tar", [*sample_files(5), *lacking])
    code, _, err = run(tars, "--quiet")
    assert code == 1
    assert f"{path} sample 'part/0009': it has no .txt, like 1 of 13 samples" in err
    expected = {"field": "txt", "samples": 1, "tar": str(path), "key": "part/0009"}
    assert findings(tars)["incomplete"] == [{**expected, "problem": "it has no .txt"}]


def test_a_number_that_is_none_is_named(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", [("a.cls", b"1"), ("b.cls", b"one")])
    (lacked,) = findings(tmp_path / "x.tar")["incomplete"]
    assert (lacked["key"], lacked["problem"]) == ("b", "its .cls holds no int64")


def test_images_of_one_kind_or_another_are_complete(tmp_path: Path) -> None:
    members = [("a.jpg", jpeg()), ("b.png", sample_files(0)[6][1])]
    assert run(write_tar(tmp_path / "x.tar", members), "--deep", "--quiet") == (0, "", "")


@pytest.mark.parametrize("name", ["part/0006.jpg", "part/0006.seg.png"])
def test_a_damaged_image_is_found_by_decoding_it(tars: Path, name: str) -> None:
    path = tars / "train-001.tar"
    data, image = path.read_bytes(), dict(sample_files(6))[name]
    path.write_bytes(data.replace(image, image[: len(image) // 2].ljust(len(image), b"\0")))
    assert run(tars, "--quiet")[0] == 0
    code, _, err = run(tars, "--deep", "--quiet")
    assert code == 1
    field = name.partition(".")[2].replace(".", "_")
    assert f"{tars}: {path} row 1: {field}: sample 'part/0006': " in err
    assert f"{tars}: 1 damaged image" in err


def test_tars_behind_a_url_are_checked_too(tars: Path) -> None:
    with http_folder(tars) as served:
        url = f"{served}/train-{{000..002}}.tar"
        assert run(url, "--deep", "--quiet") == (0, "", "")
        path = tars / "train-002.tar"
        damage(path, header_of(path, "part/0010.cls") + 5)
        code, _, err = run(url, "--quiet")
        assert code == 1
        assert "train-002.tar: damaged: there is no tar header at byte " in err


def test_a_tar_that_does_not_exist_is_named(tmp_path: Path) -> None:
    code, _, err = run(tmp_path / "x.tar")
    assert (code, err) == (1, f"fastio: {tmp_path}/x.tar does not exist\n")
