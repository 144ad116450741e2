"""A property that is computed once for an object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):  # as in functools
    """Like `functools.cached_property`, but without a lock.

    In Python 3.10 and 3.11, that lock is shared by all objects of a class. A thread that computes
    the property of one object then delays threads that need the property of other objects, and a
    child that is forked meanwhile waits for the lock forever.

    If several threads ask for a value at the same time, each may compute it. All get the same one.

    Args:
        compute: The method that returns the value.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        # Later lookups find the value in the object's dictionary, and do not come here.
        found: T = instance.__dict__.setdefault(self._name, self._compute(instance))
        return found
