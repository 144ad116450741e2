"""Every kind of source that a pack on one machine takes is packed on Ray, with the same bytes."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastio
from fastio.sources.packed import PACKED
from fastio.sources.registry import KINDS, find, kind_of
from tests.pictures import jpeg, write_folder
from tests.ray_support import local_ray
from tests.servers import S3
from tests.support import contents
from tests.tars import write_tars

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning",
        "ignore::FutureWarning",
        "ignore::DeprecationWarning",
        "ignore:lance is not fork-safe",
    ),
]


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    with local_ray() as ray:
        yield ray


def image_folder(folder: Path) -> Path:
    return write_folder(folder / "images", 2, 10)


def sound_folder(folder: Path) -> Path:
    for number in range(8):
        path = folder / "sounds" / f"class{number % 2}" / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(np.full(300, number, "<i2").tobytes())
    return folder / "sounds"


def tars(folder: Path) -> str:
    return write_tars(folder)


def table(rows: int = 2000) -> pa.Table:
    words = pa.array([f"w{number % 9}" for number in range(rows)]).dictionary_encode()
    texts = [f"{number} " * (number % 17) for number in range(rows)]
    return pa.table({"text": texts, "word": words, "x": np.arange(rows)})


def parquet(folder: Path) -> Path:
    (folder / "tables").mkdir()
    for number in range(2):
        part = table().slice(number * 1000, 1000)
        pq.write_table(part, folder / "tables" / f"{number}.parquet", row_group_size=80)
    return folder / "tables"


def partitioned(folder: Path) -> Path:
    for year in ("2023", "2024", "unknown"):
        (folder / "tables" / f"year={year}").mkdir(parents=True)
        pq.write_table(table(300), folder / "tables" / f"year={year}" / "a.parquet")
    return folder / "tables"


def arrow(folder: Path) -> Path:
    with pa.ipc.new_file(folder / "a.arrow", table().schema) as file:
        file.write_table(table().combine_chunks(), max_chunksize=100)
    return folder / "a.arrow"


def json_lines(folder: Path) -> Path:
    lines = [json.dumps({"text": "a" * (n % 30), "x": n}) for n in range(2000)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    return folder / "a.jsonl"


def csv(folder: Path) -> Path:
    (folder / "a.csv").write_text("x,y\n" + "".join(f"{n},b{n}\n" for n in range(2000)))
    return folder / "a.csv"


def lance(folder: Path) -> str:
    package = pytest.importorskip("lance")
    package.write_dataset(table().drop_columns(["word"]), str(folder / "a.lance"))
    return str(folder / "a.lance")


def image_list(folder: Path) -> Path:
    images = write_folder(folder / "images", 1, 12)
    paths = sorted(path.relative_to(folder) for path in images.rglob("*") if path.is_file())
    lines = "".join(f"{path},{number}\n" for number, path in enumerate(paths))
    (folder / "list.csv").write_text("path,label\n" + lines)
    return folder / "list.csv"


def images_in_parquet(folder: Path) -> Path:
    data = pa.array([jpeg(20, 30, number) for number in range(20)])
    pq.write_table(pa.table({"image": data, "label": range(20)}), folder / "images.parquet")
    return folder / "images.parquet"


def arrays(folder: Path) -> dict[str, Any]:
    return {"x": np.arange(1000.0).reshape(500, 2), "y": np.arange(500)}


def array_folder(folder: Path) -> Path:
    for number in range(20):
        path = folder / "arrays" / f"class{number % 2}" / f"{number}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.full((4, 5), number, np.float32))
    return folder / "arrays"


def save_to_disk(folder: Path) -> str:
    saved = pytest.importorskip("tests.saved", reason="the package datasets is not installed")
    return str(saved.save_to(saved.table_dataset(300), folder / "saved"))


def saved_images(folder: Path) -> str:
    saved = pytest.importorskip("tests.saved", reason="the package datasets is not installed")
    return str(saved.save_to(saved.image_dataset(20), folder / "saved"))


def opened_tars(folder: Path) -> Any:
    return fastio.open(write_tars(folder))


def token_files(folder: Path) -> Any:
    (np.arange(20_000) % 77).astype(np.uint16).tofile(folder / "tokens.bin")
    return fastio.open(folder / "tokens.bin", dtypes={"tokens": "uint16"}, separator=76)


def text_files(folder: Path) -> Path:
    (folder / "texts").mkdir()
    for number in range(50):
        (folder / "texts" / f"{number:02}.txt").write_text(f"{number} " * number * 9)
    return folder / "texts"


# What is packed, in shards of so many bytes, with other options.
LOCAL: list[tuple[Callable[[Path], Any], int, dict[str, Any]]] = [
    (image_folder, 2000, {}),
    (sound_folder, 2000, {}),
    (tars, 2000, {}),
    (opened_tars, 2000, {}),
    (parquet, 5000, {}),
    (parquet, 5000, {"filters": [("x", ">", 300)]}),
    (partitioned, 5000, {}),
    (arrow, 5000, {}),
    (json_lines, 5000, {}),
    (csv, 5000, {}),
    (lance, 5000, {}),
    (image_list, 2000, {}),
    (images_in_parquet, 2000, {}),
    (arrays, 1000, {}),
    (array_folder, 300, {}),
    (save_to_disk, 2000, {}),
    (saved_images, 2000, {}),
    (token_files, 5000, {}),
    (text_files, 5000, {"tokenizer": "bytes"}),
    (json_lines, 5000, {"tokenizer": "bytes", "columns": ["x"]}),
]


def check_same(source: Any, folder: Path, **options: Any) -> None:
    here = fastio.pack(source, folder / "here", **options)
    there = fastio.pack(source, folder / "there", engine="ray", **options)
    assert contents(folder / "there") == contents(folder / "here")
    assert (there.rows, there.shards, there.skipped) == (here.rows, here.shards, here.skipped)


@pytest.mark.parametrize(("make", "shard_size", "options"), LOCAL)
def test_a_local_source_gets_the_same_bytes(
    tmp_path: Path, make: Callable[[Path], Any], shard_size: int, options: dict[str, Any]
) -> None:
    (tmp_path / "source").mkdir()
    source = make(tmp_path / "source")
    check_same(source, tmp_path, shard_size=shard_size, **options)


STORED = [image_folder, sound_folder, parquet, partitioned, arrow, json_lines, csv, tars]


@pytest.mark.parametrize("make", STORED)
def test_a_source_in_a_store_gets_the_same_bytes(
    tmp_path: Path, make: Callable[[Path], Any], s3: S3
) -> None:
    (tmp_path / "source").mkdir()
    path = Path(make(tmp_path / "source"))
    name = f"sources-{make.__name__.replace('_', '-')}"
    url = s3.bucket(name)
    for each in sorted((tmp_path / "source").rglob("*")):
        if each.is_file():
            key = each.relative_to(tmp_path / "source").as_posix()
            s3.put(name, key, each.read_bytes())
    source = f"{url}/{path.relative_to(tmp_path / 'source').as_posix()}"
    check_same(source, tmp_path, shard_size=2000, storage_options=s3.options())


def test_each_kind_of_data_is_among_these_sources(tmp_path: Path) -> None:
    found = set()
    for number, (make, _, options) in enumerate(LOCAL):
        (tmp_path / str(number)).mkdir()
        source = make(tmp_path / str(number))
        of_source = None if "tokenizer" in options else find(source)
        found.add(kind_of(source) if of_source is None else of_source.kind)
    assert found >= set(KINDS) - {PACKED}  # which is packed already


class TaskNames:
    """Samples that are the name of the Ray task that reads them."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> str:
        import ray

        return str(ray.get_runtime_context().get_task_name() or "driver")


def test_tasks_have_the_name_of_the_source(tmp_path: Path) -> None:
    fastio.pack(TaskNames(), tmp_path / "out", shard_size=100, engine="ray")
    with fastio.open(tmp_path / "out") as dataset:
        assert set(dataset) == {"fastio pack TaskNames"}


def test_a_dataset_of_ray_data_without_rows_is_an_error(tmp_path: Path) -> None:
    from ray.data import from_arrow

    empty = from_arrow(pa.table({"x": [1]})).filter(lambda row: False)
    with pytest.raises(fastio.PackError, match=r"there is nothing to pack: .*Dataset has no rows"):
        fastio.pack(empty, tmp_path / "out", engine="ray")
