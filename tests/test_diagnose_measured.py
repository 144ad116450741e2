"""`Measured` as JSON, and what is read off it."""

from __future__ import annotations

import json

import pytest

from fastio import MeasuredInvalid
from fastio.diagnose import Measured
from fastio.diagnose.measured import Memory, Phase, Prediction, Span, ThreadRate, Training
from fastio.stats import Stats
from tests.measurements import measured, split

STATS = Stats(read_s=1.0, decode_s=2.0, resample_s=3.0, wait_s=0.5, bytes_read=1000)
FULL = measured(
    [
        Phase("compute", 100, 2.0, compute_s=2.0, steps=10, au=1.0),
        Phase("loader_warm", 100, 4.0, STATS, steps=10, cpu_s=5.0),
    ],
    epochs=(split("warm", 0.0, 1.0, 2.0, 3.0, 4.0),),
    timeline=(Span(0, "decode", 0.0, 0.1), Span(0, "compute", 0.1, 0.2, "cold")),
    threads=(ThreadRate(1, 10.0), ThreadRate(2, 19.0)),
    predictions=(Prediction("now, warm", 4.0, 4.0), Prediction("threads: 2", 2.0)),
    trainings=(Training("fastio", 2, 10.0, 0.5, 1.25),),
    memory=Memory(1 << 30, 1 << 34),
    accelerators_fed=1.5,
    notes=("A note",),
    packed_samples_per_s=100.0,
)


def test_survives_json() -> None:
    assert Measured.from_dict(json.loads(json.dumps(FULL.to_dict()))) == FULL


def test_json_of_a_later_version_may_have_more_keys() -> None:
    values = FULL.to_dict() | {"findings": [], "unheard of": 1}
    values["machine"] = values["machine"] | {"colour": "blue"}
    assert Measured.from_dict(values) == FULL


def test_numbers_without_a_point_are_seconds_too() -> None:
    values = json.loads(json.dumps(FULL.to_dict()))
    values["phases"][0]["seconds"] = 2
    found = Measured.from_dict(values)
    assert found == FULL
    assert isinstance(found.phases[0].seconds, float)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), 99, "format"),
        (("phases",), {}, r"bench\.phases: .* array, got {}"),
        (("phases", 0, "name"), "lunch", r"phases\[0\]\.name: .*'compute'.* got 'lunch'"),
        (("phases", 1, "samples"), "many", r"phases\[1\]\.samples: .* valid integer, got 'many'"),
        (("phases", 1, "samples"), True, r"phases\[1\]\.samples: .* valid integer, got True"),
        (("machine",), [], r"bench\.machine: .* object, got \[\]"),
        (("memory", "peak_rss_bytes"), None, r"memory\.peak_rss_bytes: .* valid integer, got None"),
    ],
)
def test_what_does_not_fit_is_named(path: tuple[object, ...], value: object, message: str) -> None:
    values = json.loads(json.dumps(FULL.to_dict()))
    at = values
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(MeasuredInvalid, match=message):
        Measured.from_dict(values)


def test_a_missing_key_without_default_is_an_error() -> None:
    values = FULL.to_dict()
    del values["dataset"]
    with pytest.raises(MeasuredInvalid, match=r"bench\.dataset: Field required$"):
        Measured.from_dict(values)


def test_something_else_is_no_bench() -> None:
    with pytest.raises(MeasuredInvalid, match="list"):
        Measured.from_dict([])  # type: ignore[arg-type]


def test_an_epoch_is_the_rate_over_all_rows() -> None:
    warm = FULL.phase("loader_warm")
    assert warm is not None
    assert warm.samples_per_s == 25
    assert FULL.epoch_s(warm) == pytest.approx(4.0 / 100 * FULL.dataset.rows)


def test_what_was_not_measured_is_none() -> None:
    assert FULL.phase("together_cold") is None
    assert FULL.epoch("cold") is None


def test_parts_of_an_epoch_add_up() -> None:
    (epoch,) = FULL.epochs
    assert epoch.epoch_s == 10
    assert [part for part, _ in epoch.parts()] == ["decode", "transform", "copy", "compute"]
    assert sum(spent for _, spent in epoch.parts()) == epoch.epoch_s


def test_an_empty_phase_divides_by_nothing() -> None:
    empty = Phase("compute", 0, 0.0)
    assert empty.samples_per_s == 0
    assert FULL.epoch_s(empty) == 0
