"""The samples of tars are those that the webdataset package makes of them."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastio import ShardCorrupt, SourceNotFound, TarDataset
from fastio.sources.tar.headers import scan_tar, split_name
from fastio.sources.tar.reader import LocalTars
from tests.tars import webdataset_samples, write_tar, write_tars


def own_samples(*paths: Path, window_bytes: int = 8192) -> list[dict[str, Any]]:
    """Keys and the files' bytes by extension, as an index has them."""
    samples: list[dict[str, Any]] = []
    for path in paths:
        reader = LocalTars()
        reader.window_bytes = window_bytes
        found = scan_tar(reader, str(path))
        data = path.read_bytes()
        ends = [0, *found.key_ends]
        keys = [found.keys[a:b].decode("utf-8", "surrogateescape") for a, b in pairwise(ends)]
        rows: list[dict[str, Any]] = [{"__key__": key} for key in keys]
        for place in range(0, len(found.members), 6):
            row, extension, offset, length = found.members[place : place + 4]
            rows[row][found.extensions[extension]] = data[offset : offset + length]
        samples += rows
    return samples


ODD_NAMES = [
    "a.jpg",
    "a.CLS",
    "b.seg.PNG",
    "b.jpg",
    "./c.jpg",
    "folder.with.dots/d.jpg",
    "folder.with.dots/d.cls",
    "folder/.hidden",
    "dots.in/.hidden",
    ".hidden.jpg",
    "no_extension",
    "a.jpg",  # again, after others: a sample of its own
    "e.",
    "__special__",
    "__special__.jpg",
    "__meta__/f.jpg",
    "folder/__meta__/f.jpg",
    "__half.jpg",
    "ünï/cödé.jpg",
    "spaces in it.tar.gz",
    "line\nbreak.jpg",
    "line\nbreak/x.jpg",
    "b.o\nx/y.jpg",
    "x" * 99 + ".jpg",
    "long/" + "y" * 300 + ".jpg",
    "/absolute.jpg",
    "//.x",
    "../up.jpg",
    "f..jpg",
    "f.",
]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_odd_names_are_grouped_as_webdataset_does(tmp_path: Path, form: int) -> None:
    members = [(name, str(n).encode()) for n, name in enumerate(ODD_NAMES)]
    path = write_tar(tmp_path / "odd.tar", members, form)
    assert own_samples(path) == webdataset_samples(str(path))


@given(st.text(alphabet="a./_\n", max_size=12))
@example("__a__")
@example("__a__/b.c")
def test_names_are_taken_apart_as_webdataset_does(name: str) -> None:
    tariterators = pytest.importorskip("webdataset.tariterators", reason="to compare with")
    special = "/" not in name and name.startswith("__") and name.endswith("__")
    if special or tariterators.re.match(r"__[^/]*__($|/)", name):
        expected = None
    else:
        key, extension = tariterators.base_plus_ext(name)
        expected = None if key is None else (key, extension.lower())
    assert split_name(name) == expected


def test_a_name_that_is_no_utf_8_keeps_its_bytes(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("caf\udce9.cls", b"1")], tarfile.GNU_FORMAT)
    assert own_samples(path) == webdataset_samples(str(path))
    assert TarDataset(path)[0] == {"__key__": "caf\udce9", "cls": 1}


def test_samples_do_not_go_on_in_the_next_tar(tmp_path: Path) -> None:
    one = write_tar(tmp_path / "1.tar", [("a.jpg", b"1"), ("b.jpg", b"2")])
    two = write_tar(tmp_path / "2.tar", [("b.cls", b"3")])
    assert own_samples(one, two) == webdataset_samples([str(one), str(two)])


def test_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
            member = tarfile.TarInfo(f"a.{kind.decode()}")
            member.type, member.linkname = kind, "a.jpg"
            tar.addfile(member)
        member = tarfile.TarInfo("a.jpg")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    assert own_samples(path) == webdataset_samples(str(path)) == [{"__key__": "a", "jpg": b"abc"}]


@pytest.mark.parametrize("again", ["a.cls", "a.CLS", "a.__key__"])
def test_a_file_that_is_twice_in_a_sample_is_an_error_as_in_webdataset(
    tmp_path: Path, again: str
) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.cls", b"1"), ("a.jpg", b"2"), (again, b"3")])
    with pytest.raises(ValueError, match="duplicate"):
        webdataset_samples(str(path))
    with pytest.raises(ShardCorrupt, match=rf"x.tar: {again} occurs twice in the sample 'a'"):
        TarDataset(path)


@pytest.mark.parametrize("window_bytes", [1, 512, 1000, 1 << 20])
def test_the_window_does_not_change_what_is_found(tmp_path: Path, window_bytes: int) -> None:
    write_tars(tmp_path)
    path = tmp_path / "train-001.tar"
    assert own_samples(path, window_bytes=window_bytes) == own_samples(path)


def test_all_fields_are_decoded_as_webdataset_does(tmp_path: Path) -> None:
    pattern = write_tars(tmp_path)
    expected = webdataset_samples(pattern, "rgb8")
    with TarDataset(pattern) as dataset:
        assert len(dataset) == len(expected) == 15
        for found, sample in zip(dataset, expected, strict=True):
            assert found.keys() == {name.replace(".", "_") for name in sample}
            for name, value in sample.items():
                own = found[name.replace(".", "_")]
                own = json.loads(own) if name == "json" else own
                np.testing.assert_array_equal(own, value)
                assert type(own) is type(value)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("cls", b" 12\n", 12),
        ("cls", b"-1_000", -1000),
        ("id", b"7", 7),
        ("score.index", b"8", 8),
        ("txt.gz", gzip.compress(b"text", mtime=0), "text"),
        (
            "txt.gz",
            gzip.compress(b"te", mtime=0) + gzip.compress(b"xt", mtime=0) + bytes(9),
            "text",
        ),
        ("cls.gz", gzip.compress(b"3", mtime=0), 3),
        ("json", b"true", True),
        ("json", b"3", 3),
        ("json", b"1.5", 1.5),
        ("transcript", "é".encode(), "é"),
        ("pkl.x", b"bytes", b"bytes"),
        ("", b"bytes", b"bytes"),
    ],
)
def test_values_are_those_of_webdataset(
    tmp_path: Path, name: str, data: bytes, expected: Any
) -> None:
    path = write_tar(tmp_path / "x.tar", [(f"a.{name}", data)])
    (sample,) = webdataset_samples(str(path), "rgb8")
    (own,) = TarDataset(path)
    assert sample[name] == expected
    assert list(own.values()) == ["a", expected]
    assert type(list(own.values())[1]) is type(expected)


def test_a_gz_file_of_one_member_takes_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.txt.gz", gzip.compress(b"text") + bytes(9))])
    with TarDataset(path) as samples:
        monkeypatch.delattr(gzip, "GzipFile")
        assert samples[0]["txt_gz"] == "text"


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.pkl", b"cos\nsystem\n(S'false'\ntR.")])
    assert TarDataset(path)[0]["pkl"] == b"cos\nsystem\n(S'false'\ntR."


@pytest.mark.parametrize("members", [[], [("no_extension", b"x")], [("__x__", b"x")]])
def test_tars_without_samples_are_no_dataset(
    tmp_path: Path, members: list[tuple[str, bytes]]
) -> None:
    path = write_tar(tmp_path / "x.tar", members)
    assert webdataset_samples(str(path)) == []
    with pytest.raises(SourceNotFound, match=r"x\.tar: no samples"):
        TarDataset(path)


def test_an_empty_tar_among_others_does_no_harm(tmp_path: Path) -> None:
    paths = [
        write_tar(tmp_path / f"{n}.tar", [(f"{n}.cls", b"1")] if n != 1 else []) for n in range(3)
    ]
    assert [sample["__key__"] for sample in TarDataset(list(map(str, paths)))] == ["0", "2"]
