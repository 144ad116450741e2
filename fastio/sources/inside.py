"""Finds the datasets that an object refers to, and may therefore read."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import CodeType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np

from fastio.packed.rows import Rows

_MOST_OBJECTS = 50_000  # looked at in one search
_MOST_ITEMS = 1_000  # looked at in one list, tuple, set, dict or object array
_LEAVES = (type, ModuleType, FrameType, str, bytes, int, float)


def datasets_inside(source: object) -> Iterator[Rows]:
    """Yields fastio's datasets among an object and the objects that it refers to, at any depth.

    The search follows attributes, items, closures, default arguments, the variables of generators,
    and the global variables that a function or generator names; but not classes, and thus not
    their methods. It runs no code of the objects. It looks at a limited number of objects, and of
    items of each container, so it may miss a dataset.
    """
    # Breadth-first, so that objects near the source are visited before the limit of objects is
    # reached.
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
    """Returns whether an object is an instance of one of the classes, without running its code.

    isinstance would run the object's `__class__` property, which may raise an error.
    """
    bases = type.__getattribute__(type(item), "__mro__")
    return any(base is kind for base in bases for kind in kinds)


def _referents(item: Any) -> Iterable[Any]:
    """Returns the objects that an object refers to directly, without those not to be followed."""
    kind = type(item)
    if any(kind is each for each in (list, tuple, set, frozenset)):  # == may run their code
        return islice(item, _MOST_ITEMS)
    if kind is dict:
        return islice(item.values(), _MOST_ITEMS)
    if kind is FunctionType:  # gc would return all global variables of its module
        own = (*(item.__closure__ or ()), *(item.__defaults__ or ()))
        return (*own, *_named(item.__code__, item.__globals__))
    if kind is GeneratorType:
        frame = item.gi_frame
        own = () if frame is None else tuple(frame.f_locals.values())
        return (*own, *(() if frame is None else _named(frame.f_code, frame.f_globals)))
    if kind is np.ndarray and item.dtype.hasobject:
        return islice(item.flat, _MOST_ITEMS)
    found = gc.get_referents(item)
    # A subclass of list may have its attributes before or after its items.
    return found if len(found) <= 2 * _MOST_ITEMS else found[:_MOST_ITEMS] + found[-_MOST_ITEMS:]


def _named(code: CodeType, variables: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the global variables that the code of a function names."""
    return (variables[name] for name in code.co_names if name in variables)
