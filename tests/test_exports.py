"""The public face: fastio/__init__.py says where the public names are, and imports them on use."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
import types
from pathlib import Path

import pytest

import fastio
from tests.children import run_code


def test_all_is_sorted_and_names_nothing_twice() -> None:
    assert list(fastio.__all__) == sorted(set(fastio.__all__))


def test_every_public_name_exists() -> None:
    missing = [name for name in fastio.__all__ if not hasattr(fastio, name)]
    assert not missing


def test_nothing_public_is_left_out_of_all() -> None:
    public = {
        name
        for name, value in vars(fastio).items()
        if not name.startswith("_")
        and not isinstance(value, types.ModuleType)
        and name != "annotations"
    }
    assert not public - set(fastio.__all__)


def test_public_names_say_that_they_are_fastio_s() -> None:
    strangers = [
        name
        for name in fastio.__all__
        if not getattr(getattr(fastio, name), "__module__", "fastio").startswith("fastio")
    ]
    assert not strangers


def test_the_version_is_that_of_the_package() -> None:
    assert fastio.__version__ == importlib.metadata.version("fastio")


def test_type_checkers_see_the_names_of_all_at_their_homes() -> None:
    """The stub says where the names are; `__init__.py` finds them in its text."""
    stub = ast.parse(Path(fastio.__file__).with_suffix(".pyi").read_text())
    imported = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname: node.module for node in imported for alias in node.names}
    assert seen == fastio._HOMES
    # With `__all__`, mypy would take only the names in its value for `from fastio import *`.
    assert not any("__all__" in ast.unparse(node) for node in stub.body)


def test_an_installation_without_the_stub_says_so() -> None:
    done = run_code(
        "import importlib, io, fastio\n"
        "def missing(path, **options):\n"
        "    raise FileNotFoundError(2, 'No such file or directory', path)\n"
        "io.open = missing\n"
        "try:\n"
        "    importlib.reload(fastio)\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert "Its __init__.pyi is read at run time" in done.stdout, done
    assert "`pip install` the package again" in done.stdout


def imported_by(code: str) -> set[str]:
    """The packages that a new interpreter has imported after running `code`."""
    code += "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_fastio_imports_no_dependency() -> None:
    assert not imported_by("import fastio") & {"numpy", "pyarrow", "PIL", "torch", "rich", "fsspec"}
    # With what it imports, it would take a third longer.
    assert "pathlib" not in imported_by("import fastio") - imported_by("pass")


def test_torch_is_imported_with_the_first_loader_only() -> None:
    code = "import fastio; fastio.Schema; fastio.pack; fastio.open; fastio.RandomCrop"
    assert "torch" not in imported_by(code)


def test_pack_stays_the_function_when_its_package_is_imported() -> None:
    code = """
import fastio
import fastio.pack.api
import fastio.pack.export
assert fastio.pack is fastio.pack.__globals__["pack"]
"""
    imported_by(code)


def test_modules_are_attributes_without_an_import_of_their_own() -> None:
    imported_by("import fastio; fastio.transforms.Resize; fastio.packed.packed.open_store")


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'fastio' has no attribute 'nothing'"):
        _ = fastio.nothing  # type: ignore[attr-defined]


def test_dir_lists_the_public_names() -> None:
    assert set(fastio.__all__) <= set(dir(fastio))


def test_the_package_is_typed() -> None:
    package = Path(fastio.__file__).parent
    assert (package / "py.typed").exists()
    assert (package / "_native.pyi").exists()
    assert (package / "__init__.pyi").exists()
