"""Who is to blame, what to do, what it would bring: of benches that are made up."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from fastio import Stats
from fastio.diagnose import Finding, Measured, diagnose, diagnose_stats, epoch_now
from fastio.diagnose.costs import cold_epoch, costs, epoch_after
from fastio.diagnose.findings import by_gain
from fastio.diagnose.measured import Phase, PhaseName, ThreadRate
from fastio.diagnose.rules import predictions
from tests.measurements import ROWS, measured, phase, split

# Microseconds a sample of a machine where nothing is wrong: the model is the slowest by a little.
HEALTHY: dict[PhaseName, float] = {
    "compute": 500,
    "loader_warm": 400,
    "loader_cold": 410,
    "together_warm": 500,
    "together_cold": 500,
}
CURVE = (ThreadRate(1, 1250.0), ThreadRate(2, 2500.0), ThreadRate(4, 2500.0))


def bench(
    us: dict[PhaseName, float], busy: dict[PhaseName, Any] | None = None, **others: Any
) -> Measured:
    """A bench of HEALTHY's phases with some that differ."""
    phases: list[Phase] = [
        phase(name, value, **(busy or {}).get(name, {})) for name, value in (HEALTHY | us).items()
    ]
    return measured(phases, **({"threads": CURVE} | others))


def first(found: Measured) -> Finding:
    return diagnose(found)[0]


def test_slow_disk() -> None:
    found = bench({"loader_cold": 2000, "together_cold": 2000})
    finding = first(found)
    assert finding.culprit == "fetch"
    assert finding.gain == pytest.approx(4.0)
    assert "50 MB/s were read, 200 are needed" in finding.evidence


def test_slow_network() -> None:
    found = bench({"loader_cold": 2000, "together_cold": 2000}, storage="network")
    finding = first(found)
    assert finding.culprit == "network"
    assert "cache=" in finding.advice


def test_small_files_are_to_be_packed() -> None:
    found = bench({"loader_cold": 2000, "together_cold": 2000}, kind="folder")
    assert "fastio pack" in first(found).advice


def test_heavy_python_transform() -> None:
    found = bench(
        {"loader_warm": 2100, "loader_cold": 2100, "together_warm": 2000, "together_cold": 2000},
        {"loader_warm": {"transform": 2000}, "together_warm": {"transform": 2000}},
    )
    finding = first(found)
    assert finding.culprit == "transform"
    assert finding.gain == pytest.approx(4.0)


def test_a_python_transform_that_hides_behind_the_model_is_no_finding() -> None:
    found = bench({}, {"loader_warm": {"transform": 300}})
    assert [finding.culprit for finding in diagnose(found)] == ["compute"]


def test_too_few_threads() -> None:
    found = bench(
        {"loader_warm": 800, "loader_cold": 800, "together_warm": 800, "together_cold": 800},
        settings={"threads": 1},
    )
    finding = first(found)
    assert finding.culprit == "threads"
    # Two give as much as four: the fewest are advised. Then the model decides.
    assert "num_workers=2" in finding.advice
    assert finding.gain == pytest.approx(800 / 500)


def test_too_many_threads() -> None:
    found = bench(
        {"loader_warm": 700, "loader_cold": 700, "together_warm": 700, "together_cold": 700},
        threads=(*CURVE, ThreadRate(64, 1e6 / 700)),
        settings={"threads": 64},
    )
    assert first(found).culprit == "threads"


def test_the_threads_that_a_loader_has_are_not_advised() -> None:
    found = bench(
        {"loader_warm": 800, "loader_cold": 800, "together_warm": 800, "together_cold": 800},
        threads=(ThreadRate(1, 1500), ThreadRate(2, 2500)),  # a moment when the machine was faster
        settings={"threads": 2},
    )
    assert "num_workers" not in "".join(finding.advice for finding in diagnose(found))


def test_slow_copy() -> None:
    found = bench(
        {"together_warm": 1400, "together_cold": 1400},
        {"together_warm": {"copy": 900}},
        settings={"blocking_copies": True},
    )
    finding = first(found)
    assert finding.culprit == "copy"
    assert "device=" in finding.advice
    assert finding.gain == pytest.approx(1400 / 900)


def test_slow_model() -> None:
    found = bench({"compute": 4000, "together_warm": 4000, "together_cold": 4000})
    finding = first(found)
    assert finding.culprit == "compute"
    assert finding.gain is None  # that it could become ten times faster is not said
    assert finding.evidence == ("250 samples/s by the model, 2,500 by the loader",)
    assert predictions(found)[-1].epoch_s == pytest.approx(400e-6 * ROWS)


def test_decoding_that_packing_would_mend() -> None:
    slow: dict[PhaseName, float] = {
        "loader_warm": 1600,
        "loader_cold": 1600,
        "together_warm": 1600,
        "together_cold": 1600,
    }
    found = bench(slow, kind="folder", packed_samples_per_s=2500.0, threads=())
    finding = first(found)
    assert finding.culprit == "decode"
    assert "fastio pack data" in finding.advice
    assert finding.gain == pytest.approx(1600 / 500)


def test_without_anything_to_gain_it_is_said_what_is_waited_for() -> None:
    found = bench({"loader_warm": 800, "loader_cold": 800, "together_warm": 800}, threads=())
    (finding,) = diagnose(found)
    assert finding.culprit == "decode"
    assert finding.gain is None


@pytest.mark.parametrize(
    ("kind", "codecs", "advice"),
    [
        ("folder", {"jpeg": ROWS}, ("fastio pack data", "smaller images", "more cores")),
        ("tables", {}, ("fastio pack data", "more cores")),
        ("tokens", {}, ("more cores",)),
    ],
)
def test_what_makes_decoding_cheaper_depends_on_the_data(
    kind: str, codecs: dict[str, int], advice: tuple[str, ...]
) -> None:
    found = bench({"loader_warm": 800, "loader_cold": 800, "together_warm": 800}, threads=())
    data = replace(found.dataset, kind=kind, codecs=codecs)
    (finding,) = diagnose(replace(found, dataset=data))
    told = [
        each
        for each in ("fastio pack data", "smaller images", "more cores")
        if each in finding.advice
    ]
    assert tuple(told) == advice


def test_several_are_sorted_by_gain() -> None:
    found = bench(
        {"loader_warm": 1600, "loader_cold": 9000, "together_warm": 1600, "together_cold": 9000},
        settings={"threads": 1},
    )
    culprits = [finding.culprit for finding in diagnose(found)]
    assert culprits == ["fetch", "threads"]


@pytest.mark.parametrize(
    ("culprit", "ran", "found"),
    [
        (
            "network",
            Stats(wait_s=15, between_s=5, fetch_s=15, threads=4, samples=ROWS),
            bench({"loader_cold": 2000, "together_cold": 2000}, storage="network"),
        ),
        (
            "transform",
            Stats(wait_s=15, between_s=5, transform_s=15, threads=4, samples=ROWS),
            bench(
                {"loader_warm": 2100, "together_warm": 2000},
                {"loader_warm": {"transform": 2000}, "together_warm": {"transform": 2000}},
            ),
        ),
        (
            "threads",
            Stats(wait_s=5, between_s=5, decode_s=8, threads=2, samples=5000),
            bench(
                {"loader_warm": 800, "together_warm": 800},
                threads=(ThreadRate(2, 1250), ThreadRate(4, 2500)),
            ),
        ),
        (
            "copy",
            Stats(wait_s=0.1, between_s=9.9, threads=4, samples=5000),
            bench(
                {"together_warm": 1400},
                {"together_warm": {"copy": 900}},
                settings={"blocking_copies": True},
            ),
        ),
        (
            "compute",
            Stats(wait_s=0.1, between_s=39.9, threads=4, samples=40_000),
            bench({"compute": 4000, "together_warm": 4000, "together_cold": 4000}),
        ),
    ],
)
def test_a_bench_and_the_statistics_of_a_loader_say_the_same(
    culprit: str, ran: Stats, found: Measured
) -> None:
    told = [diagnose_stats(ran, cores=4, model_rate=1000.0)[0], first(found)]
    assert [one.culprit for one in told] == [culprit, culprit]
    cause, other = (re.sub(r"^\d+% of an? (cold )?|an ", "", one.waits_for) for one in told)
    assert cause.split(": the model")[0] == other.split(": the model")[0]
    assert told[0].advice == told[1].advice or culprit == "compute"


def test_the_share_of_the_epoch_is_told() -> None:
    found = bench(
        {"loader_cold": 2000, "together_cold": 2000},
        epochs=(split("warm", 0, 0, 0, 0, 5.0), split("cold", 15.0, 0, 0, 0, 5.0)),
    )
    assert first(found).waits_for == "75% of a cold epoch waits for the disk"


def test_an_epoch_is_what_was_measured() -> None:
    found = bench({"together_warm": 520})
    assert epoch_now(found) == pytest.approx(520e-6 * ROWS)


def test_an_epoch_that_was_not_measured_is_computed() -> None:
    phases = [phase("compute", 500), phase("loader_warm", 700)]
    assert epoch_now(measured(phases)) == pytest.approx(700e-6 * ROWS)


def test_what_the_loader_needs_beyond_its_costs_it_will_need_again() -> None:
    slow: dict[PhaseName, float] = {
        "loader_warm": 1600,
        "together_warm": 1760,
        "loader_cold": 1600,
        "together_cold": 1760,
    }
    found = bench(slow, settings={"threads": 1}, threads=(ThreadRate(1, 625), ThreadRate(2, 1250)))
    threads = next(one for one in predictions(found) if one.name == "threads: 2")
    assert threads.epoch_s == pytest.approx(1.1 * 800e-6 * ROWS)
    # The model does not: it takes 500 alone.
    fast = replace(costs(found), prep_s=100e-6)
    assert epoch_after(found, fast) == pytest.approx(500e-6 * ROWS)


def test_predictions_begin_with_the_epoch_as_it_is() -> None:
    found = bench({"loader_cold": 2000, "together_cold": 2000})
    cold, warm, *after = predictions(found)
    assert (cold.name, cold.epoch_s, cold.measured_s) == ("now, cold", 20.0, 20.0)
    assert (warm.name, warm.epoch_s) == ("now, warm", 5.0)
    # The warm epoch is what the remedy for the disk would bring.
    mended = next(one for one in after if one.name == "in memory, or from a faster disk")
    assert mended.measured_s == warm.epoch_s
    assert mended.epoch_s == pytest.approx(warm.epoch_s)


def test_predictions_that_gain_nothing_are_left_out() -> None:
    names = [one.name for one in predictions(bench({}))]
    assert names[:2] == ["now, cold", "now, warm"]
    assert all("Python" not in name and "threads" not in name for name in names)


def test_findings_without_a_gain_come_last() -> None:
    one, two, three = (
        Finding("copy", "", "", 1.5),
        Finding("decode", "", "", None),
        Finding("fetch", "", "", 3.0),
    )
    assert by_gain([one, two, three]) == (three, one, two)


def test_what_a_cold_epoch_takes_longer_is_fetching() -> None:
    warm = split("warm", 0, 1.0, 2.0, 0, 5.0)
    assert cold_epoch(warm, 20.0, 13.0) == split("cold", 12.0, 1.0, 2.0, 0, 5.0)
    faster = cold_epoch(warm, 4.0, 1.0)
    assert faster.stages["fetch"] == 0
    assert faster.epoch_s == pytest.approx(4.0)


def test_what_a_cold_epoch_takes_longer_without_waiting_is_not_fetching() -> None:
    warm = split("warm", 0, 1.0, 2.0, 0, 5.0)
    assert cold_epoch(warm, 17.0, 1.0) == split("cold", 1.0, 2.0, 4.0, 0, 10.0)


def test_a_model_that_waits_for_the_disk_is_not_to_blame() -> None:
    found = bench({"loader_cold": 600, "together_cold": 600})
    assert [finding.culprit for finding in diagnose(found)] == ["fetch"]


@pytest.mark.parametrize("missing", HEALTHY)
def test_a_phase_that_is_missing_breaks_nothing(missing: PhaseName) -> None:
    whole = bench({"loader_cold": 2000, "together_cold": 2000})
    part = replace(whole, phases=tuple(one for one in whole.phases if one.name != missing))
    assert diagnose(part)
    predictions(part)


def test_rates_of_nothing_are_no_change() -> None:
    found = bench({}, threads=tuple(ThreadRate(count, 0.0) for count in (1, 2, 4)))
    assert diagnose(replace(found, packed_samples_per_s=0.0)) == diagnose(bench({}, threads=()))
