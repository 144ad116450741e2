"""What a bench comes to: the verdict, the headlines, the epochs and the tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastio.diagnose import Measured, words
from fastio.diagnose.measured import Phase, Prediction, Rung, Settings
from fastio.diagnose.report.report import (
    ceiling_line,
    dataset_line,
    factor_of,
    headlines,
    remarks,
    settings_line,
    verdict,
)
from fastio.diagnose.report.tables import (
    all_tables,
    busy_table,
    epoch_table,
    ladder_table,
    predictions_table,
    runs_table,
    speed_ups,
)
from tests import report_samples as samples
from tests.measurements import split

X = words.TIMES


@pytest.mark.parametrize(
    ("measured", "sentence"),
    [
        (
            samples.photos(),
            f"An epoch takes 48.1 s, 3.2{X} faster than DataLoader's; the model waits 42% of it, "
            "for decoding.",
        ),
        (
            samples.remote_cold(),
            "An epoch takes 1 h 38 min cold; the model waits 92% of it, for the network.",
        ),
        (
            samples.compute_bound(),
            "An epoch takes 292 s; the model is the limit: it computes 99.3% of the time.",
        ),
        (
            samples.table(),
            "An epoch takes 5.33 s; the model waits 80% of it, mostly for the loader's threads.",
        ),
        (
            samples.bare(),
            "The loader alone, warm, delivers 200 samples/s: an epoch in 500 ms.",
        ),
        (samples.empty(), "No measurement shows what an epoch waits for."),
    ],
)
def test_verdict_says_how_long_and_what_for(measured: Measured, sentence: str) -> None:
    assert verdict(measured) == sentence


def with_baseline(seconds: float) -> Measured:
    """A bench whose DataLoader took that long for what fastio does in 10 s."""
    phases = (
        Phase("together_warm", 1000, 10.0, compute_s=4.0),
        Phase("baseline_together", 1000, seconds, compute_s=4.0),
    )
    return replace(samples.photos(), phases=phases, epochs=(split("warm", 0, 6, 0, 0, 4),))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (25.0, f"2.5{X} faster than DataLoader's"),
        (8.0, f"1.25{X} slower than DataLoader's"),
        (10.2, "as long as DataLoader's"),
    ],
)
def test_verdict_is_fair_to_dataloader(seconds: float, said: str) -> None:
    assert said in verdict(with_baseline(seconds))


def test_loaders_are_compared_where_no_model_ran() -> None:
    phases = (Phase("loader_warm", 100, 1.0), Phase("baseline_loader", 100, 3.0))
    measured = replace(samples.empty(), phases=phases)
    assert factor_of(measured, "loader_warm", "baseline_loader") == pytest.approx(3.0)
    assert f"3.0{X} DataLoader's rate" in verdict(measured)


def test_a_cold_epoch_is_not_set_against_dataloader_s_warm_one() -> None:
    measured = replace(samples.remote_cold(), phases=samples.photos().phases)
    assert "DataLoader" not in verdict(measured)


def test_the_ceiling_is_of_both_loaders() -> None:
    measured = samples.photos()
    assert ceiling_line(measured) == (
        "fastio reaches 58% of the rate of the model alone (1,786 images/s); "
        "DataLoader reaches 18%."
    )
    alone = tuple(phase for phase in measured.phases if phase.name != "compute")
    assert ceiling_line(replace(measured, phases=alone)) == ""
    slow = replace(measured.phases[0], steps=2)
    assert ceiling_line(replace(measured, phases=(slow, *alone))) == ""


def test_settings_say_how_the_model_is_trained() -> None:
    settings = Settings(64, 2, model="resnet50", amp="bf16", compile=True, channels_last=True)
    assert "resnet50, bf16, torch.compile, channels_last" in settings_line(settings)


def test_one_is_no_plural() -> None:
    facts = replace(samples.PHOTOS, rows=1)
    assert ", 1 image, " in dataset_line(facts)


def test_headlines_are_of_what_was_measured() -> None:
    labels = [one.label for one in headlines(samples.photos())]
    assert labels == [
        "epoch, warm",
        "epoch, cold",
        "faster than DataLoader",
        "of the model's own rate",
        "accelerator utilisation",
        "loader alone",
        "accelerators kept busy",
    ]
    assert [one.label for one in headlines(samples.bare())] == ["loader alone"]
    assert headlines(samples.empty()) == ()


def test_remarks_hold_notes_memory_and_baseline() -> None:
    text = " ".join(remarks(samples.photos()))
    for part in ("0.53 x resnet50-h100", "/data/imagenet-50k", "612 MB", "posix_fadvise"):
        assert part in text


def test_epoch_s_parts_add_up() -> None:
    for name, make in samples.SAMPLES.items():
        for epoch in make().all_epochs():
            total = sum(spent for _, spent in epoch.parts())
            assert total == pytest.approx(epoch.epoch_s), name


def test_dataloader_s_time_beside_the_model_is_waiting() -> None:
    *_, baseline = samples.photos().all_epochs()
    assert baseline.name == "DataLoader"
    assert [part for part, _ in baseline.parts()] == ["wait", "compute"]
    assert baseline.wait_s == pytest.approx((24.93 - 4.479) / 8000 * 50_000)


def test_dataloader_without_a_known_model_is_all_waiting() -> None:
    measured = replace(samples.empty(), phases=(Phase("baseline_together", 10, 2.0),))
    (baseline,) = measured.all_epochs()
    assert baseline.parts() == [("wait", pytest.approx(10_000.0))]
    assert baseline.wait_s is None


def test_epochs_of_no_time_are_left_out() -> None:
    measured = replace(samples.empty(), epochs=(split("warm", 0, 0, 0, 0, 0),))
    assert measured.all_epochs() == []
    assert epoch_table(measured).rows == ()
    assert verdict(measured).startswith("No measurement")


def test_every_table_s_rows_have_its_columns() -> None:
    for make in samples.SAMPLES.values():
        for table in (*all_tables(make()), ladder_table(samples.LADDER)):
            assert table.rows
            assert {len(row) for row in table.rows} == {len(table.columns)}
            assert table.sums < len(table.rows)


def test_epoch_table_holds_every_stage_of_every_epoch() -> None:
    table = epoch_table(samples.photos())
    assert table.columns == ("", "warm", "", "cold", "", "DataLoader", "")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["fetch: disk or network"][2:4] == ("11.0 s", "19%")
    assert rows["decode: loader's threads"][:2] == ("20.1 s", "42%")
    assert rows["waiting in all"] == ("20.1 s", "42%", "31.2 s", "53%", "128 s", "82%")
    assert rows["epoch"][0::2] == ("48.1 s", "59.2 s", "156 s")
    assert rows["AU"][0::2] == ("58%", "47%", "18%")


def test_au_has_no_row_where_nothing_computed() -> None:
    measured = replace(samples.photos(), phases=(Phase("loader_warm", 10, 1.0),))
    assert "AU" not in {row[0] for row in epoch_table(measured).rows}


def test_predictions_are_set_against_what_was_measured() -> None:
    rows = {row[0]: row[1:] for row in predictions_table(samples.photos()).rows}
    assert rows["now, warm"] == (words.NOTHING, "48.1 s", words.NOTHING)
    assert rows["threads: 2"] == ("29.1 s", "29.9 s", "-2.7%")
    assert rows["model alone"] == ("28.0 s", words.NOTHING, words.NOTHING)


def test_a_prediction_that_begins_like_now_is_one() -> None:
    measured = replace(samples.empty(), predictions=(Prediction("nowhere", 2.0, 1.0),))
    assert predictions_table(measured).rows == (("nowhere", "2.00 s", "1.00 s", "+100.0%"),)


def test_runs_and_busy_times_leave_out_what_nobody_measured() -> None:
    assert "copy" not in busy_table(samples.photos()).columns
    assert "copy" in busy_table(samples.remote_cold()).columns
    assert "AU" not in runs_table(samples.bare()).columns
    bare, whole = runs_table(samples.bare()), runs_table(samples.photos())
    assert ("of model" in bare.columns, "Of model" in bare.note) == (False, False)
    assert ("of model" in whole.columns, "Of model" in whole.note) == (True, True)
    assert busy_table(replace(samples.empty(), phases=(Phase("compute", 1, 1.0),))).rows == ()


def test_runs_of_no_length_have_no_rates() -> None:
    measured = replace(samples.empty(), phases=(Phase("loader_warm", 0, 0.0, au=0.5),))
    (row,) = runs_table(measured).rows
    assert row == ("loader alone, warm", "0", "0", "50%")


def test_settings_without_a_model_say_so() -> None:
    from fastio.diagnose.report.report import settings_line

    assert "no model" in settings_line(Settings(1, 1))
    assert "an accelerator of 500/s, emulated" in settings_line(
        Settings(1, 1, accelerator_rate=500.0)
    )
    assert "resnet18" in settings_line(Settings(1, 1, model="resnet18"))


def test_speed_ups_skip_what_was_not_trained() -> None:
    rungs = [
        Rung("no GPU", why_not="no GPU"),
        Rung("first", 10.0),
        Rung("one core", why_not="one core"),
        Rung("second", 4.0),
        Rung("third", 5.0),
    ]
    assert speed_ups(rungs) == [
        (None, None),
        (None, None),
        (None, None),
        (2.5, 2.5),
        (2.0, 0.8),
    ]


def test_ladder_says_why_a_rung_is_missing() -> None:
    rows = {row[0]: row[1:] for row in ladder_table(samples.LADDER).rows}
    assert rows["pin_memory"] == (*[words.NOTHING] * 4, "no GPU")
    assert rows["packed as blocks"] == ("48 s", f"12.7{X}", f"2.5{X}", "44.1%", "")
    assert ladder_table([]).rows == ()
