"""What strangers put into a folder: pipes, devices, circles of links, paths that lead elsewhere."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import fastio
from fastio import FastioError, ImageError, OptionError, SchemaError, ShardCorrupt
from fastio.cli import main
from tests.children import run_code
from tests.pictures import jpeg, write_folder
from tests.saved import Dataset, Features, save_to, table_dataset
from tests.tars import write_tars

KEY = b"-----BEGIN OPENSSH PRIVATE KEY-----"

# Each opens what may be a pipe, and would wait for its writer for ever.
STEPS = {
    "a sample": "fastio.open(path)[0]",
    "a loader": "list(fastio.Loader(path, 2, shuffle=False))",
    "a pack": "fastio.pack(path, out)",
    "text": "fastio.pack(path, out, tokenizer='bytes')",
    "a dataset": "fastio.open(path)[0]",
    "a check": "assert not [x for x in fastio.open(path).verify() if x.problem], 'damaged'",
}
SCRIPT = """
import sys
import fastio, fastio.sources
path, out = sys.argv[1:]
try:
    {step}
except (fastio.FastioError, AssertionError) as error:
    print(type(error).__name__, error)
"""


def told(step: str, path: Path, *, ended: bool = True) -> str:
    """What a process says that meets what is no file; it ends, and says something."""
    code = SCRIPT.format(step=STEPS[step])
    done = run_code(code, path, path.parent / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout, "no error"
    return done.stdout


def with_pipe(path: Path) -> Path:
    """A pipe in the place of a file."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("step", ["a sample", "a loader", "a pack"])
def test_a_pipe_among_images_is_named(step: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "images", 1, 2)
    with_pipe(tmp_path / "images" / "class0" / "0.jpg")
    assert "0.jpg" in (said := told(step, tmp_path / "images"))
    assert "regular file" in said


@pytest.mark.parametrize("ending", [".wav", ".npy", ".npz"])
def test_a_pipe_among_sounds_and_arrays_is_named(ending: str, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    with_pipe(tmp_path / "files" / f"0{ending}")
    assert "regular file" in told("a pack", tmp_path / "files")


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.csv", "t.jsonl"])
def test_a_pipe_in_the_place_of_a_table_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    with_pipe(tmp_path / "tables" / name)
    assert "regular file" in told("a dataset", tmp_path / "tables")


def test_a_pipe_in_the_place_of_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    with_pipe(tmp_path / "texts" / "a.txt")
    assert "regular file" in told("text", tmp_path / "texts")


def test_a_pipe_in_the_place_of_a_tar_is_named(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars")
    first = min((tmp_path / "tars").iterdir())
    assert first.name in told("a dataset", with_pipe(first).parent)


@pytest.mark.parametrize("step", ["a dataset", "a check"])
def test_a_pipe_in_the_place_of_a_shard_is_named(step: str, tmp_path: Path) -> None:
    fastio.pack([1, 2, 3], tmp_path / "packed")
    with_pipe(tmp_path / "packed" / "shard-000000.arrow")
    assert told(step, tmp_path / "packed")


def test_a_device_in_a_list_is_named(tmp_path: Path) -> None:
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    (tmp_path / "list.csv").write_text("path\nzero.jpg\n")
    with pytest.raises(ImageError, match="zero"):
        fastio.pack(tmp_path / "list.csv", tmp_path / "out", roots=["/dev"])


def test_what_is_no_file_is_skipped_and_counted_where_that_is_wanted(tmp_path: Path) -> None:
    write_folder(tmp_path / "images", 1, 3)
    with_pipe(tmp_path / "images" / "class0" / "0.jpg")
    (tmp_path / "images" / "class0" / "1.jpg").unlink()
    (tmp_path / "images" / "class0" / "1.jpg").symlink_to("/dev/zero")
    report = fastio.pack(tmp_path / "images", tmp_path / "out", on_error="skip")
    assert (report.rows, len(report.skipped)) == (1, 2)


CIRCLES = {
    "to the root": {"class0/more": ""},
    "to itself": {"class0/more": "class0"},
    "a class of the root": {"more": ""},
    "two classes": {"class0/more": "class1", "class1/more": "class0"},
}


@pytest.mark.parametrize("links", CIRCLES.values(), ids=CIRCLES.keys())
@pytest.mark.parametrize("ending", [".jpg", ".wav", ".npy"])
def test_a_circle_of_links_in_a_folder_is_named(
    tmp_path: Path, links: dict[str, str], ending: str
) -> None:
    root = tmp_path / "files"
    for label in range(2):
        (root / f"class{label}").mkdir(parents=True)
        (root / f"class{label}" / f"zz{ending}").write_bytes(b"")
    for link, target in links.items():
        (root / link).symlink_to(root / target)
    with pytest.raises(FastioError, match=r"more.*folder that contains it.*delete the link"):
        fastio.pack(root, tmp_path / "out") if ending == ".npy" else fastio.Loader(root, 1)


def test_a_link_to_itself_is_an_error_of_its_sample(tmp_path: Path) -> None:
    write_folder(tmp_path / "images", 1, 3)
    (tmp_path / "images" / "class0" / "1.jpg").unlink()
    (tmp_path / "images" / "class0" / "1.jpg").symlink_to("1.jpg")
    with pytest.raises(ImageError, match=r"1\.jpg.*symbolic links"):
        list(fastio.Loader(tmp_path / "images", 3))
    with fastio.Loader(tmp_path / "images", 3, on_error="skip") as loader:
        assert [len(labels) for _, labels in loader] == [2]


def test_a_folder_of_links_is_read_wherever_they_lead(tmp_path: Path) -> None:
    """As subsets of large datasets are made: the user's own folder names no file by its data."""
    images = write_folder(tmp_path / "images", 2, 2)
    subset = tmp_path / "subset"
    (subset / "a").mkdir(parents=True)
    (subset / "a" / "one.jpg").symlink_to(images / "class0" / "1.jpg")
    (subset / "b").symlink_to(images / "class1")
    with fastio.open(subset) as dataset, fastio.open(images) as whole:
        assert len(dataset) == 3
        np.testing.assert_array_equal(dataset[0][0], whole[1][0])
        np.testing.assert_array_equal(dataset[2][0], whole[3][0])
    assert fastio.pack(subset, tmp_path / "packed").rows == 3


# --- Paths in data --------------------------------------------------------------------------------


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A file of the user's that no dataset is to name."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "id_ed25519").write_bytes(KEY)
    return tmp_path / "home" / "id_ed25519"


def saved(folder: Path, column: str, path: str) -> Path:
    """A directory as `save_to_disk` would write it, with a path and no bytes in its only row."""
    import datasets

    feature = {"audio": datasets.Audio(decode=False), "image": datasets.Image(decode=False)}[column]
    made = Dataset.from_dict({column: [{"bytes": b"x", "path": "x"}]})
    made.cast_column(column, feature).save_to_disk(str(folder))
    (file,) = folder.glob("*.arrow")
    with pa.ipc.open_stream(file) as stream:
        schema = stream.schema
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = pa.array([{"bytes": None, "path": path}], kind)
    with pa.ipc.new_stream(file, schema) as out:
        out.write_batch(pa.RecordBatch.from_arrays([rows], schema=schema))
    return folder


def test_a_sound_outside_of_a_saved_dataset_is_not_packed(tmp_path: Path, key: Path) -> None:
    folder = saved(tmp_path / "data", "audio", str(key))
    with pytest.raises(FastioError, match=r"id_ed25519.*roots"):
        fastio.pack(folder, tmp_path / "out")
    for file in tmp_path.rglob("*"):
        assert file == key or not file.is_file() or KEY not in file.read_bytes()


@pytest.mark.parametrize("how", ["absolute", "dots", "link"])
def test_no_path_leads_out_of_a_saved_dataset(how: str, tmp_path: Path, key: Path) -> None:
    path = {"absolute": str(key), "dots": "../home/id_ed25519", "link": "innocent.wav"}[how]
    folder = saved(tmp_path / "data", "audio", path)
    (folder / "innocent.wav").symlink_to(key)
    with fastio.open(folder) as opened, pytest.raises(SchemaError, match="outside"):
        opened[0]
    with fastio.Loader(folder, 1) as loader, pytest.raises(FastioError, match="outside"):
        list(loader)


def test_an_image_outside_of_a_saved_dataset_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(jpeg())
    folder = saved(tmp_path / "data", "image", str(tmp_path / "photo.jpg"))
    with fastio.open(folder) as opened, pytest.raises(ImageError, match="outside"):
        opened[0]
    with fastio.Loader(folder, 1) as loader, pytest.raises(ImageError, match="outside"):
        list(loader)
    with pytest.raises(ImageError, match="outside"):
        fastio.pack(folder, tmp_path / "out")


def test_files_below_a_saved_dataset_and_below_roots_are_read(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(jpeg())
    for path in (str(tmp_path / "photo.jpg"), "photo.jpg"):
        folder = saved(tmp_path / f"data{len(path)}", "image", path)
        with fastio.open(folder, roots=[tmp_path]) as opened:
            assert opened[0]["image"].shape == (24, 32, 3)
            with fastio.Loader(opened, 1) as loader:
                assert next(iter(loader))["image"].shape[0] == 1
    (folder / "inside.jpg").write_bytes(jpeg())
    inside = saved(tmp_path / "data", "image", "inside.jpg")
    (inside / "inside.jpg").write_bytes(jpeg())
    with fastio.open(inside) as opened:
        assert opened[0]["image"].shape == (24, 32, 3)


def test_commands_read_the_files_of_a_saved_dataset_below_roots(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(jpeg())
    folder = saved(tmp_path / "data", "image", str(tmp_path / "photo.jpg"))
    for command in (["verify", "--deep"], ["show", "--out", str(tmp_path / "sheet.png")]):
        refused = CliRunner().invoke(main, [*command, str(folder)])
        assert refused.exit_code == 1
        assert "--root" in refused.output
        done = CliRunner().invoke(main, [*command, "--root", str(tmp_path), str(folder)])
        assert done.exit_code == 0, done.output
    (tmp_path / "photo.jpg").write_bytes(jpeg()[:40])
    options = ["--root", str(tmp_path / "data"), "--root", str(tmp_path), str(folder)]
    assert CliRunner().invoke(main, ["verify", *options]).exit_code == 0
    assert CliRunner().invoke(main, ["verify", "--deep", *options]).exit_code == 1


def test_a_list_names_files_below_its_folder_and_below_roots(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(jpeg())
    (tmp_path / "lists").mkdir()
    for text in (str(tmp_path / "photo.jpg"), "../photo.jpg"):
        (tmp_path / "lists" / "list.csv").write_text(f"path\n{text}\n")
        with pytest.raises(ImageError, match=r"outside.*roots"):
            fastio.pack(tmp_path / "lists" / "list.csv", tmp_path / "out", overwrite=True)
        done = fastio.pack(
            tmp_path / "lists" / "list.csv", tmp_path / "out", overwrite=True, roots=[tmp_path]
        )
        assert done.rows == 1


def test_a_list_given_in_python_names_what_it_wants(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(jpeg())
    paths: Any = {"image": [str(tmp_path / "photo.jpg")]}
    import datasets

    own = Dataset.from_dict(paths, features=Features({"image": datasets.Image()}))
    with fastio.Loader(own, 1) as loader:
        assert next(iter(loader))["image"].shape[0] == 1


def test_roots_are_refused_where_data_name_no_files(tmp_path: Path) -> None:
    write_folder(tmp_path / "images", 1, 1)
    pq.write_table(pa.table({"x": np.arange(3)}), tmp_path / "t.parquet")
    for source in (tmp_path / "images", tmp_path / "t.parquet"):
        with pytest.raises(OptionError, match="roots can only be used"):
            fastio.pack(source, tmp_path / "out", roots=[tmp_path])
    with pytest.raises(ValueError, match="roots must be a list"):
        fastio.open(saved(tmp_path / "data", "image", "x"), roots=str(tmp_path))


@pytest.mark.usefixtures("short_probes")
def test_names_that_are_no_utf8_are_read(tmp_path: Path) -> None:
    """Python holds such a name with surrogates, which neither nanobind nor pyarrow encodes."""
    folder = tmp_path / os.fsdecode(b"a\xff")
    (folder / "images" / os.fsdecode(b"\xff")).mkdir(parents=True)
    image = folder / "images" / os.fsdecode(b"\xff") / os.fsdecode(b"\xff.jpg")
    image.write_bytes(jpeg(40, 40))
    fastio.pack(folder / "images", folder / "packed")
    with (folder / "t.parquet").open("wb") as file:
        pq.write_table(pa.table({"n": [1]}), file)
    fastio.pack(folder / "t.parquet", folder / "table")
    (folder / "a.csv").write_text("n\n1\n")
    with gzip.open(folder / "b.csv.gz", "wt") as text:
        text.write("n\n1\n")
    (folder / "a.jsonl").write_text('{"text": "a"}\n')
    fastio.pack(folder / "a.jsonl", folder / "tokens", tokenizer="bytes")
    for name in ("images", "packed", "t.parquet", "table", "a.csv", "b.csv.gz", "tokens"):
        with fastio.Loader(folder / name, 1, num_workers=1) as loader:
            assert len(list(loader)) == 1, name
    for name in ("images", "t.parquet"):
        done = CliRunner().invoke(main, ["doctor", str(folder / name), "--json"])
        assert done.exception is None or isinstance(done.exception, SystemExit), name


@pytest.mark.parametrize("key", ["_data_files", "_indices_data_files"])
@pytest.mark.parametrize("named", ["../x.arrow", "a/../../x.arrow", "{root}/x.arrow"])
def test_a_saved_dataset_names_no_tables_outside_of_it(
    key: str, named: str, tmp_path: Path
) -> None:
    folder = Path(save_to(table_dataset(9), tmp_path / "saved"))
    shutil.copyfile(next(folder.glob("*.arrow")), tmp_path / "x.arrow")
    (folder / "a").mkdir()
    state = json.loads((folder / "state.json").read_text())
    state[key] = [{"filename": named.format(root=tmp_path)}]
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(ShardCorrupt, match=r"state\.json names the file .*x\.arrow"):
        fastio.open(folder)
    with pytest.raises(ShardCorrupt, match=r"state\.json names the file .*x\.arrow"):
        fastio.pack(folder, tmp_path / "out")
