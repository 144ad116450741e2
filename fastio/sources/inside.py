"""Which datasets an object may read: the objects that it refers to are followed."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from types import FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

from fastio.packed.rows import Rows

_MOST_OBJECTS = 20_000  # that are followed
_MOST_ITEMS = 200  # of one list, tuple, set or dict
_LEAVES = (type, ModuleType, FrameType, str, bytes, int, float)


def datasets_inside(source: object) -> Iterator[Rows]:
    """Returns the datasets of fastio's that an object is, or refers to directly or indirectly.

    Attributes, items, closures, and the variables of generators are followed; global variables are
    not. The search ends after some thousand objects, so that it may miss a dataset.
    """
    seen, waiting = {id(source)}, deque([source])
    while waiting:
        found = waiting.popleft()
        if isinstance(found, Rows):
            yield found
        for item in _referents(found):
            if id(item) not in seen and not isinstance(item, _LEAVES) and len(seen) < _MOST_OBJECTS:
                seen.add(id(item))
                waiting.append(item)


def _referents(item: Any) -> Iterable[Any]:
    kind = type(item)
    if kind in (list, tuple, set, frozenset):
        return islice(item, _MOST_ITEMS)
    if kind is dict:
        return islice(item.values(), _MOST_ITEMS)
    if kind is FunctionType:  # its other referents are the variables of its module
        return (*(item.__closure__ or ()), *(item.__defaults__ or ()))
    if kind is GeneratorType:
        return () if item.gi_frame is None else tuple(item.gi_frame.f_locals.values())
    return gc.get_referents(item)
