"""Datasets on the Hugging Face Hub by hf:// URLs, from a server that answers as the Hub does."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pictures

import fastio
from fastio.store import open_store
from tests.children import run_code
from tests.hub_server import Hub, hub_server

NAME = "org/things"
URL = f"hf://datasets/{NAME}"


def parquet(path: Path, rows: range) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"x": np.array(rows, np.int64), "text": [f"row {row}" for row in rows]})
    pq.write_table(table, path, row_group_size=10)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # as other tests set it
    root = tmp_path / "things"
    parquet(root / "data/train-00000-of-00002.parquet", range(30))
    parquet(root / "data/train-00001-of-00002.parquet", range(30, 60))
    parquet(root / "data/test-00000-of-00001.parquet", range(100, 107))
    parquet(root / "data/validation-00000-of-00001.parquet", range(200, 203))
    (root / "README.md").write_text("---\nlicense: mit\n---\n# Things\n")
    with hub_server(NAME, root) as running:
        yield running


def run(hub: Hub, tmp_path: Path, script: str, **environment: str) -> str:
    """Runs a script in a process whose Hub is this server, and returns what it prints."""
    own = {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
    }
    # The library reads its settings when it is imported, which the process does for itself.
    begin = (
        "import fastio, sys\n"
        "assert not {'datasets', 'huggingface_hub'} & set(sys.modules)\n"
        f"URL = {URL!r}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("HF_")]:
            patch.delenv(name)
        ended = run_code(begin + script, env={**own, **environment})
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def store_of(hub: Hub, url: str = URL, **options: str) -> fastio.store.Store:
    return open_store(url, {"endpoint": hub.endpoint, **options})


def test_splits_are_opened_by_name_and_read_by_row_groups(hub: Hub, tmp_path: Path) -> None:
    told = run(
        hub,
        tmp_path,
        "with fastio.open(URL, split='train') as train, fastio.open(URL, split='test') as test:\n"
        "    print(len(train), train[31]['text'], len(test))\n"
        "    with fastio.Loader(train, 16, shuffle=True, seed=1) as loader:\n"
        "        found = sorted(int(x) for batch in loader for x in batch['x'])\n"
        "    print(found == list(range(60)))\n",
    )
    assert told.split("\n") == ["60 row 31 7", "True"]
    ranged = [path for method, path, _ in hub.asked if "/cdn/" in path and method == "GET"]
    assert ranged


def test_a_split_or_configuration_that_must_be_chosen_is_named(hub: Hub, tmp_path: Path) -> None:
    script = (
        "for options in ({}, {'split': 'dev'}, {'config': 'big', 'split': 'train'}):\n"
        "    try:\n"
        "        fastio.open(URL, **options)\n"
        "    except fastio.OptionError as error:\n"
        "        print(error)\n"
    )
    none, other, config = run(hub, tmp_path, script).split("\n")
    assert "has the splits train, validation, test: choose one" in none
    assert "has no split 'dev'. Its splits are train, validation, test" in other
    assert "'big' not found. Available: ['default']" in config


def test_commands_take_a_split_and_a_configuration(hub: Hub, tmp_path: Path) -> None:
    commands = [
        ["info", URL, "--split", "test", "--json"],
        ["verify", URL, "--split", "train", "--config", "default", "--json"],
        ["pack", URL, str(tmp_path / "packed"), "--split", "validation", "--json"],
        ["info", URL],
    ]
    script = (
        "from typer.testing import CliRunner\n"
        "from fastio.cli import main\n"
        f"for command in {commands!r}:\n"
        "    ended = CliRunner().invoke(main, command)\n"
        "    print((ended.stdout or ended.stderr).strip())\n"
    )
    about, checked, packed, none = run(hub, tmp_path, script).split("\n")
    assert (json.loads(about)["rows"], json.loads(about)["path"]) == (7, URL)
    assert json.loads(checked)["rows"] == 60
    assert json.loads(packed)["rows"] == 3
    assert "--split train" in none


def test_configurations_are_those_of_the_readme(tmp_path: Path) -> None:
    root = tmp_path / "things"
    for name, rows in {"small": range(5), "large": range(50)}.items():
        parquet(root / name / "part.parquet", rows)
    configs = "".join(
        f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/*.parquet\n"
        for name in ("small", "large")
    )
    (root / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    script = (
        "print(len(fastio.open(URL, config='large', split='train')))\n"
        "print(len(fastio.open(URL, config='small')))\n"
        "try:\n"
        "    fastio.open(URL)\n"
        "except fastio.OptionError as error:\n"
        "    print(error)\n"
    )
    with hub_server(NAME, root) as hub:
        large, small, why = run(hub, tmp_path, script).split("\n")
    assert (large, small) == ("50", "5")
    assert "small" in why
    assert "large" in why


def test_images_in_folders_have_their_names_as_classes(tmp_path: Path) -> None:
    root = tmp_path / "things"
    for number in range(12):
        path = root / "train" / ("cat" if number % 2 else "dog") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Pictures.new("RGB", (8, 8), (number, 0, 0)).save(path)
    script = (
        "with fastio.Loader(fastio.open(URL), 4) as loader:\n"
        "    found = {int(image[0, 0, 0]): int(label) for batch in loader\n"
        "        for image, label in zip(*batch)}\n"
        "    print(loader.dataset.classes, found == {n: (n + 1) % 2 for n in range(12)})\n"
    )
    with hub_server(NAME, root) as hub:
        assert run(hub, tmp_path, script) == "('cat', 'dog') True"


def test_images_in_parquet_are_decoded_also_after_load_dataset_cached_them(tmp_path: Path) -> None:
    root = tmp_path / "things"
    cells = []
    for number in range(12):
        data = BytesIO()
        Pictures.new("RGB", (8, 8), (number, 0, 0)).save(data, "PNG")
        cells.append({"bytes": data.getvalue(), "path": f"{number}.png"})
    (root / "data").mkdir(parents=True)
    table = pa.table({"image": cells, "label": list(range(12))})
    pq.write_table(table, root / "data" / "train-00000-of-00001.parquet", row_group_size=4)
    script = (
        "def read():\n"
        "    steps = [fastio.Resize((4, 4))]\n"
        "    with fastio.Loader(fastio.open(URL), 4, transforms=steps) as loader:\n"
        "        return [(int(image[0, 0, 0]), int(label)) for batch in loader\n"
        "            for image, label in zip(batch['image'], batch['label'])]\n"
        "print(read() == [(n, n) for n in range(12)])\n"
        "import datasets\n"
        f"print(datasets.load_dataset({NAME!r}, split='train').features['image'])\n"
        "print(read() == [(n, n) for n in range(12)])\n"
    )
    with hub_server(NAME, root) as hub:
        before, features, after = run(hub, tmp_path, script).split("\n")
    assert (before, after) == ("True", "True")
    assert "Value('binary')" in features


def test_the_token_is_sent_to_the_hub_and_not_to_where_it_redirects(hub: Hub) -> None:
    hub.token = "hf_secret"
    with pytest.raises(fastio.StoreError, match="needs a token"):
        store_of(hub, token="hf_wrong").list()
    hub.asked.clear()
    with store_of(hub, token=hub.token) as store:
        assert bytes(store.read("data/test-00000-of-00001.parquet", 0, 4)) == b"PAR1"
    sent = {path.split("/")[1]: authorization for _, path, authorization in hub.asked}
    assert sent["cdn"] == ""
    assert sent["datasets"] == sent["api"] == "Bearer hf_secret"


def test_a_store_lists_all_pages_and_reads_one_commit(hub: Hub, tmp_path: Path) -> None:
    with store_of(hub) as store:
        names = [name for name, _ in store.list()]
        assert len(names) == 5
        name = "data/test-00000-of-00001.parquet"
        stamp = store.stat(name)
        parquet(tmp_path / "new" / name, range(7))
        hub.commit(tmp_path / "new")
        assert bytes(store.read(name, expect=stamp)) == (tmp_path / "things" / name).read_bytes()
    with store_of(hub) as store, pytest.raises(fastio.SourceChanged):
        store.read(name, 0, 4, expect=stamp)
    first = next(iter(hub.commits))
    with store_of(hub, f"{URL}@{first}/data") as store:
        assert store.stat("test-00000-of-00001.parquet") == stamp


def test_a_hub_that_is_asked_too_often_is_asked_later(hub: Hub) -> None:
    hub.busy = 3
    with store_of(hub) as store:
        assert bytes(store.read("README.md"))[:3] == b"---"
        assert store.transfers.retries == 3


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("hf://models/org/name", fastio.StoreError, "expected hf://datasets/ORG/NAME"),
        (f"{URL}@none", fastio.StoreError, "no such revision"),
        ("hf://datasets/org/none", fastio.StoreError, "needs a token"),
    ],
)
def test_what_is_not_there_is_said(
    hub: Hub, url: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        store_of(hub, url).list()
    with store_of(hub) as store, pytest.raises(fastio.SourceNotFound):
        store.read("none.parquet")


def test_split_is_only_for_the_hub_and_folders_with_its_layout(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    for source in (tmp_path / "a.csv", tmp_path / "none", "s3://bucket/folder"):
        with pytest.raises(fastio.OptionError, match="only for datasets on the Hub"):
            fastio.open(source, split="train")
