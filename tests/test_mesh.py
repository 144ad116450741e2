"""Loader(distributed=mesh): ranks share the data along the dimensions of torch's DeviceMesh."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
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


def rows_of(packed: Path, rank: int, dims: Any = NAMES) -> list[list[int]]:
    with mesh_of(rank) as mesh:
        loader = fastio.Loader(packed, 3, shuffle=True, seed=1, distributed=mesh[dims])
        rows = [loader.batch.rows.tolist() for _ in loader]
        loader.close()
    return rows


def test_ranks_of_other_dimensions_get_the_same_batches(packed: Path) -> None:
    """Rank 4 d + 2 f + t has the coordinates (d, f, t)."""
    found = [rows_of(packed, rank, ("dp", "fsdp")) for rank in range(8)]
    for place in range(4):
        with_numbers = fastio.Loader(packed, 3, shuffle=True, seed=1, rank=place, world_size=4)
        rows = [with_numbers.batch.rows.tolist() for _ in with_numbers]
        assert found[2 * place] == found[2 * place + 1] == rows
    parts = [row for place in range(4) for batch in found[2 * place] for row in batch]
    assert sorted(parts) == list(range(48))


@pytest.mark.parametrize(("dims", "place", "world"), [("tp", 0, 2), (("dp", "tp"), 2, 4)])
def test_any_dimensions_can_be_taken(packed: Path, dims: Any, place: int, world: int) -> None:
    """Rank 4 has the coordinates (1, 0, 0)."""
    with_numbers = fastio.Loader(packed, 3, shuffle=True, seed=1, rank=place, world_size=world)
    rows = [with_numbers.batch.rows.tolist() for _ in with_numbers]
    assert rows_of(packed, 4, dims) == rows


def test_along_the_whole_mesh_all_ranks_divide_the_data(packed: Path) -> None:
    parts = [row for rank in range(8) for batch in rows_of(packed, rank) for row in batch]
    assert sorted(parts) == list(range(48))


def test_what_does_not_fit_is_named(packed: Path) -> None:
    with mesh_of(0) as mesh:
        with pytest.raises(ValueError, match="DeviceMesh needs seed="):
            fastio.Loader(packed, distributed=mesh)
        with pytest.raises(ValueError, match="mutually exclusive with rank and world_size"):
            fastio.Loader(packed, seed=0, distributed=mesh, rank=0, world_size=2)
        of_others = DeviceMesh("cpu", [1, 2], mesh_dim_names=("dp",))
        with pytest.raises(ValueError, match="this process is not in the mesh"):
            fastio.Loader(packed, seed=0, distributed=of_others)
    with pytest.raises(TypeError, match="distributed should be True, False, None or a DeviceMesh"):
        fastio.Loader(packed, distributed="dp")  # type: ignore[arg-type]


def gloo_rank(rank: int, folder: str, packed: str) -> None:
    """One of four processes: writes the rows of its batches, before and after a resume."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=4
    )
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    rows = []
    with fastio.Loader(packed, 3, shuffle=True, seed=1, distributed=mesh["dp"]) as loader:
        for _ in loader:
            rows.append(loader.batch.rows.tolist())
            if len(rows) == 3:
                break
        state = loader.state_dict()
    states: list[Any] = [None] * 4
    torch.distributed.all_gather_object(states, state)
    # The state of any rank continues on any other.
    with fastio.Loader(packed, 3, shuffle=True, seed=1, distributed=mesh["dp"]) as loader:
        loader.load_state_dict(states[(rank + 1) % 4])
        rows += [loader.batch.rows.tolist() for _ in loader]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(rows))
    torch.distributed.destroy_process_group()


@pytest.mark.long
def test_four_processes_of_gloo_divide_the_data_and_resume_exactly(
    packed: Path, tmp_path: Path
) -> None:
    """Rank 2 d + t has the coordinates (d, t)."""
    torch.multiprocessing.spawn(gloo_rank, (str(tmp_path), str(packed)), nprocs=4)  # type: ignore[no-untyped-call]
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    for place in range(2):
        with fastio.Loader(packed, 3, shuffle=True, seed=1, rank=place, world_size=2) as loader:
            rows = [loader.batch.rows.tolist() for _ in loader]
        assert found[2 * place] == found[2 * place + 1] == rows
    assert sorted(row for rows in (found[0], found[2]) for batch in rows for row in batch) == list(
        range(48)
    )
