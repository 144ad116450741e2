"""Tars as a dataset: fields, what samples lack, the index and its cache, batches of a Loader."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastio
from fastio import (
    Array,
    Bytes,
    Image,
    ImageError,
    SampleError,
    Scalar,
    SchemaError,
    ShardCorrupt,
    SourceChanged,
    SourceNotFound,
    TarDataset,
    Text,
)
from fastio.sources.tar import index as tar_index
from tests.pictures import jpeg, oriented_jpeg, png
from tests.tars import npy, write_tar, write_tars


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    write_tars(tmp_path / "tars")
    return tmp_path / "tars"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tars that an index was built of, as it happens."""
    names: list[str] = []
    scan = tar_index.scan_tar

    def counted(reader: Any, name: str) -> Any:
        names.append(os.path.basename(name))
        return scan(reader, name)

    monkeypatch.setattr(tar_index, "scan_tar", counted)
    return names


def test_fields_are_those_that_the_files_hold(tars: Path) -> None:
    assert dict(fastio.open(tars).schema.fields) == {
        "__key__": Text(),
        "jpg": Image(),
        "cls": Scalar("int64"),
        "txt": Text(),
        "json": Text(),
        "weight_json": Scalar("float64"),
        "emb_npy": Array("float32", (3,)),
        "seg_png": Image(),
        "bin": Bytes(),
    }


def test_arrays_of_unequal_sizes_have_no_shape(tmp_path: Path) -> None:
    members = [(f"{n}.npy", npy(np.ones((n, 2), np.int16))) for n in range(20)]
    dataset = TarDataset(write_tar(tmp_path / "x.tar", members))
    assert dataset.schema.fields["npy"] == Array("int16", None)
    assert [array.shape for array in dataset.gather("npy", np.array([3, 0]))] == [(3, 2), (0, 2)]


def test_a_folder_a_pattern_and_a_list_are_the_same(tars: Path) -> None:
    names = [f"{tars}/train-{n:03d}.tar" for n in range(3)]
    datasets = [TarDataset(path) for path in (tars, f"{tars}/train-{{000..002}}.tar", names)]
    assert len({dataset.fingerprint for dataset in datasets}) == 1
    assert [len(dataset) for dataset in datasets] == [15] * 3
    assert fastio.open(names[1])[0]["__key__"] == "part/0005"


def test_rows_are_gathered_in_any_order(tars: Path) -> None:
    dataset = TarDataset(tars)
    rows = np.array([14, 0, 7, 7])
    found = dataset.gather_all(["cls", "txt", "emb_npy", "weight_json", "__key__"], rows)
    assert found["cls"].tolist() == [2, 0, 3, 3]
    assert found["txt"] == ["sämple 14", "sämple 0", "sämple 7", "sämple 7"]
    assert found["emb_npy"][:, 0].tolist() == [14, 0, 7, 7]
    assert found["weight_json"].tolist() == [7, 0, 3.5, 3.5]
    assert found["__key__"] == ["part/0014", "part/0000", "part/0007", "part/0007"]
    with pytest.raises(IndexError, match="row 15 is out of range"):
        dataset.gather("cls", np.array([15]))


def test_a_field_without_files_has_no_bytes_and_no_images(tars: Path) -> None:
    dataset = TarDataset(tars)
    for name in ("__key__", "nothing"):
        with pytest.raises(fastio.SchemaError, match=name):
            dataset.read(name, 0)
    for name in ("__key__", "cls"):
        with pytest.raises(fastio.SchemaError, match=name):
            dataset.image_reads(name, np.arange(1))


def test_a_sample_that_lacks_a_field_is_named(tmp_path: Path) -> None:
    members = [("a.jpg", jpeg()), ("a.cls", b"1"), ("b.jpg", jpeg()), ("c.jpg", jpeg())]
    path = write_tar(tmp_path / "x.tar", members)
    with pytest.raises(SchemaError, match=r"x\.tar sample 'b': it has no \.cls, like 2 of 3 samp"):
        fastio.open(path)
    assert len(TarDataset(path, fields=["jpg", "__key__"])) == 3
    with TarDataset(path, incomplete="skip") as dataset:
        assert [sample["__key__"] for sample in dataset] == ["a"]
        assert dataset.fingerprint != TarDataset(path, fields=["jpg"]).fingerprint
    with pytest.raises(SampleError, match=r"sample 'b': it has no \.cls"):
        TarDataset(path, incomplete="keep")[1]


@pytest.mark.parametrize("data", [b"cat", b"", b"1.5", b"9" * 30, b" " * 70])
def test_a_class_that_is_no_number_is_named(tmp_path: Path, data: bytes) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.cls", b"1"), ("b.cls", data), ("b.txt", b"")])
    with pytest.raises(SchemaError, match=r"sample 'b': its \.cls holds no int64, like 1 of 2"):
        TarDataset(path, fields=["cls"])
    assert TarDataset(path, fields=["cls"], incomplete="skip").gather(
        "cls", np.array([0])
    ).tolist() == [1]


def test_images_that_stand_for_one_another_are_one_field(tmp_path: Path) -> None:
    members = [("a.jpg", jpeg()), ("a.cls", b"1"), ("b.png", png()), ("b.cls", b"2")]
    dataset = TarDataset(write_tar(tmp_path / "x.tar", members))
    assert list(dataset.schema.fields) == ["__key__", "jpg;png", "cls"]
    for row, data in enumerate((jpeg(), png())):
        assert dataset.read("jpg;png", row) == data
    with fastio.Loader(dataset, 2, transforms=[fastio.Resize((8, 8))]) as loader:
        (batch,) = loader
    assert batch["jpg;png"].shape == (2, 3, 8, 8)
    assert batch["cls"].tolist() == [1, 2]


def test_the_first_extension_counts_of_those_that_are_asked_for(tmp_path: Path) -> None:
    members = [("a.jpg", b"1"), ("a.png", b"2"), ("b.png", b"3")]
    path = write_tar(tmp_path / "x.tar", members)
    for fields, expected in (("jpg;png", [b"1", b"3"]), ("png;jpg;webp", [b"2", b"3"])):
        dataset = TarDataset(path, fields=[fields])
        assert [dataset.read(fields, row) for row in range(2)] == expected
    with pytest.raises(
        SchemaError, match="no sample has a field 'webp'; the fields are __key__, jpg"
    ):
        TarDataset(path, fields=["webp"])


def test_values_that_do_not_fit_are_named(tmp_path: Path) -> None:
    numbers = [(f"{n:02d}.json", b"1") for n in range(16)]
    path = write_tar(tmp_path / "x.tar", [*numbers, ("x.json", b"1.5"), ("y.json", b"{")])
    dataset = TarDataset(path)
    with pytest.raises(
        SampleError, match=r"sample 'x': \.json: it contains 1\.5, .* contain int64"
    ):
        dataset[16]
    with pytest.raises(SampleError, match=r"sample 'y': \.json: "):
        dataset.gather("json", np.array([0, 17]))


def test_the_index_is_kept_and_rebuilt_when_a_tar_changes(tars: Path, built: list[str]) -> None:
    first = fastio.open(tars)
    assert sorted(built) == ["train-000.tar", "train-001.tar", "train-002.tar"]
    before = first.fingerprint
    built.clear()
    assert fastio.open(f"{tars}/train-{{000..002}}.tar").fingerprint == before
    assert built == []
    write_tar(tars / "train-001.tar", [("new.cls", b"5")])
    with pytest.raises(SchemaError, match=r"'new': it has no \.jpg"):
        fastio.open(tars)
    assert len(built) == 3
    changed = TarDataset(tars, fields=["cls"])
    assert len(changed) == 12
    assert len(built) == 3
    time_ns = os.stat(tars / "train-002.tar").st_mtime_ns + 1_000_000_000
    os.utime(tars / "train-002.tar", ns=(time_ns, time_ns))
    TarDataset(tars, fields=["cls"])
    assert len(built) == 6


def test_the_index_goes_where_it_is_told_to_and_never_to_the_tars(
    tars: Path, tmp_path: Path
) -> None:
    before = sorted(os.listdir(tars))
    TarDataset(tars, cache=tmp_path / "kept")
    assert fastio.Cache(tmp_path / "kept").status().indexes == 1
    assert sorted(os.listdir(tars)) == before


def test_an_index_counts_in_the_budget_is_told_and_cleared(
    tars: Path, tmp_path: Path, built: list[str]
) -> None:
    TarDataset(tars, cache=tmp_path / "kept")
    with fastio.Cache(tmp_path / "kept") as cache:
        status = cache.status()
        assert status.bytes == status.index_bytes > 0
        removed = cache.clear()
        assert (removed.pieces, removed.bytes) == (1, status.bytes)
        assert cache.status().indexes == cache.status().bytes == 0
    assert not list((tmp_path / "kept").glob("data/*/*/*"))
    with fastio.Cache(tmp_path / "small", status.bytes - 1) as cache:
        assert len(TarDataset(tars, cache=cache)) == 15
        assert cache.status().bytes == 0
    assert len(built) == 6


def test_an_index_that_is_damaged_or_cannot_be_kept_is_no_obstacle(
    tars: Path, tmp_path: Path, built: list[str]
) -> None:
    TarDataset(tars, cache=tmp_path / "kept")
    (kept,) = (tmp_path / "kept").glob("data/*/*/*")
    for data in (b"", kept.read_bytes()[:500], kept.read_bytes().replace(b"version", b"vErsion")):
        kept.write_bytes(data)
        assert len(TarDataset(tars, cache=tmp_path / "kept")) == 15
    assert len(built) == 12
    assert fastio.Cache(tmp_path / "kept").status().damaged == 3
    (tmp_path / "a file").touch()
    assert len(TarDataset(tars, cache=tmp_path / "a file" / "below")) == 15


def test_the_extents_of_a_row_have_its_files_alone(tars: Path) -> None:
    dataset = TarDataset(tars)
    tar, begin, end = dataset.sample_extents(np.array([6]))
    part = Path(dataset.tars[int(tar[0])]).read_bytes()[int(begin[0]) : int(end[0])]
    assert dataset.read("jpg", 6) in part
    assert dataset.read("bin", 6) in part
    assert dataset.read("jpg", 7) not in part


def test_it_survives_pickling(tars: Path) -> None:
    dataset = TarDataset(tars, fields=["cls", "txt"], incomplete="skip")
    again = pickle.loads(pickle.dumps(dataset))
    assert again.fingerprint == dataset.fingerprint
    assert again[3] == dataset[3]


def test_batches_in_shuffled_order_are_the_samples_decoded_one_by_one(tars: Path) -> None:
    dataset = TarDataset(tars)
    steps = {"jpg": [fastio.Resize((16, 16))], "seg_png": [fastio.Resize((16, 16))]}
    with fastio.Loader(tars, 4, shuffle=True, seed=0, num_workers=2, transforms=steps) as loader:
        assert loader.stats().path == "native"
        rows = []
        for batch in loader:
            assert list(batch) == list(dataset.schema.fields)
            for place, row in enumerate(loader.batch.rows.tolist()):
                sample = dataset[row]
                for name in ("__key__", "txt", "json", "bin"):
                    assert batch[name][place] == sample[name]
                for name in ("cls", "weight_json", "emb_npy"):
                    np.testing.assert_array_equal(batch[name][place].numpy(), sample[name])
                for name in ("jpg", "seg_png"):
                    from PIL import Image as Pillow

                    small = Pillow.fromarray(sample[name]).resize((16, 16), Pillow.BILINEAR)
                    own = batch[name][place].permute(1, 2, 0).numpy().astype(int)
                    assert np.abs(own - np.asarray(small)).max() <= 4
                rows.append(row)
    assert sorted(rows) == list(range(15))
    assert rows != list(range(15))


def test_pixels_that_are_not_resized_are_those_of_pillow(tars: Path) -> None:
    dataset = TarDataset(tars)
    with fastio.Loader(tars, 5, fields=("jpg",), num_workers=2) as loader:
        images = [image for batch in loader for image in batch["jpg"]]
    for row, image in enumerate(images):
        expected = dataset[row]["jpg"].astype(int)
        assert np.abs(image.permute(1, 2, 0).numpy() - expected).max() <= 1


def test_a_classification_loader_takes_two_fields(tars: Path) -> None:
    for fields in (("jpg", "cls"), ("cls", "jpg")):
        with fastio.Loader(
            f"{tars}/train-{{000..002}}.tar",
            batch_size=5,
            fields=fields,
            transforms=[fastio.RandomResizedCrop(8)],
            seed=0,
        ) as loader:
            batch = next(iter(loader))
        assert list(batch) == list(fields)
        assert batch["jpg"].shape == (5, 3, 8, 8)
        assert batch["cls"].tolist() == [0, 1, 2, 3, 0]


def test_fields_may_be_named_as_in_webdataset(tars: Path) -> None:
    names = [str(path) for path in sorted(tars.iterdir())]
    with fastio.Loader(names, 3, fields=("seg.png", "emb.npy")) as loader:
        batch = next(iter(loader))
    assert list(batch) == ["seg_png", "emb_npy"]


def test_images_are_turned_upright(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.jpg", oriented_jpeg(6, 24, 32))])
    with fastio.Loader(path, 1, fields=["jpg"]) as loader:
        (batch,) = loader
        plan = loader.augmentation([0])
    assert batch["jpg"].shape == (1, 3, 32, 24)
    assert TarDataset(path)[0]["jpg"].shape == (32, 24, 3)
    assert len(plan) == 1


@pytest.mark.parametrize("data", [b"", b"no image", jpeg()[:300]])
def test_a_damaged_image_is_skipped_or_named(tmp_path: Path, data: bytes) -> None:
    members = [("a.jpg", jpeg()), ("b.jpg", data), ("c.jpg", jpeg())]
    path = write_tar(tmp_path / "x.tar", members)
    with fastio.Loader(path, 3, on_error="skip", transforms=[fastio.Resize((8, 8))]) as loader:
        (batch,) = loader
        assert batch["__key__"] == ["a", "c"]
        (error,) = loader.batch.errors
    assert isinstance(error, ImageError)
    assert error.name == f"{path} sample 'b'"


def test_a_png_named_jpg_is_decoded(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.jpg", png(6, 7))])
    with fastio.Loader(path, 1, fields=["jpg"]) as loader:
        (batch,) = loader
    np.testing.assert_array_equal(
        batch["jpg"][0].permute(1, 2, 0).numpy(), TarDataset(path)[0]["jpg"]
    )


def test_a_tar_that_got_shorter_since_has_changed(tars: Path) -> None:
    dataset = TarDataset(tars)
    os.truncate(tars / "train-002.tar", 600)
    with pytest.raises(SourceChanged, match=r"train-002.tar was replaced or written to"):
        dataset.gather("txt", np.array([14]))
    with pytest.raises(ShardCorrupt, match="is truncated"):
        TarDataset(tars)


def test_a_tar_that_is_not_there_is_named(tars: Path) -> None:
    with pytest.raises(SourceNotFound, match=r"train-003.tar does not exist \(.* means 4 tars"):
        fastio.open(f"{tars}/train-{{000..003}}.tar")
    with pytest.raises(SourceNotFound, match=r"none\.tar does not exist"):
        fastio.Loader(f"{tars}/none.tar")
