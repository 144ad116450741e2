"""Samples of strangers: whatever one of them raises is its own error, and takes bounded memory."""

from __future__ import annotations

import gzip
import io
import pickle
import re
import struct
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from typer.testing import CliRunner

import fastio
from fastio import Loader, LoaderClosed, PackError, SampleError, TarDataset
from fastio.cli import main
from fastio.packed.pixels import upright_pixels
from fastio.packed.sample_errors import of_sample
from fastio.runtime.memory import Room
from tests.children import run_code
from tests.pictures import picture, save
from tests.saved import Dataset, Features
from tests.saved import Image as ImageFeature
from tests.servers import http_folder

GOOD = 7
BAD = 3  # the row that is bad


def npy(array: Any) -> bytes:
    """An array as a file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def claiming(shape: str) -> bytes:
    """An .npy file of 16 bytes whose header tells another shape."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    padded = header + " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode() + bytes(16)


def png_of(width: int, height: int) -> bytes:
    """A PNG of a few bytes, whose header tells how large it is."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


VALUES: dict[str, tuple[str, bytes, bytes]] = {
    "an npy of 7 TiB": ("npy", npy(np.arange(4, dtype=np.float32)), claiming("(2000000000000,)")),
    "an npy of negative size": ("npy", npy(np.arange(4, dtype=np.float32)), claiming("(-4,)")),
    "an npy of many axes": (
        "npy",
        npy(np.arange(4, dtype=np.float32)),
        claiming("(" + "99999999," * 40 + ")"),
    ),
    "an npy that is pickled": (
        "npy",
        npy(np.arange(4, dtype=np.float32)),
        npy(np.array([{}], object)),
    ),
    "an npy that is cut off": ("npy", npy(np.arange(4, dtype=np.float32)), b"\x93NUMPY\x01"),
    "json too deep": ("json", b"5", b"[" * 200_000),
    "a number too long for int": ("json", b"5", b"9" * 5000),
    "a number too large for float64": ("json", b"0.5", b"9" * 400),
    "text that is no UTF-8": ("txt", b"words", b"\xff\xfe\xfa"),
    "a gz that is none": ("txt.gz", gzip.compress(b"words"), b"words"),
    "a gz that is cut off": ("txt.gz", gzip.compress(b"words"), gzip.compress(b"words")[:12]),
}


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    """A tar of files."""
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    return path


def tar_of(folder: Path, extension: str, good: bytes, bad: bytes) -> Path:
    """A tar of GOOD samples, the one of the row BAD bad, beside a number each."""
    files = {}
    for row in range(GOOD):
        files[f"{row:03}.cls"] = b"%d" % row
        files[f"{row:03}.{extension}"] = bad if row == BAD else good
    return write_tar(folder / "a.tar", files)


@pytest.mark.parametrize("what", VALUES)
def test_a_bad_value_in_a_tar_is_skipped_replaced_or_raised_by_name(
    tmp_path: Path, what: str
) -> None:
    path = tar_of(tmp_path, *VALUES[what])
    with Loader(path, batch_size=GOOD, on_error="skip", num_workers=1) as loader:
        (batch,) = loader
        assert batch["cls"].tolist() == [row for row in range(GOOD) if row != BAD]
        assert loader.stats().skipped == 1
    with Loader(path, batch_size=GOOD, on_error="replace", num_workers=1) as loader:
        (batch,) = loader
        assert batch["cls"].tolist() == [0, 1, 2, 4, 4, 5, 6]
        assert loader.stats().replaced == 1
    named = pytest.raises(SampleError, match=r"a\.tar sample '003'")
    with Loader(path, batch_size=GOOD, num_workers=1) as loader, named:
        next(iter(loader))
    fastio.pack(path, tmp_path / "packed", on_error="skip")
    assert len(fastio.open(tmp_path / "packed")) == GOOD - 1


def test_a_batch_of_bad_samples_only_is_left_out(tmp_path: Path) -> None:
    files = {f"{row:03}.npy": npy(np.arange(4)) for row in range(8)}
    files["000.npy"] = files["001.npy"] = claiming("(2000000000000,)")
    path = write_tar(tmp_path / "a.tar", files)
    with Loader(path, batch_size=2, on_error="skip", num_workers=1) as loader:
        assert [len(batch["npy"]) for batch in loader] == [2, 2, 2]
        assert loader.stats().skipped == 2


@pytest.mark.parametrize(
    "error", [MemoryError, RecursionError, KeyError, OverflowError, struct.error]
)
@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_whatever_decoding_raises_is_the_samples_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, error: type[Exception]
) -> None:
    files = {f"{row:03}.png": save(picture(8, 8, row), "PNG") for row in range(4)}
    if kind == "tar":
        path: Path = write_tar(tmp_path / "a.tar", files)
    else:
        path = tmp_path / "folder"
        (path / "cat").mkdir(parents=True)
        for name, data in files.items():
            (path / "cat" / name).write_bytes(data)
    monkeypatch.setattr("fastio.packed.pixels.to_pixels", _failing(error))
    with Loader(path, batch_size=4, on_error="skip", num_workers=1) as loader:
        assert sum(len(each) for each in _images(loader)) == 3
        assert loader.stats().skipped == 1


def _failing(error: type[Exception]) -> Any:
    from fastio.packed.pixels import to_pixels

    calls: list[int] = []

    def failing(*args: Any) -> Any:
        calls.append(0)
        if len(calls) == 2:
            raise error("too much")
        return to_pixels(*args)

    return failing


def _first(batch: Any) -> Any:
    """The images of a batch."""
    return next(iter(batch.values())) if isinstance(batch, dict) else batch[0]


def _images(loader: Any) -> list[Any]:
    return [batch["png"] if isinstance(batch, dict) else batch[0] for batch in loader]


class Named:
    """Rows with names."""

    path = "somewhere"

    def sample_name(self, row: int) -> str:
        return f"row {row}"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), LoaderClosed("closed")])
def test_what_ends_a_run_is_no_error_of_a_sample(error: BaseException) -> None:
    with pytest.raises(type(error)), of_sample(Named(), 3):
        raise error


# --- Memory ---------------------------------------------------------------------------------------


def peak_of(code: str, *arguments: str) -> tuple[int, str]:
    """Bytes that code took at most, beyond what importing takes; and what it printed."""
    head = (
        "import resource, sys\n"
        "import numpy, torch, pyarrow, fastio, fastio.loader, fastio.pack, PIL.Image\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
    )
    tail = "\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, file=sys.stderr)"
    done = run_code(head + code + tail, *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stderr.split()[-1]) << 10, done.stdout


LOADED = """
with fastio.Loader(sys.argv[1], batch_size=4, on_error="skip", num_workers=4) as loader:
    rows = sum(len(batch["cls"]) for batch in loader)
    print(rows, loader.stats().skipped)
"""


def gz_bomb(mebibytes: int) -> bytes:
    """A file of gzip's that is so many mebibytes of zeros, compressed once and then repeated."""
    zeros, crc = bytes(1 << 20), 0
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    piece = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)  # which needs none before it
    for _ in range(mebibytes):
        crc = zlib.crc32(zeros, crc)
    header = gzip.compress(b"")[:10]
    return header + piece * mebibytes + packer.flush() + struct.pack("<II", crc, mebibytes << 20)


def test_a_gz_that_is_a_bomb_is_an_error_of_its_sample(tmp_path: Path) -> None:
    assert gzip.decompress(gz_bomb(3)) == bytes(3 << 20)
    path = tar_of(tmp_path, "json.gz", gzip.compress(b"5"), gz_bomb(1200))
    taken, said = peak_of(LOADED, str(path))
    assert said.split() == ["6", "1"]
    assert taken < 900 << 20


def test_images_beyond_the_limit_are_errors_of_their_samples(tmp_path: Path) -> None:
    good = save(picture(8, 8, 0), "PNG")
    path = tar_of(tmp_path, "png", good, png_of(60_000, 60_000))
    taken, said = peak_of(LOADED, str(path))
    assert said.split() == ["6", "1"]
    assert taken < 600 << 20


def jpeg_of(width: int, height: int, progressive: bool) -> bytes:
    """A JPEG of a few bytes, whose header tells how large it is."""
    data = save(picture(8, 8, 0), "JPEG", progressive=progressive)
    at = data.index(b"\xff\xc2" if progressive else b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_that_claims_to_be_large_is_an_error_of_its_sample_everywhere(
    tmp_path: Path, progressive: bool
) -> None:
    data = jpeg_of(65_500, 65_500, progressive)
    refused = "65500 x 65500 pixels"
    path = tar_of(tmp_path, "jpg", save(picture(8, 8, 0), "JPEG"), data)
    (tmp_path / "folder" / "cat").mkdir(parents=True)
    (tmp_path / "folder" / "cat" / "a.jpg").write_bytes(data)
    folder = tmp_path / "folder"
    for source in (path, folder):
        with pytest.raises(SampleError, match=refused), Loader(source, 8, num_workers=1) as loader:
            list(loader)
        for codec in ("blocks", "jpeg", "raw"):
            with pytest.raises(SampleError, match=refused):
                fastio.pack(source, tmp_path / "packed", codec=codec, codebook="default")
        done = CliRunner().invoke(main, ["verify", "--deep", str(path)])
        assert done.exit_code == 1
        assert re.search(refused, done.output)
    taken, said = peak_of(LOADED, str(path))
    assert said.split() == ["6", "1"]
    assert taken < 600 << 20


KINDS = ("folder", "list", "tar", "tar by URL", "save_to_disk", "packed")
FILES = ("PNG", "JPEG")


@contextmanager
def images_of(kind: str, folder: Path, written: str = "PNG") -> Iterator[str]:
    """Three samples of a kind of data, files of 8 x 8, 9 x 9 and 8 x 8 pixels."""
    files = [save(picture(side, side, side), written) for side in (8, 9, 8)]
    named = {f"{row:03}.{written.lower()}": data for row, data in enumerate(files)}
    path = folder / "data"
    (path / "cat").mkdir(parents=True)
    for name, data in named.items():
        (path / "cat" / name).write_bytes(data)
    if kind == "list":
        (folder / "list.csv").write_text("path\n" + "".join(f"data/cat/{n}\n" for n in named))
        path = folder / "list.csv"
    elif kind.startswith("tar"):
        (folder / "tars").mkdir()
        path = write_tar(folder / "tars" / "a.tar", named)
    elif kind == "save_to_disk":
        rows = {"image": [{"bytes": data, "path": None} for data in files]}
        path = folder / "saved"
        Dataset.from_dict(rows, features=Features({"image": ImageFeature()})).save_to_disk(path)
    elif kind.startswith("packed"):
        codec = "jpeg" if kind == "packed files" else "blocks"
        fastio.pack(path, folder / "packed-before", codec=codec)
        path = folder / "packed-before"
    if kind == "tar by URL":
        with http_folder(path.parent) as url:
            yield f"{url}/a.tar"
    else:
        yield str(path)


@pytest.mark.parametrize("kind", [*(kind for kind in KINDS if kind != "list"), "packed files"])
@pytest.mark.parametrize("written", FILES)
def test_max_pixels_is_an_option_of_every_kind_of_images(
    tmp_path: Path, kind: str, written: str
) -> None:
    with images_of(kind, tmp_path, written) as path, fastio.open(path, max_pixels=64) as dataset:
        # In another process, too.
        for opened in (dataset, pickle.loads(pickle.dumps(dataset))):
            refused = r"9 x 9 pixels, more than max_pixels=64.*larger max_"
            with pytest.raises(SampleError, match=refused):
                opened[1]
            with pytest.raises(SampleError, match=refused), Loader(opened, 3) as loader:
                list(loader)
            with Loader(opened, batch_size=3, on_error="skip", num_workers=1) as loader:
                assert sum(len(each) for each in map(_first, loader)) == 2
                assert loader.stats().skipped == 1
        with fastio.open(path, max_pixels=81) as dataset:
            assert dataset[1] is not None


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("tar by URL", "packed")])
@pytest.mark.parametrize("options", [{}, {"codec": "jpeg"}, {"codec": "raw"}, {"max_side": 4}])
@pytest.mark.parametrize("written", FILES)
def test_max_pixels_is_an_option_of_packing(
    tmp_path: Path, kind: str, written: str, options: dict[str, Any]
) -> None:
    with images_of(kind, tmp_path, written) as path:
        with pytest.raises(SampleError, match="max_pixels=64"):
            fastio.pack(path, tmp_path / "refused", max_pixels=64, **options)
        skipping: dict[str, Any] = {"max_pixels": 64, "on_error": "skip", **options}
        assert len(fastio.pack(path, tmp_path / "some", **skipping).skipped) == 1
        assert fastio.pack(path, tmp_path / "all", max_pixels=81, **options).rows == 3


def test_an_open_dataset_is_packed_with_its_own_limits(tmp_path: Path) -> None:
    with images_of("folder", tmp_path) as path, fastio.open(path, max_pixels=64) as dataset:
        assert len(fastio.pack(dataset, tmp_path / "packed", on_error="skip").skipped) == 1


def test_the_limits_are_options_of_the_command_line(tmp_path: Path) -> None:
    with images_of("folder", tmp_path) as path:
        arguments = ["pack", path, str(tmp_path / "a"), "--on-error", "skip", "--max-pixels", "64"]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0
        assert "max_pixels=64" in done.stderr
        assert "2 samples" in done.stdout
    path = str(tar_of(tmp_path, "json.gz", gzip.compress(b"5"), gzip.compress(b"5" + b" " * 2000)))
    arguments = ["pack", path, str(tmp_path / "b"), "--on-error", "skip", "--max-unzipped", "1KiB"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0
    assert "more than max_unzipped_bytes=1,024" in done.stderr
    assert f"{GOOD - 1} samples" in done.stdout


@pytest.mark.parametrize("kind", ["packed", "packed files", "tar", "tar by URL", "save_to_disk"])
@pytest.mark.parametrize("written", FILES)
def test_max_pixels_is_an_option_of_verify(tmp_path: Path, kind: str, written: str) -> None:
    with images_of(kind, tmp_path, written) as path:
        done = CliRunner().invoke(main, ["verify", path, "--deep", "--max-pixels", "64"])
        assert done.exit_code == 1
        assert "9 x 9 pixels, more than max_pixels=64" in done.output
        done = CliRunner().invoke(main, ["verify", path, "--deep", "--max-pixels", "81"])
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize("remote", [False, True])
def test_max_unzipped_bytes_is_an_option_of_tars(tmp_path: Path, remote: bool) -> None:
    large = gzip.compress(b"5" + b" " * 2000)
    path = tar_of(tmp_path, "json.gz", gzip.compress(b"5"), large)
    with http_folder(tmp_path) as url:
        where = f"{url}/a.tar" if remote else str(path)
        with fastio.open(where, max_unzipped_bytes=1000) as dataset:
            for opened in (dataset, pickle.loads(pickle.dumps(dataset))):
                with pytest.raises(SampleError, match="more than max_unzipped_bytes=1,000"):
                    opened[BAD]
                assert opened[0]["json_gz"] == 5
        with fastio.open(where, max_unzipped_bytes=2001) as dataset:
            assert dataset[BAD]["json_gz"] == 5


def test_max_unzipped_bytes_holds_for_npz_files(tmp_path: Path) -> None:
    (tmp_path / "arrays").mkdir()
    for row, size in enumerate((10, 10, 1000)):
        np.savez_compressed(tmp_path / "arrays" / f"{row}.npz", x=np.zeros(size))
    with pytest.raises(SampleError, match=r"2\.npz: its arrays take 8,128 bytes"):
        fastio.pack(tmp_path / "arrays", tmp_path / "refused", max_unzipped_bytes=5000)
    assert fastio.pack(tmp_path / "arrays", tmp_path / "packed").rows == 3


@pytest.mark.parametrize("name", ["max_pixels", "max_unzipped_bytes"])
def test_a_limit_of_nothing_is_refused(tmp_path: Path, name: str) -> None:
    with images_of("tar", tmp_path) as path:
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            fastio.open(path, **{name: 0})  # type: ignore[arg-type]
        with pytest.raises((PackError, ValueError), match=f"{name} must be at least 1, got 0"):
            fastio.pack(path, tmp_path / "packed", **{name: 0})  # type: ignore[arg-type]


def test_max_pixels_may_be_more_than_pillow_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    data = save(picture(40, 40, 0), "PNG")
    monkeypatch.setattr(Pillow, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match="max_pixels"):
        upright_pixels(data, "RGB", None, 200)
    assert upright_pixels(data, "RGB", None, 1600).shape == (40, 40, 3)
    assert Pillow.MAX_IMAGE_PIXELS == 100


def test_large_images_are_decoded_as_many_at_a_time_as_memory_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import threading

    monkeypatch.setattr("fastio.runtime.memory.available_memory", lambda: 200)
    room = Room(freely=10)
    inside, most = [0], [0]
    lock = threading.Lock()

    def work() -> None:
        with room.taken(60):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            for _ in range(1000):
                pass
            with lock:
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] <= 2
    with room.taken(10_000), room.taken(5):  # alone, whatever it takes; and small ones beside it
        pass


def test_tars_whose_samples_have_other_extensions_each_are_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {f"{row:05}.e{row:05}": b"" for row in range(4000)})
    code = """
try:
    fastio.open(sys.argv[1])
except fastio.SchemaError as error:
    print(error)
"""
    taken, said = peak_of(code, str(path))
    assert "4,000 files have 4,000 different extensions (.e00000, .e00001" in said
    assert taken < 100 << 20


def test_tars_with_some_rare_extensions_are_read(tmp_path: Path) -> None:
    files = {}
    for row in range(1000):
        files[f"{row:05}.cls"] = b"1"
        if row < 40:
            files[f"{row:05}.rare{row}"] = b"x"
    dataset = TarDataset(write_tar(tmp_path / "a.tar", files), fields=["cls"])
    assert len(dataset) == 1000


OPERATIONS = """
def used():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def read(path):
    mix = fastio.AugMix(mixture_width=1, chain_depth=1)
    steps = [mix, fastio.Resize((8, 8))]
    with fastio.Loader(path, 1, num_workers=1, transforms=steps) as loader:
        return len(list(loader)), used()

_, before = read(sys.argv[1])
batches, after = read(sys.argv[2])
print(batches, after - before)
"""


def test_operations_on_a_large_image_keep_no_memory_after_it(tmp_path: Path) -> None:
    for name, sizes in (("small", [8]), ("large", [3500, 8])):
        (tmp_path / name / "a").mkdir(parents=True)
        for row, size in enumerate(sizes):
            data = save(picture(size, size, row), "JPEG")
            (tmp_path / name / "a" / f"{row}.jpg").write_bytes(data)
    _, said = peak_of(OPERATIONS, str(tmp_path / "small"), str(tmp_path / "large"))
    batches, kept = map(int, said.split())
    assert batches == 2
    assert kept < 100 << 20  # 18 bytes a pixel are 210 MiB


# --- Sound, and files of arrays -------------------------------------------------------------------


def test_a_sound_file_that_claims_many_frames_is_an_error_of_its_sample(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    (tmp_path / "a").mkdir()
    for row in range(4):
        soundfile.write(tmp_path / "a" / f"{row}.flac", np.zeros(800, np.int16), 8000)
    path = tmp_path / "a" / "1.flac"
    data = bytearray(path.read_bytes())
    data[21] |= 0x0F  # the count of frames has 36 bits
    data[22:26] = b"\xff\xff\xff\xf0"
    path.write_bytes(data)
    decode = fastio.transforms.AudioDecode()
    with Loader(
        tmp_path, batch_size=4, on_error="skip", num_workers=1, transforms={"audio": decode}
    ) as loader:
        batches = list(loader)
    assert len(batches) == 1


def wav(rate: int, frames: int) -> bytes:
    """A WAV file of 16-bit zeros in one channel."""
    data = bytes(2 * frames)
    head = struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16)
    size = struct.pack("<I", len(data))
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + head + b"data" + size + data


def flac_bomb(frames: int) -> bytes:
    """A FLAC file of zeros in eight channels, some thousand times smaller than what it holds."""
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    part = np.zeros((1 << 20, 8), np.int16)
    with soundfile.SoundFile(file, "w", 8000, 8, format="FLAC", subtype="PCM_16") as sound:
        for _ in range(frames >> 20):
            sound.write(part)
    return file.getvalue()


SOUND_LOADED = """
decode = fastio.AudioDecode(mono=True, resample=True, sample_rate=8000)
options = {"transforms": {"audio": decode}, "ragged": "list"}
with fastio.Loader(sys.argv[1], 4, on_error="skip", num_workers=1, **options) as loader:
    print([len(clips) for clips, _ in loader], loader.stats().skipped)
"""


@pytest.mark.parametrize("kind", ["compressed", "of a low rate", "of a rate of nothing"])
def test_a_sound_file_that_decodes_to_gigabytes_is_an_error_of_its_sample(
    tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("soundfile")
    pytest.importorskip("soxr")
    (tmp_path / "a").mkdir()
    for row in range(4):
        (tmp_path / "a" / f"{row}.wav").write_bytes(wav(8000, 800))
    bad = tmp_path / "a" / "1.wav"
    if kind == "compressed":
        bad.write_bytes(flac_bomb(48 << 20))  # 1.5 GiB of floats
    else:
        bad.write_bytes(wav(1 if kind == "of a low rate" else 0, 1 << 20))  # 30 GiB of floats
    taken, said = peak_of(SOUND_LOADED, str(tmp_path))
    assert said.split() == ["[3]", "1"]
    assert taken < 900 << 20


def test_max_unzipped_bytes_is_an_option_of_sounds(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.wav").write_bytes(wav(8000, 8000))
    transforms = {"audio": fastio.AudioDecode()}
    with (
        fastio.open(tmp_path, max_unzipped_bytes=31_999) as sounds,
        Loader(sounds, 1, transforms=transforms, num_workers=1) as loader,
        pytest.raises(fastio.AudioError, match=r"0\.wav.*more than max_unzipped_bytes=31,999"),
    ):
        next(iter(loader))
    with (
        fastio.open(tmp_path, max_unzipped_bytes=32_000) as sounds,
        Loader(sounds, 1, transforms=transforms, num_workers=1) as loader,
    ):
        (clips, lengths), _ = next(iter(loader))
    assert clips.shape == (1, 1, 8000)
    assert lengths.tolist() == [8000]


def test_an_array_file_that_claims_terabytes_is_left_out_when_packing(tmp_path: Path) -> None:
    folder = tmp_path / "arrays"
    folder.mkdir()
    for row in range(4):
        (folder / f"{row}.npy").write_bytes(npy(np.arange(4, dtype=np.float32)))
    (folder / "1.npy").write_bytes(claiming("(2000000000000,)"))
    with pytest.raises(SampleError, match=r"1\.npy: .*8,000,000,000,000 bytes, but it has 16"):
        fastio.pack(folder, tmp_path / "packed")
    fastio.pack(folder, tmp_path / "other", on_error="skip")
    assert len(fastio.open(tmp_path / "other")) == 3
