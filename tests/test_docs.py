"""README.md and docs/: their snippets run, their links lead somewhere, their lists are complete."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import fastio
from fastio import errors
from fastio.cli import main
from tests.support import import_torchvision

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = {page.name: page for page in sorted((ROOT / "docs").glob("*.md"))}
PAGES = [README, *DOCS.values()]

# The data that a page takes for granted; what else it uses, its own snippets make.
GIVEN = {
    "README.md": ["photos"],
    "bench.md": ["packed"],
    "cache.md": ["photos"],
    "distributed.md": ["packed"],
    "format.md": ["packed-jpeg"],
    "growing.md": ["photos"],
    "hugging_face.md": ["photos"],
    "images.md": ["photos"],
    "index.md": ["photos"],
    "loader.md": ["photos", "packed"],
    "mixes.md": ["tokens", "more"],
    "order.md": ["packed"],
    "python.md": ["packed"],
    "recipes.md": ["photos", "packed"],
    "remote.md": ["photos"],
    "tables.md": ["photos"],
    "tars.md": ["packed"],
    "training.md": ["packed"],
    "transforms.md": ["packed"],
}
RUNS = ("python", "sh", "csv")
SHOWN = (
    "text",
    "console",  # a command with what it printed
    "diff",
    "py",  # a script that the tests of an integration run: see tests.trainers.trainers_script
)


def blocks(page: Path) -> list[tuple[str, str, int]]:
    """The fenced blocks of a page: language, text, and the line that the text begins on."""
    text = page.read_text()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(m[1], m[2], text.count("\n", 0, m.start(2)) + 1) for m in found]


def commands(text: str) -> list[list[str]]:
    """The commands of a shell block as words, without comments."""
    lines = (shlex.split(line, comments=True) for line in text.splitlines())
    return [words for words in lines if words]


# --- The data ------------------------------------------------------------------------------------


def make_photos(folder: Path) -> None:
    for label, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for number in range(9):
            size = (100 + 20 * label, 90 + 4 * number)
            image = Image.new("RGB", size, (20 * number, 100 * label, 60))
            image.save(folder / name / f"{number}.jpg")


def documents(folder: Path) -> None:
    texts = [f"Document {n}. " * 20 for n in range(100)]
    fastio.pack(texts, folder, tokenizer="bytes", workers=1)


MAKERS: dict[str, Callable[[Path], object]] = {
    "photos": make_photos,
    "packed": lambda to: fastio.pack(to.parent / "photos", to, workers=1),
    "packed-jpeg": lambda to: fastio.pack(to.parent / "photos", to, codec="jpeg", workers=1),
    "tokens": documents,
    "more": documents,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that pages take for granted, which they get copies of."""
    folder = tmp_path_factory.mktemp("docs")
    for name, make in MAKERS.items():
        make(folder / name)
    return folder


# --- The snippets --------------------------------------------------------------------------------


def run_page(page: Path) -> dict[str, Any]:
    """Runs a page from top to bottom in the current folder; returns what its Python leaves."""
    names: dict[str, Any] = {"__name__": page.stem}
    for language, text, line in blocks(page):
        if language == "csv":
            Path("list.csv").write_text(text)
        elif language == "python":
            # Empty lines before it, so that an error tells the page's own line number.
            exec(compile("\n" * (line - 1) + text, str(page), "exec"), names)
        elif language == "sh":
            for command, *words in commands(text):
                if command == "fastio":
                    run_command(words)
    return names


def run_command(words: list[str]) -> None:
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, (words, done.output)


@pytest.fixture
def workplace(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A folder of a test's own, the current one; stores in memory are emptied behind it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield tmp_path
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_all_snippets_of_a_page_run_in_order(page: Path, data: Path, workplace: Path) -> None:
    for name in GIVEN.get(page.name, ()):
        shutil.copytree(data / name, workplace / name)
    if "import torchvision" in page.read_text():
        import_torchvision()  # after which the page can import it
    names = run_page(page)
    for value in names.values():
        if isinstance(value, fastio.Loader):
            value.close()


def test_blocks_are_of_known_languages() -> None:
    found = {language for page in PAGES for language, _, _ in blocks(page)}
    assert found == {*RUNS, *SHOWN}


def test_both_sides_of_the_diff_work(data: Path) -> None:
    (diff,) = [text for language, text, _ in blocks(README) if language == "diff"]
    lengths = []
    for side in "-+":
        lines = [line[1:] for line in diff.splitlines() if line.startswith(side)]
        made: dict[str, Any] = {"dataset": fastio.FolderDataset(data / "photos")}
        exec("\n".join(lines), made)
        lengths.append(len(made["loader"]))
    assert lengths == [1, 1]


# --- The commands that they name -----------------------------------------------------------------


def test_commands_name_tools_that_are_there() -> None:
    lines = [
        words
        for page in PAGES
        for name, text, _ in blocks(page)
        if name == "sh"
        for words in commands(text)
    ]
    tools = {words[0] for words in lines if words[0].startswith("tools/")}
    assert tools >= {"tools/demo", "tools/test", "tools/setup"}
    assert all((ROOT / name).is_file() for name in tools)


def fastio_commands(command: Any = None, name: str = "fastio") -> dict[str, Any]:
    """All commands by what is typed for them, as "fastio cache warm"."""
    command = command or typer.main.get_command(main)
    inner = getattr(command, "commands", {})
    found = {} if inner else {name: command}
    for word, one in inner.items():
        found |= fastio_commands(one, f"{name} {word}")
    return found


def options_of(command: Any) -> set[str]:
    return {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}


def test_every_command_is_listed() -> None:
    text = DOCS["command_line.md"].read_text()
    listed = re.findall(r"^(fastio [a-z |]+?)(?= [\[A-Z ])", text, re.MULTILINE)
    train = {f"fastio train {task}" for task in ("image", "text", "tabular")}
    named = {name.split("|")[0].strip() for name in listed}
    assert named == set(fastio_commands()) - train | {"fastio train image"}
    assert train < set(fastio_commands())


def without_other_programs(page: Path) -> str:
    """A page without the commands of programs that have options of their own."""
    text = page.read_text().replace("torchrun --nproc-per-node 8 -m ", "")
    return re.sub(
        r"(tools/|python -m tests\.|torchrun |ray start |pip |(?<![\w.])tar )[^`\n]*", "", text
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_options_that_a_page_names_are_those_of_the_commands(page: Path) -> None:
    known = {name: options_of(command) for name, command in fastio_commands().items()}
    text = without_other_programs(page)
    for line in text.splitlines():
        for name, rest in re.findall(r"\b(fastio [a-z]+(?: [a-z]+)?)\b([^`#]*)", line):
            options = known.get(name) or known.get(" ".join(name.split()[:2]))
            if options is not None:
                assert set(re.findall(r"(?<= )--[a-z-]+", rest)) <= options, line


def test_options_that_stand_alone_are_those_of_some_command() -> None:
    known = set().union(*map(options_of, fastio_commands().values())) | {"--help"}
    pages = [page for page in PAGES if page.name not in ("promises.md", "swapping.md")]
    text = "\n".join(map(without_other_programs, pages))
    assert set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", text)) <= known


def test_help_says_what_every_option_does() -> None:
    for name, command in fastio_commands().items():
        silent = [option.name for option in command.params if not getattr(option, "help", None)]
        assert not silent, name


# --- Links and lists -----------------------------------------------------------------------------


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What links to a page may name behind #."""
    heads = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.strip().lower()).replace(" ", "-") for head in heads}


def links(page: Path) -> list[str]:
    return re.findall(r"\]\((?!https?:)([^)]*)\)", prose(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_links_lead_to_files_and_sections_that_are_there(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_tests_and_programs_that_are_named_are_there(page: Path) -> None:
    suffix = r"\.(?:py|cpp|h|md)\b"
    pattern = rf"`(test_\w+{suffix}|(?:tests|benchmarks|native|fastio)/[\w/]+{suffix}|tools/\w+)"
    named = re.findall(pattern, page.read_text())
    paths = [f"tests/{name}" if name.startswith("test_") else name for name in named]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_index_lists_every_page() -> None:
    assert set(links(DOCS["index.md"])) >= set(DOCS) - {"index.md"}


def test_the_api_page_has_every_public_name() -> None:
    listed = re.findall(r"^::: fastio\.(?:\w+\.)*(\w+)$", DOCS["api.md"].read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(fastio.__all__)


def test_the_site_has_every_page() -> None:
    listed = re.findall(r": (\w+\.md)$", (ROOT / "tools/mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(DOCS)


@pytest.mark.long  # and installs MkDocs, where it is not there yet
def test_the_site_is_built_without_a_warning() -> None:
    done = subprocess.run([ROOT / "tools/docs"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pages_of_docs_link_to_pages_of_docs() -> None:
    outside = {(name, to) for name, page in DOCS.items() for to in links(page) if ".." in to}
    assert outside == set()  # such a link leads nowhere on the site


def test_readme_lists_every_extra() -> None:
    settings = (ROOT / "pyproject.toml").read_text()
    extras = settings.split("[project.optional-dependencies]")[1].split("\n[")[0]
    table = README.read_text().split("| extra |")[1].split("\n\n")[0]
    first_cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    listed = re.findall(r"`(\w+)`", "".join(first_cells))
    assert {*listed, "dev"} == set(re.findall(r"^(\w+) = \[", extras, re.MULTILINE))


def test_readme_has_at_most_200_lines() -> None:
    assert len(README.read_text().splitlines()) <= 200


def test_every_error_that_users_meet_is_listed() -> None:
    table = DOCS["errors.md"].read_text()
    kinds = (errors.FastioError, Warning)
    found = vars(errors).items()
    names = {name for name, one in found if isinstance(one, type) and issubclass(one, kinds)}
    assert {name for name in names - {"FastioError"} if f"`{name}`" not in table} == set()
