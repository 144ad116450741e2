"""Lists of images: in the columns of tables, packed, and as batches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import fastio
from fastio import ImageError, Images, Loader, Normalize, RandomResizedCrop, Resize, SchemaError
from fastio.cli import main
from fastio.errors import PackError, ShardCorrupt, TransformError
from fastio.sources import check
from fastio.sources.table.embedded import EncodedLists, encoded_lists
from tests.pictures import decoded, jpeg, png
from tests.servers import http_folder

N = 24
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FILES = [[jpeg(40 + n, 50 + i, seed=7 * n + i) for i in range(n % 4)] for n in range(N)]
SAME = {"images": [Resize((16, 16))]}
CROP = {"images": [RandomResizedCrop(16)]}
Files = Sequence[Sequence[bytes | None] | None]


def table(lists: Files = FILES, kind: pa.DataType | None = None, **features: Any) -> pa.Table:
    """A table of lists of images, and of the numbers of the rows."""

    def cell(file: bytes | None) -> Any:
        return file if kind is not None or file is None else {"bytes": file, "path": "x.jpg"}

    rows = [None if files is None else list(map(cell, files)) for files in lists]
    column = pa.array(rows, kind or pa.list_(STRUCT))
    made = pa.table({"images": column, "row": np.arange(len(lists))})
    if not features:
        return made
    about = json.dumps({"info": {"features": features}})
    return made.replace_schema_metadata({"huggingface": about})


def written(path: Path, made: pa.Table, rows: int = 4) -> Path:
    """The table as a file whose row groups have so many rows."""
    if path.suffix == ".parquet":
        pq.write_table(made, path, row_group_size=rows)
        return path
    if path.suffix == ".lance":
        pytest.importorskip("lance").write_dataset(made, path, max_rows_per_group=rows)
        return path
    with pa.ipc.new_file(path, made.schema) as file:
        file.write_table(made, max_chunksize=rows)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("lists") / "photos.parquet", table())


@pytest.fixture(scope="module")
def packed(photos: Path) -> Path:
    fastio.pack(photos, photos.parent / "packed", codec="jpeg", shard_size="20KB")
    return photos.parent / "packed"


def batches(source: Any, **how: Any) -> list[Any]:
    """All batches of a loader, in memory of their own."""
    how = {"batch_size": 6, "transforms": SAME, **how}
    with Loader(source, **how) as loader:
        found = [
            {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in b}
            for b in (batch.items() for batch in loader)
        ]
        assert loader.path == "native"
    return found


def rows_of(found: list[Any]) -> list[int]:
    return [row for batch in found for row in batch["row"].tolist()]


def lists_of(found: list[Any]) -> dict[int, torch.Tensor]:
    """The lists of batches in the form "list", by the numbers of their rows."""
    return {
        row: images
        for batch in found
        for row, images in zip(batch["row"].tolist(), batch["images"], strict=True)
    }


def equal(first: dict[int, torch.Tensor], second: dict[int, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(images, second[row]) for row, images in first.items()
    )


# --- Tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather", "a.lance"])
def test_lists_of_a_column_have_the_images_that_pillow_decodes(tmp_path: Path, name: str) -> None:
    with fastio.open(written(tmp_path / name, table())) as dataset:
        assert dataset.schema.fields["images"] == Images()
        for row in (0, 1, 3, 14, N - 1):
            images = dataset[row]["images"]
            expected = list(map(decoded, FILES[row]))
            assert len(images) == len(expected) == row % 4
            assert all((a == b).all() for a, b in zip(images, expected, strict=True))


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.binary()),
        pa.large_list(pa.large_binary()),
        pa.list_(pa.binary(), 2),
        pa.list_(pa.binary_view()),
    ],
)
def test_lists_of_byte_strings_are_lists_of_images(tmp_path: Path, kind: pa.DataType) -> None:
    files = [[jpeg(20 + n, 30, seed=n), png(seed=n)] for n in range(6)]
    name = "a.arrow" if kind == pa.list_(pa.binary_view()) else "a.parquet"
    path = written(tmp_path / name, table(files, kind))
    with fastio.open(path) as dataset:
        assert dataset.schema.fields["images"] == Images()
        assert (dataset[5]["images"][0] == decoded(files[5][0])).all()
        assert (dataset[4]["images"][1] == decoded(files[4][1])).all()


def test_features_of_the_datasets_package_decide(tmp_path: Path) -> None:
    gray = {"_type": "Image", "mode": "L"}
    listed = table(images={"_type": "List", "feature": gray})
    with fastio.open(written(tmp_path / "a.parquet", listed)) as dataset:
        assert dataset.schema.fields["images"] == Images("L")
        assert dataset[1]["images"][0].shape == (41, 50, 1)
    old = table(images=[{"_type": "Image"}])
    with fastio.open(written(tmp_path / "b.parquet", old)) as dataset:
        assert dataset.schema.fields["images"] == Images()


def test_images_names_columns_whose_first_lists_have_no_image(tmp_path: Path) -> None:
    late = table([*([[]] * 20), *FILES[1:4]])
    path = written(tmp_path / "a.parquet", late)
    with pytest.raises(SchemaError, match="column 'images' is list"):
        fastio.open(path).schema  # noqa: B018
    with fastio.open(path, images=["images"]) as dataset:
        assert (dataset[21]["images"][1] == decoded(FILES[2][1])).all()
    with pytest.raises(SchemaError, match="which is int64; images are byte strings"):
        fastio.open(path, images=["row"])


def test_a_list_of_one_image_gives_what_the_image_alone_gives(tmp_path: Path) -> None:
    files = [jpeg(60, 70, seed=n) for n in range(8)]
    lists = written(tmp_path / "lists.parquet", table([[file] for file in files]))
    images = pa.array([{"bytes": file, "path": ""} for file in files], STRUCT)
    alone = written(tmp_path / "alone.parquet", pa.table({"images": images}))
    how: dict[str, Any] = {"shuffle": True, "seed": 4, "transforms": CROP}
    for a, b in zip(batches(lists, ragged="flat", **how), batches(alone, **how), strict=True):
        assert torch.equal(a["images"], b["images"])


def test_each_image_of_a_list_draws_its_own_crop(tmp_path: Path) -> None:
    file = jpeg(90, 90, seed=1)
    path = written(tmp_path / "a.parquet", table([[file] * 3] * 4))
    first, second = lists_of(batches(path, transforms=CROP, seed=1)), None
    assert len({image.numpy().tobytes() for images in first.values() for image in images}) == 12
    for seed, same in ((1, True), (2, False)):
        second = lists_of(batches(path, transforms=CROP, seed=seed))
        assert equal(first, second) == same


def test_two_fields_of_lists_can_share_their_draws(tmp_path: Path) -> None:
    made = table([[jpeg(90, 90, seed=n), jpeg(90, 90, seed=9 + n)] for n in range(4)])
    made = made.append_column("targets", made.column("images"))
    how = {**CROP, "targets": fastio.SameDraws("images", CROP["images"])}
    for batch in batches(written(tmp_path / "a.parquet", made), transforms=how, ragged="flat"):
        assert torch.equal(batch["images"], batch["targets"])


def test_filters_partitions_and_several_files(tmp_path: Path, photos: Path) -> None:
    found = batches(fastio.open(photos, filters=[("row", ">", 9)]))
    assert rows_of(found) == list(range(10, N))
    for part in range(2):
        folder = tmp_path / f"part={part}"
        folder.mkdir()
        written(folder / "a.parquet", table().slice(part * 12, 12))
    both = batches(tmp_path)
    assert equal(lists_of(both), lists_of(batches(photos)))
    assert [n for batch in both for n in batch["part"].tolist()] == [0] * 12 + [1] * 12


def test_lists_behind_a_url(tmp_path: Path, photos: Path, packed: Path) -> None:
    expected = lists_of(batches(photos, transforms=CROP, seed=1))
    with http_folder(photos.parent) as url:
        for source in (f"{url}/photos.parquet", f"{url}/packed"):
            with fastio.open(source) as dataset:
                found = batches(dataset, transforms=CROP, seed=1, shuffle=True)
                assert equal(lists_of(found), expected)
                assert (dataset[3]["images"][2] == decoded(FILES[3][2])).all()


# --- Forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [False, True])
def test_the_forms_have_the_same_images(photos: Path, packed: Path, last: bool) -> None:
    for source in (photos, packed):
        how: dict[str, Any] = {"transforms": CROP, "seed": 2, "channels_last": last}
        lists = batches(source, **how)
        flat = batches(source, ragged="flat", **how)
        padded = batches(source, ragged="padded", **how)
        nested = batches(source, ragged={"images": "nested"}, **how)
        for a, b, c, d in zip(lists, flat, padded, nested, strict=True):
            counts = [len(images) for images in a["images"]]
            assert counts == [row % 4 for row in a["row"].tolist()]
            assert torch.equal(torch.cat(a["images"]), b["images"])
            assert b["images_offsets"].tolist() == np.cumsum([0, *counts]).tolist()
            assert c["images_length"].tolist() == counts
            assert c["images"].shape == (6, max(counts), 3, 16, 16)
            for place, images in enumerate(a["images"]):
                assert torch.equal(c["images"][place, : len(images)], images)
                assert not c["images"][place, len(images) :].any()
            assert torch.equal(d["images"].values(), b["images"])
            assert b["images"].is_contiguous(
                memory_format=torch.channels_last if last else torch.contiguous_format
            )


def test_padded_lists_behind_a_url_are_those_of_files(photos: Path, packed: Path) -> None:
    url = "memory://padded_lists"
    fastio.pack(photos, url, shard_size="5KB")
    how: dict[str, Any] = {"transforms": CROP, "seed": 2, "ragged": "padded"}
    for here, there in zip(batches(packed, **how), batches(url, **how), strict=True):
        assert torch.equal(here["images_length"], there["images_length"])
        assert torch.equal(here["images"], there["images"])


def test_images_of_different_sizes_are_lists_of_lists(photos: Path, packed: Path) -> None:
    for source in (photos, packed):
        for batch in batches(source, transforms=None):
            for row, images in zip(batch["row"].tolist(), batch["images"], strict=True):
                expected = list(map(decoded, FILES[row]))
                assert len(images) == len(expected)
                for a, b in zip(images, expected, strict=True):
                    assert (a.permute(1, 2, 0).numpy() == b).all()


@pytest.mark.parametrize("form", ["flat", "padded", "nested"])
def test_other_forms_need_images_of_one_size(photos: Path, form: str) -> None:
    with pytest.raises(TransformError, match=r"needs images of one size.*add Resize"):
        Loader(photos, 4, ragged=form)


@pytest.mark.parametrize("form", ["list", "flat", "padded", "nested"])
def test_padding_stays_zero_when_images_are_normalized(photos: Path, form: str) -> None:
    steps = {"images": [Resize((8, 8)), Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))]}
    half = {"images": [*steps["images"], fastio.ToDtype("float16")]}
    for given, dtype in ((steps, torch.float32), (half, torch.float16)):
        plain = batches(photos, transforms={"images": [Resize((8, 8))]}, ragged=form)
        for a, b in zip(batches(photos, transforms=given, ragged=form), plain, strict=True):
            x, y = a["images"], b["images"]
            if form in ("list", "nested"):
                x, y = torch.cat(list(x)), torch.cat(list(y))
            assert x.dtype == dtype
            mean, std = (torch.tensor(v)[:, None, None] for v in ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))
            expected = (y / 255 - mean) / std
            if form == "padded":
                there = torch.arange(y.shape[1]) < b["images_length"][:, None]
                expected *= there[:, :, None, None, None]
                assert not x[~there].any()
            assert torch.allclose(x.float(), expected, atol=2e-2 if dtype.itemsize == 2 else 1e-5)


def test_batches_of_empty_lists_have_no_images(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", table([[]] * 4 + [[FILES[1][0]]]))
    with fastio.open(path, images=["images"]) as dataset:
        assert dataset[0]["images"] == []
        for form, shape in (("flat", (0, 3, 16, 16)), ("padded", (4, 0, 3, 16, 16))):
            first = batches(dataset, batch_size=4, ragged=form)[0]
            assert first["images"].shape == shape
        assert [len(images) for images in batches(dataset, batch_size=4)[0]["images"]] == [0] * 4
        assert batches(dataset, batch_size=4, transforms=None)[0]["images"] == [[]] * 4


def test_collate_fn_gets_lists(photos: Path) -> None:
    with Loader(photos, 3, collate_fn=list) as loader:
        for sample in (sample for batch in loader for sample in batch):
            expected = list(map(decoded, FILES[int(sample["row"])]))
            assert all((a == b).all() for a, b in zip(sample["images"], expected, strict=True))
    with Loader(photos, 3, collate_fn=list, transforms=SAME, ragged="flat") as loader:
        shapes = [sample["images"].shape for batch in loader for sample in batch]
    assert shapes == [(row % 4, 3, 16, 16) for row in range(N)]
    with Loader(photos, None, transforms=SAME) as loader:
        assert [len(sample["images"]) for sample in loader] == [row % 4 for row in range(N)]


def test_functions_of_a_batch_get_the_lists(photos: Path) -> None:
    how = {"images": [Resize((8, 8)), fastio.OnBatch(lambda images: images.float() + 1)]}
    for batch in batches(photos, transforms=how, ragged="flat"):
        assert batch["images"].dtype == torch.float32


def test_what_lists_cannot_have_is_an_error(photos: Path) -> None:
    views = {"images": fastio.Views([[Resize((8, 8))], [Resize((9, 9))]])}
    with pytest.raises(TransformError, match="holds lists of images, which cannot have Views"):
        Loader(photos, 4, transforms=views)
    called = {"images": [Resize((8, 8)), fastio.PerSample(np.copy)]}
    with pytest.raises(TransformError, match="no function can be called per sample"):
        Loader(photos, 4, transforms=called)


def test_a_mix_joins_the_lists_of_its_sources(photos: Path, packed: Path) -> None:
    with fastio.open(photos) as table_rows, fastio.open(packed) as packed_rows:
        mix = fastio.mix([(table_rows, 1), (packed_rows, 1)])
        for form in ("list", "flat", "padded"):
            with Loader(mix, 6, transforms=SAME, ragged=form, seed=1) as loader:
                for batch in loader:
                    counts = [row % 4 for row in batch["row"].tolist()]
                    if form == "list":
                        assert [len(images) for images in batch["images"]] == counts
                    elif form == "flat":
                        assert batch["images_offsets"].diff().tolist() == counts
                    else:
                        assert batch["images_length"].tolist() == counts
        with Loader(mix, 6, seed=1) as loader:
            for batch in loader:
                assert [len(i) for i in batch["images"]] == [n % 4 for n in batch["row"].tolist()]


# --- Order and resume -----------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["photos", "packed"])
def test_a_state_continues_exactly(source: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(source)
    how: dict[str, Any] = {"shuffle": True, "seed": 5, "transforms": CROP}
    whole = batches(path, batch_size=5, **how)
    with Loader(path, 5, **how) as loader:
        each = iter(loader)
        done = [int(row) for _ in range(2) for row in next(each)["row"]]
        state = loader.state_dict()
    with Loader(path, 5, **how) as loader:
        loader.load_state_dict(state)
        rest = [{**batch} for batch in loader]
    assert done == rows_of(whole[:2])
    assert rows_of(rest) == rows_of(whole[2:])
    assert equal(lists_of(rest), lists_of(whole[2:]))
    assert sorted(rows_of(whole)) == list(range(N))


def test_the_number_of_threads_changes_nothing(photos: Path) -> None:
    one = lists_of(batches(photos, transforms=CROP, seed=3, num_workers=1))
    assert equal(one, lists_of(batches(photos, transforms=CROP, seed=3, num_workers=3)))


# --- Bad samples ----------------------------------------------------------------------------------

_BAD: list[tuple[Any, str]] = [
    (None, "the list 'images' is null"),
    ([FILES[1][0], None], "image 1 of 'images': there is no image"),
    ([b"", FILES[1][0]], "image 0 of 'images'"),
    ([FILES[1][0], FILES[1][0][:200]], "image 1 of 'images'"),
    ([FILES[1][0], FILES[1][0], b"not an image"], "image 2 of 'images'"),
]


@pytest.mark.parametrize(("bad", "message"), _BAD)
def test_a_bad_list_is_an_error_of_its_sample(tmp_path: Path, bad: Any, message: str) -> None:
    path = written(tmp_path / "a.parquet", table([*FILES[:5], bad, *FILES[6:]]))
    with fastio.open(path) as dataset, pytest.raises(ImageError, match=message) as raised:
        dataset[5]
    assert "a.parquet, row 5" in str(raised.value)
    with pytest.raises(ImageError, match=message) as raised:
        batches(path)
    assert "a.parquet, row 5" in str(raised.value)
    assert raised.value.row == 5
    for form in ("list", "flat", "padded"):
        how: dict[str, Any] = {"ragged": form, "shuffle": True, "seed": 1}
        with Loader(path, 4, transforms=SAME, on_error="skip", **how) as loader:
            assert sorted(rows_of(list(loader))) == [n for n in range(N) if n != 5]
            assert loader.stats().skipped == 1
        with Loader(path, 4, transforms=SAME, on_error="replace", **how) as loader:
            found = sorted(rows_of(list(loader)))
        assert len(found) == N
        assert 5 not in found


def test_skipped_samples_leave_the_other_lists_as_they_are(tmp_path: Path, photos: Path) -> None:
    path = written(tmp_path / "a.parquet", table([*FILES[:5], [b"bad"], *FILES[6:]]))
    expected = lists_of(batches(photos, transforms=CROP, seed=1))
    del expected[5]
    found = batches(path, transforms=CROP, seed=1, on_error="skip")
    assert equal(lists_of(found), expected)


def test_damaged_offsets_are_refused() -> None:
    array = pa.array([[b"a", b"b"], [b"c"]], pa.list_(pa.binary()))
    assert isinstance(encoded_lists(array, "x"), EncodedLists)
    wrong = [None, pa.py_buffer(np.array([0, 3, 2], np.int32))]
    bad = pa.Array.from_buffers(array.type, 2, wrong, children=[array.values])
    with pytest.raises(ShardCorrupt, match="offsets of the lists are damaged"):
        encoded_lists(bad, "x")


# --- Packing --------------------------------------------------------------------------------------


def test_packed_lists_are_those_of_the_table(packed: Path, tmp_path: Path, photos: Path) -> None:
    with fastio.open(packed) as dataset:
        assert dataset.schema.fields["images"] == Images()
        assert dataset.num_shards > 1
        for row, sample in enumerate(dataset):
            expected = list(map(decoded, FILES[row]))
            assert len(sample["images"]) == len(expected)
            assert all((a == b).all() for a, b in zip(sample["images"], expected, strict=True))
    fastio.pack(photos, tmp_path / "blocks")
    for transforms in (SAME, CROP):
        how: dict[str, Any] = {"transforms": transforms, "seed": 1}
        expected = lists_of(batches(photos, **how))
        assert equal(lists_of(batches(packed, **how)), expected)
        assert equal(lists_of(batches(tmp_path / "blocks", **how)), expected)


@pytest.mark.parametrize("codec", ["jpeg", "raw", "blocks"])
def test_any_codec_of_lists_is_verified(tmp_path: Path, photos: Path, codec: str) -> None:
    report = fastio.pack(photos, tmp_path / "packed", codec=codec)
    assert report.rows == N
    found = check(tmp_path / "packed", deep=True, progress=lambda *_: _Nothing())
    assert found.images is not None
    assert not found.damaged
    assert not found.images.damaged
    shard = next((tmp_path / "packed").glob("shard-*"))
    data = bytearray(shard.read_bytes())
    place = data.find(FILES[2][1][-60:-20]) if codec == "jpeg" else len(data) // 3
    data[place : place + 30] = bytes(30)
    shard.write_bytes(data)
    found = check(tmp_path / "packed", deep=True, progress=lambda *_: _Nothing())
    assert found.damaged or (found.images and found.images.damaged)
    if codec == "jpeg" and found.images is not None:
        assert [(b.row, b.field) for b in found.images.damaged] == [(2, "images[1]")]
        with pytest.raises(ImageError, match="row 2, image 1 of 'images'"):
            batches(tmp_path / "packed")
        with pytest.raises(ImageError, match="row 2, image 1 of 'images'"):
            fastio.open(tmp_path / "packed")[2]


class _Nothing:
    def __enter__(self) -> Any:
        return lambda count: None

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""


def test_a_table_with_a_damaged_list_is_named_by_verify(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", table([*FILES[:5], None, [b"bad", FILES[1][0]]]))
    found = check(path, deep=True, progress=lambda *_: _Nothing())
    assert found.images is not None
    assert [(bad.row, bad.field) for bad in found.images.damaged] == [
        (5, "images"),
        (6, "images[0]"),
    ]


@pytest.mark.parametrize(("bad", "message"), _BAD)
def test_packing_names_or_skips_bad_lists(tmp_path: Path, bad: Any, message: str) -> None:
    path = written(tmp_path / "a.parquet", table([*FILES[:5], bad, *FILES[6:]]))
    with pytest.raises(ImageError, match=message):
        fastio.pack(path, tmp_path / "packed")
    report = fastio.pack(path, tmp_path / "packed", on_error="skip", overwrite=True)
    assert report.rows == N - 1
    assert ["row 5" in name for name, _ in report.skipped] == [True]
    assert rows_of(batches(tmp_path / "packed")) == [n for n in range(N) if n != 5]


def test_a_pack_of_lists_is_the_same_with_any_number_of_threads(
    tmp_path: Path, photos: Path
) -> None:
    for workers in (1, 3):
        fastio.pack(photos, tmp_path / f"{workers}", workers=workers, shard_size="20KB")
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "3").iterdir())
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()


class Albums:
    """A dataset of Python code, whose samples have lists of images."""

    def __init__(self, kind: str = "pillow") -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        pixels = [np.full((8, 9, 3), 10 * index % 200 + n, np.uint8) for n in range(1 + index % 3)]
        if self.kind == "tensors":
            return [torch.from_numpy(each).permute(2, 0, 1) for each in pixels], index
        if self.kind == "files":
            return [_png(each) for each in pixels], index
        return [_pillow(each) for each in pixels], index


def _pillow(pixels: Any) -> Any:
    from PIL import Image

    return Image.fromarray(pixels)


def _png(pixels: Any) -> bytes:
    import io

    file = io.BytesIO()
    _pillow(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("kind", ["pillow", "tensors", "files"])
@pytest.mark.parametrize("workers", [1, 2])
def test_samples_of_python_code_have_lists(tmp_path: Path, kind: str, workers: int) -> None:
    fastio.pack(Albums(kind), tmp_path / "packed", workers=workers)
    with fastio.open(tmp_path / "packed") as dataset:
        assert dataset.schema.structure == "tuple"
        (images, label) = dataset[7]
        assert [image[0, 0, 0] for image in images] == [70, 71]
        assert label == 7
        assert all(len(dataset[row][0]) == 1 + row % 3 for row in range(40))
    with Loader(tmp_path / "packed", 4, ragged="padded", transforms=[Resize((4, 4))]) as loader:
        for (images, counts), labels in loader:
            assert counts.tolist() == [1 + label % 3 for label in labels.tolist()]
            assert images.shape == (4, 3, 3, 4, 4)
    steps = [Resize((4, 4)), Normalize((0.5,) * 3, (0.5,) * 3), fastio.ToDtype("float16")]
    with Loader(tmp_path / "packed", 4, ragged="padded", transforms=steps) as loader:
        for (images, counts), _ in loader:
            assert images.dtype == torch.float16
            assert counts.dtype == torch.int64


def test_a_writer_takes_lists_and_checks_them(tmp_path: Path) -> None:
    schema = fastio.Schema({"images": Images("L"), "n": fastio.Scalar("int64")})
    pixels = np.zeros((3, 5, 6, 1), np.uint8)
    with fastio.Writer(tmp_path / "packed", schema) as writer:
        writer.write({"images": pixels, "n": 0})
        writer.write({"images": [], "n": 1})
        writer.write({"images": (pixels[0], pixels[1] + 3), "n": 2})
    with fastio.open(tmp_path / "packed") as dataset:
        assert [len(sample["images"]) for sample in dataset] == [3, 0, 2]
        assert dataset[2]["images"][1].tolist() == (pixels[1] + 3).tolist()
    for value, message in (
        (5, "expected a list of images, got int"),
        ([pixels[0], "x"], "image 1 of the list: expected an image"),
    ):
        with (
            pytest.raises(SchemaError, match=message),
            fastio.Writer(tmp_path / "bad", schema, overwrite=True) as writer,
        ):
            writer.write({"images": value, "n": 1})


def test_lists_that_use_their_memory_again_are_packed_as_they_were(tmp_path: Path) -> None:
    pixels = np.zeros((4, 4, 3), np.uint8)

    def samples() -> Any:
        for n in range(20):
            pixels[:] = n
            yield {"images": [pixels, pixels]}

    fastio.pack(samples(), tmp_path / "packed")
    with fastio.open(tmp_path / "packed") as dataset:
        assert [sample["images"][1][0, 0, 0] for sample in dataset] == list(range(20))


def test_lists_grow_by_appending(tmp_path: Path, photos: Path) -> None:
    fastio.pack(photos, tmp_path / "packed", codec="jpeg")
    fastio.pack(photos, tmp_path / "packed", codec="jpeg", append=True)
    with fastio.open(tmp_path / "packed") as dataset:
        assert len(dataset) == 2 * N
        assert (dataset[N + 3]["images"][2] == decoded(FILES[3][2])).all()


def test_an_export_of_lists_is_refused(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(PackError, match="has lists of images"):
        fastio.export(packed, tmp_path / "out", to="webdataset")


def test_columns_of_a_shard_that_do_not_fit_are_refused(tmp_path: Path, photos: Path) -> None:
    from fastio.packed.shard import ShardReader
    from fastio.packed.shard_images import images_of
    from fastio.packed.shard_writer import write_shard

    fastio.pack(photos, tmp_path / "packed", codec="jpeg")
    shard = next((tmp_path / "packed").glob("shard-*"))
    with pa.ipc.open_file(shard) as file:
        batch = file.get_batch(0)
    place = batch.schema.get_field_index("images.length")
    column = batch.column(place)
    values = column.values.to_numpy().copy()
    values[0] += 1
    changed = pa.LargeListArray.from_arrays(column.offsets, pa.array(values), type=column.type)
    arrays = [changed if n == place else each for n, each in enumerate(batch.columns)]
    write_shard(tmp_path / "bad", pa.RecordBatch.from_arrays(arrays, schema=batch.schema))
    with pytest.raises(ShardCorrupt, match="do not fit their bytes"):
        images_of(ShardReader(tmp_path / "bad"), "images", in_lists=True)


# --- Commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["photos", "packed"])
def test_info_and_show(source: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = str(request.getfixturevalue(source))
    found = CliRunner().invoke(main, ["info", path])
    assert "Images" in found.output
    for more in ([], ["--transform", "RandomResizedCrop(32)"]):
        sheet = tmp_path / "sheet.png"
        found = CliRunner().invoke(main, ["show", path, "--out", str(sheet), *more])
        assert found.exit_code == 0, found.output
        assert sheet.stat().st_size > 1000
        sheet.unlink()
