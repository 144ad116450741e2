"""Packs of ConcatDatasets, and of Subsets of them: copied where the parts have the same fields."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import fastio
from fastio.errors import PackError, SampleError
from fastio.pack.row_sources import RowSource
from fastio.pack.sources import open_source
from fastio.pack.tokens.encoders import TokenOptions
from fastio.schema import Scalar, Schema
from fastio.sources import Options
from tests.pictures import oriented_jpeg
from tests.support import import_torchvision, numbered_folder, pack_stopped

COUNTS = (5, 1, 7)


def packed(source: Any, out: Path, **options: Any) -> fastio.Dataset:
    fastio.pack(source, out, **options)
    return fastio.Dataset(out)


def numbers(first: int, count: int) -> dict[str, Any]:
    return {
        "x": np.arange(first, first + count),
        "v": np.arange(first, first + count)[:, None] * np.float32([1, 2]),
    }


def texts(first: int, count: int) -> list[dict[str, Any]]:
    return [{"x": x, "text": f"row {x}" * (x % 3)} for x in range(first, first + count)]


def parts(make: Callable[[int, int], Any], tmp_path: Path) -> list[Any]:
    return [
        packed(make(100 * part, count), tmp_path / f"part-{part}")
        for part, count in enumerate(COUNTS)
    ]


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    return np.asarray(value).tolist()


SHAPES: dict[str, Callable[[list[Any]], Any]] = {
    "all": ConcatDataset,
    "nested": lambda p: ConcatDataset([p[2], ConcatDataset(p[:2])]),
    "one": lambda p: ConcatDataset(p[2:]),
    "twice": lambda p: ConcatDataset([p[0], p[1], p[0]]),
    "subsets": lambda p: ConcatDataset([Subset(p[2], [6, 0, 0]), p[1], Subset(p[0], [-1])]),
    "shuffled": lambda p: Subset(ConcatDataset(p), [12, 0, 5, 6, 4, -2]),
}


def open_as_pack(source: Any) -> Any:
    return open_source(source, None, TokenOptions(), Options(), False)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", [numbers, texts])
def test_rows_come_in_their_order(
    make: Callable[[int, int], Any], shape: str, tmp_path: Path
) -> None:
    source = SHAPES[shape](parts(make, tmp_path))
    assert isinstance(open_as_pack(source), RowSource) == (make is numbers)
    found = packed(source, tmp_path / "out", shard_size="1KiB")
    assert [plain(row) for row in found] == [plain(source[row]) for row in range(len(source))]
    assert all(check.problem is None for check in found.verify())


@pytest.mark.parametrize("shape", SHAPES)
def test_photos_are_copied_as_they_are_stored(shape: str, tmp_path: Path) -> None:
    folders = [numbered_folder(tmp_path / f"photos-{n}", (n + 1, 2)) for n in range(3)]
    stored = [packed(folder, folder.with_suffix(".packed")) for folder in folders]
    sizes = [len(part) for part in stored]
    shapes = dict(SHAPES)
    shapes["subsets"] = lambda p: ConcatDataset([Subset(p[2], [4, 0, 0]), Subset(p[0], [-1])])
    shapes["shuffled"] = lambda p: Subset(ConcatDataset(p), [sum(sizes) - 1, 0, 3, 4, -2])
    source = shapes[shape](stored)
    places: dict[bytes, Any] = {}
    for part in stored:
        for row in range(len(part)):
            places[part.image("image", row).tobytes()] = part.stored_image("image", row)
    found = packed(source, tmp_path / "out")
    assert len(found) == len(source)
    assert found.classes == stored[0].classes
    for row in range(len(source)):
        pixels, label = source[row]
        np.testing.assert_array_equal(found.image("image", row), pixels)
        assert found[row][1] == label
        stored_bytes = found.stored_image("image", row).data
        np.testing.assert_array_equal(stored_bytes, places[pixels.tobytes()].data)
    of_folders = packed(shapes[shape]([fastio.open(f) for f in folders]), tmp_path / "files")
    for row in range(len(source)):
        np.testing.assert_array_equal(of_folders.image("image", row), source[row][0])


def test_tensors_and_tables_are_joined(tmp_path: Path) -> None:
    tensors = [TensorDataset(torch.arange(n), torch.arange(n) / 2) for n in (4, 9)]
    source = ConcatDataset([tensors[0], Subset(tensors[1], [8, 2])])
    assert isinstance(open_as_pack(source), RowSource)
    found = packed(source, tmp_path / "tensors")
    assert [plain(row) for row in found] == [plain(source[row]) for row in range(6)]
    tables = []
    for number in range(2):
        table = pa.table({"a": [number, None, 3], "s": ["x", "yy", None]})
        pa_parquet.write_table(table, tmp_path / f"{number}.parquet")
        tables.append(fastio.open(tmp_path / f"{number}.parquet", nulls={"a": -1, "s": ""}))
    joined = packed(ConcatDataset(tables), tmp_path / "tables")
    wanted = [plain(row) for table in tables for row in table]
    assert [plain(row) for row in joined] == wanted


def test_parts_with_other_fields_are_packed_sample_by_sample(tmp_path: Path) -> None:
    small = packed({"x": np.arange(3, dtype=np.int32)}, tmp_path / "small")
    large = packed({"x": np.arange(3)}, tmp_path / "large")
    joined = ConcatDataset([large, [{"x": 7}]])
    assert plain(list(packed(joined, tmp_path / "list"))) == plain(list(joined))
    joined = ConcatDataset([small, large])
    assert plain(list(packed(joined, tmp_path / "out"))) == plain(list(joined))


def test_tuples_with_fields_in_another_order_keep_their_values(tmp_path: Path) -> None:
    parts = []
    for number, names in enumerate(("ab", "ba")):
        schema = Schema({name: Scalar("int64") for name in names}, "tuple")
        with fastio.Writer(tmp_path / names, schema) as writer:
            writer.write((10 * number + 1, 10 * number + 2))
        parts.append(fastio.Dataset(tmp_path / names))
    assert parts[0].schema != parts[1].schema
    assert list(packed(ConcatDataset(parts), tmp_path / "out")) == [(1, 2), (11, 12)]


def test_dicts_with_fields_in_another_order_are_copied(tmp_path: Path) -> None:
    first = packed({"a": np.arange(2), "b": np.arange(2.0)}, tmp_path / "first")
    second = packed({"b": np.arange(5.0, 7), "a": np.arange(5, 7)}, tmp_path / "second")
    joined = ConcatDataset([first, second])
    assert isinstance(open_as_pack(joined), RowSource)
    assert list(packed(joined, tmp_path / "out")) == list(joined)


@pytest.mark.parametrize("kind", ["folder", "packed"])
def test_images_have_the_limits_of_their_parts(kind: str, tmp_path: Path) -> None:
    folder = numbered_folder(tmp_path / "photos", (2, 1))
    if kind == "packed":
        folder = Path(packed(folder, tmp_path / "packed").path)
    allowed = fastio.open(folder)
    pixels = max(allowed.image("image", row).size // 3 for row in range(3))
    refused = fastio.open(folder, max_pixels=pixels - 1)
    for number, parts in enumerate([[refused], [refused, refused], [allowed, refused]]):
        with pytest.raises(SampleError, match=r"more than max_pixels=1,?599"):
            fastio.pack(ConcatDataset(parts), tmp_path / f"{number}")
    for number, parts in enumerate([[refused], [allowed, refused]]):
        limited = packed(ConcatDataset(parts), tmp_path / f"out-{number}", max_pixels=pixels)
        assert len(limited) == 3 * len(parts)


def test_images_are_copied_where_their_parts_differ_in_their_limits_only(tmp_path: Path) -> None:
    path = packed(numbered_folder(tmp_path / "photos", (2, 1)), tmp_path / "packed").path
    stored = fastio.open(path)
    sizes = [stored.image("image", row).size // 3 for row in range(3)]
    limited = fastio.open(path, max_pixels=max(sizes))
    source = ConcatDataset([stored, limited])
    assert open_as_pack(source).has_keys  # of rows of datasets, not of samples of Python
    found = packed(source, tmp_path / "out")
    for row in range(6):
        np.testing.assert_array_equal(
            found.stored_image("image", row).data, stored.stored_image("image", row % 3).data
        )
    refused = fastio.open(path, max_pixels=min(sizes) - 1)
    source = ConcatDataset([stored, refused, Subset(limited, [0])])
    left = packed(source, tmp_path / "skipped", on_error="skip")
    assert [row[1] for row in left] == [source[row][1] for row in (0, 1, 2, 6)]


def test_lists_of_images_have_the_limits_of_their_parts(tmp_path: Path) -> None:
    rows = [{"images": [oriented_jpeg(1, 20, 30)] * count} for count in (2, 1)]
    path = packed(rows, tmp_path / "packed").path
    stored, refused = fastio.open(path), fastio.open(path, max_pixels=599)
    left = packed(ConcatDataset([refused, stored]), tmp_path / "out", on_error="skip")
    assert [len(row["images"]) for row in left] == [2, 1]


@pytest.mark.parametrize("codec", ["blocks", "jpeg", "raw"])
def test_images_of_files_are_turned_where_their_parts_turn_them(codec: Any, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(oriented_jpeg(6, 20, 30))
    files = [(str(tmp_path / "photo.jpg"), 0)]
    parts = [fastio.FolderDataset.from_samples(files, ["x"], upright=u) for u in (False, True)]
    for number, source in enumerate([ConcatDataset(parts), parts[0]]):
        found = packed(source, tmp_path / f"{number}", codec=codec)
        for row in range(len(source)):
            pixels = source[row][0]
            assert found.image("image", row).shape == pixels.shape
            assert np.abs(found.image("image", row).astype(int) - pixels).max() < 8


def test_names_of_classes_that_parts_do_not_share_are_left_out(tmp_path: Path) -> None:
    torchvision = import_torchvision()
    folders = []
    for number, names in enumerate([("cat", "dog"), ("dog", "eel"), ("cat", "dog", "eel")]):
        root = tmp_path / f"{number}"
        for name in names:
            (root / name).mkdir(parents=True)
            (root / name / "0.jpg").write_bytes(oriented_jpeg(1, 20, 30))
        folders.append(torchvision.datasets.ImageFolder(str(root)))
    for number, (picked, classes) in enumerate(
        {(0, 2): ("cat", "dog", "eel"), (0, 1): None, (1, 1): ("dog", "eel")}.items()
    ):
        source = ConcatDataset([folders[each] for each in picked])
        found = packed(source, tmp_path / f"out-{number}")
        assert found.classes == classes
        assert [row[1] for row in found] == [label for _, label in source]
    nested = ConcatDataset([ConcatDataset(folders[:2]), folders[0]])
    assert packed(nested, tmp_path / "nested").classes is None


def test_a_pack_that_stopped_goes_on_with_the_same_parts_only(tmp_path: Path) -> None:
    made = parts(lambda first, count: numbers(first, 4000 * count), tmp_path)
    options: Any = {"shard_size": "64KiB"}
    whole = packed(ConcatDataset(made), tmp_path / "whole", **options)
    pack_stopped(2, ConcatDataset(made), tmp_path / "out", **options)
    with pytest.raises(PackError, match="has changed"):
        fastio.pack(ConcatDataset(made[::-1]), tmp_path / "out", resume=True, **options)
    found = packed(ConcatDataset(made), tmp_path / "out", resume=True, **options)
    assert found.fingerprint == whole.fingerprint


@pytest.mark.parametrize("one_limit", [True, False])
def test_a_pack_that_skips_large_images_goes_on_with_the_same_limits_only(
    one_limit: bool, tmp_path: Path
) -> None:
    stored = packed(numbered_folder(tmp_path / "photos", (12, 12)), tmp_path / "packed")
    path, most = stored.path, max(stored.image("image", row).size // 3 for row in range(24))

    def source(limit: int) -> Any:
        part = fastio.open(path, max_pixels=limit)
        return ConcatDataset([part if one_limit else fastio.open(path), part])

    options: Any = {"shard_size": "1KiB", "on_error": "skip"}
    whole = packed(source(most - 1), tmp_path / "whole", **options)
    assert 0 < len(whole) < 48
    pack_stopped(2, source(most - 1), tmp_path / "out", **options)
    for changes in ({"on_error": "raise"}, {"max_pixels": 10**6}, {}):
        with pytest.raises(PackError, match="max_pixels was"):
            fastio.pack(source(most), tmp_path / "out", resume=True, **(options | changes))
    found = packed(source(most - 1), tmp_path / "out", resume=True, **options)
    assert found.fingerprint == whole.fingerprint


def test_a_pack_that_a_large_image_ended_goes_on_with_a_larger_limit(tmp_path: Path) -> None:
    path = packed(numbered_folder(tmp_path / "photos", (9, 9)), tmp_path / "packed").path
    options: Any = {"shard_size": "1KiB"}
    parts = [fastio.open(path), fastio.open(path, max_pixels=10)]
    with pytest.raises(SampleError, match="pass a larger max_pixels"):
        fastio.pack(ConcatDataset(parts), tmp_path / "out", **options)
    found = packed(ConcatDataset(parts), tmp_path / "out", resume=True, max_pixels=10**6, **options)
    assert len(found) == 36
