"""fastio doctor on the command line: what it prints, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fastio import SourceNotFound, Stats
from fastio.cli import main
from fastio.diagnose import Facts
from tests.doctor_facts import FAULTLESS, FOLDER, IMAGES, REMOTE, STORAGE, TABLES

IN_FOLDER = replace(FAULTLESS, data=FOLDER, images=IMAGES, notes=("cold reads: why not",))
Doctor = Callable[..., Result]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Doctor:
    """Runs the command with facts in place of the probes."""
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "packed"):
        Path(name).mkdir()

    def run(facts: Facts | Exception, *arguments: str) -> Result:
        def examine(*_: Any) -> Facts:
            if isinstance(facts, Exception):
                raise facts
            return facts

        monkeypatch.setattr("fastio.diagnose.probes.examine", examine)
        return CliRunner().invoke(main, ["doctor", *arguments])

    return run


def test_what_brings_most_comes_first_within_a_hundred_columns(doctor: Doctor) -> None:
    done = doctor(IN_FOLDER, "photos/")
    assert done.exit_code == 3
    lines = done.output.splitlines()
    assert max(map(len, lines)) <= 100
    first = next(number for number, line in enumerate(lines) if line.startswith("1."))
    assert lines[first].startswith("1. An epoch waits for threads that decode")
    assert "4.0" in lines[first]
    assert "fastio pack photos/ PACKED" in lines[first + 1]
    assert any(line.startswith("you wait for  the loader's threads (2,000") for line in lines)
    assert any(line.startswith("not measured  cold reads: why not") for line in lines)
    assert "estimates" in done.output.splitlines()[-2]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [((), 3), (("--fail-over", "4.0"), 3), (("--fail-over", "4.1"), 0), (("--model-rate", "9"), 0)],
)
def test_the_exit_code_is_3_for_a_gain_over_the_threshold(
    doctor: Doctor, arguments: tuple[str, ...], code: int
) -> None:
    assert doctor(IN_FOLDER, "photos/", *arguments).exit_code == code


def test_nothing_to_gain_is_said(doctor: Doctor) -> None:
    done = doctor(FAULTLESS, "packed/")
    assert done.exit_code == 0
    assert "Nothing was found that would make an epoch shorter." in done.output


def test_json_has_facts_stages_and_findings(doctor: Doctor) -> None:
    done = doctor(IN_FOLDER, "photos/", "--json")
    told = json.loads(done.output)
    assert done.exit_code == 3
    assert told["stages"] == {"decode": 2000.0}
    assert told["facts"]["images"]["pillow_rate"] == 250.0
    assert [finding["culprit"] for finding in told["findings"]] == ["decode", "decode"]


@pytest.mark.parametrize(
    "facts",
    [
        Facts(),
        replace(FAULTLESS, images=None, tables=TABLES, data=replace(FOLDER, kind="tables")),
        replace(FAULTLESS, images=None, storage=None, remote=REMOTE),
        replace(FAULTLESS, data=None, storage=None, images=None),
    ],
)
def test_all_kinds_of_facts_are_told(doctor: Doctor, facts: Facts) -> None:
    done = doctor(facts)
    assert done.exit_code in (0, 3)
    assert done.exception is None or isinstance(done.exception, SystemExit)


@pytest.mark.parametrize("path", ["packed", "*.tar", "s3://nothing/at/all"])
def test_what_the_probes_do_not_find_is_an_error(doctor: Doctor, path: str) -> None:
    assert doctor(SourceNotFound(f"{path}: nothing there"), path).exit_code == 1


def test_a_path_that_is_not_there_is_an_error_before_anything_is_measured(doctor: Doctor) -> None:
    assert doctor(AssertionError("the probes were called"), "nothing").exit_code == 1


def test_how_one_loads_and_trains_is_told_to_the_rules(doctor: Doctor) -> None:
    cold = replace(STORAGE, cold_reads_s=500.0, resident_share=0.0)
    facts = replace(FAULTLESS, storage=cold)
    assert doctor(facts, "packed").exit_code == 0
    assert doctor(facts, "packed", "--epochs", "1").exit_code == 3


def test_options_of_data_need_data(doctor: Doctor) -> None:
    done = doctor(AssertionError("the probes were called"), "--cache", "kept")
    assert done.exit_code == 2
    assert "cache needs DATA" in done.output


def test_stats_of_a_loader_are_diagnosed(doctor: Doctor, tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    path.write_text(json.dumps(Stats(wait_s=5.0, between_s=5.0, transform_s=4.9).to_dict()))
    done = doctor(Facts(), "--stats", str(path))
    assert done.exit_code == 3
    assert "transforms written in Python" in done.output
    path.write_text(json.dumps(Stats(wait_s=0.1, between_s=9.9, samples=5000).to_dict()))
    told = doctor(Facts(), "--stats", str(path), "--model-rate", "1000")
    assert "copies that the loop makes itself" in told.output
    unused = doctor(Facts(), "--stats", str(path), "--threads", "4")
    assert unused.exit_code == 2
    assert "threads cannot be used with --stats" in unused.output
    for wrong in ("no stats", "[]", '{"wait_s": "long"}', '{"path": "neither"}'):
        path.write_text(wrong)
        assert doctor(Facts(), "--stats", str(path)).exit_code == 2
    assert (
        doctor(AssertionError("the data was not asked for"), ".", "--stats", str(path)).exit_code
        == 2
    )
