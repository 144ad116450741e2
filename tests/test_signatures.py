"""Functions whose annotations name what exists for type checkers only, in any version of Python."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from fastio import Loader, PerSample
from fastio.runtime.signatures import parameters

# From 3.14 on, annotations are evaluated when they are asked for, as text is before.
LAZY = "" if sys.version_info >= (3, 14) else "from __future__ import annotations"
CODE = f"""
{LAZY}
import fastio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

def turned(image: Image.Image, rng: Generator) -> Image.Image:
    return image

class Own(fastio.Loader):
    def __init__(self, *arguments: Missing, own: Missing, **options: Missing) -> None:
        super().__init__(*arguments, **options)
"""


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(compile(CODE, "code", "exec", dont_inherit=True), found)
    return found


def test_their_parameters_are_known(names: dict[str, Any]) -> None:
    assert list(parameters(names["turned"])) == ["image", "rng"]


def test_a_function_per_sample_gets_what_its_annotation_names(names: dict[str, Any]) -> None:
    step = PerSample(names["turned"])
    assert (step.sample_type, step.rng_by) == ("pillow", "position")


def test_a_loader_may_be_a_subclass_with_such_an_argument(names: dict[str, Any]) -> None:
    with names["Own"](list(range(4)), 2, own=1) as loader:
        assert isinstance(loader, Loader)
        assert len(loader) == 2
    with pytest.raises(TypeError, match="batchsize"):
        names["Own"](list(range(4)), batchsize=2, own=1)
