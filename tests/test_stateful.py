"""A Loader is what torch and torchdata call Stateful: a part of distributed checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful

import fastio

ROWS, BATCH = 20, 4
STEPS = ROWS // BATCH


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stateful") / "packed"
    fastio.pack([{"x": np.int64(row)} for row in range(ROWS)], path)
    return path


def test_a_loader_is_stateful(packed: Path) -> None:
    with fastio.Loader(packed, BATCH) as loader:
        assert isinstance(loader, Stateful)


def test_a_loader_is_stateful_for_torchdata(packed: Path) -> None:
    module = pytest.importorskip("torchdata.stateful_dataloader.stateful", reason="no torchdata")
    with fastio.Loader(packed, BATCH) as loader:
        assert isinstance(loader, module.Stateful)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
@pytest.mark.parametrize("step", range(2 * STEPS))
def test_a_distributed_checkpoint_goes_on_at_the_next_sample(
    packed: Path, tmp_path: Path, step: int
) -> None:
    def make() -> fastio.Loader:
        return fastio.Loader(packed, BATCH, shuffle=True, seed=0)

    def rows(batches: Any) -> list[list[int]]:
        return [batch["x"].tolist() for batch in batches]

    with make() as loader:
        batches = (batch for _ in range(2) for batch in loader)
        for _ in range(step):
            next(batches)
        saved = {"loader": loader, "step": torch.tensor(step)}
        dcp.save(saved, checkpoint_id=tmp_path / "saved")
        rest = rows(batches)
    with make() as again:
        found = {"loader": again, "step": torch.tensor(-1)}
        dcp.load(found, checkpoint_id=tmp_path / "saved")
        assert int(found["step"]) == step
        assert rows(batch for _ in range(2) for batch in again)[: len(rest)] == rest
