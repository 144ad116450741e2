"""Fields whose rows differ in size, in batches of a loader: every form, from every kind of data."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import fastio
from fastio import Loader, SchemaError
from fastio.schema import ARRAY_DTYPES
from tests.support import open_loader

FORMS = ["list", "padded", "nested", "flat"]
Rows = list[np.ndarray[Any, Any]]


def rows_of(part: dict[str, Any], name: str, form: str, axis: int = 0) -> list[torch.Tensor]:
    """The rows of a field of a batch, whatever its form."""
    value = part[name]
    if form == "list":
        return list(value)
    if form == "nested":
        assert value.layout == torch.jagged
        return list(value.unbind())
    if form == "flat":
        ends = part[f"{name}_offsets"].tolist()
        return [value.narrow(axis, a, b - a) for a, b in pairwise(ends)]
    if f"{name}_length" in part:
        lengths = part[f"{name}_length"].tolist()
        return [row.narrow(axis, 0, n) for row, n in zip(value, lengths, strict=True)]
    shapes = part[f"{name}_shape"].tolist()
    return [row[tuple(map(slice, s))] for row, s in zip(value, shapes, strict=True)]


def check(loader: Loader, name: str, rows: Rows, form: str, axis: int = 0) -> None:
    seen = 0
    for batch in loader:
        found = rows_of(batch, name, form, axis)
        for row, tensor in zip(loader.batch.rows.tolist(), found, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), rows[row])
            assert tensor.numpy().dtype == rows[row].dtype
        seen += len(found)
        if form == "padded":
            total = sum(rows[row].sum() for row in loader.batch.rows.tolist())
            assert float(batch[name].sum()) == pytest.approx(float(total))
    assert seen == len(rows)


@pytest.fixture(scope="module")
def spectrograms() -> Rows:
    rng = np.random.default_rng(0)
    return [rng.random((5, n % 7), np.float32) for n in range(40)]


@pytest.fixture(scope="module")
def packed(spectrograms: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ragged") / "packed"
    schema = fastio.Schema(
        {
            "mel": fastio.Array("float32", (5, None)),
            "boxes": fastio.Array("int32"),
            "volume": fastio.Array("int16", (None, None, 2)),
            "label": fastio.Scalar("int64"),
        }
    )
    with fastio.Writer(path, schema, shard_size=2000) as writer:
        for n, mel in enumerate(spectrograms):
            writer.write({"mel": mel, "boxes": boxes(n), "volume": volume(n), "label": n})
    return path


def boxes(n: int) -> np.ndarray[Any, Any]:
    return np.arange(n % 3 * 4, dtype=np.int32).reshape(-1, 4) + n


def volume(n: int) -> np.ndarray[Any, Any]:
    return np.full((n % 2 + 1, n % 4, 2), n, np.int16)


@pytest.mark.parametrize("form", FORMS)
def test_a_variable_axis_in_every_form(packed: Path, spectrograms: Rows, form: Any) -> None:
    fields = ["label", "mel"]
    options: dict[str, Any] = {"shuffle": True, "seed": 0, "fields": fields, "ragged": form}
    with open_loader(packed, 7, num_workers=2, **options) as loader:
        for _ in range(3):  # memory that is used again
            check(loader, "mel", spectrograms, form, 1)
        check(loader, "mel", spectrograms, form, 1)


@pytest.mark.parametrize("form", FORMS)
def test_arrays_without_a_declared_shape(packed: Path, form: Any) -> None:
    with Loader(packed, 6, shuffle=True, fields=["boxes"], ragged={"boxes": form}) as loader:
        check(loader, "boxes", [boxes(n) for n in range(40)], form)


def test_arrays_without_a_declared_shape_have_the_same_fields_in_every_batch(
    tmp_path: Path,
) -> None:
    rows = [np.ones((2,) * (1 + n // 2), np.int32) for n in range(4)]  # of one axis, then of two
    with fastio.Writer(tmp_path / "p", fastio.Schema({"a": fastio.Array("int32")})) as writer:
        for row in rows:
            writer.write({"a": row})
    with Loader(tmp_path / "p", 2, ragged="padded") as loader:
        shapes = [batch["a_shape"].tolist() for batch in loader]
    assert shapes == [[[2], [2]], [[2, 2], [2, 2]]]


def test_several_variable_axes_are_lists_or_padded(packed: Path) -> None:
    rows = [volume(n) for n in range(40)]
    for form in ("list", "padded"):
        with Loader(packed, 6, fields=["volume"], ragged=form) as loader:
            check(loader, "volume", rows, form)
    with pytest.raises(
        SchemaError, match=r"'volume' has the shape .* exactly one axis of variable length"
    ):
        Loader(packed, 6, ragged="nested")


def test_forms_field_by_field_and_lists_where_nothing_is_said(packed: Path) -> None:
    with Loader(packed, 10, ragged={"mel": "padded"}) as loader:
        batch = next(iter(loader))
    assert list(batch) == ["mel", "mel_length", "boxes", "volume", "label"]
    assert isinstance(batch["boxes"], list)


def test_a_batch_may_be_kept_while_others_come(packed: Path, spectrograms: Rows) -> None:
    with Loader(packed, 5, fields=["mel"], ragged="flat") as loader:
        kept = list(loader)
    for number, batch in enumerate(kept):
        expected = np.concatenate(spectrograms[5 * number : 5 * number + 5], axis=1)
        np.testing.assert_array_equal(batch["mel"].numpy(), expected)


def test_samples_one_by_one_are_tensors(packed: Path, spectrograms: Rows) -> None:
    with Loader(packed, None, fields=["mel"], ragged="nested") as loader:
        for row, sample in zip(spectrograms, loader, strict=True):
            np.testing.assert_array_equal(sample["mel"].numpy(), row)
    with Loader(packed, 4, fields=["mel", "label"], ragged="flat", collate_fn=list) as loader:
        for samples in loader:
            for sample in samples:
                np.testing.assert_array_equal(sample["mel"], spectrograms[sample["label"]])


def test_tuples_have_the_sizes_beside_the_values(tmp_path: Path) -> None:
    rows = [np.arange(n, dtype=np.uint16) for n in range(5)]
    fields = {"x": fastio.Array("uint16", (None,)), "y": fastio.Scalar("int64")}
    schema = fastio.Schema(fields, "tuple")
    fastio.pack([(row, n) for n, row in enumerate(rows)], tmp_path / "t", schema=schema)
    with Loader(tmp_path / "t", 5, ragged="padded") as loader:
        (x, lengths), y = next(iter(loader))
    assert (x.dtype, tuple(x.shape), lengths.tolist()) == (torch.uint16, (5, 4), [0, 1, 2, 3, 4])
    assert y.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_rows_too(tmp_path: Path, form: Any) -> None:
    rows = [np.arange(n % 5, dtype=np.uint16) for n in range(23)]
    schema = fastio.Schema({"tokens": fastio.Tokens("uint16")})
    fastio.pack([{"tokens": row} for row in rows], tmp_path / "t", schema=schema)
    with Loader(tmp_path / "t", 4, shuffle=True, seed=0, ragged=form) as loader:
        seen = 0
        for batch in loader:
            found = rows_of(batch, "tokens", form)
            for row, tensor in zip(loader.batch.rows.tolist(), found, strict=True):
                assert tensor.tolist() == rows[row].tolist()
            seen += len(found)
    assert seen == 23


@st.composite
def arrays(draw: st.DrawFn) -> Rows:
    dtype = draw(st.sampled_from(ARRAY_DTYPES))
    axes = draw(st.integers(0, 3))
    shapes = draw(st.lists(st.tuples(*[st.integers(0, 3)] * axes), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    rows = []
    for shape in shapes:
        row = np.asarray(rng.integers(0, 2, shape)).astype(dtype)
        order = draw(st.sampled_from(["C", "F", "big-endian", "strided"]))
        if order == "F" and row.ndim:
            row = np.asfortranarray(row)
        if order == "big-endian":
            row = row.astype(row.dtype.newbyteorder(">"))
        if order == "strided" and row.ndim:
            row = np.repeat(row, 2, axis=0)[::2]
        rows.append(row)
    return rows


@given(arrays(), st.booleans())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_arrays_come_back_as_they_were(tmp_path: Path, rows: Rows, variable_axes: bool) -> None:
    """All dtypes, orders of bytes and of axes, no axes, and none of an axis."""
    dtype = rows[0].dtype.name
    axes = rows[0].ndim
    shape = (None,) * axes if variable_axes and axes else None
    path = tmp_path / "packed"
    schema = fastio.Schema({"x": fastio.Array(dtype, shape)})
    shutil.rmtree(path, ignore_errors=True)
    with fastio.Writer(path, schema) as writer:
        for row in rows:
            writer.write({"x": row})
    native = [row.astype(dtype) for row in rows]
    with Loader(path, 4, ragged="list") as loader:
        check(loader, "x", native, "list")
    with Loader(path, 4, ragged="padded") as loader:
        for batch, first in zip(loader, range(0, len(rows), 4), strict=True):
            for tensor, row in zip(batch["x"], native[first:], strict=False):
                corner = tensor[tuple(map(slice, row.shape))]
                np.testing.assert_array_equal(corner.numpy(), row)
    with fastio.open(path) as dataset:
        for index, row in enumerate(native):
            np.testing.assert_array_equal(dataset[index]["x"], row)


@pytest.mark.parametrize("dtype", ARRAY_DTYPES)
def test_fixed_shapes_of_every_dtype_are_gathered(tmp_path: Path, dtype: str) -> None:
    rows = [(np.arange(6).reshape(2, 3) + n).astype(dtype) for n in range(9)]
    schema = fastio.Schema({"x": fastio.Array(dtype, (2, 3))})
    with fastio.Writer(tmp_path / "p", schema) as writer:
        for row in rows:
            writer.write({"x": np.asfortranarray(row)})
    with Loader(tmp_path / "p", 4, shuffle=True) as loader:
        for batch in loader:
            for row, tensor in zip(loader.batch.rows.tolist(), batch["x"], strict=True):
                np.testing.assert_array_equal(tensor.numpy(), rows[row])
    with fastio.open(tmp_path / "p") as dataset:
        np.testing.assert_array_equal(dataset[5]["x"], rows[5])


def test_a_shard_that_is_cut_off_names_its_row(packed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(packed, copy)
    with Loader(copy, 10, fields=["mel"], ragged="padded") as loader:
        next(iter(loader))
        for shard in copy.glob("shard-*.arrow"):
            with open(shard, "r+b") as file:
                file.truncate(64)
        with pytest.raises(fastio.FastioError, match="shard-"):
            [batch for _ in range(3) for batch in loader]


def test_a_row_that_leaves_its_shard_names_the_field_and_the_shard(
    packed: Path, tmp_path: Path
) -> None:
    """Offsets are checked when they are first read; here they change on the disk afterwards."""
    copy = tmp_path / "copy"
    shutil.copytree(packed, copy)
    with fastio.open(copy) as dataset:
        column = dataset.shard(0)
        offsets = column.offsets("mel").copy()
        path = Path(column.path)
        with Loader(dataset, 4, fields=["mel"], num_workers=1) as loader:
            next(iter(loader))
            data = path.read_bytes()
            begin, times = data.index(offsets.tobytes()), path.stat()
            with open(path, "r+b") as file:
                file.seek(begin)
                file.write((offsets + len(data)).tobytes())
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # so nobody sees that it was
            with pytest.raises(fastio.ShardCorrupt, match=r"row [0-9]+ of .*'mel'") as caught:
                next(iter(loader))
    assert str(path) in str(caught.value)


# Tables as they are


LISTS = [[1, 2, 3], [], [4], [], [5, 6, 7, 8], [9]]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    columns = {"items": pa.array(LISTS, pa.list_(pa.int32())), "y": list(range(len(LISTS)))}
    pa.parquet.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=4)
    return tmp_path / "t.parquet"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_lists_of_tables_in_every_form(table: Path, form: Any, shuffle: bool) -> None:
    with Loader(table, 4, shuffle=shuffle, ragged=form) as loader:
        for _ in range(2):
            seen = []
            for batch in loader:
                rows = rows_of(batch, "items", form)
                assert [row.tolist() for row in rows] == [LISTS[y] for y in batch["y"].tolist()]
                assert all(row.dtype == torch.int32 for row in rows)
                seen += batch["y"].tolist()
            assert sorted(seen) == list(range(len(LISTS)))


def test_lists_of_tables_are_padded_where_nothing_is_said(table: Path) -> None:
    with Loader(table, 6) as loader:
        (batch,) = loader
    assert list(batch) == ["items", "items_length", "y"]
    assert batch["items"].shape == (6, 4)


@pytest.mark.parametrize("form", FORMS)
def test_batches_of_empty_lists(tmp_path: Path, form: Any) -> None:
    column = pa.array([[], None, []], pa.list_(pa.float32()))
    pa.parquet.write_table(pa.table({"x": column}), tmp_path / "t.parquet")
    with Loader(fastio.open(tmp_path / "t.parquet", nulls={"x": 0}), 3, ragged=form) as loader:
        (batch,) = loader
    assert [tuple(row.shape) for row in rows_of(batch, "x", form)] == [(0,)] * 3


def test_flat_lists_go_to_an_embedding_bag(table: Path) -> None:
    bag = torch.nn.EmbeddingBag(10, 3, mode="sum", include_last_offset=True)
    with Loader(table, 6, ragged="flat") as loader:
        (batch,) = loader
    sums = bag(batch["items"], batch["items_offsets"].to(torch.int32))
    torch.testing.assert_close(sums[0], bag.weight[[1, 2, 3]].sum(0))
    assert not sums[1].any()


def test_packed_lists_have_the_forms_too(table: Path, tmp_path: Path) -> None:
    fastio.pack(table, tmp_path / "packed")
    rows = [np.array(row, np.int32) for row in LISTS]
    for form in FORMS:
        with Loader(tmp_path / "packed", 4, shuffle=True, seed=0, ragged=form) as loader:
            check(loader, "items", rows, form)


# Mixes


@pytest.mark.parametrize("form", FORMS)
def test_mixes_have_the_forms_too(tmp_path: Path, form: Any) -> None:
    for source, sign in (("a", 1), ("b", -1)):
        samples = [{"x": sign * np.arange(n % 5 + 1, dtype=np.int32)} for n in range(20)]
        schema = fastio.Schema({"x": fastio.Array("int32", (None,))})
        fastio.pack(samples, tmp_path / source, schema=schema)
    mix = fastio.mix({str(tmp_path / "a"): 0.5, str(tmp_path / "b"): 0.5})
    with Loader(mix, 8, shuffle=True, seed=0, ragged=form) as loader:
        signs = set()
        for batch in loader:
            for row in rows_of(batch, "x", form):
                assert row.abs().tolist() == list(range(len(row)))
                signs.add(int(row.sum().sign()))
        assert {1, -1} <= signs


def test_forms_that_do_not_fit_are_refused(packed: Path) -> None:
    with pytest.raises(SchemaError, match=r"'label'; the fields of varying size"):
        Loader(packed, 4, ragged={"label": "flat"})
    with pytest.raises(ValueError, match="ragged must be one of"):
        Loader(packed, 4, ragged="jagged")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="native path"):
        Loader(list(range(5)), 4, ragged="flat")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_rows_beside_bad_images_are_left_out_or_replaced(
    tmp_path: Path, form: Any, on_error: Any
) -> None:
    """Images of tars are not looked at before they are needed."""
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for n in range(6):
            image, array = io.BytesIO(), io.BytesIO()
            Image.new("RGB", (8, 8), (n, n, n)).save(image, "PNG")
            np.save(array, np.full(n + 1, n, np.int32))
            data = b"none" if n in (1, 4) else image.getvalue()
            for name, content in ((f"{n}.npy", array.getvalue()), (f"{n}.png", data)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    options: dict[str, Any] = {"fields": ["png", "npy"], "ragged": form, "on_error": on_error}
    how = {"png": [fastio.Resize((4, 4))]}
    with open_loader(tmp_path / "t.tar", 6, transforms=how, **options) as loader:
        (batch,) = loader
    rows = [row.tolist() for row in rows_of(batch, "npy", form)]
    kept = [0, 2, 3, 5] if on_error == "skip" else [0, 2, 2, 3, 5, 5]
    assert rows == [[n] * (n + 1) for n in kept]
    assert batch["png"][:, 0, 0, 0].tolist() == kept
