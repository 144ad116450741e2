"""The number of threads that is found for loaders of known rates."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio.feed.tuning import ThreadTuner
from tests.support import numbered_folder
from tests.torch_support import OwnDataset

_BATCH = 100  # samples


class Simulation:
    """A consumer of batches whose rate, and waiting, is a function of the number of threads.

    Args:
        rate: threads -> samples a second.
        waits: the share of the time that the consumer waits.
        noise: factors of the time of each batch, again and again.
    """

    def __init__(
        self,
        rate: Callable[[int], float],
        *,
        threads: int,
        most: int,
        waits: float = 0.5,
        noise: tuple[float, ...] = (1.0,),
    ) -> None:
        self.rate = rate
        self.tuner = ThreadTuner(threads, most)
        self._waits = waits
        self._noise = itertools.cycle(noise)
        self._counters = [0, 0, 0.0, 0.0]

    def run(self, seconds: float) -> Counter[int]:
        """How many batches came with which number of threads."""
        seen: Counter[int] = Counter()
        end_s = self._counters[2] + seconds
        while self._counters[2] < end_s:
            took_s = _BATCH / self.rate(self.tuner.threads) * next(self._noise)
            for place, value in enumerate((1, _BATCH, took_s, took_s * self._waits)):
                self._counters[place] += value
            batches, samples, elapsed_s, wait_s = self._counters
            seen[self.tuner.delivered(int(batches), int(samples), elapsed_s, wait_s)] += 1
        return seen


def test_threads_are_added_while_that_brings_something() -> None:
    runs = Simulation(lambda n: 500.0 * min(n, 6), threads=2, most=16)
    runs.run(120)
    assert runs.run(300).most_common(1)[0][0] == 6


def test_threads_are_taken_away_where_training_suffers_from_them() -> None:
    runs = Simulation(lambda n: 1000.0 - 60 * n, threads=8, most=16)
    runs.run(120)
    assert runs.run(300).most_common(1)[0][0] == 1


def test_nothing_changes_where_nothing_differs() -> None:
    runs = Simulation(lambda n: 1000.0, threads=4, most=8, noise=(0.97, 1.02, 1.0, 1.04, 0.98))
    assert runs.run(300).most_common(1)[0][0] == 4


def test_no_more_threads_are_tried_where_nobody_waits() -> None:
    runs = Simulation(lambda n: 1000.0, threads=4, most=8, waits=0.0)
    assert max(runs.run(300)) == 4


def test_trying_costs_less_than_a_twentieth() -> None:
    """Of two threads that do twice the work of one."""
    runs = Simulation(lambda n: 1000.0 * min(n, 2), threads=2, most=4)
    seen = runs.run(60)
    assert sum(seen.values()) * _BATCH > 0.95 * 60 * 2000


def test_a_pause_of_the_consumer_is_no_reason_to_change() -> None:
    pauses = (*(1.0,) * 97, 300.0)  # an evaluation now and then
    runs = Simulation(lambda n: 1000.0 * min(n, 2), threads=2, most=4, noise=pauses)
    assert runs.run(600).most_common(1)[0][0] == 2


def test_what_was_right_before_is_left_when_the_load_changes() -> None:
    runs = Simulation(lambda n: 500.0 * min(n, 2), threads=2, most=8)
    runs.run(400)
    runs.rate = lambda n: 500.0 * min(n, 8)
    runs.run(600)
    assert runs.tuner.threads >= 7


# --- The loader ---------------------------------------------------------------------------------


def batches(folder: Path, **options: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    steps = [fastio.RandomResizedCrop(16), fastio.RandomHorizontalFlip()]
    with fastio.Loader(folder, 5, True, transforms=steps, seed=3, **options) as loader:
        return [(images.clone(), labels.clone()) for images, labels in loader]


class Switching:
    """A tuner that asks for another number of threads after every batch."""

    def __init__(self, *_: Any) -> None:
        self._numbers = itertools.cycle((1, 4, 2, 3))
        self.threads = 0

    def delivered(self, *_: Any) -> int:
        self.threads = next(self._numbers)
        return self.threads


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    numbered_folder(tmp_path)
    for number, path in enumerate(sorted(tmp_path.rglob("*.jpg"))):
        if number % 4 == 0:  # Pillow's threads take part, too
            path.with_suffix(".png").write_bytes(path.read_bytes())
            path.unlink()
    return tmp_path


def test_batches_are_the_same_for_any_number_of_threads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = batches(folder, num_workers=1)
    monkeypatch.setattr("fastio.feed.tuning.ThreadTuner", Switching)
    for workers in (3, 2, "auto"):
        for (images, labels), (others, of_others) in zip(
            expected, batches(folder, num_workers=workers), strict=True
        ):
            torch.testing.assert_close(others, images, rtol=0, atol=0)
            assert of_others.tolist() == labels.tolist()


def test_stats_say_how_many_threads_work_now(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fastio.Loader(folder, 5, num_workers=3, fields=["label"]) as loader:
        assert loader.stats().threads == 3
    monkeypatch.setattr("fastio.feed.tuning.ThreadTuner", Switching)
    with fastio.Loader(folder, 5, num_workers="auto", fields=["label"]) as loader:
        iterator = iter(loader)
        seen = [loader.stats().threads for _ in zip(range(4), iterator, strict=False)]
    assert seen == [1, 4, 2, 3]


@pytest.mark.parametrize("workers", [-1, "many"])
def test_what_is_no_number_of_workers_is_refused(folder: Path, workers: Any) -> None:
    with pytest.raises(ValueError, match="num_workers option should be"):
        fastio.Loader(folder, num_workers=workers)


def test_the_torch_path_has_no_threads_to_tune() -> None:
    data = OwnDataset(6)
    with fastio.Loader(data, 2, num_workers="auto") as loader:
        assert loader.num_workers > 0  # of processes
        assert [batch[0].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
        assert loader.stats().threads == 0
