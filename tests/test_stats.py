"""Stats: plain counters, their rates and differences."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastio
from fastio import Stats
from fastio.engine.pending import Pending
from fastio.order.plan import PlannedBatch
from tests.support import numbered_folder

_SLEEP_S = 0.002


def test_rates_are_zero_before_the_first_batch() -> None:
    stats = Stats()
    assert stats.samples_per_s == 0.0
    assert stats.wait_share == 0.0


def test_rates_follow_from_waiting_and_using() -> None:
    stats = Stats(samples=300, wait_s=1.0, between_s=2.0)
    assert stats.samples_per_s == 100.0
    assert stats.wait_share == 1 / 3


def test_the_difference_of_two_snapshots_is_what_happened_between() -> None:
    before = Stats(path="torch", reason="why", batches=2, samples=20, wait_s=0.5)
    after = Stats(path="torch", reason="why", batches=5, samples=50, wait_s=0.75, skipped=1)
    between = after - before
    assert (between.batches, between.samples, between.wait_s, between.skipped) == (3, 30, 0.25, 1)
    assert (between.path, between.reason) == ("torch", "why")


def test_the_sum_of_two_keeps_the_first_one_s_path() -> None:
    total = Stats(path="torch", reason="why", samples=1) + Stats(samples=2, decode_s=0.5)
    assert (total.samples, total.decode_s, total.path, total.reason) == (3, 0.5, "torch", "why")


def test_to_dict_is_json_with_the_rates() -> None:
    values = json.loads(json.dumps(Stats(samples=10, between_s=2.0).to_dict()))
    assert values["samples"] == 10
    assert values["samples_per_s"] == 5.0


def test_the_text_names_the_torch_path_and_its_reason() -> None:
    text = str(Stats(path="torch", reason="ColorJitter is not known"))
    assert "torch workers (ColorJitter is not known)" in text
    assert "decode" not in text


def test_the_text_names_bad_samples_only_when_there_were_some() -> None:
    assert "bad samples" not in str(Stats())
    assert "bad samples: 1 skipped, 2 replaced" in str(Stats(skipped=1, replaced=2))


def test_the_number_of_threads_is_no_counter() -> None:
    before, after = Stats(threads=2), Stats(threads=3, samples=4)
    assert (after - before).threads == 3
    assert (before + after).threads == 2
    assert "by 3 native threads" in str(after)


def test_the_text_names_what_of_the_waiting_is_known() -> None:
    assert "of the waiting" not in str(Stats(wait_s=1.0))
    text = str(Stats(wait_s=1.0, fetch_s=0.25, transform_s=0.5))
    assert "of the waiting: 0.25 s for the store, 0.50 s in Python's transforms" in text


def slowly(batch: Any) -> Any:
    time.sleep(_SLEEP_S)
    return batch


@pytest.mark.parametrize(
    "options",
    [{"transforms": {"label": fastio.OnBatch(slowly)}}, {"transforms": {None: slowly}}, {}],
)
def test_python_s_transforms_are_counted(tmp_path: Path, options: dict[str, Any]) -> None:
    numbered_folder(tmp_path, (4, 4))
    collate = {} if options else {"collate_fn": slowly}
    with fastio.Loader(tmp_path, 2, fields=["label"], **options, **collate) as loader:
        assert len(list(loader)) == 4
        stats = loader.stats()
    assert 4 * _SLEEP_S <= stats.transform_s <= stats.wait_s


def test_waiting_for_the_store_is_counted() -> None:
    pending = Pending(PlannedBatch(0, np.zeros(1, np.int64), 1, 1))
    assert pending.wait(1.0)
    assert pending.fetch_s == 0.0
    pending.staged = threading.Event()
    assert not pending.wait(_SLEEP_S)
    assert pending.fetch_s > 0
