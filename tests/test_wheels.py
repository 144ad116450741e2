"""Wheels, builds from source and releases: what can be checked without building a wheel."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
from pathlib import Path

import arm
import pytest
import wheels
import wheels_check

from fastio import _native

ROOT = Path(__file__).parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text()


def test_there_is_a_wheel_for_every_python_of_the_package() -> None:
    assert f'requires-python = ">={wheels.PYTHONS[0]}"' in PROJECT
    tags = [f"cp{version.replace('.', '')}" for version in wheels.PYTHONS]
    assert f'wheel.py-api = "{tags[-1]}"' in PROJECT
    expected = [f"{tag}-{tag}" for tag in tags[:-1]] + [f"{tags[-1]}-abi3"]
    assert list(wheels.TAGS.values()) == expected


def test_releases_and_their_documentation_name_every_wheel() -> None:
    named = re.search(r"^for tag in (.*); do$", (ROOT / "tools/release").read_text(), re.MULTILINE)
    assert named is not None
    assert named[1].split() == list(wheels.TAGS.values())
    table = (ROOT / "docs/installation.md").read_text()
    assert re.findall(r"`(cp\d+-\w+)`", table) == list(wheels.TAGS.values())


def test_the_changelog_begins_with_this_version_and_names_the_libjpeg_of_its_wheels() -> None:
    version = re.search(r'^version = "(.*)"$', PROJECT, re.MULTILINE)
    assert version is not None
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    assert newest.startswith(f"{version[1]} (")
    assert f"libjpeg-turbo {wheels.JPEG_VERSION}" in newest


def test_a_given_python_is_a_path_or_a_name_in_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "some-python"
    python.write_text("""#!/bin/sh\necho '{"version": "3.14", "usable": true}'\n""")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    expected = [wheels.Python(python, "3.14")]
    assert wheels.find_pythons(["some-python"]) == expected
    assert wheels.find_pythons([str(python)]) == expected


@pytest.mark.parametrize("about", ["", '{"version": "3.14", "usable": false}'])
def test_a_given_python_that_cannot_build_wheels_is_an_error(tmp_path: Path, about: str) -> None:
    """And not left out, so that nothing is built and the tool succeeds."""
    python = tmp_path / "some-python"
    with pytest.raises(SystemExit, match="some-python is not a CPython"):
        wheels.find_pythons([str(python)])
    python.write_text(f"#!/bin/sh\necho '{about}'\n" if about else "#!/bin/sh\nexit 127\n")
    python.chmod(0o755)
    with pytest.raises(SystemExit, match="some-python is not a CPython"):
        wheels.find_pythons([str(python)])


def test_a_folder_with_another_version_of_libjpeg_turbo_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is not the source of libjpeg-turbo"):
        wheels.jpeg_source(tmp_path)
    (tmp_path / "CMakeLists.txt").write_text("set(VERSION 2.1.5)\n")
    with pytest.raises(SystemExit, match="is not the source of libjpeg-turbo"):
        wheels.jpeg_source(tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(f"set(VERSION {wheels.JPEG_VERSION})\n")
    assert wheels.jpeg_source(tmp_path) == tmp_path


def test_the_quick_start_that_wheels_run_packs_and_loads() -> None:
    blocks = list(wheels_check.readme_quick_start())
    assert [language for language, _ in blocks] == ["python", "sh", "python"]
    assert all("fastio" in code for _, code in blocks)


def test_the_module_exports_only_its_entry() -> None:
    """So that other modules of a process do not call its libjpeg, C++ library or nanobind."""
    symbols = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=just-symbols", str(_native.__file__)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert symbols.split() == ["PyInit__native"]


def test_tests_that_are_left_out_for_arm_exist() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "tests/native").glob("*.cpp"))
    named = re.findall(r'^TEST_CASE\(\s*"(.*?)"\)', sources, re.MULTILINE)
    for pattern in arm.NOT_UNDER_QEMU:
        assert len(fnmatch.filter(named, pattern)) == 1
        assert "," not in pattern, "doctest would take it for two patterns"
    assert all((ROOT / path).exists() for path in arm.PYTHON_TESTS)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ({"CXX": "no-such-compiler"}, "No C++ compiler found"),
        ({"CMAKE_DISABLE_FIND_PACKAGE_JPEG": "ON"}, "No headers of libjpeg-turbo found"),
        ({"CMAKE_DISABLE_FIND_PACKAGE_Python": "ON"}, "No headers of Python 3.10 or newer found"),
    ],
)
def test_a_build_from_source_says_what_it_needs(
    tmp_path: Path, missing: dict[str, str], said: str
) -> None:
    options = [f"-D{name}={value}" for name, value in missing.items() if name != "CXX"]
    done = subprocess.run(
        ["cmake", "-S", str(ROOT / "native"), "-B", str(tmp_path), *options],
        env={**os.environ, **missing},
        capture_output=True,
        text=True,
    )
    words = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert f"{said}" in words
    assert "Debian: apt-get install g++ libjpeg62-turbo-dev python3-dev" in words
