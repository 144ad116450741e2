"""Numbers and names as people read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastio.diagnose import words
from fastio.runtime.sizes import size_text

X = words.TIMES
NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (3e-6, "3.00 µs"),
        (0.0123, "12.3 ms"),
        (0.9996, "1.00 s"),
        (1.234, "1.23 s"),
        (9.996, "10.0 s"),
        (41.23, "41.2 s"),
        (99.96, "100 s"),
        (173.2, "173 s"),
        (612, "612 s"),
        (1505, "25 min 05 s"),
        (3599.7, "1 h 00 min"),
        (4380, "1 h 13 min"),
        (400_000, "111 h 07 min"),
        (None, words.NOTHING),
        (NAN, words.NOTHING),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "largest", "text"),
    [
        (0.4, 41.2, "0.4 s"),
        (27.99, 155.8, "28 s"),
        (48.1, 612, "48 s"),
        (12, 5400, "0.2 min"),
        (0, 5400, "0 s"),
        (7200, 72_000, "2.0 h"),
        (None, 5, words.NOTHING),
    ],
)
def test_seconds_of_a_column_share_unit_and_decimals(
    value: float | None, largest: float, text: str
) -> None:
    assert words.seconds_like(value, largest) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (8.3, "8.30"), (99.6, "99.6"), (1786.4, "1,786"), (12_400_000, "12.4 M")],
)
def test_rate_has_three_digits_and_no_unit(value: float, text: str) -> None:
    assert words.rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0%"),
        (1e-5, "<0.1%"),
        (0.004, "0.4%"),
        (0.38, "38%"),
        (0.996, "99.6%"),
        (0.99999, ">99.9%"),
        (1, "100%"),
        (1.2, "120%"),
    ],
)
def test_percent_does_not_round_to_none_or_all(value: float, text: str) -> None:
    assert words.percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.98, f"0.98{X}"), (1.234, f"1.23{X}"), (4.2, f"4.2{X}"), (123.4, f"123{X}")],
)
def test_times(value: float, text: str) -> None:
    assert words.times(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (512, "512 bytes"),
        (999.6, "1.00 kB"),
        (109_600, "110 kB"),
        (5.48e9, "5.48 GB"),
    ],
)
def test_size(value: float, text: str) -> None:
    assert size_text(value) == text


@pytest.mark.parametrize("write", [words.rate, words.percent, words.times, words.accuracy])
@pytest.mark.parametrize("value", [None, NAN, float("inf")])
def test_what_is_not_measured_is_a_dash(
    write: Callable[[float | None], str], value: float | None
) -> None:
    assert write(value) == words.NOTHING


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain", "plain"),
        ("two\nlines\tmore", "two lines more"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("turned \u202e round", r"turned \u202e round"),
        ("\udcff half", r"\xff half"),
        ("größe 日本語", "größe 日本語"),
        ("", ""),
    ],
)
def test_clean_texts_are_one_printable_line(text: str, clean: str) -> None:
    assert words.clean(text) == clean
    clean.encode()


def test_sentences_begin_and_end() -> None:
    assert words.sentence("the model waits") == "The model waits."
    assert words.sentence("Done.") == "Done."
    assert words.sentence("") == ""


def test_dates_are_to_the_minute() -> None:
    assert words.date("2026-11-22T07:52:26.123Z") == "2026-11-22 07:52 UTC"
    assert words.date("2026-11-22T07:52:26+00:00") == "2026-11-22 07:52 UTC"
    assert words.date("2026-11-22T07:52:26+02:00") == "2026-11-22T07:52:26+02:00"
    assert words.date("yesterday") == "yesterday"
