"""The parameters of functions: of users' own, whatever their annotations are, and unknown names."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

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


def elsewhere(advice: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Has a function say what to do with an argument that it does not have.

    Args:
        advice: what to do, unless the name is nearly that of a parameter. {name} is the name.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        known = list(inspect.signature(function).parameters)

        @wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            for name in kwargs:
                if name in known:
                    continue
                like = get_close_matches(name, known, 1, 0.8)
                what = f"did you mean {like[0]}?" if like else advice.format(name=name)
                raise TypeError(f"{function.__name__}() has no argument {name}: {what}")
            return function(*args, **kwargs)

        return checked

    return decorate
