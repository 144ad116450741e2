"""JPEG files are recoded to block records in a cache, and read from there."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
import torch

import fastio
from fastio import Cache, CacheError, Loader
from fastio.cache import CacheFolder
from fastio.recoded.recoder import Recoder
from tests.pictures import jpeg, png
from tests.recoding import (
    ROWS,
    _small_pieces,  # noqa: F401 - a fixture
    age,
    epoch,
    from_pack,
    near,
    open_loader,
    photos,
    pieces,
    recode_all,
    replace_keeping_times,
    same,
    status,
    until,
)
from tests.support import import_torchvision
from tests.test_cli import run

pytestmark = pytest.mark.usefixtures("_small_pieces")


def test_recoded_epochs_equal_those_of_a_packed_dataset(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", odd=True)
    with open_loader(folder, tmp_path / "cache") as loader:
        recode_all(loader, ROWS + 1)  # and the image that lies on its side
        loader.set_epoch(3)
        assert same(epoch(loader), from_pack(folder, tmp_path / "packed", 3))
        assert loader.stats().recoded == ROWS + 1
    found = status(tmp_path / "cache")
    assert found.recoded
    assert (found.url, found.rows, found.share) == (str(folder), ROWS + 4, 1.0)
    assert found.pieces > 2


def test_order_and_draws_do_not_depend_on_what_is_recoded(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    with open_loader(folder) as plain, open_loader(folder, tmp_path / "cache") as loader:
        for number in range(3):
            with_cache, without = epoch(loader), epoch(plain)
            assert list(with_cache) == list(without)
            assert near(with_cache, without)
            recode_all(loader)
            loader.set_epoch(number + 1)


def test_another_loader_reads_the_records_from_its_first_batch_on(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    with open_loader(folder, tmp_path / "cache") as loader:
        recode_all(loader)
    with open_loader(folder, tmp_path / "cache") as loader:
        assert same(epoch(loader), from_pack(folder, tmp_path / "packed", 0))
        assert (loader.stats().recoded, loader.stats().from_recoded) == (0, ROWS)


def test_a_loader_that_is_gone_is_no_member_of_the_cache(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    loader = open_loader(folder, tmp_path / "cache")
    epoch(loader)
    loader.close()
    del loader
    gc.collect()
    with Cache(tmp_path / "cache") as cache:
        assert cache.status().processes == 0


def test_an_open_dataset_an_image_folder_and_a_view_share_a_cache(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    with fastio.open(folder, cache=tmp_path / "cache") as dataset, open_loader(dataset) as loader:
        recode_all(loader)
        again = pickle.loads(pickle.dumps(dataset))
        assert again.cache.path == tmp_path / "cache"
    some = torch.utils.data.Subset(again, [3, 1, 8])
    with Loader(some, 2, cache=tmp_path / "cache", transforms={"image": []}) as loader:
        epoch(loader)
        assert loader.stats().from_recoded == 3


def test_images_of_an_image_folder_are_not_turned(tmp_path: Path) -> None:
    vision = import_torchvision()
    folder = photos(tmp_path / "photos", odd=True)
    transforms = vision.transforms
    steps = transforms.Compose([transforms.CenterCrop(32), transforms.PILToTensor()])
    dataset = vision.datasets.ImageFolder(str(folder), transform=steps)
    with Loader(dataset, 4) as plain, Loader(dataset, 4, cache=tmp_path / "cache") as loader:
        recode_all(loader, ROWS + 1)
        assert near(epoch(loader), epoch(plain))


def test_a_changed_file_is_read_as_it_is_now(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    how = {"transforms": {"image": [fastio.Resize((16, 16))]}}
    with open_loader(folder, tmp_path / "cache", **how) as loader:
        recode_all(loader)
        before = epoch(loader)
        replace_keeping_times(folder / "class-0" / "000.jpg", jpeg(80, 90, seed=99, quality=40))
        age(folder)
        after = epoch(loader)
        with open_loader(folder, **how) as plain:
            assert near(after, epoch(plain))
        assert not near({0: before[0]}, {0: after[0]})
        recode_all(loader)
        loader.set_epoch(2)
        assert same(epoch(loader), from_pack(folder, tmp_path / "packed", 2, **how))


def test_a_file_that_becomes_no_jpeg_is_read_as_it_is_now(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    with open_loader(folder, tmp_path / "cache") as loader:
        recode_all(loader)
        replace_keeping_times(folder / "class-1" / "001.jpg", png(20, 20))
        age(folder)
        assert len(epoch(loader)) == ROWS
        recode_all(loader, ROWS - 1)


@pytest.mark.parametrize("place", [20, 60, -40], ids=["head", "directory", "record"])
def test_a_damaged_piece_is_made_anew(tmp_path: Path, place: int) -> None:
    folder = photos(tmp_path / "photos")
    with open_loader(folder, tmp_path / "cache") as loader:
        recode_all(loader)
    for path in pieces(tmp_path / "cache"):
        data = bytearray(path.read_bytes())
        data[place] ^= 0x55
        path.write_bytes(data)
    with open_loader(folder, tmp_path / "cache") as loader, open_loader(folder) as plain:
        assert near(epoch(loader), epoch(plain))
        recode_all(loader)
        loader.set_epoch(4)
        assert same(epoch(loader), from_pack(folder, tmp_path / "packed", 4))


def test_pieces_that_others_delete_are_missed_and_made_anew(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    with open_loader(folder, tmp_path / "cache") as loader:
        recode_all(loader)
        with Cache(tmp_path / "cache") as other:
            assert other.clear(str(folder)).pieces > 2
        assert not pieces(tmp_path / "cache")
        assert len(epoch(loader)) == ROWS
        recode_all(loader)
        loader.set_epoch(1)
        assert same(epoch(loader), from_pack(folder, tmp_path / "packed", 1))


def test_a_piece_that_is_replaced_while_it_is_read_gives_the_originals(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    with open_loader(folder, tmp_path / "cache") as loader:
        recode_all(loader)
        engine = loader._feed.engine()  # type: ignore[attr-defined]
        recoded = next(iter(engine._images.values()))._source.recoded
        # What another process would do between the reads and the end of a batch: here before both,
        # with a table that still describes the files of before.
        table, what = recoded._opened.table, recoded._opened.what
        known = table.known()
        first, last = min(known), max(known)
        a, b = (what.folder.path_of(what.source, number) for number in (first, last))
        data_a, data_b = Path(a).read_bytes(), Path(b).read_bytes()
        for path, data in ((a, data_b), (b, data_a)):
            os.unlink(path)
            Path(path).write_bytes(data)
        loader.set_epoch(1)
        with open_loader(folder) as plain:
            plain.set_epoch(1)
            assert near(epoch(loader), epoch(plain))


def test_rows_are_read_again_whose_piece_was_replaced_and_looked_at_before_they_came(
    tmp_path: Path,
) -> None:
    folder = photos(tmp_path / "photos")
    with open_loader(folder, tmp_path / "cache") as loader:
        recode_all(loader)
        engine = loader._feed.engine()  # type: ignore[attr-defined]
        source = next(iter(engine._images.values()))._source
        table, what = source.recoded._opened.table, source.recoded._opened.what
        pieces = source.reads(np.arange(ROWS)).pieces
        assert (pieces >= 0).all()
        assert not source.recoded.stale(pieces).size
        # The batch of these rows is still to be read when the piece is made anew.
        block = min(table.known())
        what.folder.drop(what.source, [block])
        table.forget(block)
        table.want(block)
        until(lambda: block in table.known())
        assert source.recoded.stale(pieces).tolist() == list(range(*table.span(block)))
        source.recoded.drop(pieces[:1])  # the piece that is there now is not to blame
        assert block in table.known()


def test_files_whose_times_of_modification_lie_in_the_future_are_recoded(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    for path in folder.rglob("*.jpg"):
        os.utime(path, (4e9, 4e9))
    age(folder)
    with open_loader(folder, tmp_path / "cache") as loader:
        recode_all(loader)


def test_never_neither_writes_nor_reads_records(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    with open_loader(folder, Cache(tmp_path / "cache")) as loader:
        recode_all(loader)
    never = Cache(tmp_path / "cache", pack="never")
    with open_loader(folder, never) as loader, open_loader(folder) as plain:
        assert same(epoch(loader), epoch(plain))
        assert loader.stats().from_recoded == 0


def test_always_recodes_too(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    with open_loader(folder, Cache(tmp_path / "cache", pack="always")) as loader:
        recode_all(loader)


def test_a_small_budget_keeps_what_fits_and_evicts_nothing(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", rows=80)
    with open_loader(folder, Cache(tmp_path / "whole")) as loader:
        recode_all(loader, 80)
    whole = sum(path.stat().st_blocks * 512 for path in pieces(tmp_path / "whole"))
    cache = Cache(tmp_path / "cache", budget=(1 << 20) + whole // 2)
    with open_loader(folder, cache) as loader:
        until(lambda: len(epoch(loader)) == 80 and _is_full(loader))
        kept = pieces(tmp_path / "cache")
        for _ in range(5):
            before = loader.stats()
            epoch(loader)
            assert loader.stats().from_recoded > before.from_recoded
        assert pieces(tmp_path / "cache") == kept
    found = cache.status()
    assert found.evicted == 0
    assert 0.3 < found.datasets[0].share < 0.7
    assert found.bytes <= (1 << 20) + whole // 2


def _is_full(loader: Loader[Any]) -> bool:
    engine = loader._feed.engine()  # type: ignore[attr-defined]
    recoded = next(iter(engine._images.values()))._source.recoded
    return bool(recoded._opened._full_until_s)


def test_recoding_gives_way_to_what_runs_need_and_takes_what_none_needs(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    with open_loader(folder, Cache(tmp_path / "whole")) as loader:
        recode_all(loader)
    whole = sum(path.stat().st_blocks * 512 for path in pieces(tmp_path / "whole"))
    budget = (1 << 20) + whole
    held = CacheFolder(tmp_path / "cache", budget)
    other = held.source("http://host/data", "0123456789abcdef", 100, 10, 1 << 20)
    size = whole // 8
    for number in range(8):
        held.claim(other, {number: size})
        held.store(other, number, [b"x" * size])
    held.close()
    with open_loader(folder, Cache(tmp_path / "cache", budget)) as loader:
        recode_all(loader)


def test_a_full_disk_is_named_once_and_the_epoch_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photos(tmp_path / "photos")

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(CacheFolder, "write", refuse)
    cache = Cache(tmp_path / "cache")
    told: list[str] = []
    monkeypatch.setattr(warnings, "warn", lambda text, *_, **__: told.append(str(text)))
    with open_loader(folder, cache) as loader:
        until(lambda: len(epoch(loader)) == ROWS and bool(told))
        assert len(epoch(loader)) == ROWS
    assert [text for text in told if "No space left" in text] == told
    assert len(told) == 1
    assert cache.status().claims == 0


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError("no room")])
@pytest.mark.parametrize("place", ["start", "_recode"])
def test_without_memory_or_threads_the_epoch_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, place: str
) -> None:
    folder = photos(tmp_path / "photos", rows=4)

    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(Recoder, place, fail)
    told: list[str] = []
    monkeypatch.setattr(warnings, "warn", lambda text, *_, **__: told.append(str(text)))
    with open_loader(folder, Cache(tmp_path / "cache")) as loader:
        until(lambda: len(epoch(loader)) == 4 and bool(told))
        assert len(epoch(loader)) == 4
    assert len(told) == 1
    assert str(error) in told[0]


def test_a_cache_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", rows=4)
    place = tmp_path / "file"
    place.write_text("not a folder")
    with pytest.raises(CacheError, match="file"):
        open_loader(folder, place)


def test_a_cache_that_has_no_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cache= is for URLs"):
        Loader(torch.utils.data.TensorDataset(torch.zeros(4)), cache=tmp_path / "cache")
    with pytest.raises(ValueError, match="pack must be one of idle, always, never"):
        Cache(tmp_path / "cache", pack="sometimes")  # type: ignore[arg-type]
    pa_parquet.write_table(pa.table({"x": [1, 2]}), tmp_path / "x.parquet")
    table = fastio.open(tmp_path / "x.parquet")
    with table, pytest.raises(ValueError, match="cache= is for URLs"):
        Loader(table, cache=tmp_path / "cache")
    fastio.pack(photos(tmp_path / "photos", rows=4), tmp_path / "packed")
    with pytest.raises(fastio.OptionError, match="cache is only for URLs"):
        Loader(tmp_path / "packed", cache=tmp_path / "cache")


def test_copies_of_a_folder_have_records_of_their_own(tmp_path: Path) -> None:
    first, second = photos(tmp_path / "a"), photos(tmp_path / "b")
    with open_loader(first, tmp_path / "cache") as loader:
        recode_all(loader)
    with open_loader(second, tmp_path / "cache") as loader:
        epoch(loader)
        recode_all(loader)
        assert loader.stats().recoded == ROWS


def test_files_that_were_written_a_moment_ago_are_recoded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastio.recoded import originals

    folder = photos(tmp_path / "photos")
    monkeypatch.setattr(originals, "TICK_NS", 1 << 60)
    with open_loader(folder, tmp_path / "cache") as loader:
        for _ in range(20):
            epoch(loader)
        assert not pieces(tmp_path / "cache")
        monkeypatch.setattr(originals, "TICK_NS", 0)
        recode_all(loader)


def test_epochs_without_a_row_and_of_one_row(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", rows=2)
    (folder / "class-1" / "001.jpg").write_bytes(png())
    age(folder)
    with open_loader(folder, tmp_path / "cache") as loader:
        recode_all(loader, 1)
    nothing = torch.utils.data.Subset(fastio.open(folder), np.array([], np.int64))
    with Loader(nothing, 2, cache=tmp_path / "cache") as loader:
        assert list(loader) == []


def test_a_pack_from_the_cache_has_the_same_bytes_and_decodes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photos(tmp_path / "photos", odd=True)
    fastio.pack(folder, tmp_path / "packed")
    with open_loader(folder, tmp_path / "cache") as loader:
        recode_all(loader, ROWS + 1)
    encoded = count_encoded(monkeypatch)
    fastio.pack(folder, tmp_path / "copied", from_cache=tmp_path / "cache")
    assert len(encoded) == 3  # what no record holds
    assert files_of(tmp_path / "copied") == files_of(tmp_path / "packed")


@pytest.mark.parametrize("place", [60, -40], ids=["directory", "record"])
def test_a_pack_from_a_damaged_cache_has_the_same_bytes(tmp_path: Path, place: int) -> None:
    folder = photos(tmp_path / "photos")
    fastio.pack(folder, tmp_path / "packed")
    with open_loader(folder, tmp_path / "cache") as loader:
        recode_all(loader)
    for path in pieces(tmp_path / "cache"):
        data = bytearray(path.read_bytes())
        data[place] ^= 0x55
        path.write_bytes(data)
    fastio.pack(folder, tmp_path / "copied", from_cache=Cache(tmp_path / "cache"))
    assert files_of(tmp_path / "copied") == files_of(tmp_path / "packed")


def test_a_pack_from_the_cache_names_what_it_cannot_do(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", rows=4)
    with pytest.raises(CacheError, match="does not exist"):
        fastio.pack(folder, tmp_path / "copied", from_cache=tmp_path / "cache")
    for options in ({"codec": "jpeg"}, {"codebook": "train"}, {"max_side": 32}):
        with pytest.raises(fastio.OptionError, match="from_cache can only be used with"):
            fastio.pack(folder, tmp_path / "copied", from_cache=tmp_path / "cache", **options)
    (tmp_path / "list.csv").write_text("path\n" + "\n".join(map(str, folder.rglob("*.jpg"))))
    with open_loader(folder, tmp_path / "cache") as loader:
        next(iter(loader))
    with pytest.raises(fastio.OptionError, match="from_cache can only be used with a local folder"):
        fastio.pack(tmp_path / "list.csv", tmp_path / "copied", from_cache=tmp_path / "cache")


def count_encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Notes the sizes of the files that are encoded from here on."""
    from fastio.pack import unread_images

    seen: list[int] = []
    encode = unread_images.encode_file

    def noted(data: bytes, *arguments: Any) -> Any:
        seen.append(len(data))
        return encode(data, *arguments)

    monkeypatch.setattr(unread_images, "encode_file", noted)
    return seen


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_commands_show_and_use_what_is_recoded(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    with open_loader(folder, tmp_path / "cache") as loader:
        recode_all(loader)
    code, text = run("cache", "status", tmp_path / "cache")[:2]
    assert code == 0
    assert ["recoded", str(folder)] in [line.split() for line in text.splitlines()]
    assert f"100.0% of {ROWS} samples" in text
    assert run("pack", folder, tmp_path / "copied", "--from-cache", tmp_path / "cache")[0] == 0
    with open_loader(tmp_path / "copied") as packed:
        assert same(epoch(packed), from_pack(folder, tmp_path / "packed", 0))
    assert run("cache", "clear", tmp_path / "cache", "--dataset", str(folder))[0] == 0
    assert not pieces(tmp_path / "cache")


def test_records_of_images_that_are_too_large_are_left_alone(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    with open_loader(folder, tmp_path / "cache") as loader:
        recode_all(loader)
    before = {path: path.stat().st_ino for path in pieces(tmp_path / "cache")}
    with (
        fastio.open(folder, cache=tmp_path / "cache", max_pixels=110 * 130) as dataset,
        open_loader(dataset, on_error="skip") as loader,
    ):
        assert len(epoch(loader)) == 11
        assert loader.stats().from_recoded == 11
    assert {path: path.stat().st_ino for path in pieces(tmp_path / "cache")} == before


def test_a_row_whose_original_fails_too_costs_no_record(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    (folder / "class-0" / "tiny.jpg").write_bytes(jpeg(8, 8))
    age(folder)
    steps = {"image": [fastio.RandomCrop(64)]}
    how: dict[str, Any] = {"transforms": steps, "on_error": "skip"}
    with open_loader(folder, tmp_path / "cache") as loader:
        recode_all(loader, ROWS + 1)
    before = {path: path.stat().st_ino for path in pieces(tmp_path / "cache")}
    with open_loader(folder, tmp_path / "cache", **how) as loader:
        for _ in range(3):
            assert len(epoch(loader)) == ROWS
    assert {path: path.stat().st_ino for path in pieces(tmp_path / "cache")} == before
