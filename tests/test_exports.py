"""The public face: fastio/__init__.py holds the public names, a sorted __all__, nothing else."""

from __future__ import annotations

import ast
import importlib.metadata
import types
from pathlib import Path

import fastio


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


def test_init_holds_imports_and_assignments_only() -> None:
    tree = ast.parse(Path(fastio.__file__).read_text())
    docstring, *rest = tree.body
    assert isinstance(docstring, ast.Expr)
    *rest, loader = rest  # __getattr__, for Loader, which needs torch
    assert isinstance(loader, ast.FunctionDef)
    assert loader.name == "__getattr__"
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.If)
    assert all(isinstance(node, allowed) for node in rest)


def test_the_package_is_typed() -> None:
    package = Path(fastio.__file__).parent
    assert (package / "py.typed").exists()
    assert (package / "_native.pyi").exists()
