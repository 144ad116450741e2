"""Headers of tars of all formats, and of tars that are damaged."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fastio import ShardCorrupt, SourceNotFound
from fastio.sources.tar.headers import Window, read_members
from fastio.sources.tar.reader import LocalTars
from tests.tars import write_tar, write_tars

LONG = "folder/" * 30 + "name.jpg"


def members(path: Path) -> list[tuple[str, int, int]]:
    return list(read_members(Window(LocalTars(), str(path))))


def with_checksum(header: bytes, signed: bool = False) -> bytes:
    """A header with the right sum of its bytes."""
    blank = header[:148] + b" " * 8 + header[156:]
    total = sum(byte - 256 if signed and byte > 127 else byte for byte in blank)
    return blank[:148] + b"%06o\0 " % total + blank[156:]


class HugeTar:
    """A reader of a tar whose one file is too large to be made."""

    window_bytes = 4096

    def __init__(self, start: bytes, body: int, end: bytes) -> None:
        self._start, self._body, self._end = start, body, end

    def where(self, name: str) -> str:
        return name

    def size(self, name: str) -> int:
        return len(self._start) + self._body + len(self._end)

    def read(self, name: str, offset: int, length: int) -> bytes:
        if offset < len(self._start):
            return self._start[offset : offset + length]
        after = offset - len(self._start) - self._body
        assert after >= 0, "bodies are not read"
        return self._end[after : after + length]

    def read_ranges(self, name: str, ranges: object) -> list[bytes]:
        raise AssertionError


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_and_places_are_those_of_tarfile(tmp_path: Path, form: int) -> None:
    names = ["a.jpg", "b/" * 70 + "c.cls", "d" * 95 + ".txt", "e.json"]
    if form != tarfile.USTAR_FORMAT:
        names += [LONG * 3, "ü" * 90 + ".jpg"]
    path = write_tar(
        tmp_path / "x.tar", [(name, b"x" * n * 300) for n, name in enumerate(names)], form
    )
    with tarfile.open(path) as tar:
        expected = [(m.name, m.offset_data, m.size) for m in tar]
    assert members(path) == expected


def test_the_system_s_tar_is_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.jpg", "a.cls", "ü.txt"):
        (tmp_path / "in" / name).write_bytes(name.encode())
    for form in ("v7", "oldgnu", "gnu", "ustar", "posix"):
        names = ["a.jpg", "a.cls"] if form == "v7" else "."
        path = tmp_path / f"{form}.tar"
        command = ["tar", "-C", str(tmp_path / "in"), f"--format={form}", "-cf", str(path), *names]
        made = subprocess.run(command, capture_output=True, check=False)
        if made.returncode:
            pytest.skip(f"no GNU tar: {made.stderr!r}")
        with tarfile.open(path) as tar:
            expected = [(m.name, m.offset_data, m.size) for m in tar if m.isreg()]
        assert members(path) == expected


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_files_beyond_8_gib_are_passed_over(form: int) -> None:
    huge, small = tarfile.TarInfo("huge.bin"), tarfile.TarInfo("small.cls")
    huge.size, small.size = 9 << 30, 1
    start = huge.tobuf(form)
    tar = HugeTar(start, 9 << 30, small.tobuf(form) + b"7".ljust(512, b"\0") + bytes(1024))
    assert list(read_members(Window(tar, "x"))) == [
        ("huge.bin", len(start), 9 << 30),
        ("small.cls", len(start) + (9 << 30) + 512, 1),
    ]


def test_global_pax_records_count_for_all_files_behind(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", pax_headers={"comment": "no name"}) as tar:
        tar.addfile(tarfile.TarInfo("a.cls"))
    assert [member[0] for member in members(path)] == ["a.cls"]


def test_checksums_of_signed_bytes_are_good_too(tmp_path: Path) -> None:
    header = tarfile.TarInfo("ü.cls").tobuf(tarfile.GNU_FORMAT)
    path = tmp_path / "x.tar"
    path.write_bytes(with_checksum(header, signed=True) + bytes(1024))
    assert members(path) == [("ü.cls", 512, 0)]


def test_sums_too_large_for_adler_32_are_good(tmp_path: Path) -> None:
    name = b"\xff" * 100
    header = tarfile.TarInfo("x").tobuf(tarfile.GNU_FORMAT)
    header = name + header[100:157] + b"\xff" * 100 + header[257:345] + b"\xff" * 167
    path = tmp_path / "x.tar"
    path.write_bytes(with_checksum(header) + bytes(1024))
    assert [member[0] for member in members(path)] == [name.decode("utf-8", "surrogateescape")]


def test_what_follows_the_zeros_at_the_end_is_not_read(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.cls", b"1")])
    path.write_bytes(path.read_bytes() + b"anything")
    assert len(members(path)) == 1


def test_a_tar_may_end_without_zeros(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.cls", b"1")])
    for size in (1024, 513):
        path.write_bytes(path.read_bytes()[:size])
        assert members(path) == [("a.cls", 512, 1)]


def damaged(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(change(path.read_bytes())) and None


def sparse(path: Path) -> None:
    member = tarfile.TarInfo("hole.bin")
    member.type = tarfile.GNUTYPE_SPARSE
    path.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))


def pax_sparse(path: Path) -> None:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("hole.bin")
        member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        tar.addfile(member, io.BytesIO())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damaged(lambda data: b""), "is not a tar: it is empty"),
        (damaged(lambda data: b"no tar at all"), "is not a tar"),
        (damaged(lambda data: b"no tar at all" * 100), "is not a tar"),
        (damaged(gzip.compress), r"is compressed \(gzip\).*decompress"),
        (damaged(lambda data: data[:2000]), "is truncated: .* ends at byte"),
        (damaged(lambda data: data[:700]), "is truncated: .* ends at byte"),
        (
            damaged(lambda data: data[:512] + b"x" + data[512:]),
            "damaged: there is no tar header at",
        ),
        (damaged(lambda data: data[:100] + b"?" + data[101:]), "is not a tar"),
        (sparse, "hole.bin is a sparse file"),
        (pax_sparse, "hole.bin is a sparse file"),
    ],
)
def test_damage_has_a_name(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    write_tars(tmp_path, (3,))
    path = tmp_path / "train-000.tar"
    damage(path)
    with pytest.raises(ShardCorrupt, match=message) as caught:
        members(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "records", [b"5 a=\n", b"99 path=x\n", b"x", b"12 size=abc\n", b"11 size=-5\n"]
)
def test_damaged_pax_records_have_a_name(tmp_path: Path, records: bytes) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(records)
    path = tmp_path / "x.tar"
    file = tarfile.TarInfo("a.cls").tobuf()
    path.write_bytes(header.tobuf() + records.ljust(512, b"\0") + file + bytes(1024))
    if records == b"5 a=\n":
        assert len(members(path)) == 1
        return
    with pytest.raises(ShardCorrupt, match="pax header at byte 0 is damaged"):
        members(path)


def test_every_damaged_byte_of_headers_ends_in_members_or_a_named_error(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("ä" * 80 + ".cls", b"1"), ("b.cls", b"2")])
    data = path.read_bytes()[:4096]
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x95]) + data[place + 1 :])
        try:
            members(path)
        except ShardCorrupt:
            continue


def test_a_tar_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match=r"x\.tar does not exist"):
        members(tmp_path / "x.tar")
