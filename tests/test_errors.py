"""The tree of errors is as its docstring draws it, and its messages survive a trip."""

from __future__ import annotations

import inspect
import json
import pickle
import re

import pytest

from fastio import FastioError, ImageError, PackageMissing, SampleError, SourceNotFound, errors
from tests.children import run_code

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if value.__module__ == errors.__name__ and issubclass(value, Exception)
    if not issubclass(value, Warning)
]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_a_fastio_error(kind: type[Exception]) -> None:
    assert issubclass(kind, FastioError)


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind is not FastioError])
def test_every_error_is_also_a_builtin_that_people_catch(kind: type[Exception]) -> None:
    builtins = [base for base in kind.__mro__ if base.__module__ == "builtins"]
    assert set(builtins) - {Exception, BaseException, object}


@pytest.mark.parametrize("kind", CLASSES)
def test_the_docstring_draws_the_tree(kind: type[Exception]) -> None:
    line = next(line for line in (errors.__doc__ or "").splitlines() if kind.__name__ in line)
    drawn = re.search(rf"{kind.__name__} \((\w+)\)", line)
    if drawn:
        assert drawn[1] in [base.__name__ for base in kind.__bases__] or kind is FastioError


def test_the_docstring_draws_nothing_that_is_not_there() -> None:
    drawn = re.findall(r"[|`]-- (\w+)", errors.__doc__ or "")
    assert sorted(drawn) == sorted(kind.__name__ for kind in CLASSES if kind is not FastioError)


def test_a_sample_error_names_dataset_row_file_and_cause() -> None:
    error = ImageError("train", 17, "cats/3.jpg", ValueError("truncated"))
    for part in ("train", "17", "cats/3.jpg", "truncated"):
        assert part in str(error)


def test_a_sample_error_without_a_message_names_its_cause_s_type() -> None:
    assert "KeyError" in str(SampleError("train", 0, "x", KeyError()))


@pytest.mark.parametrize("kind", [SampleError, ImageError])
def test_a_sample_error_survives_pickling(kind: type[SampleError]) -> None:
    error = kind("train", 17, "cats/3.jpg", ValueError("truncated"))
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is kind
    assert str(found) == str(error)
    assert (found.dataset, found.row, found.name) == ("train", 17, "cats/3.jpg")


def test_a_source_not_found_is_a_file_not_found() -> None:
    with pytest.raises(FileNotFoundError, match="no such thing"):
        raise SourceNotFound("no such thing")


def test_a_missing_package_says_what_it_is_needed_for_and_how_to_install_it() -> None:
    error = PackageMissing("soxr", "resample sound", "fastio[audio]", ImportError("no soxr"))
    assert str(error) == "soxr is needed to resample sound: pip install 'fastio[audio]' (no soxr)"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert isinstance(error, ImportError)


# The package, what installs it, and code that needs it.
NEEDED = [
    ("lightning", "fastio[lightning]", "import fastio.integrations.lightning"),
    ("accelerate", "fastio[accelerate]", "import fastio.integrations.accelerate"),
    ("soundfile", "fastio[audio]", "fastio.AudioDecode().check_installed()"),
    ("datasets", "fastio[hub]", "fastio.open('hf://datasets/a/b')"),
    ("huggingface_hub", "fastio[hub]", "fastio.open('hf://datasets/a/b/c')"),
    ("torchvision", "torchvision", "kinds._image_model('vgg11', 2, 32)"),
    ("transformers", "transformers", "text.Pretrained('a', 'AutoModel', 8, 8)"),
    ("ray", "fastio[ray]", "ray_engine.import_ray()"),
]
WITHOUT = """
import json, sys
import fastio
from fastio.pack import ray_engine
from fastio.train import kinds
from fastio.train.models import text
needed = json.loads(sys.argv[1])
sys.modules.update({package: None for package, _, _ in needed})  # as if they were not installed
for package, install, code in needed:
    try:
        exec(code)
    except fastio.PackageMissing as error:
        assert error.package == package, error
        assert f"pip install {install!r}" in str(error), error
    else:
        raise AssertionError(code)
"""


def test_every_missing_package_is_the_same_error() -> None:
    done = run_code(WITHOUT, json.dumps(NEEDED))
    assert done.returncode == 0, done.stderr
