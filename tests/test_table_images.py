"""Images and sounds in the columns of table files, decoded natively."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastio
from fastio import (
    ImageError,
    Loader,
    PerSample,
    RandomResizedCrop,
    Resize,
    SchemaError,
    ShardCorrupt,
    StoreError,
)
from fastio.engine.fields.image_files import ImageSource
from fastio.schema import Bytes, Image, Scalar, Text
from fastio.sources import check
from fastio.sources.table.media import MediaTable
from tests.object_server import object_server
from tests.pictures import decoded, jpeg, png
from tests.servers import S3, http_folder

N = 36
FILES = [jpeg(40 + n, 50 + n, seed=n, quality=95) for n in range(N)]
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
CROP = [RandomResizedCrop(16)]


def structs(files: Sequence[bytes | None]) -> pa.Array:
    rows = [None if file is None else {"bytes": file, "path": "x.jpg"} for file in files]
    return pa.array(rows, STRUCT)


def table(files: Sequence[bytes | None] = FILES, **metadata: Any) -> pa.Table:
    n = len(files)
    made = pa.table(
        {"image": structs(files), "label": np.arange(n) % 3, "text": [f"row {i}" for i in range(n)]}
    )
    if not metadata:
        return made
    about = {"huggingface": json.dumps({"info": {"features": metadata}})}
    return made.replace_schema_metadata(about)


def written(path: Path, made: pa.Table, rows: int = 4) -> Path:
    """The table as a file whose row groups have so many rows."""
    if path.suffix == ".parquet":
        pq.write_table(made, path, row_group_size=rows)
        return path
    compression = "zstd" if "zstd" in path.name else None
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path, made.schema, options=options) as file:
        file.write_table(made, max_chunksize=rows)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("table") / "photos.parquet", table())


def rows_of(loader: Loader) -> list[int]:
    return [int(text.split()[1]) for batch in loader for text in batch["text"]]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "zstd.arrow", "a.feather"])
def test_images_of_a_column_are_those_that_pillow_decodes(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, table())
    with fastio.open(path) as dataset:
        assert dataset.schema.fields == {"image": Image(), "label": Scalar("int64"), "text": Text()}
        sample = dataset[5]
        assert (sample["image"] == decoded(FILES[5])).all()
        assert (sample["label"], sample["text"]) == (2, "row 5")
    with Loader(path, batch_size=8, transforms={"image": [Resize((16, 16))]}) as loader:
        batches = list(loader)
        assert loader.path == "native"
    assert [n for batch in batches for n in batch["label"].tolist()] == [n % 3 for n in range(N)]
    assert sum(len(batch["image"]) for batch in batches) == N


def test_a_loader_gives_the_pixels_that_it_gives_of_the_same_files_in_a_folder(
    tmp_path: Path, photos: Path
) -> None:
    (tmp_path / "all").mkdir()
    for number, file in enumerate(FILES):
        (tmp_path / "all" / f"{number:03}.jpg").write_bytes(file)
    with (
        Loader(tmp_path, batch_size=8, seed=3, transforms=CROP) as folder,
        Loader(photos, batch_size=8, seed=3, transforms={"image": CROP}) as loader,
    ):
        for (images, _), batch in zip(folder, loader, strict=True):
            assert (images == batch["image"]).all()


def test_images_of_uncompressed_arrow_files_are_read_where_they_lie(tmp_path: Path) -> None:
    for part in range(2):
        written(tmp_path / f"{part}.arrow", table().slice(part * 18, 18))
    with Loader(tmp_path, 5, shuffle=True, seed=1, transforms={"image": CROP}) as loader:
        assert sorted(rows_of(loader)) == list(range(N))
        assert "any row can be read at any time" in loader.stats().order
        reads = loader.dataset.image_reads("image", np.array([1, 30]))
    for file, offset, length, row in zip(
        reads.file, reads.offset, reads.length, (1, 30), strict=True
    ):
        data = Path(reads.path(int(file))).read_bytes()
        assert data[offset : offset + length] == FILES[row]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_byte_strings_whose_first_value_is_an_image_file_are_images(
    tmp_path: Path, kind: pa.DataType
) -> None:
    files = [None, *FILES[1:7], png(seed=8)]
    made = pa.table({"photo": pa.array(files, kind), "key": pa.array([b"a"] * 8, pa.binary())})
    path = tmp_path / "a.arrow" if kind == pa.binary_view() else tmp_path / "a.parquet"
    with fastio.open(written(path, made)) as dataset:
        assert dataset.schema.fields == {"photo": Image(), "key": Bytes()}
        assert (dataset[3]["photo"] == decoded(FILES[3])).all()
        assert (dataset[7]["photo"] == decoded(png(seed=8))).all()


def test_images_says_which_columns_hold_images(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", table())
    with fastio.open(path, images=[]) as dataset:
        assert dataset.schema.fields["image_bytes"] == Bytes()
        assert dataset[1]["image_bytes"] == FILES[1]
    with fastio.open(path, columns=["image.bytes", "label"]) as dataset:
        assert list(dataset.schema.fields) == ["image_bytes", "label"]
    late = written(tmp_path / "late.parquet", table([*[None] * 20, *FILES[:4]]))
    with fastio.open(late) as dataset:  # no image among the first rows
        assert "image" not in dataset.schema.fields
    with fastio.open(late, images=["image"]) as dataset:
        assert (dataset[21]["image"] == decoded(FILES[1])).all()


@pytest.mark.parametrize("name", ["label", "nothing"])
def test_images_names_a_column_that_has_none(photos: Path, name: str) -> None:
    with pytest.raises(SchemaError, match=rf"names the column '{name}', which (is int64|does not)"):
        fastio.open(photos, images=[name])


def test_metadata_of_the_datasets_package_decides(tmp_path: Path) -> None:
    label = {"_type": "ClassLabel", "names": ["cat", "dog", "owl"]}
    gray = table(image={"_type": "Image", "mode": "L"}, label=label)
    with Loader(written(tmp_path / "a.parquet", gray), 4, transforms={"image": CROP}) as loader:
        assert next(iter(loader))["image"].shape == (4, 1, 16, 16)
        assert loader.dataset.classes == ("cat", "dog", "owl")
    value = {"dtype": "binary", "_type": "Value"}
    other = table(image={"bytes": value, "path": {"dtype": "string", "_type": "Value"}})
    with fastio.open(written(tmp_path / "b.parquet", other)) as dataset:
        assert dataset.schema.fields["image_bytes"] == Bytes()


def test_every_row_comes_once_in_windows_of_row_groups(photos: Path) -> None:
    dataset = fastio.open(photos, memory="1MiB")
    with Loader(dataset, batch_size=5, shuffle=True, seed=1, transforms={"image": CROP}) as loader:
        first, second = rows_of(loader), rows_of(loader)
    assert sorted(first) == sorted(second) == list(range(N))
    assert first != second
    assert first != sorted(first)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A table of which a window has two row groups."""
    noise = [jpeg(300, 300, seed=n, quality=100) for n in range(N)]
    path = written(tmp_path_factory.mktemp("large") / "large.parquet", table(noise))
    with fastio.open(path) as dataset:
        return fastio.open(path, memory=max(1 << 20, 9 * dataset.group_bytes))


def test_a_state_continues_exactly_and_ranks_share_the_rows(large: Any) -> None:
    how: dict[str, Any] = {"shuffle": True, "seed": 5, "transforms": {"image": CROP}}
    with Loader(large, 4, **how) as loader:
        assert loader.stats().order.startswith("rows are shuffled within windows of 2 row groups")
        whole = [(batch["text"], batch["image"].clone()) for batch in loader]
    with Loader(large, 4, **how) as loader:
        batches = iter(loader)
        done = [next(batches)["text"] for _ in range(3)]
        state = loader.state_dict()
    with Loader(large, 4, **how) as loader:
        loader.load_state_dict(state)
        rest = [(batch["text"], batch["image"].clone()) for batch in loader]
    assert done == [text for text, _ in whole[:3]]
    assert [text for text, _ in rest] == [text for text, _ in whole[3:]]
    assert all((a == b).all() for (_, a), (_, b) in zip(rest, whole[3:], strict=True))
    found: list[int] = []
    for rank in range(3):
        with Loader(large, 2, **how, rank=rank, world_size=3) as loader:
            found += rows_of(loader)
    assert sorted(found) == list(range(N))


def test_each_rank_reads_its_part_of_the_row_groups(
    large: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"shuffle": True, "seed": 5, "transforms": {"image": CROP}}
    read: set[int] = set()
    held = MediaTable.held

    def noted(self: MediaTable, number: int, fields: Any = None) -> Any:
        read.add(number)
        return held(self, number, fields)

    monkeypatch.setattr(MediaTable, "held", noted)
    every: set[int] = set()
    for rank in range(3):
        read.clear()
        with Loader(large, 2, **how, rank=rank, world_size=3) as loader:
            for _ in range(2):
                assert len(rows_of(loader)) == N // 3
        assert len(read) <= 5  # a third of nine row groups, and those at both ends of its part
        every |= read
    assert every == set(range(9))


def test_a_state_of_several_ranks_goes_on_with_one(large: Any) -> None:
    how: dict[str, Any] = {"shuffle": True, "seed": 5, "transforms": {"image": CROP}}
    begun: list[int] = []
    for rank in range(3):
        with Loader(large, 2, **how, rank=rank, world_size=3) as loader:
            batches = iter(loader)
            begun += [int(text.split()[1]) for _ in range(2) for text in next(batches)["text"]]
            state = loader.state_dict()
    with Loader(large, 6, **how) as loader:
        loader.load_state_dict(state)
        rest = rows_of(loader)
    assert sorted(begun + rest) == list(range(N))


def test_a_null_image_is_an_error_of_its_sample(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", table([*FILES[:5], None, *FILES[6:]]))
    where = "a.parquet, row 5: there is no image: the row is null"
    with fastio.open(path) as dataset, pytest.raises(ImageError, match=where):
        dataset[5]
    with Loader(path, 4, transforms={"image": CROP}) as loader, pytest.raises(ImageError) as raised:
        list(loader)
    assert where in str(raised.value)


@pytest.mark.parametrize("bad", [FILES[5][:200], b"\xff\xd8\xff", b"not an image", b"", None])
def test_on_error_skips_images_that_are_damaged(tmp_path: Path, bad: bytes | None) -> None:
    path = written(tmp_path / "a.parquet", table([*FILES[:5], bad, *FILES[6:]]))
    how: dict[str, Any] = {"transforms": {"image": CROP}, "on_error": "skip", "shuffle": True}
    with Loader(path, 4, seed=1, **how) as loader:
        assert sorted(rows_of(loader)) == [n for n in range(N) if n != 5]
        assert loader.stats().skipped == 1


def test_filters_choose_the_rows(photos: Path) -> None:
    dataset = fastio.open(photos, filters=[("label", "==", 1)])
    with Loader(dataset, 4, shuffle=True, transforms={"image": CROP}) as loader:
        assert sorted(rows_of(loader)) == list(range(1, N, 3))
    assert (dataset[2]["image"] == decoded(FILES[7])).all()


def test_other_fields_alone_are_read_by_row_groups(photos: Path) -> None:
    with Loader(photos, 6, fields=["label"], shuffle=True) as loader:
        assert sorted(n for batch in loader for n in batch["label"].tolist()) == sorted(
            n % 3 for n in range(N)
        )
        assert "row groups" in loader.stats().order


def test_rows_of_several_files_lie_one_after_the_other(tmp_path: Path) -> None:
    for part in range(3):
        written(tmp_path / f"{part}.parquet", table().slice(part * 12, 12))
    with Loader(tmp_path, 5, shuffle=True, transforms={"image": CROP}) as loader:
        assert sorted(rows_of(loader)) == list(range(N))
    with fastio.open(tmp_path) as dataset:
        assert (dataset[30]["image"] == decoded(FILES[30])).all()
        assert dataset.sample_name(30).endswith("2.parquet, row 6")


def test_a_first_file_without_rows_does_not_hide_the_images(tmp_path: Path) -> None:
    for part, rows in enumerate((0, 4, 4)):
        written(tmp_path / f"{part}.parquet", table().slice(0, rows))
    with fastio.open(tmp_path) as dataset:
        assert dataset.schema.fields["image"] == Image()
        assert (dataset[5]["image"] == decoded(FILES[1])).all()


def test_a_sampler_decides_the_rows(photos: Path) -> None:
    rows = [30, 2, 17, 2, 9]
    with Loader(photos, 2, sampler=rows, transforms={"image": CROP}) as loader:
        assert rows_of(loader) == rows


def test_a_truncated_file_ends_in_an_error_that_names_it(tmp_path: Path, photos: Path) -> None:
    damaged = bytearray(photos.read_bytes())
    damaged[200:4000] = bytes(3800)
    (tmp_path / "damaged.parquet").write_bytes(damaged)
    with (
        pytest.raises(ShardCorrupt, match=r"damaged.parquet"),
        Loader(tmp_path / "damaged.parquet", 4, transforms={"image": CROP}) as loader,
    ):
        list(loader)


# --- Packing, fastio verify and info --------------------------------------------------------------


def test_packed_images_are_those_of_the_table(tmp_path: Path) -> None:
    label = {"_type": "ClassLabel", "names": ["cat", "dog", "owl"]}
    files = [*FILES[:-1], png(seed=4)]
    path = written(tmp_path / "a.parquet", table(files, image={"_type": "Image"}, label=label))
    report = fastio.pack(path, tmp_path / "packed")
    assert report.rows == N
    with fastio.open(tmp_path / "packed") as packed:
        assert packed.classes == ("cat", "dog", "owl")
        assert packed.schema.fields["image"] == Image()
        for row in (0, 13, N - 1):
            difference = np.abs(packed[row]["image"].astype(int) - decoded(files[row]))
            assert difference.max() <= 4  # of chroma that is upsampled in another way
        assert packed[13]["text"] == "row 13"
    fastio.pack(path, tmp_path / "files", codec="jpeg")
    with fastio.open(tmp_path / "files") as packed:
        assert (packed[3]["image"] == decoded(FILES[3])).all()


def test_verify_names_damaged_images_and_info_their_column(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", table([*FILES[:5], FILES[5][:300], *FILES[6:]]))
    found = check(path, deep=True, progress=lambda *_: _Nothing())
    assert found.images is not None
    assert [(bad.row, bad.field) for bad in found.images.damaged] == [(5, "image")]
    columns = {c["name"]: c["field"] for c in fastio.sources.describe(path)["columns"]}
    assert columns["image"] == {"type": "image"}


class _Nothing:
    def __enter__(self) -> Any:
        return lambda count: None

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""


# --- Sound ----------------------------------------------------------------------------------------


def test_sounds_of_the_datasets_package_are_one_field_that_can_be_decoded(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    waves = []
    for n in range(8):
        soundfile.write(tmp_path / "a.wav", np.full(100 + n, n, np.int16), 16000)
        waves.append((tmp_path / "a.wav").read_bytes())
    made = table(waves, image={"_type": "Audio", "sampling_rate": 16000})
    path = written(tmp_path / "a.parquet", made.rename_columns(["sound", "label", "text"]))
    about = {"huggingface": json.dumps({"info": {"features": {"sound": {"_type": "Audio"}}}})}
    pq.write_table(pq.read_table(path).replace_schema_metadata(about), path, row_group_size=3)
    with fastio.open(path) as dataset:
        assert dataset.schema.fields["sound"] == Bytes()
        assert dataset[2]["sound"] == waves[2]
    how = {"sound": fastio.AudioDecode(dtype="int16")}
    with Loader(path, 4, transforms=how, ragged={"sound": "list"}) as loader:
        sounds = [sound for batch in loader for sound in batch["sound"]]
    assert [sound.shape[-1] for sound in sounds] == [100 + n for n in range(8)]


@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("bad", [None, {"bytes": None, "path": "gone.wav"}])
def test_a_sound_without_bytes_is_an_error_of_its_sample(
    tmp_path: Path, others: bool, bad: Any
) -> None:
    rows: list[Any] = [{"bytes": b"RIFF0000WAVE%d" % n, "path": f"{n}.wav"} for n in range(8)]
    rows[1] = bad
    columns: dict[str, Any] = {"sound": pa.array(rows, STRUCT)}
    if others:
        columns |= {"image": structs(FILES[:8]), "text": [f"row {n}" for n in range(8)]}
    path = written(tmp_path / "a.parquet", pa.table(columns))
    with fastio.open(path) as dataset:
        assert [dataset[row]["sound"] for row in (0, 2)] == [rows[0]["bytes"], rows[2]["bytes"]]
        with pytest.raises(fastio.SampleError, match=r"a.parquet, row 1: column 'sound' has no by"):
            dataset[1]
    good = [row["bytes"] for n, row in enumerate(rows) if n != 1]
    with Loader(path, 3, on_error="skip") as loader:
        assert [sound for batch in loader for sound in batch["sound"]] == good
        assert loader.stats().skipped == 1
    with (
        pytest.raises((SchemaError, fastio.SampleError), match="row 1: column 'sound' has no by"),
        Loader(path, 3) as loader,
    ):
        list(loader)
    with pytest.raises(fastio.SampleError, match="row 1: column 'sound' has no bytes"):
        fastio.pack(path, tmp_path / "packed")
    report = fastio.pack(path, tmp_path / "packed", on_error="skip", overwrite=True)
    assert [name.rpartition("/")[2] for name, _ in report.skipped] == ["a.parquet, row 1"]
    with fastio.open(tmp_path / "packed") as dataset:
        assert dataset.gather("sound", np.arange(7)) == good


def test_decoding_skips_a_sound_without_bytes_and_no_other(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.wav", np.zeros(100, np.int16), 16000)
    wave = (tmp_path / "a.wav").read_bytes()
    path = written(tmp_path / "a.parquet", pa.table({"sound": structs([wave, None, *[wave] * 4])}))
    how = {"sound": fastio.AudioDecode(dtype="int16")}
    with Loader(path, 6, transforms=how, on_error="skip", ragged={"sound": "list"}) as loader:
        assert [len(batch["sound"]) for batch in loader] == [5]
    with Loader(path, 6, transforms=how) as loader, pytest.raises(fastio.AudioError, match="row 1"):
        list(loader)


# --- Stores ---------------------------------------------------------------------------------------


def test_images_of_a_table_behind_a_url(tmp_path: Path) -> None:
    written(tmp_path / "a.parquet", table())
    with http_folder(tmp_path) as url:
        dataset = fastio.open(f"{url}/a.parquet")
        assert dataset.schema.fields["image"] == Image()
        with dataset, Loader(dataset, 4, shuffle=True, transforms={"image": CROP}) as loader:
            assert sorted(rows_of(loader)) == list(range(N))


def test_a_folder_of_tables_in_s3(s3: S3, tmp_path: Path) -> None:
    url = s3.bucket("table-images")
    for part in range(2):
        path = written(tmp_path / f"{part}.parquet", table().slice(part * 18, 18))
        s3.put("table-images", f"photos/{part}.parquet", path.read_bytes())
    dataset = fastio.open(f"{url}/photos/", storage_options=s3.options())
    with dataset, Loader(dataset, 4, shuffle=True, transforms={"image": CROP}) as loader:
        assert sorted(rows_of(loader)) == list(range(N))


def test_the_first_file_of_a_remote_table_is_opened_once() -> None:
    objects = {}
    for part in range(2):
        data = pa.BufferOutputStream()
        pa.parquet.write_table(pa.table({"x": list(range(5))}), data)
        objects[f"t/{part}.parquet"] = data.getvalue().to_pybytes()
    with object_server(objects) as server:
        with fastio.open(f"{server.url}/t/", storage_options=server.options) as dataset:
            assert len(dataset) == 10
        asked = server.requests()
    first, second = (asked.count(f"GET t/{part}.parquet") for part in range(2))
    assert first == second > 0


def test_features_that_are_damaged_are_as_if_there_were_none(tmp_path: Path) -> None:
    for name, feature in {"a": {"_type": "Array2D"}, "b": {"_type": "List"}}.items():
        about = json.dumps({"info": {"features": {"x": feature}}})
        table = pa.table({"x": [1, 2]}).replace_schema_metadata({"huggingface": about})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        with fastio.open(tmp_path / f"{name}.parquet") as dataset:
            assert [row["x"] for row in dataset] == [1, 2]


@pytest.mark.parametrize(
    ("lists", "steps"), [(False, []), (True, []), (False, [PerSample(np.copy, "threads")])]
)
def test_a_batch_whose_image_a_thread_cannot_fetch_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: bool, steps: list[Any]
) -> None:
    """Python threads read the images that only Pillow decodes."""
    files = [png(8, 8, seed=n) for n in range(4)]
    images = pa.array([[file] for file in files]) if lists else structs(files)
    path = written(tmp_path / "a.parquet", pa.table({"image": images, "number": range(4)}))
    read, to_fail = ImageSource.pixels, {0}

    def fail_once(source: ImageSource, row: int) -> Any:
        if row in to_fail:
            to_fail.remove(row)
            raise StoreError("no answer")
        return read(source, row)

    monkeypatch.setattr(ImageSource, "pixels", fail_once)
    data = fastio.open(path, images=["image"])
    with Loader(data, 2, transforms={"image": [Resize((8, 8)), *steps]}) as loader:
        batches = iter(loader)
        with pytest.raises(StoreError, match="no answer"):
            next(batches)
        assert [batch["number"].tolist() for batch in batches] == [[0, 1], [2, 3]]
