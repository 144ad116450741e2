"""Follows a user's sampler: its keys, from any position on, and its own state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from itertools import chain, islice
from typing import Any, Protocol

from fastio.errors import StateMismatch
from fastio.order.state import END, States
from fastio.sources.stateful import is_stateful

_SKIPPED = 1 << 16  # keys that are left out at a time
Skip = Callable[[Sequence[Any]], None]


class DrawnFrom(Protocol):
    """The generator from which a sampler draws its order when the first key is asked for."""

    @property
    def own(self) -> object:
        """The sampler's own generator; None for one that others draw from, too."""

    def state(self) -> dict[str, Any]:
        """Returns the present state."""

    def drawing_again(self, state: dict[str, Any] | None) -> AbstractContextManager[None]:
        """Returns a context in which the sampler draws from a saved state, if there is one."""


class Followed:
    """Iterates over a user's sampler, and saves and loads the sampler's own state if it has one.

    For torch's BatchSampler, the state of its inner sampler is saved: it draws no keys ahead.
    For a sampler that draws its order from a generator, the generator's state is saved instead.

    Args:
        sampler: sampler or batch sampler.
        states: contains the state to continue from; the state after each batch is recorded in it.
        generator_of: returns the generator of a sampler, or None if it has none.
        within: whether the run begins within an epoch.

    Attributes:
        keys: what iterating over the sampler yields.
        resumed: whether the sampler or its iterator continues from a state of its own.
    """

    def __init__(
        self,
        sampler: Any,
        states: States,
        generator_of: Callable[[object], DrawnFrom | None],
        within: bool,
    ) -> None:
        inner = _sampler_in(sampler)
        saved = (states.saved or {}).get("sampler")
        self._states, self._sampler = states, inner if is_stateful(inner) else None
        self._iterator: Any = None
        if saved is not None and saved["sampler"] is not None:
            _load(inner, saved["sampler"])
        self.keys: Iterator[Any] = iter(sampler)
        # A sampler may be its own iterator. Its state is then saved only once.
        if self.keys is not inner and is_stateful(self.keys):
            self._iterator = self.keys
        if saved is not None and saved["iterator"] is not None:
            _load(self.keys, saved["iterator"])
        self.resumed = saved is not None
        self._generator = generator_of(sampler) or generator_of(getattr(sampler, "sampler", None))
        if self._generator is not None:
            self.keys = _drawn(self.keys, self._generator, states, within)

    def note(self, position: float) -> None:
        """Records the present state as that of a position; at the end, without the iterator's."""
        if self._generator is not None and position == END:
            # The next epoch goes on with the sampler's own generator. From torch's it draws anew.
            drawn_from = None if self._generator.own is None else self._generator.state()
            self._states.note("generator", END, drawn_from)
        if self._sampler is None and self._iterator is None:
            return
        # At the end of an epoch, the state of the iterator is not needed: the next epoch has
        # another iterator.
        iterator = None if position == END else self._iterator
        state = {
            name: None if one is None else deepcopy(one.state_dict())
            for name, one in (("sampler", self._sampler), ("iterator", iterator))
        }
        self._states.note("sampler", position, state)


def _drawn(
    keys: Iterator[Any], generator: DrawnFrom, states: States, within: bool
) -> Iterator[Any]:
    """Yields the keys of a sampler that draws its order from a generator when it is asked first."""
    # Between two epochs, users may seed a generator of their own.
    again = (states.saved or {}).get("generator") if within or generator.own is None else None
    with generator.drawing_again(again):
        states.note("generator", 0, generator.state())
        first = list(islice(keys, 1))
    yield from chain(first, keys)


def _sampler_in(sampler: Any) -> Any:
    kind = type(sampler)
    plain = (kind.__module__, kind.__name__) == ("torch.utils.data.sampler", "BatchSampler")
    return sampler.sampler if plain else sampler


def _load(one: Any, state: Any) -> None:
    if not is_stateful(one):
        raise StateMismatch(
            f"the loader state contains the state of a sampler, but {type(one).__name__} has no "
            "load_state_dict: create the loader with the sampler that the state was saved with"
        )
    one.load_state_dict(deepcopy(state))


def chunks(keys: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    while batch := list(islice(keys, size)):
        if drop_last and len(batch) < size:
            return
        yield batch


def behind(keys: Iterator[Any], position: int, skip: Skip) -> Iterator[Any]:
    """Yields the keys after the first `position` ones."""
    while position > 0 and (left_out := list(islice(keys, min(position, _SKIPPED)))):
        skip(left_out)
        position -= len(left_out)
    yield from keys


def after(batches: Iterator[Any], position: int, skip: Skip) -> Iterator[Sequence[Any]]:
    """Yields the batches after the first ones, which have `position` keys in total."""
    done = 0
    for batch in batches:
        keys = batch if isinstance(batch, Sequence) else list(batch)
        if done >= position:
            yield keys
        else:
            skip(keys)
        done += len(keys)
