"""Batches that a worker process cannot send are errors, and a long TMPDIR is no reason for one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from fastio import Loader

ROWS, BAD = 24, 9


def value(index: int) -> Any:
    return (lambda: index) if index == BAD else torch.tensor(index)


class Indexed(Dataset[Any]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return value(index)


class Iterated(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return map(value, range(ROWS))


class WithState(Iterated):
    """Its state is kept by torchdata's loader, whose workers send other messages."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def delivered(loader: Loader) -> tuple[list[list[int]], list[str]]:
    """The batches of an epoch, and the errors in the places of others."""
    found, errors = [], []
    batches = iter(loader)
    while True:
        try:
            found.append([int(number) for number in next(batches)])
        except StopIteration:
            return found, errors
        except Exception as error:
            errors.append(str(error))


@pytest.mark.parametrize("kind", [Indexed, Iterated, WithState])
def test_a_batch_that_cannot_be_pickled_is_an_error(kind: Any) -> None:
    if kind is WithState:
        pytest.importorskip("torchdata.stateful_dataloader")
    with Loader(kind(), 4, num_workers=1, collate_fn=as_list, persistent_workers=True) as loader:
        for _ in range(2):  # workers go on, also in the next epoch
            found, (error,) = delivered(loader)
            assert found == [
                [i, i + 1, i + 2, i + 3] for i in range(0, ROWS, 4) if i != BAD // 4 * 4
            ]
            assert "in DataLoader worker process 0, when it sent a batch" in error
            assert "lambda" in error


def test_an_error_of_sending_may_have_a_class_that_cannot_be_pickled() -> None:
    class Refused(Exception):
        pass

    class Unsendable:
        def __reduce__(self) -> Any:
            raise Refused("not for other processes")

    class Samples(Indexed):
        def __getitem__(self, index: int) -> Any:
            return Unsendable() if index == BAD else torch.tensor(index)

    with Loader(Samples(), 4, num_workers=1, collate_fn=as_list) as loader:
        found, (error,) = delivered(loader)
        assert len(found) == ROWS // 4 - 1
        assert "not for other processes" in error


LONG = """
import multiprocessing, os, sys
from multiprocessing import util
import numpy as np, torch
import fastio

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return {"x": np.full(1 << 17, index, np.uint8)}  # through shared memory

def double(x):
    return x * 2

if __name__ == "__main__":
    with fastio.Loader(Samples(), 8, num_workers=2) as loader:
        print([int(batch["x"][0, 0]) for batch in loader])
    print(fastio.pack(Samples(), sys.argv[1], workers=2).rows)
    step = fastio.PerSample(double)
    how = {"num_workers": 2, "multiprocessing_context": "forkserver"}
    with fastio.Loader(sys.argv[1], 8, transforms={"x": step}, **how) as loader:
        print([int(batch["x"][0, 0]) for batch in loader])
    print(len(os.fsencode(util.get_temp_dir())) < 30, util.get_temp_dir())
"""


def test_sockets_are_made_elsewhere_if_the_path_of_tmpdir_is_too_long(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 100)
    folder.mkdir()
    script = tmp_path / "long.py"
    script.write_text(LONG)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, tmp_path / "packed"],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    loaded, packed, transformed, temporary = done.stdout.splitlines()
    assert loaded == str(list(range(0, 64, 8)))
    assert packed == "64"
    assert transformed == str(list(range(0, 128, 16)))
    assert temporary.startswith("True ")
    assert not Path(temporary.split()[1]).exists(), "the process removes the folder at its end"
    assert not list(folder.glob("pymp-*"))
