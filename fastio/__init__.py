"""fastio is a high-throughput data loader for PyTorch.

`pack` converts a folder of images, or any iterable of samples, into a sharded dataset. `Loader`
replaces torch's DataLoader for packed datasets, image folders, WebDataset tars, table files and
torch datasets.
"""

from __future__ import annotations

import re as _re
import sys as _sys
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from io import open as _open
from os.path import splitext as _splitext
from types import ModuleType as _ModuleType
from typing import Any as _Any

from fastio.runtime.build import _native as _native  # first: it says what is missing

# The module that defines each public name, read from the stub, so that type checkers use the same
# list. A module is imported when one of its names is first used, because importing torch takes a
# second, and NumPy, pyarrow and Pillow together half a second. pathlib is not used here, because it
# would make this import a third slower.
try:
    # `_open`, because `open` is a public name of this module.
    with _open(_splitext(__file__)[0] + ".pyi", encoding="utf-8") as _file:  # noqa: UP020
        _STUB = _file.read()
except OSError as _error:
    raise ImportError(
        f"fastio cannot read the list of its public names ({_error}). Its __init__.pyi is read "
        "at run time: `pip install` the package again, or add the file to the application's bundle"
    ) from _error
_HOMES = {
    name: module
    for module, names in _re.findall(r"^from (\S+) import \(\n(.*?)^\)", _STUB, _re.M | _re.S)
    for name in _re.findall(r"as (\w+)", names)
}

__all__ = sorted(_HOMES)


class _Package(_ModuleType):
    """This package. Its attribute `pack` is the function, not the subpackage of that name, which
    the import system would bind here."""

    def __setattr__(self, name: str, value: _Any) -> None:
        if name not in _HOMES or not isinstance(value, _ModuleType):
            super().__setattr__(name, value)

    def __reduce__(self) -> _Any:
        # cloudpickle, with which Ray sends functions, knows modules of the usual class only.
        return _import_module, (self.__name__,)


_sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> _Any:
    if name == "__version__":
        from importlib.metadata import version

        value = version("fastio")
    elif name in _HOMES:
        value = getattr(_import_module(_HOMES[name]), name)
    elif not name.startswith("_") and _find_spec(f"fastio.{name}"):
        return _import_module(f"fastio.{name}")
    else:
        raise AttributeError(f"module 'fastio' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
