"""Which datasets an object may read: the objects that it refers to are followed."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import CodeType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np

from fastio.packed.rows import Rows

_MOST_OBJECTS = 50_000  # that are followed
_MOST_ITEMS = 1_000  # of one list, tuple, set or dict
_LEAVES = (type, ModuleType, FrameType, str, bytes, int, float)


def datasets_inside(source: object) -> Iterator[Rows]:
    """Returns the datasets of fastio's that an object is, or refers to directly or indirectly.

    Attributes, items, closures, the variables of generators, and the global variables that a
    function or generator names are followed; classes, and thus methods, are not. The search ends
    after some thousand objects, so that it may miss a dataset. No code of the objects is run.
    """
    seen, waiting = {id(source)}, deque[Any]([source])
    while waiting:
        found = waiting.popleft()
        if _is_one(found, Rows):
            yield found
        for item in _referents(found):
            if len(seen) >= _MOST_OBJECTS:
                break
            if id(item) not in seen and not _is_one(item, *_LEAVES):
                seen.add(id(item))
                waiting.append(item)


def _is_one(item: object, *kinds: type) -> bool:
    """Returns whether an object is an instance of a class.

    isinstance would also call code of the object, such as a `__class__` that raises an error.
    """
    bases = type.__getattribute__(type(item), "__mro__")
    return any(base is kind for base in bases for kind in kinds)


def _referents(item: Any) -> Iterable[Any]:
    kind = type(item)
    if any(kind is each for each in (list, tuple, set, frozenset)):  # == would call a metaclass
        return islice(item, _MOST_ITEMS)
    if kind is dict:
        return islice(item.values(), _MOST_ITEMS)
    if kind is FunctionType:  # its other referents are all variables of its module
        own = (*(item.__closure__ or ()), *(item.__defaults__ or ()))
        return (*own, *_named(item.__code__, item.__globals__))
    if kind is GeneratorType:
        frame = item.gi_frame
        own = () if frame is None else tuple(frame.f_locals.values())
        return (*own, *(() if frame is None else _named(frame.f_code, frame.f_globals)))
    if kind is np.ndarray and item.dtype.hasobject:
        return islice(item.flat, _MOST_ITEMS)
    found = gc.get_referents(item)
    # The attributes of a list of a user's class may come before its items or after them.
    return found if len(found) <= 2 * _MOST_ITEMS else found[:_MOST_ITEMS] + found[-_MOST_ITEMS:]


def _named(code: CodeType, variables: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the global variables that the code of a function names."""
    return (variables[name] for name in code.co_names if name in variables)
