"""Ranks of a machine share a cache, and machines share the data: each byte comes once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fastio
from tests.children import run_ranks
from tests.servers import FaultProxy, http_folder

ROWS = 203
SIDE = 96
# Behind a shard's ends, which have its small columns, a little of its images comes along.
ENDS_BYTES = 64 << 10
BLOCK_BYTES = 256 << 10

SCRIPT = """
import json, os, sys
import torch.distributed as dist
import fastio

url, cache, out = sys.argv[1:]
cache = cache + os.environ["GROUP_RANK"]
dist.init_process_group("gloo")
with fastio.Loader(
    url, 8, shuffle=True, distributed=True, cache=cache, num_workers=1
) as loader:
    epochs = []
    for _ in range(2):
        steps, rows, sums = 0, [], []
        for images, labels in loader:
            valid = loader.batch.valid
            rows += loader.batch.rows[:valid].tolist()
            sums += [int(image.sum()) for image in images[:valid]]
            steps += 1
        epochs.append([steps, rows, sums])
found = [None] * dist.get_world_size()
dist.all_gather_object(found, epochs)
if dist.get_rank() == 0:
    open(out, "w").write(json.dumps(found))
dist.destroy_process_group()
"""

TABLE_SCRIPT = """
import json, os, sys
import torch.distributed as dist
import fastio

url, cache, out = sys.argv[1:]
cache = cache + os.environ["GROUP_RANK"]
dist.init_process_group("gloo")
with fastio.Loader(url, 16, shuffle=True, distributed=True, cache=cache, seed=0) as loader:
    epochs = [[row for _ in loader for row in loader.batch.rows.tolist()] for _ in range(2)]
found = [None] * dist.get_world_size()
dist.all_gather_object(found, epochs)
if dist.get_rank() == 0:
    open(out, "w").write(json.dumps([sum(ranks, []) for ranks in zip(*found)]))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    samples = [
        (rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8), index % 10) for index in range(ROWS)
    ]
    path = tmp_path_factory.mktemp("ranks") / "packed"
    fastio.pack(samples, path, codec="raw", shard_size="2MiB")
    return path


@pytest.mark.parametrize(
    ("processes", "nodes"),
    [(2, 1), (2, 2), *(pytest.param(4, n, marks=pytest.mark.long) for n in (1, 2))],
)
def test_each_byte_comes_once_and_each_sample_once(
    packed: Path, tmp_path: Path, processes: int, nodes: int
) -> None:
    out = tmp_path / "found.json"
    with http_folder(packed) as url, FaultProxy(url) as proxy:
        done = run_ranks(SCRIPT, proxy.url, tmp_path / "cache", out, ranks=processes, nodes=nodes)
        assert done.returncode == 0, done.stderr
        shards = len(list(packed.glob("shard-*")))
        total = sum(path.stat().st_size for path in packed.glob("shard-*"))
        # Nodes share the block at the boundary of their partitions.
        twice = nodes * shards * ENDS_BYTES + (nodes - 1) * BLOCK_BYTES
        assert proxy.sent_twice("shard-") <= twice
        assert total * 0.9 <= proxy.sent("shard-") <= total + twice

    found = json.loads(out.read_text())
    dataset = fastio.open(packed)
    expected = {row: int(dataset[row][0].sum(dtype=np.int64)) for row in range(ROWS)}
    for epoch in range(2):
        ranks = [rank[epoch] for rank in found]
        assert len({steps for steps, _, _ in ranks}) == 1
        rows = [row for _, own, _ in ranks for row in own]
        assert sorted(rows) == list(range(ROWS))
        for _, own, sums in ranks:
            assert [expected[row] for row in own] == sums


def test_each_shard_of_a_table_is_fetched_by_one_node(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = [{"x": rng.integers(0, 256, 4096, np.uint8)} for _ in range(1024)]
    fastio.pack(samples, tmp_path / "packed", shard_size="256KiB")
    shards = sorted((tmp_path / "packed").glob("shard-*"))
    out = tmp_path / "found.json"
    with http_folder(tmp_path / "packed") as url, FaultProxy(url) as proxy:
        done = run_ranks(TABLE_SCRIPT, proxy.url, tmp_path / "cache", out, ranks=4, nodes=2)
        assert done.returncode == 0, done.stderr
        total = sum(path.stat().st_size for path in shards)
        # Of two epochs: the caches keep the shards, and two nodes share one.
        assert total <= proxy.sent("shard-") <= total + 1.1 * max(p.stat().st_size for p in shards)
    for rows in json.loads(out.read_text()):
        assert sorted(rows) == list(range(1024))
