"""The parameters of functions that users have written, whatever their annotations are."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

_OPTIONS: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    from annotationlib import Format

    # Annotations are evaluated when they are asked for, which raises a NameError for names that are
    # imported for type checkers only.
    _OPTIONS["annotation_format"] = Format.STRING


def parameters(
    function: Callable[..., Any], *, follow_wrapped: bool = True
) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters of a function by their names. Annotations may be text.

    Args:
        function: the function.
        follow_wrapped: whether a function made with `functools.wraps` has the parameters of the
            function that it wraps.

    Raises:
        TypeError, ValueError: They are not known, as for some built-in functions.
    """
    return inspect.signature(function, follow_wrapped=follow_wrapped, **_OPTIONS).parameters
