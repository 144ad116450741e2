"""Objects in S3 that are replaced during an epoch end in SourceChanged, through obstore and s3fs.

The data is larger than what a loader fetches ahead, so that a part is fetched after the change.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastio
from fastio import Cache, SourceChanged
from tests.servers import S3
from tests.staging_support import MIB, noise
from tests.tars import npy, write_tar

ROWS = 384
MENDED = 1000  # what the second version adds to its labels
Files = dict[str, bytes]


def packed(folder: Path, more: int) -> Files:
    """Returns the files of a packed dataset: images of 27 KiB and labels, 1 MiB a shard."""
    samples = ((noise(row, 96), row + more) for row in range(ROWS))
    fastio.pack(samples, folder / str(more), codec="raw", shard_size=MIB)
    return {path.name: path.read_bytes() for path in (folder / str(more)).iterdir()}


def tars(folder: Path, more: int) -> Files:
    """Returns eight tars of arrays of 27 KiB and labels."""
    files = {}
    for number in range(8):
        members = []
        for row in range(number * ROWS // 8, (number + 1) * ROWS // 8):
            members += [(f"{row:06}.npy", npy(noise(row, 96)))]
            members += [(f"{row:06}.cls", str(row + more).encode())]
        files[f"{number}.tar"] = write_tar(folder / "a.tar", members).read_bytes()
    return files


def table(folder: Path, more: int) -> Files:
    """Returns a Parquet file of 24 row groups of 432 KiB."""
    values = np.random.default_rng(0).integers(0, 256, (ROWS, 96 * 96 * 3), np.uint8)
    array = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    columns = pa.table({"x": array, "cls": pa.array(np.arange(ROWS) + more)})
    file = io.BytesIO()
    pq.write_table(columns, file, row_group_size=16, compression="none", use_dictionary=False)
    return {"a.parquet": file.getvalue()}


@pytest.fixture(scope="module")
def versions(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Files, Files]:
    """Two versions of the same data, whose objects have the same names and sizes."""
    make: Callable[[Path, int], Files] = request.param
    folder = tmp_path_factory.mktemp("versions")
    one, two = make(folder, 0), make(folder, MENDED)
    assert {name: len(data) for name, data in one.items()} == {
        name: len(data) for name, data in two.items()
    }
    return one, two


@pytest.fixture(params=["obstore", "s3fs"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The library that makes the requests."""
    pytest.importorskip(request.param, reason="it is the client that is tested")
    if request.param == "s3fs":
        monkeypatch.setattr("fastio.store.backends._try_obstore", lambda *_: (None, ""))
    return str(request.param)


def read_on(batches: Iterable[Any], labels: list[int]) -> None:
    """Adds the labels of batches to a list, which keeps them after an error."""
    for batch in batches:
        found = batch["cls"] if isinstance(batch, Mapping) else batch[1]
        labels += (int(label) for label in found)


@pytest.mark.parametrize("shuffle", [False, True], ids=["in-order", "shuffled-cached"])
@pytest.mark.parametrize("versions", [packed, tars, table], indirect=True)
def test_an_object_that_is_replaced_during_an_epoch_is_an_error(
    versions: tuple[Files, Files],
    library: str,
    shuffle: bool,
    s3: S3,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("fastio.stage.lookahead._LEAST_AHEAD_BYTES", MIB)
    one, two = versions
    bucket = f"bucket-{uuid.uuid4().hex[:16]}"
    url = s3.bucket(bucket)

    def put(files: Files) -> None:
        for name, data in files.items():
            s3.put(bucket, f"data/{name}", data)

    put(one)
    options: dict[str, Any] = {"storage_options": s3.options()}
    if "a.parquet" in one:
        options["memory"] = "4MiB"
    elif shuffle:
        options["cache"] = Cache(tmp_path / "cache", 6 * MIB)
    seen: list[int] = []
    with (
        fastio.open(f"{url}/data", **options) as source,
        fastio.Loader(source, 8, shuffle=shuffle, num_workers=1, seed=0) as loader,
    ):
        batches = iter(loader)
        read_on([next(batches)], seen)
        put(two)
        with pytest.raises(SourceChanged, match=f"{bucket}/data.* was replaced") as caught:
            read_on(batches, seen)
    assert "testing-secret-key" not in str(caught.value)
    assert 0 < len(seen) < ROWS
    assert max(seen) < MENDED
    seen.clear()
    with (
        fastio.open(f"{url}/data", **options) as source,
        fastio.Loader(source, 8, num_workers=1) as loader,
    ):
        read_on(loader, seen)
    assert sorted(seen) == [MENDED + row for row in range(ROWS)]
