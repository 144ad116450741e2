"""Packs of datasets that give several samples at once, by `__getitems__`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset, Subset

import fastio
from fastio import PackError, SampleError
from tests.support import contents

N = 300


class Several(Dataset[Any]):
    """Samples with the number of samples that were asked for together."""

    def __init__(self, more: int = 0, bad: Sequence[int] = (), takes_s: float = 0.0) -> None:
        self.more, self.bad, self.takes_s = more, bad, takes_s

    def __len__(self) -> int:
        return N

    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert type(indices) is list
        time.sleep(self.takes_s * len(indices))
        for index in indices:
            if index in self.bad:
                raise ValueError(f"{index} is bad")
        found = [{"index": index, "asked": len(indices)} for index in indices]
        return found[: len(found) + self.more] if self.more < 0 else found + found[: self.more]


class Single(Dataset[Any]):
    """The same samples, one by one."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "asked": 1}


@pytest.mark.parametrize("takes_s", [0.0, 0.002])  # whether samples are sent from processes
@pytest.mark.parametrize("workers", [1, 3])
def test_samples_are_asked_for_by_batches_and_stay_in_order(
    tmp_path: Path, workers: int, takes_s: float
) -> None:
    fastio.pack(Several(takes_s=takes_s), tmp_path / "packed", workers=workers)
    with fastio.open(tmp_path / "packed") as dataset:
        assert dataset.gather("index", np.arange(N)).tolist() == list(range(N))
        asked = dataset.gather("asked", np.arange(N))
    assert 1 < asked.max() <= 64


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("more", [-1, 1])
def test_a_wrong_number_of_samples_is_an_error(tmp_path: Path, workers: int, more: int) -> None:
    message = r"Several.__getitems__ returned \d+ samples for \d+ indices: it must return a list"
    with pytest.raises(PackError, match=message):
        fastio.pack(Several(more), tmp_path / "packed", workers=workers, on_error="skip")
    with pytest.raises(fastio.FastioError):
        fastio.open(tmp_path / "packed")


@pytest.mark.parametrize("workers", [1, 3])
def test_a_bad_sample_is_found_among_those_of_its_batch(tmp_path: Path, workers: int) -> None:
    bad = Several(bad=[70, 71, 250])
    with pytest.raises(SampleError, match="sample 70: 70 is bad"):
        fastio.pack(bad, tmp_path / "packed", workers=workers)
    report = fastio.pack(bad, tmp_path / "packed", workers=workers, on_error="skip", overwrite=True)
    assert [name for name, _ in report.skipped] == ["sample 70", "sample 71", "sample 250"]
    with fastio.open(tmp_path / "packed") as dataset:
        kept = dataset.gather("index", np.arange(N - 3)).tolist()
    assert kept == [n for n in range(N) if n not in (70, 71, 250)]


def test_a_subset_is_packed_as_its_samples_are(tmp_path: Path) -> None:
    rows = [5, 250, 7, 7, 100]
    fastio.pack(Subset(Single(), rows), tmp_path / "packed", workers=1)
    with fastio.open(tmp_path / "packed") as dataset:
        assert dataset.gather("index", np.arange(5)).tolist() == rows
        assert dataset.gather("asked", np.arange(5)).tolist() == [1] * 5


class Equal(Several):
    """Samples that do not depend on how they are asked for."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [Single()[index] for index in indices]


def test_the_bytes_are_those_of_single_samples(tmp_path: Path) -> None:
    fastio.pack(Single(), tmp_path / "single", workers=1)
    for workers in (1, 2):
        fastio.pack(Equal(), tmp_path / f"{workers}", workers=workers)
        for shard in (tmp_path / "single").glob("shard-*"):
            assert (tmp_path / f"{workers}" / shard.name).read_bytes() == shard.read_bytes()
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
