"""Loaders over datasets of the datasets package, compared with what that package reads."""

from __future__ import annotations

import gc
import json
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import (
    Array2D,
    Array3D,
    Audio,
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    Image,
    LargeList,
    List,
    Value,
    load_from_disk,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import fastio
from fastio import (
    DatasetClosed,
    FolderDataset,
    ImageError,
    Loader,
    RandomResizedCrop,
    Resize,
    SchemaError,
    ShardCorrupt,
    SourceNotFound,
)
from fastio.sources.hugging_face.dataset import HuggingFaceDataset
from fastio.sources.hugging_face.rows import Checked, SelectedRows, StoredBatch
from tests.children import run_code
from tests.pictures import decoded, jpeg, picture, save
from tests.saved import (  # sets the environment before datasets is imported
    IMAGES,
    NAMES,
    image_dataset,
    image_rows,
    jpeg_bytes,
    save_to,
    table_dataset,
)
from tests.support import open_loader

CROP = {"image": [Resize((16, 16))]}


def batch_of(source: Any, rows: int = 200, **options: Any) -> dict[str, Any]:
    """All rows as one batch, in order."""
    with open_loader(source, rows, num_workers=2, **options) as loader:
        (batch,) = list(loader)
        assert loader.path == "native"
    return batch  # type: ignore[no-any-return]


def plain(values: Any) -> Any:
    """Tensors as lists."""
    if isinstance(values, torch.Tensor):
        return values.tolist()
    return [plain(value) for value in values] if isinstance(values, list) else values


def both(dataset: Dataset, tmp_path: Path) -> list[Any]:
    """A dataset in memory, mapped, shuffled twice over, and as a directory."""
    folder = save_to(dataset, tmp_path / "saved", num_shards=min(3, len(dataset)))
    return [dataset, load_from_disk(folder), folder]


def dtype_of(feature: Any) -> str:
    """The type of a feature's numbers."""
    if isinstance(feature, List):
        return dtype_of(feature.feature)
    return str(feature.dtype)


# --- Features -------------------------------------------------------------------------------------

VALUES: list[tuple[str, Any, list[Any]]] = [
    ("int64", Value("int64"), [1, -(2**63), 2**63 - 1]),
    ("uint8", Value("uint8"), [0, 255, 3]),
    ("float32", Value("float32"), [0.5, -1.25, 3.0]),
    ("float16", Value("float16"), [0.5, -1.25, 3.0]),
    ("bool", Value("bool"), [True, False, True]),
    ("string", Value("string"), ["", "é\n", "x" * 1000]),
    ("large_string", Value("large_string"), ["", "é\n", "x" * 1000]),
    ("binary", Value("binary"), [b"", b"\0\xff", b"abc"]),
    ("labels", ClassLabel(names=NAMES), [2, 0, -1]),
    ("fixed list", List(Value("int16"), length=2), [[1, 2], [3, 4], [5, 6]]),
    ("nested fixed list", List(List(Value("int8"), length=2), length=1), [[[1, 2]], [[3, 4]]]),
    ("array", Array2D((2, 3), "float32"), [np.full((2, 3), n, np.float32) for n in range(3)]),
    ("array 3", Array3D((1, 2, 2), "uint8"), [np.full((1, 2, 2), n, np.uint8) for n in range(3)]),
]


@pytest.mark.parametrize(("feature", "values"), [v[1:] for v in VALUES], ids=[v[0] for v in VALUES])
def test_values_are_those_that_the_package_reads(
    feature: Any, values: list[Any], tmp_path: Path
) -> None:
    dataset = Dataset.from_dict({"x": values}, features=Features({"x": feature}))
    for source in both(dataset, tmp_path):
        found = batch_of(source)["x"]
        assert plain(found) == dataset["x"][:], source
        if isinstance(found, torch.Tensor):
            wanted = dataset.with_format("numpy")[: len(dataset)]["x"]
            assert found.shape == wanted.shape
            assert found.dtype == getattr(torch, dtype_of(feature))  # the package widens numbers


@pytest.mark.parametrize("kind", [List, LargeList])
def test_lists_are_padded_beside_their_lengths(kind: Any, tmp_path: Path) -> None:
    values = [[1, 2, 3], [], [4]]
    dataset = Dataset.from_dict({"x": values}, features=Features({"x": kind(Value("int32"))}))
    for source in both(dataset, tmp_path):
        batch = batch_of(source)
        assert batch["x"].dtype == torch.int32
        assert batch["x_length"].tolist() == [3, 0, 1]
        assert batch["x"].tolist() == [[1, 2, 3], [0, 0, 0], [4, 0, 0]]


def test_structs_become_fields_of_their_own(tmp_path: Path) -> None:
    features = Features({"a": {"n": Value("int64"), "b": {"t": Value("string")}}})
    rows = [{"a": {"n": n, "b": {"t": f"t{n}"}}} for n in range(3)]
    for source in both(Dataset.from_list(rows, features=features), tmp_path):
        assert plain(batch_of(source)["a_n"]) == [0, 1, 2]
        assert batch_of(source)["a_b_t"] == ["t0", "t1", "t2"]


def test_arrays_with_a_variable_axis_and_lists_of_lists_come_as_arrays(tmp_path: Path) -> None:
    features = Features({"x": Array2D((None, 2), "int32"), "y": List(List(Value("int8")))})
    rows = [{"x": [[n, n]] * (n + 1), "y": [[n] * 3] * n} for n in range(4)]
    dataset = Dataset.from_list(rows, features=features)
    for source in both(dataset, tmp_path):
        batch = batch_of(source)
        assert plain(batch["x"]) == [row["x"] for row in rows]
        assert plain(batch["y"]) == [row["y"] for row in rows]
        assert [tuple(x.shape) for x in batch["x"]] == [(n + 1, 2) for n in range(4)]


def test_lists_of_lists_that_are_no_arrays_are_refused_by_row(tmp_path: Path) -> None:
    dataset = Dataset.from_dict({"x": [[[1, 2]], [[1], [2, 3]]]})
    with pytest.raises(SchemaError, match=r"'x', row 1 has a null, or lists of different lengths"):
        batch_of(dataset)


def test_json_comes_as_its_text(tmp_path: Path) -> None:
    if not hasattr(datasets, "Json"):
        pytest.skip("this version of datasets has no Json")
    features = Features({"x": datasets.Json()})
    for source in both(Dataset.from_list([{"x": {"a": [1]}}], features=features), tmp_path):
        assert [json.loads(text) for text in batch_of(source)["x"]] == [{"a": [1]}]


def test_other_files_come_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "1.wav").write_bytes(b"one")
    files = [{"bytes": b"zero", "path": None}, {"bytes": None, "path": str(tmp_path / "1.wav")}]
    dataset = Dataset.from_dict({"x": files}).cast_column("x", Audio(decode=False))
    for source in both(dataset, tmp_path):
        assert batch_of(source)["x"] == [b"zero", b"one"]
    (tmp_path / "1.wav").unlink()
    with pytest.raises(SchemaError, match=r"'x', row 1: the file .*1.wav cannot be read"):
        batch_of(dataset)


def test_class_names_are_the_vocabulary(tmp_path: Path) -> None:
    folder = save_to(table_dataset(), tmp_path / "saved")
    with Loader(folder, 10) as loader:
        assert loader.dataset.schema.vocabularies == {"label": tuple(NAMES)}
        assert loader.dataset.schema.classes == tuple(NAMES)


def test_a_type_that_is_not_known_is_refused_unless_it_is_left_out(tmp_path: Path) -> None:
    folder = save_to(table_dataset(), tmp_path / "saved")
    change_info(folder, lambda features: features.update(text={"_type": "Hologram"}))
    with pytest.raises(SchemaError, match="column 'text' has the feature type 'Hologram'"):
        Loader(folder, 10)
    assert list(batch_of(folder, columns=["number"])) == ["number"]


def test_features_of_old_versions_are_understood(tmp_path: Path) -> None:
    folder = save_to(table_dataset(), tmp_path / "saved")

    def older(features: dict[str, Any]) -> None:
        value = {"dtype": "int32", "id": None, "_type": "Value"}
        features["list"] = {"feature": value, "length": -1, "id": None, "_type": "Sequence"}
        features["vector"] = {"feature": value, "length": 3, "id": None, "_type": "Sequence"}
        features["label"] = {"num_classes": 3, "names": None, "_type": "ClassLabel"}

    wanted = batch_of(folder)
    change_info(folder, older)
    assert plain(batch_of(folder)["list"]) == plain(wanted["list"])
    with Loader(folder, 10) as loader:
        assert loader.dataset.schema.vocabularies == {"label": ("0", "1", "2")}


def test_a_sequence_of_structs_is_a_struct_of_lists(tmp_path: Path) -> None:
    features = Features(
        {"x": datasets.Sequence({"n": Value("int64"), "t": ClassLabel(names=["a"])})}
    )
    rows = [{"x": {"n": [1, 2], "t": [0, 0]}}, {"x": {"n": [], "t": []}}]
    for source in both(Dataset.from_list(rows, features=features), tmp_path):
        assert batch_of(source)["x_n_length"].tolist() == [2, 0]


def test_without_features_the_arrow_types_say_what_columns_are(tmp_path: Path) -> None:
    folder = save_to(table_dataset(), tmp_path / "saved")
    path = Path(folder, "dataset_info.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "features": None}))
    with Loader(folder, 10) as loader:  # they stand in the Arrow file too
        assert loader.dataset.schema.vocabularies == {"label": tuple(NAMES)}


def test_an_array_that_has_not_the_shape_of_its_feature_is_refused(tmp_path: Path) -> None:
    dataset = Dataset.from_dict(
        {"x": [np.zeros((2, 3), np.float32)]}, features=Features({"x": Array2D((2, 3), "float32")})
    )
    folder = save_to(dataset, tmp_path / "saved")
    change_info(folder, lambda features: features["x"].update(shape=[3, 3]))
    with pytest.raises(SchemaError, match=r"'x': not all arrays in rows 0 to 0 have the shape"):
        batch_of(folder)


def test_nulls_are_refused_or_become_what_is_said(tmp_path: Path) -> None:
    dataset = Dataset.from_dict({"x": [1, None, 3], "y": [None, [1.0], []]})
    for source in both(dataset, tmp_path):
        with pytest.raises(SchemaError, match=r"'[xy]' has 1 null in rows 0 to"):
            batch_of(source)
        batch = batch_of(source, nulls={"x": -5, "y": "mask"})
        assert batch["x"].tolist() == [1, -5, 3]
        assert batch["y_valid"].tolist() == [False, True, True]


# --- Which rows -----------------------------------------------------------------------------------

SELECTIONS: dict[str, Callable[[Dataset], Dataset]] = {
    "select": lambda d: d.select([7, 3, 3, 11]),
    "contiguous": lambda d: d.select(range(3, 9)),
    "shuffle": lambda d: d.shuffle(seed=1),
    "shuffle and select": lambda d: d.shuffle(seed=1).select([5, 4]),
    "split": lambda d: d.train_test_split(0.3, seed=2)["test"],
    "shard": lambda d: d.shard(3, 1, contiguous=False),
    "filter": lambda d: d.filter(lambda row: row["label"] == 1),
    "concatenate": lambda d: datasets.concatenate_datasets([d, d.select([2])]),
}


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("mapped", [True, False])
def test_selected_rows_are_those_of_the_package(
    selection: str, mapped: bool, tmp_path: Path
) -> None:
    tables, images = table_dataset(), image_dataset()
    if mapped:
        tables = load_from_disk(save_to(tables, tmp_path / "tables", num_shards=4))
        images = load_from_disk(save_to(images, tmp_path / "images", num_shards=4))
    chosen = SELECTIONS[selection](tables)
    assert batch_of(chosen)["number"].tolist() == chosen["number"][:]
    assert batch_of(chosen)["text"] == chosen["text"][:]
    pictures = SELECTIONS[selection](images)
    batch = batch_of(pictures)
    assert batch["caption"] == pictures["caption"][:]
    for row, image in enumerate(batch["image"]):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), np.array(pictures[row]["image"]))


def test_indices_that_old_versions_saved_are_honoured(tmp_path: Path) -> None:
    folder = save_to(table_dataset(), tmp_path / "saved")
    indices = pa.table({"indices": pa.array([9, 3, 3], pa.uint64())})
    with pa.ipc.new_stream(f"{folder}/indices.arrow", indices.schema) as writer:
        writer.write_table(indices)
    state = json.loads(Path(folder, "state.json").read_text())
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    Path(folder, "state.json").write_text(json.dumps(state))
    assert batch_of(folder)["number"].tolist() == [9, 3, 3]
    indices = pa.table({"indices": pa.array([100], pa.uint64())})
    with pa.ipc.new_stream(f"{folder}/indices.arrow", indices.schema) as writer:
        writer.write_table(indices)
    with pytest.raises(ShardCorrupt, match="its indices refer to row 100, but it has 100 rows"):
        Loader(folder, 10)


@settings(max_examples=40)
@given(data=st.data())
def test_any_order_of_any_batches_gives_each_row_once(data: Any) -> None:
    counts = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=6))
    parts = [Dataset.from_dict({"x": list(range(n)), "t": [str(n)] * n}) for n in counts]
    dataset = datasets.concatenate_datasets(parts)
    if data.draw(st.booleans()):
        rows = st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=50)
        dataset = dataset.select(data.draw(rows))
    wanted = sorted(zip(dataset["x"][:], dataset["t"][:], strict=True))
    for order in ("auto", "shuffle"):
        options: dict[str, Any] = {"shuffle": True, "order": order, "num_workers": 2}
        with open_loader(dataset, data.draw(st.integers(1, 40)), **options) as loader:
            found = [pair for b in loader for pair in zip(b["x"].tolist(), b["t"], strict=True)]
        assert sorted(found) == wanted


def test_formats_choose_columns(tmp_path: Path) -> None:
    dataset = table_dataset()
    for kind in (None, "torch", "numpy"):
        formatted = dataset.with_format(kind, columns=["text", "number"])
        assert set(batch_of(formatted)) == {"text", "number"}
        folder = save_to(formatted, tmp_path / f"{kind}")
        assert set(batch_of(folder)) == {"text", "number"}
    every = dataset.with_format("torch", columns=["number"], output_all_columns=True)
    assert "text" in batch_of(every)


@pytest.mark.parametrize(
    ("kind", "settings"), [("torch", {}), ("numpy", {}), ("torch", {"dtype": torch.float64})]
)
def test_formats_of_tensors_set_the_dtypes_as_for_a_data_loader(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    columns = {
        "tokens": pa.array([[1, 2], [3, 4]], pa.list_(pa.int8())),
        "price": pa.array([0.5, 1.5], pa.float64()),
        "small": pa.array([1, 2], pa.uint16()),
        "flag": pa.array([True, False]),
        "text": pa.array(["a", "b"]),
    }
    dataset = Dataset(pa.table(columns)).with_format(kind, **settings)
    wanted = next(iter(DataLoader(dataset, 2)))
    for sampler in (None, range(2)):  # by row groups, and row by row
        found = batch_of(dataset, sampler=sampler)
        for name in ("tokens", "price", "small", "flag"):
            values = torch.stack(list(found[name]))
            assert values.dtype == wanted[name].dtype, (name, sampler)
            assert torch.equal(values, wanted[name])
    with fastio.open(dataset, dtypes={"price": "float16"}) as opened:
        assert opened[0]["price"].dtype == np.float16
    fastio.pack(dataset, tmp_path / "packed")  # packs what is stored
    with fastio.open(tmp_path / "packed") as packed:
        assert packed[0]["price"] == 0.5
        assert packed.schema.fields["price"] == fastio.Scalar("float64")


def test_a_transform_of_its_own_takes_the_torch_path() -> None:
    dataset = table_dataset(10)
    dataset.set_transform(lambda batch: {"twice": [2 * n for n in batch["number"]]})
    with Loader(dataset, 10) as loader:
        assert loader.path == "torch"
        assert next(iter(loader))["twice"].tolist() == list(range(0, 20, 2))
        assert "transform of its own" in str(loader.stats().reason)


# --- Directories ----------------------------------------------------------------------------------


def test_directories_are_read_without_the_package(tmp_path: Path) -> None:
    folders = [
        save_to(table_dataset(), tmp_path / "tables"),
        save_to(image_dataset(), tmp_path / "images"),
    ]
    code = (
        "import sys; sys.modules['datasets'] = None\n"
        "import fastio\n"
        "for folder in sys.argv[1:]:\n"
        "    with fastio.Loader(folder, 5, num_workers=1) as loader:\n"
        "        print(sum(len(batch['label']) for batch in loader))\n"
    )
    done = run_code(code, *folders)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["100", "12"]


def test_several_splits_are_named(tmp_path: Path) -> None:
    splits = DatasetDict(train=table_dataset(), test=table_dataset(3))
    with pytest.raises(SourceNotFound, match=r"dataset\['train'\], dataset\['test'\]"):
        Loader(splits, 10)
    splits.save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(SourceNotFound, match=r"give one of them: .*saved/train, .*saved/test"):
        Loader(tmp_path / "saved", 10)
    assert len(batch_of(tmp_path / "saved" / "test")["number"]) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_goes_through_the_torch_path_and_resumes_by_its_own_state(workers: int) -> None:
    pytest.importorskip("torchdata", reason="torchdata keeps the state of a stream")
    table = Dataset.from_dict({"number": list(range(20))})
    stream = table.to_iterable_dataset(num_shards=2)
    with Loader(stream, 3, num_workers=workers) as loader:
        assert loader.path == "torch"
        assert "one after the other" in loader.stats().reason
        batches = iter(loader)
        next(batches)
        state, rest = loader.state_dict(), [batch["number"].tolist() for batch in batches]
    again = table.to_iterable_dataset(num_shards=2)
    with Loader(again, 3, num_workers=workers) as loader:
        loader.load_state_dict(state)
        assert [batch["number"].tolist() for batch in loader] == rest


def test_a_dataset_without_rows_has_no_batches_and_a_folder_without_is_refused(
    tmp_path: Path,
) -> None:
    empty = table_dataset().select([])
    none_left = table_dataset().shuffle(seed=1).filter(lambda row: False)
    for source in (empty, none_left):  # as from DataLoader
        assert list(Loader(source, 10)) == []
    with pytest.raises(SourceNotFound, match="has no rows"):
        Loader(save_to(empty, tmp_path / "saved"), 10)


def test_one_row_is_a_dataset(tmp_path: Path) -> None:
    for source in both(table_dataset(1), tmp_path):
        assert batch_of(source)["text"] == ["row 0 é"]


def change_info(folder: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the features in dataset_info.json."""
    path = Path(folder, "dataset_info.json")
    info = json.loads(path.read_text())
    change(info["features"])
    path.write_text(json.dumps(info))


@pytest.fixture(scope="module")
def saved_table(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_to(table_dataset(), tmp_path_factory.mktemp("saved") / "saved")


@settings(max_examples=60)
@given(data=st.data())
def test_a_file_that_is_cut_off_is_refused(data: Any, saved_table: str) -> None:
    name = data.draw(st.sampled_from(["data-00000-of-00001.arrow", "state.json"]))
    path = Path(saved_table, name)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 2))])
    try:
        with pytest.raises(ShardCorrupt, match=name):
            Loader(saved_table, 10)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json"])
@pytest.mark.parametrize("text", ["[]", '{"features": 3, "_data_files": 3}', "{"])
def test_descriptions_that_make_no_sense_are_refused(name: str, text: str, tmp_path: Path) -> None:
    folder = save_to(table_dataset(), tmp_path / "saved")
    Path(folder, name).write_text(text)
    with pytest.raises(ShardCorrupt, match=name):
        Loader(folder, 10)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    folder = save_to(table_dataset(), tmp_path / "saved")
    Path(folder, "data-00000-of-00001.arrow").unlink()
    with pytest.raises(SourceNotFound, match=r"data-00000-of-00001\.arrow does not exist"):
        Loader(folder, 10)


def test_lists_of_strings_are_lists_in_batches(tmp_path: Path) -> None:
    values = [["a", "é"], [], ["ccc"]]
    dicts = [{"tags": strings, "n": row} for row, strings in enumerate(values)]
    features = Features(
        {
            "tags": List(Value("string")),
            "pair": {"tags": List(Value("string")), "n": Value("int64")},
        }
    )
    dataset = Dataset.from_dict({"tags": values, "pair": dicts}, features=features)
    for source in both(dataset, tmp_path):
        batch = batch_of(source)
        assert batch["tags"] == values
        assert batch["pair_tags"] == values
        assert batch["pair_n"].tolist() == [0, 1, 2]
        assert HuggingFaceDataset(source)[0]["tags"] == ["a", "é"]
        with Loader(
            fastio.open(source, columns=["tags"]), 2, shuffle=True, num_workers=1
        ) as loader:
            assert sorted(tags for batch in loader for tags in batch["tags"]) == sorted(values)


@pytest.mark.parametrize("bad", [None, ["a", None]])
def test_lists_of_strings_with_a_null_name_their_row(bad: Any) -> None:
    dataset = Dataset.from_dict(
        {"tags": [["a"], bad]}, features=Features({"tags": List(Value("string"))})
    )
    with pytest.raises(SchemaError, match="column 'tags', row 1 is null"):
        batch_of(dataset)


def test_lists_of_strings_are_not_packed(tmp_path: Path) -> None:
    dataset = Dataset.from_dict({"tags": [["a"], []], "n": [1, 2]})
    with pytest.raises(SchemaError, match="'tags' contains lists of strings"):
        fastio.pack(dataset, tmp_path / "packed")
    fastio.pack(dataset, tmp_path / "packed", columns=["n"])


def test_lists_of_dicts_are_dicts_of_lists(tmp_path: Path) -> None:
    """The objects of an image, as the package has them since its version 4."""
    values: list[Any] = [
        [{"box": [1.0, 2.0], "class": 1, "name": "a", "at": {"x": 5}}],
        [],
        None,
        [{"box": [3.0, 4.0], "class": 0, "name": "b", "at": {"x": 6}}] * 2,
    ]
    features = Features(
        {
            "objects": List(
                {
                    "box": List(Value("float32"), length=2),
                    "class": ClassLabel(names=NAMES),
                    "name": Value("string"),
                    "at": {"x": Value("int16")},
                }
            )
        }
    )
    dataset = Dataset.from_dict({"objects": values}, features=features)
    kept = dataset.select([0, 1, 3])
    for source in [kept, *both(kept, tmp_path)]:
        batch = batch_of(source, ragged="list")
        assert plain(batch["objects_box"]) == [[[1, 2]], [], [[3, 4], [3, 4]]]
        assert plain(batch["objects_class"]) == [[1], [], [0, 0]]
        assert batch["objects_name"] == [["a"], [], ["b", "b"]]
        assert plain(batch["objects_at_x"]) == [[5], [], [6, 6]]
        assert batch["objects_at_x"][0].dtype == torch.int16
    with pytest.raises(SchemaError, match="objects"):
        batch_of(dataset)
    numbers = {"columns": ["objects.class"], "nulls": {"objects.class": 7}}
    batch = batch_of(dataset, ragged="list", **numbers)
    assert plain(batch["objects_class"]) == [[1], [], [], [0, 0]]


ALBUMS = [[jpeg(40 + row, 50 + n, seed=7 * row + n) for n in range(row % 4)] for row in range(23)]


def album_dataset(tmp_path: Path) -> Dataset:
    """Lists of JPEGs; every third image has a path and no bytes. And lists of one in a struct."""

    def file(row: int, n: int) -> dict[str, Any]:
        path = tmp_path / "files" / f"{row}-{n}.jpg"
        if (row + n) % 3:
            return {"bytes": ALBUMS[row][n], "path": None}
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(ALBUMS[row][n])
        return {"bytes": None, "path": str(path)}

    rows = [[file(row, n) for n in range(len(album))] for row, album in enumerate(ALBUMS)]
    features = Features(
        {
            "views": List(Image()),
            "first": {"gray": LargeList(Image(mode="L")), "n": Value("int64")},
            "row": Value("int64"),
        }
    )
    firsts = [{"gray": row[:1], "n": len(row)} for row in rows]
    values = {"views": rows, "first": firsts, "row": list(range(len(rows)))}
    return Dataset.from_dict(values, features=features)


def test_lists_of_images_have_the_images_that_pillow_decodes(tmp_path: Path) -> None:
    dataset = album_dataset(tmp_path)
    shuffled = dataset.shuffle(seed=1)
    for source in [*both(dataset, tmp_path), shuffled, dataset.select(range(20, 3, -1))]:
        options = {} if isinstance(source, Dataset) else {"roots": [tmp_path]}
        with fastio.open(source, **options) as opened:
            assert opened.schema.fields["views"] == fastio.Images()
            assert opened.schema.fields["first_gray"] == fastio.Images("L")
            for sample in opened:
                files = ALBUMS[sample["row"]]
                expected = [*map(decoded, files)]
                assert len(sample["views"]) == len(expected) == sample["first_n"]
                assert all(map(np.array_equal, sample["views"], expected))
                assert [one.shape[2] for one in sample["first_gray"]] == [1] * min(1, len(files))


def test_batches_and_packs_of_lists_of_images_are_those_of_a_parquet_file(tmp_path: Path) -> None:
    dataset = album_dataset(tmp_path).map(
        lambda row: {"views": [{"bytes": file, "path": None} for file in ALBUMS[row["row"]]]}
    )
    dataset = dataset.remove_columns("first").cast_column("views", List(Image()))
    dataset.to_parquet(tmp_path / "albums.parquet")
    how: dict[str, Any] = {
        "seed": 3,
        "ragged": "flat",
        "transforms": {"views": [RandomResizedCrop(16)]},
    }
    fastio.pack(dataset, tmp_path / "packed", codec="jpeg")
    for source in (dataset, tmp_path / "packed"):
        with Loader(source, 5, **how) as ours, Loader(tmp_path / "albums.parquet", 5, **how) as its:
            assert ours.path == its.path == "native"
            for batch, expected in zip(ours, its, strict=True):
                assert batch.keys() == expected.keys()
                assert all(torch.equal(batch[name], expected[name]) for name in batch)


def test_nulls_in_lists_of_images_are_errors_of_their_samples() -> None:
    one = {"bytes": jpeg_bytes(0), "path": None}
    nothing = {"bytes": None, "path": None}
    dataset = Dataset.from_dict(
        {"views": [[one], None, [one, None], [one, nothing], []]},
        features=Features({"views": List(Image())}),
    )
    with fastio.open(dataset) as opened:
        assert [len(opened[row]["views"]) for row in (0, 4)] == [1, 0]
        for row, problem in ((1, "is null"), (2, "image 1 of 'views'"), (3, "image 1 of 'views'")):
            with pytest.raises(ImageError, match=problem):
                opened[row]
    transforms = {"views": [Resize((16, 16))]}
    with Loader(dataset, 5, transforms=transforms, on_error="skip") as loader:
        assert [len(batch["views"]) for batch in loader] == [2]


def test_images_in_lists_of_dicts_are_refused_by_name() -> None:
    one = {"bytes": jpeg_bytes(0), "path": None}
    features = Features(
        {
            "crops": List({"image": Image(), "n": Value("int64")}),
            "grid": List(List(Image())),
            "k": Value("int64"),
        }
    )
    dataset = Dataset.from_dict(
        {"crops": [[{"image": one, "n": 1}]], "grid": [[[one]]], "k": [3]}, features=features
    )
    for options, name in (
        ({}, "crops.image"),
        ({"columns": ["k", "grid"]}, "grid"),
        ({"columns": ["crops"]}, "crops.image"),
        ({"columns": ["crops.image"]}, "crops.image"),
    ):
        with pytest.raises(SchemaError, match=f"'{name}' contains images in lists of"):
            open_loader(dataset, 1, **options)  # type: ignore[arg-type]
    batch = batch_of(dataset, columns=["k", "crops.n"], ragged="list")
    assert (batch["k"].tolist(), plain(batch["crops_n"])) == ([3], [[1]])


@pytest.mark.parametrize("limit", [0, 300, 2**31 - 1])
@pytest.mark.parametrize("batches", [1, 7])
def test_rows_beyond_what_narrow_offsets_reach(
    batches: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is 2 GiB, of which a test has no use: it is lowered, and wide offsets are seen."""
    monkeypatch.setattr("fastio.sources.hugging_face.rows._NARROW_BYTES", limit)
    rng = np.random.default_rng(0)
    values = [
        {
            "text": "é" * int(rng.integers(9)),
            "data": bytes(int(rng.integers(9))),
            "list": [[1] * int(rng.integers(4))],
            "pair": {"a": "x" * int(rng.integers(9)), "b": row},
            "fixed": ["a", "bc" * int(rng.integers(3))],
            "none": None if row % 3 else "x",
        }
        for row in range(70)
    ]
    inside = pa.list_(pa.list_(pa.int32()))
    kinds = [pa.string(), pa.binary(), inside, pa.struct({"a": pa.string(), "b": pa.int64()})]
    kinds += [pa.list_(pa.string(), 2), pa.string()]
    schema = pa.schema(list(zip(values[0], kinds, strict=True)))
    table = pa.Table.from_pylist(values, schema)
    checked = Checked("table")
    parts = enumerate(table.to_batches(max_chunksize=70 // batches))
    rows = SelectedRows(
        schema, [StoredBatch(part, number, checked) for number, part in parts], None
    )
    for wanted in (rng.permutation(70), rng.integers(0, 70, 200), np.array([5])):
        taken = rows.take(schema.names, wanted)
        taken.validate(full=True)
        assert taken.to_pylist() == [values[row] for row in wanted.tolist()]
        wide = len(wanted) > 70 or (batches > 1 and len(wanted) > 1)
        text = pa.large_string() if limit < 2**31 - 1 and wide else pa.string()
        assert taken.schema.field("text").type == text


# --- Images ---------------------------------------------------------------------------------------


def test_images_are_those_of_the_same_files_in_a_folder(tmp_path: Path) -> None:
    """Crops are drawn by the row, so that all pixels are the same, however images are kept."""
    rows = 12
    for row in range(rows):
        path = tmp_path / "folder" / NAMES[0] / f"{row:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg_bytes(row))
    crops = [RandomResizedCrop(8)]
    options: dict[str, Any] = {"transforms": crops, "shuffle": True, "num_workers": 2, "seed": 0}
    files = [str(tmp_path / "folder" / NAMES[0] / f"{row:02}.jpg") for row in range(rows)]
    by_path = Dataset.from_dict({"image": files}, features=Features({"image": Image()}))
    in_memory = image_dataset(rows).select_columns(["image"])
    with open_loader(FolderDataset(tmp_path / "folder"), 5, **options) as loader:
        wanted = [images for images, _ in loader]
    for source in [by_path, *both(in_memory, tmp_path)]:
        with open_loader(source, 5, **options) as loader:
            found = [batch["image"] for batch in loader]
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)), source


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
def test_images_of_any_kind_are_what_the_package_decodes(kind: str, tmp_path: Path) -> None:
    files = [save(picture(9, 11, n), kind) for n in range(6)]
    dataset = Dataset.from_dict(
        {"image": [{"bytes": data, "path": None} for data in files]},
        features=Features({"image": Image()}),
    )
    for source in both(dataset, tmp_path):
        images = batch_of(source)["image"]
        for row, image in enumerate(images):
            wanted = np.array(dataset[row]["image"].convert("RGB"))
            assert np.array_equal(image.permute(1, 2, 0).numpy(), wanted)


def test_jpegs_and_others_may_be_mixed() -> None:
    files = [save(picture(9, 11, n), "JPEG" if n % 2 else "PNG") for n in range(40)]
    dataset = Dataset.from_dict({"image": [{"bytes": data, "path": None} for data in files]})
    dataset = dataset.cast_column("image", Image())
    images = batch_of(dataset, transforms=CROP)["image"]
    assert images.shape == (40, 3, 16, 16)
    assert len(torch.unique(images.flatten(1), dim=0)) == 40


def test_closing_lets_go_of_all_descriptors() -> None:
    """Images in memory are copied to files without names, which nobody else closes."""

    def unnamed() -> int:
        found = 0
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # one that is closed by now, as that of this directory is
                found += "memfd:fastio" in os.readlink(f"/proc/self/fd/{number}")
        return found

    dataset = image_dataset(3).select_columns(["image"])
    gc.collect()
    before = unnamed()
    kept: list[Any] = []
    for _ in range(20):
        loader = Loader(dataset, 1, num_workers=1)
        next(iter(loader))
        loader.close()
        opened = HuggingFaceDataset(dataset)
        opened.image_reads("image", np.arange(3))
        assert unnamed() > before
        opened.close()
        kept += [loader, opened]
        assert unnamed() == before
    assert len(kept) == 40


def test_a_closed_dataset_gives_no_places_of_images() -> None:
    """The numbers of its descriptors are other files' by then."""
    opened = HuggingFaceDataset(image_dataset(3))
    opened.image_reads("image", np.arange(3))
    opened.close()
    with pytest.raises(DatasetClosed, match="closed"):
        opened.image_reads("image", np.arange(3))
    with pytest.raises(DatasetClosed, match="closed"):
        opened.image("image", 0)


def test_gray_images_are_delivered_gray_where_the_feature_says_so() -> None:
    files = [{"bytes": save(picture(9, 11), "PNG"), "path": None}]
    dataset = Dataset.from_dict({"image": files}, features=Features({"image": Image(mode="L")}))
    assert batch_of(dataset)["image"].shape == (1, 1, 9, 11)


def test_images_in_structs_and_several_fields_of_them(tmp_path: Path) -> None:
    features = Features({"pair": {"a": Image(), "n": Value("int64")}, "b": Image()})
    a, b = picture(9, 11, 1), picture(7, 5, 2)
    dataset = Dataset.from_list([{"pair": {"a": a, "n": 4}, "b": b}] * 2, features=features)
    for source in both(dataset, tmp_path):
        batch = batch_of(source)
        assert list(batch) == ["pair_a", "pair_n", "b"]
        assert np.array_equal(batch["pair_a"][1].permute(1, 2, 0).numpy(), np.array(a))
        assert np.array_equal(batch["b"][1].permute(1, 2, 0).numpy(), np.array(b))
        assert batch["pair_n"].tolist() == [4, 4]


def broken_images(tmp_path: Path) -> Dataset:
    """A good image, one without anything, one of which the file is missing, one that is text."""
    images = [
        {"bytes": jpeg_bytes(0), "path": None},
        {"bytes": None, "path": None},
        {"bytes": None, "path": str(tmp_path / "gone.jpg")},
        {"bytes": b"text", "path": None},
        None,
    ]
    return Dataset.from_dict({"image": images}).cast_column("image", Image(decode=False))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (1, "neither bytes nor a path"),
        (2, "No such file"),
        (3, "cannot identify|not an image|no image"),
        (4, "neither bytes nor a path"),
    ],
)
def test_an_image_that_is_not_there_is_named_by_row(row: int, reason: str, tmp_path: Path) -> None:
    dataset = broken_images(tmp_path).select([0, row])
    with (
        Loader(dataset, 2, transforms=CROP) as loader,
        pytest.raises(ImageError, match=reason) as caught,
    ):
        next(iter(loader))
    assert caught.value.row == 1


def test_images_that_are_not_there_can_be_left_out(tmp_path: Path) -> None:
    with Loader(broken_images(tmp_path), 5, transforms=CROP, on_error="skip") as loader:
        (batch,) = list(loader)
        assert batch["image"].shape[0] == 1
        assert [error.row for error in loader.batch.errors] == [1, 2, 3, 4]


def test_images_are_the_same_in_another_process(tmp_path: Path) -> None:
    for source in both(image_dataset(), tmp_path):
        with HuggingFaceDataset(source) as dataset:
            again = pickle.loads(pickle.dumps(dataset))
            assert again.fingerprint == dataset.fingerprint
            assert np.array_equal(again[3]["image"], dataset[3]["image"])
            again.close()


def test_boxes_come_with_their_images(tmp_path: Path) -> None:
    rows = image_rows(12)
    for source in both(image_dataset(), tmp_path):
        batch = batch_of(source, transforms=CROP)
        assert list(batch) == list(IMAGES)
        assert plain(batch["boxes"]) == [row["boxes"] for row in rows]
        assert batch["label"].tolist() == [row["label"] for row in rows]


def test_fields_and_columns_of_datasets_with_images(tmp_path: Path) -> None:
    folder = save_to(image_dataset(), tmp_path / "saved")
    assert list(batch_of(folder, fields=["label", "caption"])) == ["label", "caption"]
    assert list(batch_of(folder, columns=["caption", "label"])) == ["caption", "label"]
    batch = batch_of(folder, columns=["label", "image"], dtypes={"label": "int32"})
    assert list(batch) == ["label", "image"]
    assert batch["label"].dtype == torch.int32
    with pytest.raises(SchemaError, match="has no column 'colour'"):
        Loader(fastio.open(folder, columns=["colour"]), 2)
    with pytest.raises(SchemaError, match="'image' cannot have nulls"):
        Loader(fastio.open(folder, nulls={"image": 0}), 2)
    with pytest.raises(SchemaError, match=r"use ds.filter of the datasets package"):
        Loader(fastio.open(folder, filters=[("label", "=", 1)]), 2)


# --- Loaders --------------------------------------------------------------------------------------


def test_tables_are_grouped_cast_and_filtered(tmp_path: Path) -> None:
    for source in both(table_dataset(), tmp_path):
        batch = batch_of(
            source,
            groups={"both": ["number", "vector"]},
            dtypes={"both": "float32"},
            filters=[("label", "=", 1), ("number", ">", 50)],
        )
        wanted = [n for n in range(51, 100) if n % 3 == 1]
        assert batch["both"][:, 0].tolist() == wanted
        assert batch["both"].shape == (len(wanted), 4)


@pytest.mark.parametrize("make", [table_dataset, image_dataset])
def test_a_loader_goes_on_exactly_where_it_was(make: Callable[[], Dataset], tmp_path: Path) -> None:
    for source in both(make().shuffle(seed=3), tmp_path):
        options: dict[str, Any] = {"shuffle": True, "fields": ["label"], "seed": 5}
        with open_loader(source, 5, **options) as loader:
            batches = iter(loader)
            next(batches)
            state = loader.state_dict()
            wanted = [batch["label"].tolist() for batch in batches]
        with open_loader(source, 5, **options) as loader:
            loader.load_state_dict(state)
            assert [batch["label"].tolist() for batch in loader] == wanted


def test_samplers_choose_rows(tmp_path: Path) -> None:
    for source in both(table_dataset(), tmp_path):
        with Loader(source, 2, sampler=[5, 3, 8]) as loader:
            assert [batch["number"].tolist() for batch in loader] == [[5, 3], [8]]


def test_other_data_have_another_fingerprint(tmp_path: Path) -> None:
    first = Loader(save_to(table_dataset(), tmp_path / "a"), 5)
    other = Loader(save_to(table_dataset(99), tmp_path / "b"), 5)
    assert first.state_dict()["fingerprint"] != other.state_dict()["fingerprint"]
    dataset = table_dataset()
    prints = {
        Loader(d, 5).state_dict()["fingerprint"]
        for d in (dataset, dataset.shuffle(seed=1), dataset.shuffle(seed=2), dataset.select([1]))
    }
    assert len(prints) == 4


def test_damaged_offsets_of_images_are_refused(tmp_path: Path) -> None:
    folder = save_to(image_dataset(), tmp_path / "saved")
    path = Path(folder, "data-00000-of-00001.arrow")
    lengths = [len(jpeg_bytes(row)) for row in range(12)]
    offsets = np.cumsum([0, *lengths], dtype=np.int32)
    whole = path.read_bytes()
    assert whole.count(offsets.tobytes()) == 1
    for place, value in ((3, -5), (12, 1 << 30)):
        damaged = offsets.copy()
        damaged[place] = value
        path.write_bytes(whole.replace(offsets.tobytes(), damaged.tobytes()))
        with pytest.raises(ShardCorrupt, match="column 'image' is damaged"):
            batch_of(folder, transforms=CROP)


# --- Arrow and Parquet files that the package wrote -----------------------------------------------


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_class_names_in_the_metadata_of_files_are_understood(kind: str, tmp_path: Path) -> None:
    dataset, path = table_dataset(), tmp_path / f"table.{kind}"
    if kind == "parquet":
        dataset.to_parquet(str(path))
    else:
        saved = save_to(dataset, tmp_path / "saved")
        path.write_bytes(Path(saved, "data-00000-of-00001.arrow").read_bytes())
    with Loader(path, 200) as loader:
        assert loader.dataset.schema.vocabularies == {"label": tuple(NAMES)}
        assert loader.dataset.schema.classes == tuple(NAMES)
        assert next(iter(loader))["label"].tolist() == dataset["label"][:]
    with fastio.open(path, columns=["number"]) as table:
        assert table.schema.vocabularies == {}
        assert table.schema.classes is None
    with Loader(fastio.open(path, dtypes={"label": "float32"}), 200) as loader:
        assert loader.dataset.schema.vocabularies == {}


def test_an_arrow_file_with_images_is_read_as_images(tmp_path: Path) -> None:
    saved = save_to(image_dataset(), tmp_path / "saved")
    path = tmp_path / "cache.arrow"
    path.write_bytes(Path(saved, "data-00000-of-00001.arrow").read_bytes())
    batch = batch_of(path, transforms=CROP)
    assert batch["image"].shape == (12, 3, 16, 16)
    assert batch["label"].tolist() == [row % 3 for row in range(12)]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ShardCorrupt, match=r"cache\.arrow"):
        Loader(path, 5)
