"""What was opened by a relative path is read after the working directory has changed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import fastio
from fastio.cli import main
from tests.pictures import jpeg, write_folder
from tests.support import contents, import_torchvision
from tests.tars import write_tars


def images(name: str) -> Any:
    write_folder(Path(name))
    return fastio.open(name)


def image_folder_of_torchvision(name: str) -> Any:
    write_folder(Path(name))
    return import_torchvision().datasets.ImageFolder(name)


def joined_image_folders(name: str) -> Any:
    folders = []
    for part in ("a", f"./{name}/b"):
        write_folder(Path(part))
        folders.append(import_torchvision().datasets.ImageFolder(part))
    return torch.utils.data.ConcatDataset(folders)


def sounds(name: str) -> Any:
    for number in range(6):
        path = Path(name, str(number % 2), f"{number}.wav")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * 8)
    return fastio.open(name)


def packed_images(name: str) -> Any:
    fastio.pack(write_folder(Path("images")), name, shard_size=2500)
    return fastio.open(name)


def tars(name: str) -> Any:
    write_tars(Path(name))
    return fastio.open(name)


def columns() -> pa.Table:
    return pa.table({"x": np.arange(90.0), "word": [f"word {n}" for n in range(90)]})


def parquet(name: str) -> Any:
    for part in range(2):
        path = Path(f"{name}/day={part}/0.parquet")
        path.parent.mkdir(parents=True)
        pq.write_table(columns(), path, row_group_size=20)
    return fastio.open(f"{name}/*/*.parquet")


def arrow(name: str) -> Any:
    table = columns()
    with pa.ipc.new_file(f"{name}.arrow", table.schema) as writer:
        writer.write_table(table, 20)
    return fastio.open(f"{name}.arrow")


def lines(name: str) -> Any:
    Path(f"{name}.jsonl").write_text("".join(json.dumps({"x": n}) + "\n" for n in range(90)))
    return fastio.open(f"{name}.jsonl")


def images_in_a_table(name: str) -> Any:
    rows = [{"bytes": jpeg(seed=n), "path": None} for n in range(12)]
    pq.write_table(pa.table({"image": rows}), f"{name}.parquet", row_group_size=3)
    return fastio.open(f"{name}.parquet")


def saved_by_datasets(name: str) -> Any:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"x": list(range(90))}).save_to_disk(name)
    return fastio.open(name)


def tokens(name: str) -> Any:
    np.arange(500, dtype=np.uint16).tofile(f"{name}.bin")
    return fastio.open(f"{name}.bin", dtypes={"tokens": "uint16"})


MAKERS = [
    images,
    image_folder_of_torchvision,
    joined_image_folders,
    sounds,
    packed_images,
    tars,
    parquet,
    arrow,
    lines,
]
MAKERS += [packed_images, tars, parquet, arrow, lines, images_in_a_table, saved_by_datasets, tokens]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """The working directory is one of the test's; the function goes to another one."""
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda: monkeypatch.chdir(tmp_path / "elsewhere")


def count(loader: Any) -> int:
    return sum(map(len, loader))


@pytest.mark.parametrize("make", MAKERS)
def test_a_loader_reads_on(make: Callable[[str], Any], elsewhere: Callable[[], None]) -> None:
    data = make("data")
    options = {"num_workers": 1, "collate_fn": list}
    with (
        fastio.Loader(data, 3, **options) as begun,
        fastio.Loader(data, 3, shuffle=True, **options) as loader,
    ):
        batches = iter(begun)
        next(batches)
        elsewhere()
        assert count(batches) == max(0, len(data) - 3)
        assert count(loader) == len(data)
        assert count(loader) == len(data)


OWN = [each for each in MAKERS if each not in (image_folder_of_torchvision, joined_image_folders)]


@pytest.mark.parametrize("make", OWN)
def test_a_process_that_is_started_later_opens_it_again(
    make: Callable[[str], Any], elsewhere: Callable[[], None], tmp_path: Path
) -> None:
    data = make("data")
    before = pickle.dumps(data)
    elsewhere()
    for sent in (before, pickle.dumps(data)):
        with pickle.loads(sent) as found:
            assert len(found) == len(data)
            found[0]
    if not isinstance(data, fastio.Dataset):
        assert fastio.pack(data, tmp_path / "packed").rows == len(data)


def test_a_writer_writes_on(elsewhere: Callable[[], None], tmp_path: Path) -> None:
    schema = fastio.Schema({"x": fastio.Scalar("int64")}, "single")
    with fastio.Writer("packed", schema, shard_size=8) as writer:
        writer.write(1)
        elsewhere()
        writer.write(2)
    assert [int(x) for x in fastio.Dataset(tmp_path / "here" / "packed")] == [1, 2]


def test_worker_processes_of_torch_read_it(elsewhere: Callable[[], None]) -> None:
    loader = torch.utils.data.DataLoader(
        packed_images("data"),
        num_workers=1,
        collate_fn=list,
        multiprocessing_context="spawn",
    )
    elsewhere()
    assert count(loader) == 15


def test_folders_above_the_working_directory_give_no_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run=3").mkdir()
    monkeypatch.chdir(tmp_path / "run=3")
    with parquet("data") as data:
        assert list(data.schema.fields) == ["x", "word", "day"]


@pytest.mark.parametrize("make", [images, packed_images, tars, arrow, saved_by_datasets])
def test_commands_name_the_path_that_was_given(
    make: Callable[[str], Any], elsewhere: Callable[[], None]
) -> None:
    with make("data"):
        name = "data.arrow" if make is arrow else "data"
        found = CliRunner().invoke(main, ["info", name, "--json"])
        assert json.loads(found.stdout)["path"] == name
        assert f"\n{name}: " in f"\n{CliRunner().invoke(main, ['verify', name]).stdout}"


@pytest.fixture
def through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """The function returns the folder that the kernel calls link/../NAME; NAME is another one."""
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "real" / "deep")
    monkeypatch.chdir(tmp_path / "here")
    return lambda name: tmp_path / "real" / name


@pytest.mark.parametrize("make", OWN)
def test_a_folder_above_a_link_is_the_one_of_the_kernel(
    make: Callable[[str], Any], through_a_link: Callable[[str], Path]
) -> None:
    with make("link/../data") as data:
        assert list(through_a_link("").glob("data*"))
        data[0]
        with pickle.loads(pickle.dumps(data)) as again:
            again[0]


def test_packs_and_gc_change_only_the_folder_of_the_kernel(
    through_a_link: Callable[[str], Path],
) -> None:
    there, textual, given = through_a_link("data"), Path("data"), "link/../data"
    fastio.pack([7, 8], textual)
    before = contents(textual)

    def rows() -> list[int]:
        with fastio.Dataset(given) as dataset:
            return [int(row) for row in dataset]

    fastio.pack([1, 2], given)
    assert rows() == [1, 2]
    fastio.pack([3], given, append=True)
    assert fastio.gc(given, keep=1).versions == [1]
    assert rows() == [1, 2, 3]
    (there / "shard-000009.arrow").touch()
    assert fastio.gc(given).files == 1
    assert rows() == [1, 2, 3]
    fastio.pack([4], given, overwrite=True)
    assert rows() == [4]
    assert contents(textual) == before


def test_image_folders_above_a_link_are_those_of_the_kernel(
    through_a_link: Callable[[str], Path],
) -> None:
    joined = joined_image_folders("link/..")
    with fastio.Loader(joined, 3, num_workers=1, collate_fn=list) as loader:
        assert count(loader) == len(joined)
