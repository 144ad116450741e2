"""What samples that are appended must have in common with a dataset, and what they inherit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import fastio
from fastio import (
    Dataset,
    DatasetNotFound,
    ManifestInvalid,
    OptionError,
    PackError,
    Scalar,
    Schema,
    SchemaError,
    SourceChanged,
    Tokens,
    Writer,
    gc,
    pack,
)
from fastio.cli import main
from fastio.packed import Manifest, version_name
from tests.pictures import jpeg, write_folder
from tests.support import contents

FIELDS = {"x": Scalar("int64"), "label": Scalar("int64")}


def schema_of(*classes: str) -> Schema:
    return Schema(FIELDS, classes=classes)


def labels(path: Path) -> list[int]:
    with fastio.open(path) as dataset:
        return [sample["label"] for sample in dataset]


def rows(*numbers: int) -> list[dict[str, int]]:
    return [{"x": 0, "label": number} for number in numbers]


# --- Classes and words ----------------------------------------------------------------------------


def test_two_classes_cannot_have_one_name() -> None:
    with pytest.raises(SchemaError, match="several classes have the name 'a'"):
        schema_of("a", "a", "b")


def test_words_that_occur_twice_keep_their_numbers(tmp_path: Path) -> None:
    def table(words: list[str]) -> pa.Table:
        indexes = pa.array(range(len(words)), pa.int32())
        return pa.table({"w": pa.DictionaryArray.from_arrays(indexes, pa.array(words))})

    pack(table(["a", "a", "b"]), tmp_path / "out")
    pack(table(["b", "c", "a"]), tmp_path / "out", append=True)
    with fastio.open(tmp_path / "out") as dataset:
        words = dataset.schema.vocabularies["w"]
        assert [words[sample["w"]] for sample in dataset] == ["a", "a", "b", "b", "c", "a"]


def test_an_appended_number_without_a_class_is_refused(tmp_path: Path) -> None:
    pack(rows(0, -1), tmp_path / "out", schema=schema_of("a", "b"))
    with pytest.raises(SchemaError, match=r"sample 1: no class or word has the number 7"):
        pack(rows(1, 7), tmp_path / "out", append=True)
    assert labels(tmp_path / "out") == [0, -1]


def test_a_number_without_a_class_of_its_source_is_refused(tmp_path: Path) -> None:
    pack(rows(0, 1, 2), tmp_path / "out", schema=schema_of("a", "b", "c"))
    with pytest.raises(SchemaError, match=r"sample 1: no class or word has the number 2"):
        pack(rows(0, 2), tmp_path / "out", append=True, schema=schema_of("a", "b"))


def test_numbers_of_no_class_are_kept(tmp_path: Path) -> None:
    pack(rows(0, -1), tmp_path / "out", schema=schema_of("a", "b"))
    pack(rows(0, 1, -1), tmp_path / "out", append=True, schema=schema_of("b", "c"))
    assert labels(tmp_path / "out") == [0, -1, 1, 2, -1]


def labelled(names: list[str], *numbers: int) -> pa.Table:
    """A table whose column of class numbers has names, as the datasets package writes them."""
    features = {"label": {"_type": "ClassLabel", "names": names}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.table({"label": pa.array(numbers, pa.int64())}).replace_schema_metadata(about)


def test_a_number_of_no_class_in_a_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(labelled(["a", "b"], 0, 1, -1, 2), path)
    with pytest.raises(
        SchemaError, match=r"rows\.parquet: column 'label', row 3: no class .* has the number 2"
    ):
        pack(path, tmp_path / "out")
    pack(labelled(["a", "b"], 0, 1, -1), tmp_path / "out")
    assert labels(tmp_path / "out") == [0, 1, -1]


@pytest.mark.parametrize("names", [["a", "b"], ["b", "a"], ["c", "a"]])
def test_an_appended_table_has_numbers_of_its_classes_only(
    tmp_path: Path, names: list[str]
) -> None:
    pack(labelled(["a", "b", "d"], 0, 1, -1), tmp_path / "out")
    with pytest.raises(SchemaError, match="row 1: no class or word has the number 2: there are 2"):
        pack(labelled(names, 1, 2), tmp_path / "out", append=True)
    assert labels(tmp_path / "out") == [0, 1, -1]
    pack(labelled(names, 1, -1), tmp_path / "out", append=True)
    with fastio.open(tmp_path / "out") as dataset:
        assert dataset.classes is not None
        assert dataset.classes[labels(tmp_path / "out")[3]] == names[1]


# --- Manifests ------------------------------------------------------------------------------------


def write(path: Path, sample: dict[str, Any]) -> None:
    with Writer(path, fastio.open(path).schema, append=True) as writer:
        writer.write(sample)


def append_samples(path: Path, sample: dict[str, Any]) -> None:
    pack([sample], path, append=True, schema=fastio.open(path).schema)


@pytest.mark.parametrize("append", [write, append_samples])
def test_samples_cannot_be_appended_to_a_table(
    tmp_path: Path, append: Callable[[Path, dict[str, Any]], None]
) -> None:
    table = pa.table({"x": [1.0, 2.0]})
    pack(table, tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(PackError, match="packed from a table"):
        append(tmp_path / "out", {"x": 100.0})
    assert contents(tmp_path / "out") == before
    pack(table, tmp_path / "out", append=True)


def test_a_tokenizer_is_kept_when_tokens_are_written(tmp_path: Path) -> None:
    pack(["hello", "world"], tmp_path / "out", tokenizer="bytes")
    made = Dataset(tmp_path / "out").manifest.packing["tokens"]
    field = Dataset(tmp_path / "out").schema.fields["tokens"]
    assert isinstance(field, Tokens)
    write(tmp_path / "out", {"tokens": np.array([1, 2, 256], field.dtype)})
    assert Dataset(tmp_path / "out").manifest.packing["tokens"] == made
    pack(["more"], tmp_path / "out", append=True, tokenizer="bytes")
    assert len(fastio.open(tmp_path / "out")) == 4


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("jpeg", 40, 50)),
        ({"quality": 60}, ("jpeg", 40, 60)),
        ({"max_side": 20}, ("jpeg", 20, 50)),
        ({"codec": "blocks"}, ("blocks", 40, 50)),
        ({"codec": "raw"}, ("raw", 40, None)),
    ],
)
def test_each_option_of_images_is_inherited_on_its_own(
    tmp_path: Path, given: dict[str, Any], expected: tuple[str, int, int | None]
) -> None:
    pack([jpeg(64, 48)], tmp_path / "out", codec="jpeg", max_side=40, quality=50)
    pack([jpeg(64, 48)], tmp_path / "out", append=True, **given)
    packing = Dataset(tmp_path / "out").manifest.packing
    assert tuple(packing[key] for key in ("codec", "max_side", "quality")) == expected


# --- Versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1", 1.0, True])
def test_a_version_is_an_integer(tmp_path: Path, version: Any) -> None:
    pack(range(5), tmp_path / "out")
    with pytest.raises(OptionError, match="version must be an integer"):
        fastio.open(tmp_path / "out", version=version)


def test_the_newest_version_can_become_an_older_one_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "out", Manifest._open
    pack(range(5), path)

    def read_and_appended(manifest: Manifest, file: str | None) -> None:
        read(manifest, file)
        monkeypatch.undo()
        pack(range(5), path, append=True)

    monkeypatch.setattr(Manifest, "_open", read_and_appended)
    assert len(fastio.open(path, version=1)) == 5
    assert len(fastio.open(path)) == 10


def test_a_damaged_version_is_named_and_can_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "out"
    for append in (False, True, True):
        pack(range(5), path, append=append)
    older = path / version_name(1)
    data = bytearray(older.read_bytes())
    data[1000] ^= 1
    older.unlink()  # a version's manifest may be a link to the same file
    older.write_bytes(data)
    with pytest.raises(ManifestInvalid, match=r"version 1 cannot be opened: .*gc .* --keep N"):
        fastio.open(path, version=1)
    gc(path, keep=2)
    pack(range(5), path, append=True)
    assert len(fastio.open(path)) == 20


def test_an_older_version_in_a_store_must_be_of_the_same_dataset(tmp_path: Path) -> None:
    for name in ("out", "other"):
        for append in (False, True):
            pack(range(len(name)), tmp_path / name, append=append)
    url = f"memory://{tmp_path.name}"
    files = {each.name: each.read_bytes() for each in (tmp_path / "out").iterdir()}
    files[version_name(1)] = (tmp_path / "other" / version_name(1)).read_bytes()
    memory = fsspec.filesystem("memory")
    for name, data in files.items():
        memory.pipe_file(f"/{tmp_path.name}/{name}", data)
    assert len(fastio.open(url)) == 6
    with pytest.raises(SourceChanged, match="is not version 1"):
        fastio.open(url, version=1)
    with pytest.raises(DatasetNotFound, match=r"no version 3: .* can be opened are 1, 2"):
        fastio.open(url, version=3)


def test_commands_name_the_version(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_folder(tmp_path / name, 2, 3)
    dst = str(tmp_path / "out")

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, list(words))
        assert done.exit_code == 0, done.output
        return " ".join(done.stdout.split())

    run("pack", str(tmp_path / "first"), dst, "-q")
    said = run("pack", str(tmp_path / "second"), dst, "--append")
    assert "6 samples in" in said
    assert said.endswith("version 2 has 12 samples")
    assert "version 1 (the newest one is 2)" in run("info", dst, "--version", "1")
    assert "added: second" in run("info", dst)
