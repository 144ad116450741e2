"""README.md runs: its Python, its commands, the two lines of its diff; its lists are whole."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastio
from fastio import errors

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RUN = "from fastio.cli import main; main()"


def blocks() -> list[tuple[str, str, int]]:
    """The fenced blocks: language, text, and the line of README.md that the text begins on."""
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return [(m[1], m[2], README.count("\n", 0, m.start(2)) + 1) for m in found]


def of(language: str) -> list[str]:
    return [text for name, text, _ in blocks() if name == language]


def commands() -> list[list[str]]:
    """The commands of the shell blocks as words, their comments left out."""
    lines = "".join(of("sh")).splitlines()
    words = [re.sub(r"\s+#.*", "", line).replace('"', "").split() for line in lines]
    return [part for part in words if part]


def make_photos(folder: Path) -> None:
    for label, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for number in range(9):
            size = (300 + 40 * label, 260 + 10 * number)
            Image.new("RGB", size, (20 * number, 100 * label, 60)).save(
                folder / name / f"{number}.jpg"
            )


def run_all(folder: Path) -> dict[str, Any]:
    """Runs README.md from top to bottom; returns what its Python leaves behind."""
    names: dict[str, Any] = {"__name__": "readme"}
    for language, text, line in blocks():
        if language == "csv":
            (folder / "list.csv").write_text(text)
        elif language == "python":
            # Empty lines before it, so that an error tells README.md's own line number.
            exec(compile("\n" * (line - 1) + text, str(ROOT / "README.md"), "exec"), names)
        elif language == "sh":
            for command in re.findall(r"^fastio (.*?)(?:\s+#.*)?$", text, re.MULTILINE):
                words = [word.strip('"') for word in command.split()]
                subprocess.run([sys.executable, "-c", RUN, *words], check=True, timeout=120)
    return names


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """All of README.md run in an empty folder with photos/, which stays the current one."""
    folder = tmp_path_factory.mktemp("readme")
    make_photos(folder / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names = run_all(folder)
        yield names
        names["loader"].close()


def test_all_snippets_run_in_order(names: dict[str, Any]) -> None:
    assert {path.name for path in Path().iterdir()} == {
        *("photos", "packed", "list.csv", "packed-list", "from-python", "written", "sheet.png"),
    }


def test_its_reader_reads_what_fastio_reads(names: dict[str, Any]) -> None:
    with fastio.open("packed") as dataset:
        assert dataset.classes is not None
        for row in (0, 8, 9, 17):
            image, label = names["image_and_label"](row)
            pixels, number = dataset[row]
            assert np.array_equal(np.asarray(image), pixels)
            assert dataset.classes[number] == label


@pytest.mark.usefixtures("names")
def test_both_sides_of_the_diff_work() -> None:
    (diff,) = of("diff")
    lengths = []
    for side in "-+":
        lines = [line[1:] for line in diff.splitlines() if line.startswith(side)]
        made: dict[str, Any] = {"dataset": fastio.FolderDataset("photos")}
        exec("\n".join(lines), made)
        lengths.append(len(made["loader"]))
    assert lengths == [1, 1]


def test_commands_name_tools_that_are_there() -> None:
    tools = {words[0] for words in commands() if words[0].startswith("tools/")}
    assert tools == {"tools/demo", "tools/test", "tools/setup"}
    assert all((ROOT / name).is_file() for name in tools)


def test_every_command_and_its_options_are_listed() -> None:
    section = README.split("## The command line")[1].split("\n## ")[0]
    for name in ("pack", "info", "verify", "show"):
        shown = subprocess.run(
            [sys.executable, "-c", RUN, name, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={"COLUMNS": "200", "TERM": "dumb"},
        ).stdout
        options = set(re.findall(r"--[a-z-]+", shown)) - {"--help"}
        (row,) = [line for line in section.splitlines() if line.startswith(f"| `fastio {name} ")]
        assert options == set(re.findall(r"--[a-z-]+", row))


def test_every_error_that_users_meet_is_listed() -> None:
    table = README.split("## When things go wrong")[1].split("\n## ")[0]
    names = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert {name for name in names - {"FastioError"} if f"`{name}`" not in table} == set()
