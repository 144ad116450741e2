"""The annotated tree in docs/architecture.md names what is there, and nothing that is not."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def annotated_tree() -> str:
    """The fenced block of docs/architecture.md in which fastio/ and native/core/ are drawn."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    blocks = re.findall(r"^```.*?^```", text, re.DOTALL | re.MULTILINE)
    found = [b for b in blocks if "__init__.py" in b and "native/" in b and "core/" in b]
    assert len(found) == 1, (
        "docs/architecture.md has one annotated tree, with fastio/ and native/core/ in it"
    )
    return found[0]


def core_units() -> set[str]:
    """The units of native/core: resample, with resample_avx2 and its like counted as part of it."""
    stems = {path.stem for path in (ROOT / "native" / "core").iterdir()}
    return {s for s in stems if not any(s.startswith(other + "_") for other in stems)}


def test_tree_mentions_every_module_tool_and_unit_of_the_core() -> None:
    names = {path.name for path in (ROOT / "fastio").glob("*.py")}
    names |= {path.parent.name + "/" for path in (ROOT / "fastio").glob("*/__init__.py")}
    names |= {p.name for p in (ROOT / "tools").iterdir() if p.is_file() and not p.suffix}
    names |= core_units()
    tree = annotated_tree()
    missing = {n for n in names if not re.search(rf"(?<![\w.]){re.escape(n)}(?!\w)", tree)}
    assert not missing


def test_tree_names_no_module_that_is_not_there() -> None:
    listed = re.findall(r"^\W*([a-z_0-9]+\.py)\b", annotated_tree(), flags=re.MULTILINE)
    there = {p.name for folder in ("fastio", "tests") for p in (ROOT / folder).rglob("*.py")}
    assert not set(listed) - there


def test_files_that_the_page_names_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`((?:fastio|native|tests|tools|docs)/[\w./]*)`", text)
    assert named
    assert {name for name in named if not (ROOT / name).exists()} == set()


def packages_that_list_their_modules() -> dict[str, str]:
    """The list of modules in the docstring of each package that has one."""
    docs = {
        path.parent.relative_to(ROOT).as_posix(): ast.get_docstring(ast.parse(path.read_text()))
        for path in sorted((ROOT / "fastio").rglob("__init__.py"))
    }
    return {name: doc for name, doc in docs.items() if doc and re.search(r"^- `", doc, re.M)}


@pytest.mark.parametrize(("package", "doc"), packages_that_list_their_modules().items())
def test_packages_list_all_of_their_modules_and_no_others(package: str, doc: str) -> None:
    folder = ROOT / package
    there = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    there |= {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    assert there <= set(re.findall(r"`([a-z_]+/?)`", doc))
    heads = re.findall(r"^- ((?:`[a-z_]+/?`(?:, | and )?)+)", doc, re.M)
    assert set(re.findall(r"`([a-z_]+/?)`", " ".join(heads))) <= there
