"""The annotated tree in README.md names what is there, and nothing that is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def readme_tree() -> str:
    """The fenced block of README.md in which fastio/ and native/ are drawn."""
    blocks = re.findall(r"^```.*?^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    found = [b for b in blocks if "__init__.py" in b and "native/" in b and "core/" in b]
    assert len(found) == 1, "README.md has one annotated tree, with fastio/ and native/core/ in it"
    return found[0]


def parts() -> list[str]:
    """Names the tree must mention: modules and folders of fastio/, tools, and units of the core."""
    package = [p.name for p in (ROOT / "fastio").glob("*.py")]
    folders = [p.parent.name + "/" for p in (ROOT / "fastio").glob("*/__init__.py")]
    tools = [p.name for p in (ROOT / "tools").iterdir() if p.is_file() and not p.suffix]
    core = {re.sub(r"_(avx2|avx512)$", "", p.stem) for p in (ROOT / "native/core").glob("*.*")}
    return sorted({*package, *folders, *tools, *core})


@pytest.mark.parametrize("name", parts())
def test_tree_mentions(name: str) -> None:
    assert re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", readme_tree())


def test_tree_names_no_module_that_is_not_there() -> None:
    listed = re.findall(r"^\s+([a-z_0-9]+\.py)\b", readme_tree(), flags=re.MULTILINE)
    there = {p.name for folder in ("fastio", "tests") for p in (ROOT / folder).rglob("*.py")}
    assert not set(listed) - there
