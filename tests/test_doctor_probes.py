"""Probes on small real data: what they find is there, what fails is noted."""

from __future__ import annotations

import io
import json
import math
import mmap
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import fastio
from fastio import OptionError, SourceNotFound
from fastio.diagnose import Use, diagnose
from fastio.diagnose.facts import Facts
from fastio.diagnose.imagesteps import ImageSteps
from fastio.diagnose.probes import data as data_probes
from fastio.diagnose.probes import examine
from fastio.diagnose.probes import machine as machine_probes
from fastio.diagnose.probes import remote as remote_probes
from fastio.diagnose.probes import samples as image_probes
from fastio.diagnose.probes import storage as storage_probes
from fastio.diagnose.probes.data import Piece
from fastio.diagnose.probes.rates import Attempts
from fastio.diagnose.probes.remote import stream_rate
from fastio.diagnose.probes.storage import cold_loader_rate
from tests.servers import http_folder
from tests.support import numbered_folder
from tests.tars import write_tar
from tests.test_pack_ray_sources import sound_folder
from tests.test_token_files import llm_c, raw

USE = Use(batch_size=4, crop=16)
ROWS = Use(batch_size=4)  # of data without images


pytestmark = pytest.mark.usefixtures("short_probes")


def failed(facts: Facts) -> list[str]:
    """What was not measured. Files that were just written may not come from the disk."""
    cold = ("cold reads", "a cold loader", "parallel cold reads", "a sequential read", "page cache")
    return [note for note in facts.notes if not note.startswith(cold)]


def is_rate(value: float | None) -> bool:
    return value is not None and 0 < value < math.inf


# --- Whole data sets ------------------------------------------------------------------------------


def test_without_data_the_machine_is_looked_at() -> None:
    facts = examine()
    assert failed(facts) == []
    assert facts.machine is not None
    assert 1 <= facts.machine.cores <= facts.machine.allowed_cores
    assert facts.machine.memory_bytes >= facts.machine.available_bytes > 0
    assert facts.machine.simd in ("avx512", "avx512bw", "avx2", "portable")
    assert facts.settings is not None
    assert facts.settings.torch_threads == torch.get_num_threads()
    assert (facts.gpu is None) == (not torch.cuda.is_available())
    assert facts.data is None


def test_a_folder_of_images(tmp_path: Path) -> None:
    numbered_folder(tmp_path)
    facts = examine(str(tmp_path), USE)
    assert failed(facts) == []
    assert facts.data is not None
    assert (facts.data.kind, facts.data.rows, facts.data.complete) == ("folder", 24, True)
    assert facts.storage is not None
    assert facts.images is not None
    assert facts.images.formats == {"JPEG": 1.0}
    for rate in (facts.images.rate, facts.images.one_thread_rate, facts.images.pillow_rate):
        assert is_rate(rate)
    (tried,) = facts.images.trials
    assert (tried.codec, tried.max_side, tried.samples) == ("blocks", None, 24)
    assert is_rate(tried.rate)
    diagnose(facts, USE)


def test_images_that_lie_in_the_folder_itself(tmp_path: Path) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "one.png")
    facts = examine(str(tmp_path), USE)
    assert facts.images is not None
    assert facts.images.formats == {"PNG": 1.0}
    assert [trial.codec for trial in facts.images.trials] == ["raw"]


def test_images_that_cannot_be_decoded_are_left_out(tmp_path: Path) -> None:
    """An empty file cannot be mapped either, to ask whether it is in the page cache."""
    numbered_folder(tmp_path)
    whole = next(tmp_path.rglob("*.jpg"))
    whole.with_name("cut.jpg").write_bytes(whole.read_bytes()[:-300])
    whole.with_name("empty.jpg").touch()
    facts = examine(str(tmp_path), USE)
    assert failed(facts) == []
    assert not [note for note in facts.notes if "empty file" in note]
    assert facts.images is not None
    assert is_rate(facts.images.pillow_rate)


def test_sounds_and_token_files(tmp_path: Path) -> None:
    """Kinds of data that have no probes of their own are described, and read from the disk."""
    facts = examine(str(sound_folder(tmp_path)), ROWS)
    assert failed(facts) == []
    assert facts.data is not None
    assert (facts.data.kind, facts.data.rows, facts.data.files) == ("sounds", 8, 8)
    assert facts.images is None
    diagnose(facts, USE)

    tokens = np.arange(20_000) % 500
    facts = examine(str(llm_c(tmp_path / "tokens.bin", tokens)), ROWS)
    assert failed(facts) == []
    assert facts.data is not None
    assert (facts.data.kind, facts.data.nbytes) == ("tokens", 1024 + 2 * len(tokens))
    assert facts.tables is not None
    assert is_rate(facts.tables.rate)
    diagnose(facts, USE)


def test_a_lance_dataset_is_a_folder_of_files(tmp_path: Path) -> None:
    lance = pytest.importorskip("lance")
    path = tmp_path / "numbers.lance"
    lance.write_dataset(pa.table({"x": np.arange(5000.0)}), str(path))
    data = data_probes.look_at(str(path))
    files = {file for file in path.rglob("*") if file.is_file()}
    assert set(data.files) == files
    assert data.facts.nbytes == sum(file.stat().st_size for file in files) > 40_000


def test_a_file_whose_kind_is_not_known_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="neither a header nor an index"):
        examine(str(raw(tmp_path / "tokens.bin", np.arange(100))), USE)


@pytest.mark.parametrize(("codec", "tried"), [("blocks", 0), ("raw", 0), ("jpeg", 1)])
def test_a_packed_dataset(tmp_path: Path, codec: Any, tried: int) -> None:
    fastio.pack(numbered_folder(tmp_path / "folder"), tmp_path / "packed", codec=codec)
    facts = examine(str(tmp_path / "packed"), USE)
    assert failed(facts) == []
    assert facts.data is not None
    assert (facts.data.kind, facts.data.rows, facts.data.files) == ("packed", 24, 1)
    assert facts.data.codecs[codec] == 24
    assert facts.images is not None
    assert (facts.images.short_side, facts.images.long_side) == (32, 40)
    assert is_rate(facts.images.rate)
    assert len(facts.images.trials) == tried


def test_tars(tmp_path: Path) -> None:
    files = [path.read_bytes() for path in sorted(numbered_folder(tmp_path / "a").rglob("*.jpg"))]
    (tmp_path / "tars").mkdir()
    members = [(f"{number:03}.jpg", data) for number, data in enumerate(files)]
    write_tar(tmp_path / "tars" / "0.tar", members)
    facts = examine(str(tmp_path / "tars"), USE)
    assert failed(facts) == []
    assert facts.data is not None
    assert (facts.data.kind, facts.data.rows) == ("tars", 24)
    assert facts.images is not None
    assert is_rate(facts.images.rate)
    assert [trial.codec for trial in facts.images.trials] == ["blocks"]


def parquet(path: Path, **options: Any) -> Path:
    columns = {"x": np.arange(1000, dtype=np.float32), "word": ["a"] * 1000}
    pq.write_table(pa.table(columns), path, row_group_size=250, **options)
    return path


def test_options_of_images_are_refused_for_tables(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet")
    with pytest.raises(OptionError, match=r"crop can only be used with images, and .*a\.parquet"):
        examine(str(path), USE)


def test_parquet(tmp_path: Path) -> None:
    facts = examine(str(parquet(tmp_path / "a.parquet", compression="zstd")), ROWS)
    assert failed(facts) == []
    assert facts.data is not None
    assert (facts.data.kind, facts.data.rows) == ("tables", 1000)
    tables = facts.tables
    assert tables is not None
    assert (tables.format, tables.columns, tables.text_columns) == ("parquet", 2, 1)
    assert (tables.row_groups, tables.group_rows) == (4, 250)
    assert tables.compressions == ("ZSTD",)
    assert is_rate(tables.rate)
    assert tables.trial is not None
    assert tables.trial.samples == 1000
    assert is_rate(tables.trial.rate)


def test_packed_rows_and_tokens(tmp_path: Path) -> None:
    fastio.pack(str(parquet(tmp_path / "a.parquet")), tmp_path / "rows")
    facts = examine(str(tmp_path / "rows"), ROWS)
    assert facts.tables is not None
    assert facts.tables.format == "packed"
    assert is_rate(facts.tables.rate)
    fastio.pack(["a document " * 2000] * 20, tmp_path / "tokens", tokenizer="bytes")
    facts = examine(str(tmp_path / "tokens"), ROWS)
    assert failed(facts) == []
    assert facts.data is not None
    assert (facts.data.kind, facts.data.rows) == ("tokens", 20)
    assert facts.tables is not None
    assert is_rate(facts.tables.rate)


def test_a_packed_dataset_behind_a_url(tmp_path: Path) -> None:
    fastio.pack(numbered_folder(tmp_path / "folder"), tmp_path / "packed")
    with http_folder(tmp_path) as url:
        facts = examine(f"{url}/packed", replace(USE, cache=str(tmp_path / "cache")))
    assert failed(facts) == []
    assert facts.data is not None
    assert (facts.data.remote, facts.data.rows) == (True, 24)
    remote = facts.remote
    assert remote is not None
    for rate in (remote.latency_s, remote.stream_bytes_s, remote.parallel_bytes_s):
        assert is_rate(rate)
    assert is_rate(remote.decode_rate)
    assert remote.cache_bytes is not None
    assert remote.cache_bytes > 0
    assert not (tmp_path / "cache").exists()


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="does not exist"):
        examine(str(tmp_path / "nothing"))
    with pytest.raises(SourceNotFound, match="has no images"):
        examine(str(tmp_path))


def test_images_that_nothing_can_decode_are_noted_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"no image" * 100)
    facts = examine(str(tmp_path), USE)
    assert facts.machine is not None
    assert facts.storage is not None
    assert any("decoding" in note for note in facts.notes)
    assert diagnose(facts, USE) is not None


def test_a_probe_that_fails_breaks_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise OSError("the disk is on fire")

    numbered_folder(tmp_path)
    monkeypatch.setattr("fastio.diagnose.probes.storage.resident_share", fail)
    monkeypatch.setattr("fastio.diagnose.probes.machine_facts", fail)
    facts = examine(str(tmp_path), USE)
    assert facts.notes[0] == "the machine: the disk is on fire"
    assert "page cache: the disk is on fire" in facts.notes
    assert facts.images is not None
    assert is_rate(facts.images.rate)


def test_what_there_is_no_time_for_is_noted() -> None:
    attempts = Attempts(0.0)
    assert attempts("a probe", lambda: 1) is None
    assert attempts.notes == ["a probe: skipped, because no time was left"]


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbered_folder(tmp_path / "folder")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setattr("fastio.diagnose.probes.rates._SHM", tmp_path / "none")
    before = sorted(path.stat().st_mtime_ns for path in (tmp_path / "folder").rglob("*"))
    facts = examine(str(tmp_path / "folder"), Use(crop=16, scratch=str(scratch)))
    assert failed(facts) == []
    assert facts.storage is not None
    assert is_rate(facts.storage.write_bytes_s)
    assert list(scratch.iterdir()) == []
    assert sorted(p.stat().st_mtime_ns for p in (tmp_path / "folder").rglob("*")) == before


def test_listing_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbered_folder(tmp_path)
    monkeypatch.setattr(data_probes, "_LISTING_S", -1.0)
    found = data_probes.look_at(str(tmp_path)).facts
    assert not found.complete
    assert found.rows == 1


# --- Parts ----------------------------------------------------------------------------------------


def encoded(mode: str = "RGB", **options: Any) -> bytes:
    data = io.BytesIO()
    Image.new(mode, (60, 40)).save(data, "JPEG", **options)
    return data.getvalue()


def test_headers_tell_what_is_slow_to_decode() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    files = [encoded(), encoded(progressive=True), encoded("CMYK"), encoded(exif=turned)]
    found = image_probes.headers([*files, b"no image"])
    assert (found.sampled, found.formats) == (4, {"JPEG": 1.0})
    assert (found.progressive, found.cmyk, found.rotated) == (0.25, 0.25, 0.25)
    assert (found.short_side, found.long_side, found.mean_pixels) == (40, 60, 2400.0)


def test_headers_of_what_is_no_image() -> None:
    assert image_probes.headers([b"no image"]).sampled == 0


def test_pages_just_written_are_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(5 * 4096 + 1))
    found, pages = storage_probes.resident_pages(path)
    assert pages >= 1
    assert 0 <= found <= pages
    assert storage_probes.resident_share([path]) == found / pages
    assert storage_probes.resident_pages(path, 4096, 8192)[1] * mmap.PAGESIZE >= 8192
    assert storage_probes.resident_pages(path, 4096, 1)[1] == 1
    (tmp_path / "empty").touch()
    assert storage_probes.resident_share([tmp_path / "empty"]) is None


def test_pages_given_back_are_read_from_the_disk(tmp_path: Path) -> None:
    pieces = []
    for number in range(4):
        path = tmp_path / str(number)
        path.write_bytes(os.urandom(10_000))
        pieces.append(Piece(path, 0, 10_000))
    with suppress(OSError):  # where the system keeps them
        assert is_rate(storage_probes.cold_rate(pieces, 2))
    with suppress(OSError):
        assert is_rate(storage_probes.sequential_rate(pieces[0].path))
    assert is_rate(storage_probes.read_rate(pieces, 1))
    assert storage_probes.read_rate([], 1) is None


@pytest.mark.parametrize("kind", ["folder", "packed"])
def test_a_loader_s_rate_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    fastio.pack(numbered_folder(tmp_path / "folder"), tmp_path / "packed")
    given: list[Piece] = []
    monkeypatch.setattr("fastio.diagnose.probes.storage.give_back", given.extend)
    monkeypatch.setattr("fastio.diagnose.probes.storage._BATCH", 2)
    monkeypatch.setattr("fastio.diagnose.probes.storage._CHOOSING_S", 600.0)
    data = data_probes.look_at(str(tmp_path / kind))
    context = data_probes.Context(data, USE, Attempts(600.0), 2)
    assert is_rate(cold_loader_rate(context))
    assert len(set(given)) == 24
    assert all(piece.length > 0 for piece in given)
    files = {piece.path for piece in given}
    assert files == set(data.files)
    monkeypatch.setattr(
        "fastio.diagnose.probes.storage._BYTES", sum(piece.length for piece in given[:3])
    )
    given.clear()
    cold_loader_rate(context)
    assert len(given) == 3


def test_empty_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "0").touch()
    (tmp_path / "1").write_bytes(b"x" * 5000)
    pieces = storage_probes._pieces([tmp_path / "0", tmp_path / "1"], 0)
    assert pieces == [Piece(tmp_path / "1", 0, 5000)]
    assert storage_probes._pieces([tmp_path / "0"], 0) == []


def test_rates_are_known_where_all_time_is_gone_at_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread may begin late."""

    class Store:
        def read(self, name: str, offset: int, length: int, stop: Any) -> bytes:
            return b"x" * length

    monkeypatch.setattr("fastio.diagnose.probes.remote._SECONDS", -1.0)
    assert is_rate(stream_rate(Store(), "object", 1000, 3, 100))  # type: ignore[arg-type]
    part = image_probes.pillow_part([encoded()], ImageSteps.usual(16), -1.0)
    assert part.samples == 1
    assert part.seconds > 0


def test_the_word_in_brackets_says_when_there_are_huge_pages(tmp_path: Path) -> None:
    path = tmp_path / "enabled"
    path.write_text("always [madvise] never\n")
    assert machine_probes.huge_pages(path) == "madvise"
    path.write_text("nonsense")
    assert machine_probes.huge_pages(path) is None


def test_how_often_a_quota_was_used_up(tmp_path: Path) -> None:
    assert machine_probes.throttled_share(tmp_path) is None
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nnr_periods 8\nnr_throttled 2\n")
    assert machine_probes.throttled_share(tmp_path) == 0.25


def test_what_is_swapped(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 9 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\n")
    assert machine_probes.swapped_bytes(path) == 60 * 1024
    assert machine_probes.swapped_bytes(tmp_path / "none") is None


def test_the_allocator_is_known_by_its_library(tmp_path: Path) -> None:
    path = tmp_path / "maps"
    path.write_text("7f00 r-xp 0 0 /usr/lib/x86_64-linux-gnu/libjemalloc.so.2\n")
    assert machine_probes.allocator(path) == "jemalloc"
    path.write_text("7f00 r-xp 0 0 /usr/lib/libc.so.6\n")
    assert machine_probes.allocator(path) == "malloc"
    path.write_bytes(b"7f00 r--p 0 0 /data/\xff.jpg\n7f01 r-xp 0 0 /usr/lib/libmimalloc.so.2\n")
    assert machine_probes.allocator(path) == "mimalloc"
    (tmp_path / "libtcmalloc.so.4").touch()
    assert machine_probes.other_allocator((str(tmp_path),)) == str(tmp_path / "libtcmalloc.so.4")
    assert machine_probes.other_allocator((str(tmp_path / "none"),)) is None


def test_facts_are_json(tmp_path: Path) -> None:
    numbered_folder(tmp_path, (2, 2))
    told = json.loads(json.dumps(examine(str(tmp_path), USE).to_dict()))
    assert told["data"]["rows"] == 4
    assert told["images"]["trials"][0]["samples"] == 4
    assert Facts().to_dict()["machine"] is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu() -> None:
    facts = machine_probes.gpu_facts()
    assert facts is not None
    assert is_rate(facts.pinned_bytes_s)
    assert is_rate(facts.pageable_bytes_s)
    assert is_rate(facts.channels_last_gain)
    assert is_rate(facts.flops["float32"])
    assert torch.backends.cuda.matmul.allow_tf32 == facts.tf32


@pytest.mark.skipif(torch.cuda.is_available(), reason="is of machines without a CUDA device")
def test_without_a_gpu_there_are_no_facts_of_one() -> None:
    assert machine_probes.gpu_facts() is None


@pytest.mark.parametrize(("rows", "count", "places"), [(3, 3, 8), (1000, 256, 8), (1000, 40, 1)])
def test_rows_of_some_places_are_within_the_dataset(rows: int, count: int, places: int) -> None:
    found = remote_probes._spread(rows, count, places)
    assert len(set(found)) == len(found) >= count
    assert (min(found), max(found)) == (0, rows - 1 if places > 1 else count - 1)


def test_images_are_measured_from_all_over_a_packed_dataset(tmp_path: Path) -> None:
    # Those of the first class are small: neighbours are alike.
    numbers = range(2 * image_probes._SAMPLED)
    sides = [8 if n < len(numbers) // 2 else 16 for n in numbers]
    rows = ((np.zeros((side, side, 3), np.uint8), 0) for side in sides)
    fastio.pack(rows, tmp_path / "packed", codec="raw")
    facts = examine(str(tmp_path / "packed")).images
    assert facts is not None
    assert facts.sampled == image_probes._SAMPLED
    assert 100 < facts.mean_pixels < 220  # 160 of all, 64 of the first
