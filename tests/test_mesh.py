"""Loader(mesh=, dims=): ranks share the data along some dimensions of torch's DeviceMesh."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import fastio

NAMES = ("dp", "fsdp", "tp")


@contextmanager
def mesh_of(rank: int, shape: tuple[int, ...] = (2, 2, 2)) -> Iterator[Any]:
    """A mesh as one of its ranks sees it; the others are not there, and nothing is sent."""
    ranks = int(torch.tensor(shape).prod())
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield init_device_mesh("cpu", shape, mesh_dim_names=NAMES[: len(shape)])
    finally:
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mesh") / "packed"
    fastio.pack([(number,) for number in range(48)], out)
    return out


def rows_of(packed: Path, rank: int, **options: Any) -> list[list[int]]:
    with mesh_of(rank) as mesh:
        loader = fastio.Loader(packed, 3, shuffle=True, seed=1, mesh=mesh, **options)
        rows = [loader.batch.rows.tolist() for _ in loader]
        loader.close()
    return rows


def test_ranks_of_other_dimensions_get_the_same_batches(packed: Path) -> None:
    """Rank 4 d + 2 f + t has the coordinates (d, f, t)."""
    found = [rows_of(packed, rank, dims=("dp", "fsdp")) for rank in range(8)]
    for place in range(4):
        with_numbers = fastio.Loader(packed, 3, shuffle=True, seed=1, rank=place, world_size=4)
        rows = [with_numbers.batch.rows.tolist() for _ in with_numbers]
        assert found[2 * place] == found[2 * place + 1] == rows
    parts = [row for place in range(4) for batch in found[2 * place] for row in batch]
    assert sorted(parts) == list(range(48))


def test_dimensions_are_taken_in_the_order_given(packed: Path) -> None:
    """Along (tp, dp), the rank with d = 1, t = 0 is the second of four."""
    with_numbers = fastio.Loader(packed, 3, shuffle=True, seed=1, rank=1, world_size=4)
    rows = [with_numbers.batch.rows.tolist() for _ in with_numbers]
    assert rows_of(packed, 4, dims=("tp", "dp")) == rows


def test_without_dims_all_ranks_divide_the_data(packed: Path) -> None:
    parts = [row for rank in range(8) for batch in rows_of(packed, rank) for row in batch]
    assert sorted(parts) == list(range(48))


def test_what_does_not_fit_is_named(packed: Path) -> None:
    with mesh_of(0) as mesh:
        with pytest.raises(ValueError, match="no dimension 'pp': its dimensions are dp, fsdp, tp"):
            fastio.Loader(packed, mesh=mesh, dims=("pp",), seed=0)
        with pytest.raises(ValueError, match="mesh needs seed="):
            fastio.Loader(packed, mesh=mesh)
        with pytest.raises(ValueError, match="mutually exclusive with distributed"):
            fastio.Loader(packed, mesh=mesh, seed=0, distributed=True)
    with pytest.raises(ValueError, match="dims needs mesh="):
        fastio.Loader(packed, dims=("dp",))
