"""docs/ray.md: its commands pack on a cluster of several raylets, and its training goes on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fastio
from fastio.cli import main
from tests.pictures import write_folder
from tests.ray_support import cluster_of
from tests.servers import S3
from tests.support import contents

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::Warning"),
]

PAGE = (Path(__file__).parent.parent / "docs" / "ray.md").read_text()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with cluster_of(4) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos") / "train", 4, 6)


def blocks(language: str) -> list[str]:
    parts = PAGE.split(f"```{language}\n")[1:]
    return [part.partition("```")[0] for part in parts]


def test_its_commands_pack_on_the_cluster(
    cluster: Any, photos: Path, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = s3.options()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["key"])
    bucket = s3.bucket("ray-page")
    place = {
        "/shared/imagenet/train": str(photos),
        "/shared/imagenet-packed": str(tmp_path / "packed"),
        "s3://bucket/imagenet-packed": f"{bucket}/packed",
        "auto": cluster.address,
    }
    commands = [line for block in blocks("console") for line in block.splitlines()]
    packs = [shlex.split(line) for line in commands if line.startswith("fastio pack")]
    assert len(packs) == 3
    for _, *words in packs:
        words = [place.get(word, word) for word in words]
        if any(word.startswith("s3:") for word in words):
            words += [
                "--storage-options",
                f'{{"key": "{options["key"]}", "secret": "{options["secret"]}", "client_kwargs": '
                f'{{"endpoint_url": "{s3.endpoint}", "region_name": "us-east-1"}}}}',
            ]
        done = CliRunner().invoke(main, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert "complete already" in done.output
    fastio.pack(photos, tmp_path / "threads")
    assert contents(tmp_path / "packed") == contents(tmp_path / "threads")
    with fastio.open(f"{bucket}/packed", storage_options=options) as dataset:
        assert len(dataset) == 24


def test_its_training_goes_on_with_another_number_of_workers(
    cluster: Any, photos: Path, tmp_path: Path
) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.train.torch")
    fastio.pack(photos, tmp_path / "packed")
    (script,) = blocks("py")
    script = script.replace("/shared/imagenet-packed", str(tmp_path / "packed"))
    script = script.replace("/shared/runs", str(tmp_path / "runs"))
    told = f"open('{tmp_path}/rows', 'a').write(f'{{loader.batch.rows.tolist()}}\\n')  #"
    script = script.replace("...  # forward", f"{told} forward")
    assert told in script
    ray.init(cluster.address, log_to_driver=False, logging_level="warning")
    try:
        names: dict[str, Any] = {"__name__": "ray_page"}
        exec(compile(script, "docs/ray.md", "exec"), names)
    finally:
        ray.shutdown()
    assert names["second"].error is None
    lines = (tmp_path / "rows").read_text().splitlines()
    rows = [number for line in lines for number in eval(line)]
    loader = fastio.Loader(tmp_path / "packed", 20, shuffle=True, seed=0)
    next(iter(loader))
    # Two steps of 2 ranks with 2 rows each, then two steps of 3 ranks.
    assert len(lines) == 2 * 2 + 2 * 3
    assert sorted(rows) == sorted(loader.batch.rows.tolist())
    loader.close()
