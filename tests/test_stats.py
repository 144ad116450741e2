"""Stats: plain counters, their rates and differences."""

from __future__ import annotations

import json

from fastio.stats import Stats


def test_rates_are_zero_before_the_first_batch() -> None:
    stats = Stats()
    assert stats.samples_per_s == 0.0
    assert stats.wait_share == 0.0


def test_rates_follow_from_waiting_and_using() -> None:
    stats = Stats(samples=300, wait_s=1.0, between_s=2.0)
    assert stats.samples_per_s == 100.0
    assert stats.wait_share == 1 / 3


def test_a_snapshot_does_not_change_with_later_work() -> None:
    stats = Stats(batches=1)
    before = stats.snapshot()
    stats.batches += 4
    assert before.batches == 1


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
