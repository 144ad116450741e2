"""What an epoch takes, from what each stage takes alone."""

from __future__ import annotations

import pytest

from fastio.diagnose.costs import Costs, costs
from fastio.diagnose.measured import ThreadRate
from tests.measurements import measured, phase

US = 1e-6


def test_stages_beside_each_other_take_as_long_as_the_slowest() -> None:
    found = Costs(prep_s=3, transform_s=1, copy_s=2, compute_s=5)
    assert found.sample_s() == 5
    assert found.waits_for() == "compute"
    assert Costs(prep_s=7, transform_s=1, copy_s=2, compute_s=5).waits_for() == "decode"


def test_storage_counts_in_a_cold_epoch_alone() -> None:
    found = Costs(prep_s=1, fetch_s=8, compute_s=2)
    assert found.sample_s() == 2
    assert found.sample_s(cold=True) == 8
    assert found.waits_for(cold=True) == "fetch"
    assert found.waits_for() == "compute"


def test_a_cold_epoch_that_is_hardly_slower_waits_for_threads() -> None:
    assert Costs(prep_s=8, fetch_s=8.5, compute_s=2).waits_for(cold=True) == "decode"


def test_a_model_on_the_cpu_takes_turns_with_transforms() -> None:
    found = Costs(prep_s=1, transform_s=2, compute_s=3, asynchronous=False)
    assert found.sample_s() == 5
    assert found.waits_for() == "compute"


def test_blocking_copies_stand_between_the_steps_of_a_device() -> None:
    found = Costs(prep_s=1, transform_s=2, copy_s=4, compute_s=3, blocking_copies=True)
    assert found.sample_s() == 7
    assert found.waits_for() == "copy"
    ahead = Costs(prep_s=1, transform_s=2, copy_s=4, compute_s=3)
    assert ahead.sample_s() == 4


def test_nothing_is_faster_than_the_processor_time_over_the_cores() -> None:
    found = Costs(
        prep_s=2,
        compute_s=3,
        prep_cpu_s=4,
        compute_cpu_s=6,
        cores=2,
        asynchronous=False,
    )
    assert found.sample_s() == 5


def test_phases_become_costs() -> None:
    found = costs(
        measured(
            [
                phase("compute", 500),
                phase("loader_warm", 400, cpu=700),
                phase("loader_cold", 900),
                phase("together_warm", 510, copy=120),
            ],
            settings={"blocking_copies": True},
        )
    )
    assert found.prep_s == pytest.approx(400 * US)
    assert found.fetch_s == pytest.approx(900 * US)
    assert found.compute_s == pytest.approx(500 * US)
    assert found.copy_s == pytest.approx(120 * US)
    assert found.prep_cpu_s == pytest.approx(700 * US)
    assert found.compute_cpu_s == 0
    assert found.cores == 4
    assert found.asynchronous
    assert found.blocking_copies


def test_storage_that_hides_behind_decoding_costs_nothing() -> None:
    found = costs(measured([phase("loader_warm", 400), phase("loader_cold", 420)]))
    assert found.fetch_s == 0


def test_python_transforms_are_taken_out_of_the_loader() -> None:
    found = costs(
        measured(
            [phase("loader_warm", 1100, transform=1000, cpu=1600)],
            threads=(ThreadRate(1, 1250.0), ThreadRate(2, 2500.0)),
        )
    )
    assert found.prep_s == pytest.approx(400 * US)
    assert found.transform_s == pytest.approx(1000 * US)
    assert found.prep_cpu_s == pytest.approx(600 * US)


def test_the_processor_time_of_a_model_counts_where_it_shares_the_cores() -> None:
    phases = [phase("compute", 500, cpu=900), phase("loader_warm", 400, cpu=700)]
    found = costs(measured(phases, settings={"asynchronous": False}))
    assert found.compute_cpu_s == pytest.approx(900 * US)
    assert found.sample_s() == pytest.approx(500 * US)


def test_nothing_measured_costs_nothing() -> None:
    assert costs(measured([])).sample_s() == 0
