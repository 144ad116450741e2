"""CSV and JSONL lists of images become datasets, and a line that is wrong is named."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastio import (
    Dataset,
    Image,
    ImageError,
    OptionError,
    PackError,
    SampleError,
    Scalar,
    Schema,
    SchemaError,
    SourceNotFound,
    Text,
    pack,
)
from fastio import Dataset as open_dataset
from fastio.errors import SourceChanged
from fastio.pack import lists
from tests.object_server import ObjectServer, object_server
from tests.pictures import decoded, jpeg


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with four images, for lists in it."""
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    for number, name in enumerate(["a.jpg", "sub/b.jpg", "c, d.jpg", "größe.jpg"]):
        (folder / name).write_bytes(jpeg(seed=number))
    return folder


def packed(folder: Path, text: str | bytes, suffix: str = "csv", **options: Any) -> Dataset:
    """A list packed and opened."""
    path = folder / f"list.{suffix}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    pack(path, folder.parent / "out", **options)
    return open_dataset(folder.parent / "out")


def jsonl(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_a_csv_list_gives_tuples_in_the_columns_order(folder: Path) -> None:
    dataset = packed(folder, "path,label,score\na.jpg,7,0.5\nsub/b.jpg,-3,2\n", codec="jpeg")
    fields = {"image": Image(), "label": Scalar("int64"), "score": Scalar("float64")}
    assert dataset.schema == Schema(fields, "tuple")
    image, *rest = dataset[1]
    np.testing.assert_array_equal(image, decoded((folder / "sub/b.jpg").read_bytes()))
    assert rest == [-3, 2.0]
    assert dataset.manifest.packing["source"] == "list.csv"


def test_a_jsonl_list_gives_dicts(folder: Path) -> None:
    records = [
        {"file": "a.jpg", "n": 1, "x": 1.5, "flag": True, "text": "ü"},
        {"n": 2, "file": "sub/b.jpg", "x": 2, "flag": False, "text": "5"},
    ]
    dataset = packed(folder, jsonl(*records) + "\n\n", "jsonl")
    assert dataset.schema.structure == "dict"
    assert list(dataset.schema.fields.values()) == [
        Image(), Scalar("int64"), Scalar("float64"), Scalar("bool"), Text(),
    ]  # fmt: skip
    found = dataset[1]
    assert (found["n"], found["x"], found["flag"], found["text"]) == (2, 2.0, False, "5")


@pytest.mark.parametrize("column", ["label", "class"])
def test_words_in_a_label_column_become_class_numbers(folder: Path, column: str) -> None:
    dataset = packed(folder, f"path,{column}\na.jpg,dog\nsub/b.jpg,cat\ngröße.jpg,dog\n")
    assert dataset.schema.fields[column] == Scalar("int64")
    assert dataset.classes == ("cat", "dog")
    assert [label for _, label in dataset] == [1, 0, 1]


def test_words_in_other_columns_stay_words(folder: Path) -> None:
    dataset = packed(folder, "path,colour\na.jpg,red\nsub/b.jpg,\n")
    assert dataset.classes is None
    assert [colour for _, colour in dataset] == ["red", ""]


@pytest.mark.parametrize("column", ["path", "filepath", "file_name", "file_path"])
def test_a_column_of_paths_goes_by_several_names(folder: Path, column: str) -> None:
    assert list(packed(folder, f"{column}\na.jpg\n").schema.fields) == ["image"]


@pytest.mark.parametrize(
    ("cells", "field", "value"),
    [
        (["1", "-2", "+3"], Scalar("int64"), 1),
        (["1 ", "2", "\t3"], Scalar("int64"), 1),
        (["1 ", "2.5 "], Scalar("float64"), 1.0),
        (["1", "2.5"], Scalar("float64"), 1.0),
        (["1e3", "-.5", "5."], Scalar("float64"), 1000.0),
        (["inf", "1"], Scalar("float64"), math.inf),
        (["007", "008"], Text(), "007"),
        (["1", "x"], Text(), "1"),
        (["9223372036854775807"], Scalar("int64"), 2**63 - 1),
        (["9223372036854775808"], Text(), "9223372036854775808"),
        (["1_000"], Text(), "1_000"),
        (["0x10"], Text(), "0x10"),
        (["0", "-0"], Scalar("int64"), 0),
        (["0.5"], Scalar("float64"), 0.5),
    ],
)
def test_cells_decide_a_column_s_type(
    folder: Path, cells: list[str], field: Any, value: Any
) -> None:
    dataset = packed(folder, "path,x\n" + "".join(f"a.jpg,{cell}\n" for cell in cells))
    assert dataset.schema.fields["x"] == field
    assert dataset[0][1] == value


@pytest.mark.parametrize(
    ("values", "field", "value"),
    [
        ([1, 2.5], Scalar("float64"), 1.0),
        ([1, "x"], Text(), "1"),
        ([True, 1], Text(), "true"),
        ([[1, 2]], Text(), "[1, 2]"),
        ([2**63], Text(), str(2**63)),
        (["5"], Text(), "5"),
    ],
)
def test_json_values_decide_a_column_s_type(
    folder: Path, values: list[Any], field: Any, value: Any
) -> None:
    records = [{"path": "a.jpg", "x": item} for item in values]
    dataset = packed(folder, jsonl(*records), "jsonl")
    assert dataset.schema.fields["x"] == field
    assert dataset[0]["x"] == value


def test_quotes_commas_and_spaces_are_csv_s(folder: Path) -> None:
    text = 'path, note\r\n"c, d.jpg", "say ""hi"""\r\n\r\ngröße.jpg,"two\nlines"\r\n'
    dataset = packed(folder, text)
    assert [note for _, note in dataset] == ['say "hi"', "two\nlines"]


def test_a_byte_order_mark_is_no_part_of_a_name(folder: Path) -> None:
    assert len(packed(folder, b"\xef\xbb\xbfpath\na.jpg\n")) == 1


def test_paths_may_be_absolute(folder: Path) -> None:
    assert len(packed(folder, f"path\n{folder / 'a.jpg'}\n")) == 1


def test_a_schema_overrides_what_the_columns_look_like(folder: Path) -> None:
    fields = {"image": Image("L"), "y": Scalar("float32"), "code": Text()}
    dataset = packed(folder, "y,path,code,left out\n1,a.jpg,7,x\n", schema=Schema(fields, "dict"))
    found = dataset[0]
    assert found["image"].shape == (24, 32, 1)
    assert found["y"].dtype == np.float32
    assert found["code"] == "7"


def test_a_schema_s_classes_number_the_words(folder: Path) -> None:
    schema = Schema({"image": Image(), "label": Scalar("int64")}, "tuple", ("dog", "cat"))
    dataset = packed(folder, "path,label\na.jpg,cat\nsub/b.jpg,dog\n", schema=schema)
    assert [label for _, label in dataset] == [1, 0]


def test_a_schema_may_name_two_columns_of_images(folder: Path) -> None:
    schema = Schema({"left": Image(), "right": Image()}, "tuple")
    dataset = packed(folder, "left,right\na.jpg,sub/b.jpg\n", schema=schema, codec="jpeg")
    left, right = dataset[0]
    np.testing.assert_array_equal(left, decoded((folder / "a.jpg").read_bytes()))
    np.testing.assert_array_equal(right, decoded((folder / "sub/b.jpg").read_bytes()))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("path,label\na.jpg\n", r"line 2: 1 cells, but the header has 2"),
        ("path,label\na.jpg,1,2\n", r"line 2: 3 cells"),
        ("path,path\na.jpg,a.jpg\n", r"two columns have the same name"),
        ("path,image\na.jpg,x\n", r"both a column 'path'"),
        ("path,x\na.jpg,1\na.jpg,\n", r"line 3: 'x' is empty, while the column holds int64"),
        ("path,label\na.jpg,cat\na.jpg,\n", r"line 3: the label is empty"),
        ("path,a.b\na.jpg,1\n", r"'a\.b' is not allowed"),
        ('path\n"a.jpg\n', r"is not CSV"),
        (b"path\n\xff\xfe.jpg\n", r"is not UTF-8"),
    ],
)
def test_a_csv_list_that_is_wrong_says_where(folder: Path, text: str | bytes, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason) as caught:
        packed(folder, text)
    assert "list.csv" in str(caught.value) or "not allowed" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"path": "a.jpg"}\n{"path": \n', r"line 2 is not JSON"),
        ('{"path": "a.jpg"}\n["a.jpg"]\n', r"line 2: expected a JSON object"),
        (jsonl({"path": "a.jpg", "n": 1}, {"path": "a.jpg"}), r"line 2 has the keys path;"),
        (jsonl({"path": "a.jpg", "n": 1}, {"path": "a.jpg", "n": None}), r"line 2: 'n' is null"),
        ("[" * 100_000, r"line 1 is not JSON"),
    ],
)
def test_a_jsonl_list_that_is_wrong_says_where(folder: Path, text: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        packed(folder, text, "jsonl")


@pytest.mark.parametrize("text", ["", "path\n", "path,label\n\n"])
def test_an_empty_list_is_an_error(folder: Path, text: str) -> None:
    with pytest.raises(PackError, match="nothing to pack"):
        packed(folder, text)


def test_a_listed_file_that_is_missing_is_named(folder: Path) -> None:
    with pytest.raises(ImageError, match=r"nothing\.jpg: .*No such file"):
        packed(folder, "path\na.jpg\nnothing.jpg\n")


def test_bad_lines_of_a_given_schema_can_be_skipped(folder: Path) -> None:
    path = folder / "list.csv"
    path.write_text("path,label,n\na.jpg,cat,1\na.jpg,cow,2\na.jpg,dog,x\nnothing.jpg,dog,3\n")
    fields = {"image": Image(), "label": Scalar("int64"), "n": Scalar("int8")}
    schema = Schema(fields, "tuple", ("cat", "dog"))
    report = pack(path, folder.parent / "out", schema=schema, on_error="skip")
    assert report.rows == 1
    reasons = [reason for _, reason in report.skipped]
    assert "line 3: 'cow' is not one of the schema's 2 classes" in reasons[0]
    assert "line 4: 'n' is 'x', expected int8" in reasons[1]
    assert "No such file" in reasons[2]


@pytest.mark.parametrize("field", [{"nothing": Text()}, {"label": Scalar("int64"), "b": Text()}])
def test_a_schema_s_fields_must_be_columns(folder: Path, field: Any) -> None:
    with pytest.raises(SchemaError, match="has no column"):
        packed(folder, "path,label\na.jpg,1\n", schema=Schema({"image": Image(), **field}))


def test_a_list_that_is_a_folder_is_no_list(tmp_path: Path) -> None:
    (tmp_path / "list.csv").mkdir()
    with pytest.raises(SourceNotFound, match="class folder"):
        pack(tmp_path / "list.csv", tmp_path / "out")


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_unit_of_a_list_does_not_read_the_lines_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, ending: str
) -> None:
    names = [f"{number}-\u00e9\u4e2d.jpg" for number in range(5000)]
    if suffix == "csv":  # with quoted line ends and empty lines, and a byte order mark
        rows = [f'"{name}","a{ending}b{number}"{ending}' for number, name in enumerate(names)]
        text = f"\ufeffpath,text{ending}" + ending.join(rows)
    else:
        dump = partial(json.dumps, ensure_ascii=False)
        text = ending.join(dump({"path": name, "text": name}) for name in names)
    path = tmp_path / f"list.{suffix}"
    path.write_bytes(text.encode())
    source = lists.list_source(str(path), None)
    whole = list(source.items(0))
    assert [Path(item.name).name for item in whole] == names
    following, nbytes = lists._Lines.__next__, 0

    def counted(lines: lists._Lines) -> str:
        nonlocal nbytes
        line = following(lines)
        nbytes += len(line.encode())
        return line

    monkeypatch.setattr(lists._Lines, "__next__", counted)
    for start in (0, 1, 1023, 1024, 1025, 2048, 4999, 5000):
        assert list(islice(source.items(start), 3)) == whole[start : start + 3]
    assert nbytes < len(text.encode())
    list(source.items(0))
    assert nbytes > len(text.encode())


def test_a_list_that_changes_while_it_is_packed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("path\n" + "a.jpg\n" * 3000)
    source = lists.list_source(str(path), None)
    path.write_text("path\n" + "ab.jpg\n" * 3000)
    with pytest.raises(SourceChanged, match=r"list\.csv has changed since this pack began"):
        next(source.items(2000))


# --- URLs -----------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    objects = {f"photos/{number}.jpg": jpeg(seed=number) for number in range(40)}
    with object_server(objects) as running:
        yield running


def listed(server: ObjectServer, path: Path, text: str, **options: Any) -> Any:
    """Packs a list in which {} stands for the folder of the photos; returns the report."""
    path.write_text(text.replace("{}", f"{server.url}/photos"))
    return pack(path, path.parent / "out", storage_options=server.options, **options)


def test_a_list_of_urls_is_read_from_the_store(server: ObjectServer, tmp_path: Path) -> None:
    lines = [
        f"{{}}/{number}.jpg,{'odd' if number % 2 else 'even'},{number}" for number in range(40)
    ]
    text = "\n".join(["path,label,n", *lines])
    assert listed(server, tmp_path / "list.csv", text, codec="jpeg").rows == 40
    asked = [request for request in server.requests() if request.startswith("GET")]
    assert sorted(set(asked)) == sorted(f"GET photos/{number}.jpg" for number in range(40))
    with open_dataset(tmp_path / "out") as dataset:
        assert dataset.classes == ("even", "odd")
        for row in (0, 7, 39):
            image, label, n = dataset[row]
            assert (label, n) == (row % 2, row)
            assert np.array_equal(image, decoded(jpeg(seed=row)))


def test_a_jsonl_list_may_have_two_columns_of_urls(server: ObjectServer, tmp_path: Path) -> None:
    text = jsonl(*({"left": f"{{}}/{n}.jpg", "right": f"{{}}/{n + 1}.jpg"} for n in range(5)))
    schema = Schema({"left": Image(), "right": Image()}, "dict")
    listed(server, tmp_path / "list.jsonl", text, codec="jpeg", schema=schema)
    with open_dataset(tmp_path / "out") as dataset:
        assert np.array_equal(dataset[4]["right"], decoded(jpeg(seed=5)))


def test_an_object_that_does_not_exist_is_a_bad_sample(
    server: ObjectServer, tmp_path: Path
) -> None:
    text = "path,n\n{}/1.jpg,1\n{}/no.jpg,2\n{}/3.jpg,3\n"
    with pytest.raises(SampleError, match=r"no\.jpg.*there is no such object"):
        listed(server, tmp_path / "list.csv", text)
    report = listed(server, tmp_path / "list.csv", text, on_error="skip", overwrite=True)
    assert report.rows == 2
    assert [name.rpartition("/")[2] for name, _ in report.skipped] == ["no.jpg"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("path\n{}/1.jpg\n2.jpg\n", "line 3: '2.jpg' is a path, but .* line 2 has a URL"),
        ("path\n1.jpg\n{}/2.jpg\n", "line 3: .*2.jpg' is a URL, but .* line 2 has a path"),
        ("path\n{}/1.jpg\ns3://other/2.jpg\n", "line 3: .* is in s3://other, but .* line 2 is in"),
    ],
)
def test_a_list_of_urls_that_do_not_go_together_names_the_line(
    server: ObjectServer, tmp_path: Path, text: str, reason: str
) -> None:
    first_is_url = text.startswith("path\n{}")
    path = tmp_path / "list.csv"
    path.write_text(text.replace("{}", f"{server.url}/photos"))
    options = {"storage_options": server.options} if first_is_url else {}
    with pytest.raises(SchemaError, match=reason):
        pack(path, tmp_path / "out", **options)


def test_many_urls_are_looked_up_in_a_listing(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastio.sources.stored_files._MOST_ASKED", 3)
    text = "path\n{}/1.jpg\n{}/2.jpg\n{}/no.jpg\n{}/4.jpg\n"
    report = listed(server, tmp_path / "list.csv", text, on_error="skip")
    assert report.rows == 3
    requests = server.requests()
    asked = [request for request in requests if request.startswith("HEAD photos")]
    assert asked == ["HEAD photos/no.jpg"]  # which the listing lacks
    assert any(request.startswith("LIST photos") for request in requests)


def test_a_pack_of_urls_is_resumed(server: ObjectServer, tmp_path: Path) -> None:
    text = "path\n" + "".join(f"{{}}/{number}.jpg\n" for number in range(40))
    server.put("photos/30.jpg", b"no image")
    with pytest.raises(ImageError):
        listed(server, tmp_path / "list.csv", text, shard_size="8KiB", codec="jpeg")
    server.put("photos/30.jpg", jpeg(seed=30))
    done = len(list((tmp_path / "out").glob("shard-*.arrow")))
    assert done
    server.requests()
    listed(server, tmp_path / "list.csv", text, shard_size="8KiB", codec="jpeg", resume=True)
    fetched = {request for request in server.requests() if request.startswith("GET photos/")}
    assert "GET photos/30.jpg" in fetched
    assert "GET photos/0.jpg" not in fetched  # it is in a unit that was finished
    with open_dataset(tmp_path / "out") as dataset:
        assert len(dataset) == 40
        assert np.array_equal(dataset[30][0], decoded(jpeg(seed=30)))


def test_options_of_a_store_need_urls(folder: Path) -> None:
    with pytest.raises(OptionError, match="can only be used with a URL"):
        packed(folder, "path\na.jpg\n", storage_options={"key": "a"})
