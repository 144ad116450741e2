"""Classes that users derive from those of datasets: what they define, and how they are pickled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def is_users(kind: type, name: str) -> bool:
    """Returns whether a method of a class of datasets is the user's, and not fastio's."""
    owner = next((base for base in kind.__mro__ if name in vars(base)), object)
    return owner is not object and not owner.__module__.startswith("fastio.")


def pickled(dataset: object, found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns how a dataset is pickled, so that the copy is of the user's class too.

    Most classes of datasets are pickled as a call that opens the data again, as fastio's class.

    Args:
        dataset: The dataset.
        found: What `__reduce__` of its class returned.

    Raises:
        TypeError: The user's class has an `__init__`, whose arguments are not known.
    """
    kind = type(dataset)
    ours = kind.__module__.startswith("fastio.") or kind.__reduce__ is object.__reduce__
    if ours or is_users(kind, "__reduce__"):
        return found
    if is_users(kind, "__init__"):
        name = kind.__name__
        raise TypeError(
            f"cannot pickle {name}, whose __init__ has arguments that fastio does not know: define "
            f"__reduce__ in it, for example to return {name}, (path,)"
        )
    return _reopened, (kind, *found[:2]), *found[2:]


def _reopened(kind: type, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Opens a dataset again, as one of the user's class."""
    dataset = make(*arguments)
    dataset.__class__ = kind
    return dataset
