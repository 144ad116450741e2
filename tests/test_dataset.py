"""A dataset gives its samples by row, and says which of its shards are damaged."""

from __future__ import annotations

import pickle
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastio import (
    Array,
    Bytes,
    Dataset,
    Image,
    ImageError,
    Scalar,
    Schema,
    SchemaError,
    ShardCorrupt,
    SourceNotFound,
    Text,
    Writer,
)
from fastio import Dataset as open_dataset
from tests.pictures import decoded, jpeg

ROWS = 50
SCHEMA = Schema(
    {
        "image": Image(),
        "label": Scalar("int64"),
        "weight": Scalar("float32"),
        "good": Scalar("bool"),
        "box": Array("float32", (2, 2)),
        "points": Array("int16", None),
        "caption": Text(),
        "blob": Bytes(),
    },
    "dict",
    ("cat", "dog"),
)


def sample(row: int) -> dict[str, Any]:
    """What row `row` of the dataset holds."""
    return {
        "image": jpeg(20 + row, 30, seed=row),
        "label": row % 2,
        "weight": np.float32(row / 3),
        "good": row % 3 == 0,
        "box": np.arange(4, dtype=np.float32).reshape(2, 2) + row,
        "points": np.arange(2 * (row % 4), dtype=np.int16).reshape(-1, 2),
        "caption": f"größe {row}",
        "blob": bytes([row]) * (row % 5),
    }


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several shards; not to be changed."""
    path = tmp_path_factory.mktemp("packed") / "data"
    with Writer(path, SCHEMA, codec="jpeg", shard_size=8000) as writer:
        for row in range(ROWS):
            writer.write(sample(row))
    return path


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    """A dataset that a test may damage."""
    return Path(shutil.copytree(packed, tmp_path / "data"))


@pytest.fixture
def dataset(packed: Path) -> Dataset:
    return open_dataset(packed)


def test_a_dataset_knows_its_size_and_fields(dataset: Dataset) -> None:
    assert len(dataset) == ROWS
    assert dataset.num_shards > 5
    assert dataset.schema == SCHEMA
    assert dataset.classes == ("cat", "dog")
    assert dataset.manifest.nbytes == sum(
        Path(dataset.shard_path(shard)).stat().st_size for shard in range(dataset.num_shards)
    )


def test_samples_come_back_as_they_were_packed(dataset: Dataset) -> None:
    for row, found in enumerate(dataset):
        expected = sample(row)
        assert found.keys() == expected.keys()
        np.testing.assert_array_equal(found["image"], decoded(expected["image"]))
        for name in ("label", "weight", "good", "caption", "blob"):
            assert found[name] == expected[name]
        for name in ("box", "points"):
            np.testing.assert_array_equal(found[name], expected[name])
            assert found[name].dtype == expected[name].dtype


def test_numbers_have_python_s_types_where_python_has_them(dataset: Dataset) -> None:
    found = dataset[0]
    assert type(found["label"]) is int
    assert type(found["good"]) is bool
    assert type(found["weight"]) is np.float32


def test_negative_rows_count_from_the_end(dataset: Dataset) -> None:
    assert dataset[-1]["caption"] == f"größe {ROWS - 1}"


@pytest.mark.parametrize("row", [slice(0, 2), "image", 1.5])
def test_a_row_that_is_no_integer_is_named(dataset: Dataset, row: Any) -> None:
    with pytest.raises(TypeError, match="a row number must be an integer, got"):
        dataset[row]


@pytest.mark.parametrize("row", [ROWS, -ROWS - 1, 10**18])
def test_rows_out_of_range_are_index_errors(dataset: Dataset, row: int) -> None:
    with pytest.raises(IndexError, match=str(row)):
        dataset[row]


def test_locate_finds_every_row(dataset: Dataset) -> None:
    shards, local = dataset.locate(np.arange(ROWS))
    assert shards.dtype == local.dtype == np.int64
    expected = [
        (shard, row)
        for shard in range(dataset.num_shards)
        for row in range(dataset.shard(shard).rows)
    ]
    assert list(zip(shards.tolist(), local.tolist(), strict=True)) == expected


def test_rows_are_grouped_by_their_shards(dataset: Dataset) -> None:
    rows = np.array([49, 0, 17, 17, 3, 48])
    shards, local = dataset.locate(rows)
    groups = dataset.by_shard(rows)
    assert [group.shard for group in groups] == np.unique(shards).tolist()
    for group in groups:
        assert (shards[group.places] == group.shard).all()
        np.testing.assert_array_equal(local[group.places], group.local)
    places = np.concatenate([group.places for group in groups])
    assert sorted(places.tolist()) == list(range(len(rows)))
    assert dataset.by_shard(rows[:0]) == []


@pytest.mark.parametrize("rows", [[-1], [ROWS], [0, 3, ROWS]])
def test_locate_and_gather_refuse_rows_out_of_range(dataset: Dataset, rows: list[int]) -> None:
    with pytest.raises(IndexError, match="out of range"):
        dataset.locate(np.array(rows))
    with pytest.raises(IndexError, match="out of range"):
        dataset.gather("label", np.array(rows))


def test_gather_takes_rows_in_any_order_and_twice(dataset: Dataset) -> None:
    rows = np.array([49, 0, 17, 17, 3, 48])
    expected = [sample(row) for row in rows.tolist()]
    labels = dataset.gather("label", rows)
    assert isinstance(labels, np.ndarray)
    assert labels.dtype == np.int64
    assert labels.tolist() == [item["label"] for item in expected]
    good = dataset.gather("good", rows)
    assert isinstance(good, np.ndarray)
    assert good.dtype == np.bool_
    assert good.tolist() == [item["good"] for item in expected]
    boxes = dataset.gather("box", rows)
    assert isinstance(boxes, np.ndarray)
    assert boxes.shape == (6, 2, 2)
    np.testing.assert_array_equal(boxes, np.stack([item["box"] for item in expected]))
    assert dataset.gather("caption", rows) == [item["caption"] for item in expected]
    assert dataset.gather("blob", rows) == [item["blob"] for item in expected]
    for found, item in zip(dataset.gather("points", rows), expected, strict=True):
        np.testing.assert_array_equal(found, item["points"])


def test_an_image_is_had_without_its_sample(dataset: Dataset) -> None:
    np.testing.assert_array_equal(dataset.image("image", 17), dataset[17]["image"])
    with pytest.raises(SchemaError, match="'label' is not an image"):
        dataset.image("label", 0)


def test_several_fields_are_gathered_as_each_alone(dataset: Dataset) -> None:
    rows = np.array([49, 0, 17])
    found = dataset.gather_all(["caption", "label"], rows)
    assert list(found) == ["caption", "label"]
    assert found["caption"] == dataset.gather("caption", rows)
    np.testing.assert_array_equal(found["label"], dataset.gather("label", rows))


def test_gather_of_no_rows_is_empty(dataset: Dataset) -> None:
    none = np.array([], dtype=np.int64)
    boxes = dataset.gather("box", none)
    assert isinstance(boxes, np.ndarray)
    assert boxes.shape == (0, 2, 2)
    assert dataset.gather("caption", none) == []


def test_gathered_arrays_are_the_caller_s_to_change(dataset: Dataset) -> None:
    for name in ("box", "points"):
        found = dataset.gather(name, np.array([3]))[0]
        found[:] = 0


def test_images_are_not_gathered(dataset: Dataset) -> None:
    with pytest.raises(SchemaError, match="is an image"):
        dataset.gather("image", np.array([0]))


def test_an_unknown_field_is_named(dataset: Dataset) -> None:
    with pytest.raises(SchemaError, match=r"no field 'nothing'.*image, label"):
        dataset.gather("nothing", np.array([0]))


def test_sample_names_lead_to_shard_and_row(dataset: Dataset) -> None:
    assert dataset.sample_name(0) == "shard-000000.arrow row 0"
    last = dataset.shard(dataset.num_shards - 1).rows - 1
    assert dataset.sample_name(ROWS - 1) == f"shard-{dataset.num_shards - 1:06d}.arrow row {last}"


def test_tuples_and_single_values_keep_their_structure(tmp_path: Path) -> None:
    with Writer(tmp_path / "t", Schema({"a": Scalar("int64"), "b": Text()}, "tuple")) as writer:
        writer.write((7, "seven"))
    with Writer(tmp_path / "s", Schema({"a": Scalar("int64")}, "single")) as writer:
        writer.write(7)
    assert open_dataset(tmp_path / "t")[0] == (7, "seven")
    assert open_dataset(tmp_path / "s")[0] == 7


def test_a_pickled_dataset_opens_itself_again(dataset: Dataset) -> None:
    dataset[0]
    again = pickle.loads(pickle.dumps(dataset))
    assert again.fingerprint == dataset.fingerprint
    assert again[3]["caption"] == "größe 3"


def test_a_closed_dataset_gives_nothing_more(packed: Path) -> None:
    with open_dataset(packed) as dataset:
        labels = dataset.gather("label", np.arange(ROWS))
    with pytest.raises(ValueError, match="closed"):
        dataset[0]
    assert len(labels) == ROWS


def test_threads_can_share_a_dataset(packed: Path) -> None:
    dataset = open_dataset(packed)
    wrong: list[int] = []

    def read(step: int) -> None:
        for row in range(ROWS):
            row = row * step % ROWS
            if dataset[row]["caption"] != f"größe {row}":
                wrong.append(row)

    threads = [threading.Thread(target=read, args=(step,)) for step in (1, 3, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def damaged(folder: Path) -> dict[str, str]:
    """Names and problems of the shards that `verify` finds."""
    with open_dataset(folder) as dataset:
        return {check.name: check.problem for check in dataset.verify() if check.problem}


def test_a_whole_dataset_has_no_problems(packed: Path) -> None:
    assert damaged(packed) == {}


def test_a_flipped_byte_is_found_in_its_shard(copy: Path) -> None:
    path = copy / "shard-000003.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found = damaged(copy)
    assert list(found) == ["shard-000003.arrow"]
    assert "xxh3" in found["shard-000003.arrow"]


def test_swapped_shards_are_both_found(copy: Path) -> None:
    (copy / "shard-000001.arrow").rename(copy / "x")
    (copy / "shard-000002.arrow").rename(copy / "shard-000001.arrow")
    (copy / "x").rename(copy / "shard-000002.arrow")
    assert list(damaged(copy)) == ["shard-000001.arrow", "shard-000002.arrow"]


def test_a_missing_shard_is_named(copy: Path) -> None:
    (copy / "shard-000001.arrow").unlink()
    assert list(damaged(copy)) == ["shard-000001.arrow"]
    dataset = open_dataset(copy)
    first_row = int(dataset.manifest.first_row[1])
    with pytest.raises(SourceNotFound, match=r"shard-000001\.arrow does not exist"):
        dataset[first_row]
    assert dataset[first_row - 1]["caption"] == f"größe {first_row - 1}"


def test_a_folder_in_a_shard_s_place_is_named(copy: Path) -> None:
    (copy / "shard-000001.arrow").unlink()
    (copy / "shard-000001.arrow").mkdir()
    assert list(damaged(copy)) == ["shard-000001.arrow"]


def test_a_truncated_shard_is_named_when_it_is_read(copy: Path) -> None:
    path = copy / "shard-000000.arrow"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ShardCorrupt, match=r"shard-000000\.arrow"):
        open_dataset(copy)[0]


def test_a_whole_shard_of_another_size_is_not_the_manifest_s(copy: Path) -> None:
    shutil.copy(copy / "shard-000001.arrow", copy / "shard-000000.arrow")
    with pytest.raises(ShardCorrupt, match=r"shard-000000\.arrow has .* the manifest says"):
        open_dataset(copy)[0]


def test_an_image_that_cannot_be_decoded_names_its_row(packed: Path, copy: Path) -> None:
    data = bytearray((copy / "shard-000000.arrow").read_bytes())
    data[data.index(b"\xff\xd8\xff") : data.index(b"\xff\xd8\xff") + 4] = b"text"
    (copy / "shard-000000.arrow").write_bytes(data)
    with pytest.raises(ImageError, match=r"shard-000000\.arrow row 0") as caught:
        open_dataset(copy)[0]
    assert (caught.value.row, caught.value.dataset) == (0, str(copy))
    assert open_dataset(copy)[1]["caption"] == "größe 1"
