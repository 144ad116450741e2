"""Which tars a path means."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastio import SourceNotFound
from fastio.sources.tar.reader import expand_braces, find_tars

PATTERNS = [
    "x.tar",
    "x-{000..003}.tar",
    "x-{8..11}.tar",
    "x-{08..11}.tar",
    "x-{3..1}.tar",
    "x-{0..10..5}.tar",
    "{train,val}-{0..1}.tar",
    "{a,b{1..2},}.tar",
    "{a..c}.tar",
    "a{b}c",
    "a{}c",
    "{x,{y,z}w}",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_braces_mean_what_they_do_in_webdataset(pattern: str) -> None:
    braceexpand = pytest.importorskip("braceexpand", reason="webdataset expands with it")
    assert expand_braces(pattern) == list(braceexpand.braceexpand(pattern))


@pytest.mark.parametrize("pattern", ["a{b", "a}b", "{1..}", "{..2}", "{1...2}"])
def test_braces_without_meaning_stay(pattern: str) -> None:
    assert expand_braces(pattern) == [pattern]


@given(st.text(alphabet="{},.12a", max_size=10))
def test_any_text_means_some_names(pattern: str) -> None:
    assert expand_braces(pattern)


def test_a_pattern_of_too_many_names_is_refused() -> None:
    for pattern in ("{0..99999999}", "{0..9999}{0..9999}"):
        with pytest.raises(SourceNotFound, match="expands to more than"):
            expand_braces(pattern)


def test_a_folder_of_tars_has_no_folders_in_it(tmp_path: Path) -> None:
    for name in ("b.tar", "a.tar", "a_stats.json", ".hidden"):
        (tmp_path / name).touch()
    assert find_tars(tmp_path) == [str(tmp_path / "a.tar"), str(tmp_path / "b.tar")]
    (tmp_path / "class").mkdir()
    assert find_tars(tmp_path) is None


def test_a_file_whose_name_has_braces_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "{1,2}.tar"
    path.touch()
    assert find_tars(path) == [str(path)]


@pytest.mark.parametrize(
    "path", ["photos", "list.csv", [], ["a.jpg"], ["a.tar", 1], 3, None, [1, 2]]
)
def test_other_things_are_no_tars(path: object) -> None:
    assert find_tars(path) is None
