"""Packing on Ray gives the bytes of a pack on one machine, and the same errors.

Only the first of these runs without --all: to start Ray and its workers takes seconds.
`test_pack_task_output.py` has what can be tested without Ray.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastio
from fastio.errors import DatasetNotFound, PackError, SampleError
from fastio.pack import ray_engine, ray_tasks
from fastio.pack.names import is_task_output_name
from fastio.store import open_store
from tests.ray_support import local_ray
from tests.servers import S3
from tests.support import contents, interrupted_at, without_ids

# Warnings of Ray and of Ray Data about themselves.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    with local_ray() as ray:
        yield ray


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    rows = 100_000
    numbers = np.random.default_rng(0).random(rows)
    columns = {"x": np.arange(rows), "y": np.where(numbers < 0.1, np.nan, numbers)}
    pq.write_table(pa.table(columns), folder / "numbers.parquet", row_group_size=30_000)
    texts = [f"{number} " * (number % 50) for number in range(3000)]
    pq.write_table(pa.table({"text": texts}), folder / "texts.parquet", row_group_size=100)
    rows_of_text = "".join(f"{number},{text}\n" for number, text in enumerate(texts))
    (folder / "rows.csv").write_text("x,text\n" + rows_of_text)  # which one task reads
    (folder / "lines.jsonl").write_text(
        "".join(json.dumps({"x": number, "text": text}) + "\n" for number, text in enumerate(texts))
    )
    return folder


def pack(source: Any, out: Path | str, **options: Any) -> fastio.PackReport:
    return fastio.pack(source, out, engine="ray", **options)


def check_same(source: Any, folder: Path, **options: Any) -> None:
    """Ray gives the bytes of threads, in several shards."""
    here = fastio.pack(source, folder / "threads", **options)
    there = pack(source, folder / "ray", **options)
    assert contents(folder / "ray") == contents(folder / "threads")
    assert here.shards > 2
    assert (there.rows, there.shards, there.skipped) == (here.rows, here.shards, here.skipped)
    assert (there.tokens and there.tokens.empty) == (here.tokens and here.tokens.empty)


def test_images_get_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    check_same(folder, tmp_path, shard_size=2000)


@pytest.mark.long
def test_a_table_of_numbers_gets_the_same_bytes_and_statistics(
    tables: Path, tmp_path: Path
) -> None:
    check_same(tables / "numbers.parquet", tmp_path, shard_size=100_000)


@pytest.mark.long
@pytest.mark.parametrize("name", ["texts.parquet", "lines.jsonl", "rows.csv"])
def test_a_table_of_strings_gets_the_same_bytes(tables: Path, tmp_path: Path, name: str) -> None:
    check_same(tables / name, tmp_path, shard_size=10_000)


@pytest.mark.long
@pytest.mark.parametrize("name", ["texts.parquet", "lines.jsonl", "rows.csv"])
def test_text_gets_the_same_bytes_and_counts_of_empty_documents(
    tables: Path, tmp_path: Path, name: str
) -> None:
    check_same(tables / name, tmp_path, shard_size=10_000, tokenizer="bytes")


@pytest.mark.long
def test_the_rows_of_a_filter_get_the_same_bytes(tables: Path, tmp_path: Path) -> None:
    filters = [("x", ">", 20_000)]
    check_same(tables / "numbers.parquet", tmp_path, shard_size=100_000, filters=filters)


@pytest.mark.long
def test_samples_in_memory_get_the_same_bytes(tmp_path: Path) -> None:
    check_same([(number, "x" * (number % 7)) for number in range(300)], tmp_path, shard_size=500)


@pytest.mark.long
def test_samples_are_appended_with_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    for name, engine in (("threads", "threads"), ("ray", "ray")):
        fastio.pack(folder, tmp_path / name, shard_size=2000)
        fastio.pack(folder, tmp_path / name, shard_size=2000, append=True, engine=engine)
    assert contents(tmp_path / "ray") == contents(tmp_path / "threads")


def accepted(files: dict[str, bytes]) -> dict[str, bytes]:
    """Files without those of tasks that go on after their driver was interrupted."""
    return {name: data for name, data in files.items() if not is_task_output_name(name)}


@pytest.mark.long
def test_a_store_gets_the_same_bytes_also_after_an_interruption(
    tables: Path, tmp_path: Path, s3: S3
) -> None:
    url, options = s3.bucket("ray") + "/packed", s3.options()
    source = tables / "numbers.parquet"
    with interrupted_at(3):
        pack(source, url, shard_size=100_000, storage_options=options)
    with pytest.raises(DatasetNotFound):
        fastio.open(url, storage_options=options)
    pack(source, url, shard_size=100_000, storage_options=options, resume=True)
    fastio.pack(source, tmp_path / "threads", shard_size=100_000)
    store = open_store(url, options)
    found = {name: bytes(store.read(name)) for name, _ in store.list()}
    store.close()
    assert without_ids(accepted(found)) == without_ids(contents(tmp_path / "threads"))


@pytest.mark.long
@pytest.mark.parametrize("then", ["ray", "threads"])
@pytest.mark.parametrize("name", ["numbers.parquet", "texts.parquet", "rows.csv"])
def test_an_interrupted_pack_goes_on_with_either_engine(
    tables: Path, tmp_path: Path, name: str, then: Any
) -> None:
    size = 100_000 if name.startswith("numbers") else 10_000
    with interrupted_at(2):
        pack(tables / name, tmp_path / "ray", shard_size=size)
    with pytest.raises(DatasetNotFound):
        fastio.open(tmp_path / "ray")
    fastio.pack(tables / name, tmp_path / "ray", shard_size=size, resume=True, engine=then)
    fastio.pack(tables / name, tmp_path / "threads", shard_size=size)
    assert accepted(contents(tmp_path / "ray")) == contents(tmp_path / "threads")


@pytest.mark.long
def test_a_bad_sample_is_named_as_threads_name_it(folder: Path, tmp_path: Path) -> None:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in paths:
        copy = tmp_path / "photos" / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(b"no image" if path in paths[5::6] else path.read_bytes())
    texts = []
    for engine in ("threads", "ray"):
        with pytest.raises(SampleError) as raised:
            fastio.pack(tmp_path / "photos", tmp_path / engine, shard_size=2000, engine=engine)  # type: ignore[arg-type]
        texts.append(str(raised.value))
    assert texts[0] == texts[1]
    assert paths[5].name in texts[1]
    check_same(tmp_path / "photos", tmp_path / "skipped", shard_size=2000, on_error="skip")


@pytest.mark.long
def test_samples_left_out_at_the_end_are_reported(tmp_path: Path) -> None:
    """Of a last unit that has only bad samples there is no shard."""
    good = [{"x": number} for number in range(8)]
    for engine in ("threads", "ray"):
        report = fastio.pack(
            [*good, {"x": "bad"}],
            tmp_path / engine,
            shard_size=32,
            on_error="skip",
            engine=engine,  # type: ignore[arg-type]
        )
        assert [name for name, _ in report.skipped] == ["sample 8"]
    assert contents(tmp_path / "ray") == contents(tmp_path / "threads")


@pytest.mark.long
def test_a_source_that_a_machine_does_not_have_is_named(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tables / "numbers.parquet")
    monkeypatch.setattr(ray_engine, "_local_paths", lambda src: [])
    job_of = ray_engine.Job
    missing = ray_tasks.FileStamp("/no/such/folder", 0, 0)
    monkeypatch.setattr(ray_engine, "Job", lambda *most: job_of(*most[:-1], [missing]))
    with pytest.raises(PackError, match="does not have /no/such/folder as the driver has it"):
        pack(path, tmp_path / "out", shard_size=100_000)


@pytest.mark.long
def test_another_version_of_fastio_is_named(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "version", lambda package: "99.0")
    for name in ("numbers.parquet", "texts.parquet", "rows.csv"):
        with pytest.raises(PackError, match=r"another version of fastio: .* the driver has 99\.0"):
            pack(tables / name, tmp_path / name, shard_size=100_000)


@pytest.mark.long
def test_an_iterable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="an iterable cannot be packed on Ray"):
        pack(({"x": number} for number in range(10)), tmp_path / "out")


@pytest.mark.long
def test_more_cores_than_a_machine_has_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PackError, match="the largest machine of the Ray cluster has 1 cores"):
        pack(folder, tmp_path / "out", workers=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_dataset_of_ray_data_gets_the_bytes_of_its_table(ray: Any, tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="Ray Data needs it")
    rows = 50_000
    columns = {"x": np.arange(rows), "y": np.random.default_rng(0).random(rows)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    data = ray.data.from_arrow([pa.table(columns).slice(at, 7000) for at in range(0, rows, 7000)])
    report = pack(data, tmp_path / "ray", shard_size=100_000)
    fastio.pack(tmp_path / "a.parquet", tmp_path / "threads", shard_size=100_000)
    assert report.shards == 8
    assert shards(tmp_path / "ray") == shards(tmp_path / "threads")
    fastio.pack(data.map(lambda row: row), tmp_path / "here", shard_size=100_000)
    assert shards(tmp_path / "here") == shards(tmp_path / "threads")


@pytest.mark.long
def test_a_dataset_of_ray_data_with_texts_is_packed_in_order(ray: Any, tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="Ray Data needs it")
    texts = ["x" * (number % 90) for number in range(900)]
    data = ray.data.from_items([{"text": text} for text in texts], override_num_blocks=7)
    pack(data, tmp_path / "ray", shard_size=10_000)
    with fastio.open(tmp_path / "ray") as dataset:
        assert [sample["text"] for sample in dataset] == texts


def shards(folder: Path) -> dict[str, bytes]:
    """The manifest has the name of the source, which differs."""
    return {name: data for name, data in contents(folder).items() if name.startswith("shard")}
