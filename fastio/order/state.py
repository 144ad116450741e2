"""The position of a loader, and the dictionary that is its state."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fastio.errors import StateMismatch

STATE_VERSION = 8
END = math.inf  # the position after the last batch of an epoch; its number may be unknown
OrderState = Mapping[str, int | str | None]  # what positions count in, see `Feed.order`


class States:
    """The states of the user's dataset and sampler after each batch of one run.

    States are recorded when a batch is drawn or loaded, which may be long before its delivery.

    Args:
        saved: the states with which the run begins, by name; None if no state was loaded.
    """

    def __init__(self, saved: dict[str, Any] | None = None) -> None:
        self.saved = saved
        self._noted: dict[str, deque[tuple[float, Any]]] = {}

    def note(self, name: str, position: float, state: Any) -> None:
        """Records a state, which holds from a position up to the position of the next one."""
        self._noted.setdefault(name, deque()).append((position, state))

    def reach(self, position: float) -> None:
        """Drops the states that are needed only for positions before this one."""
        for noted in self._noted.values():
            # The newest state at or before the position is kept: it holds until the next one.
            while len(noted) > 1 and noted[1][0] <= position:
                noted.popleft()

    def at(self, position: float) -> dict[str, Any]:
        """Returns the states by name at a position that is not before the last `reach`."""
        self.reach(position)
        noted = {name: each[0] for name, each in self._noted.items()}
        found = {name: state for name, (since, state) in noted.items() if since <= position}
        return {**(self.saved or {}), **found}


@dataclass(frozen=True)
class Cursor:
    """A position in the epochs over a dataset.

    Attributes:
        epoch: number of the epoch, from 0.
        position: number of samples of the epoch's global order that were delivered, over all ranks.
            For an iterable dataset, whose samples cannot be counted, the number of batches.
        seed: seed of the augmentations and the order; None if it is not drawn yet.
        order_seed: seed of this epoch's order, if a generator or torch's default one drew it.
        generator: state of the generator at the beginning of the epoch, as text.
        states: states of the user's dataset and sampler; None before the first run.
    """

    epoch: int
    position: int
    seed: int | None
    order_seed: int | None = None
    generator: str | None = None
    # Not compared: two cursors are equal if they deliver the same rows. States may also be objects
    # of the user's whose comparison fails or takes long.
    states: States | None = field(default=None, compare=False)

    def of_order(self) -> int:
        """Returns the seed of this epoch's order; 0 if none has been drawn yet."""
        return (self.seed or 0) if self.order_seed is None else self.order_seed

    @property
    def begun(self) -> bool:
        """Whether what torch's default generator draws at the epoch's beginning was drawn."""
        return self.order_seed is not None or (self.seed is not None and self.position > 0)

    @property
    def follows_torch(self) -> bool:
        """Whether torch's default generator drew the seeds, which are of this epoch alone."""
        return self.order_seed is not None and self.generator is None

    def decides(self, epoch: int) -> bool:
        """Returns whether the seed of an epoch is known here."""
        return self.seed is not None and (not self.follows_torch or self.epoch == epoch)

    def at_epoch(self, epoch: int) -> Cursor:
        """Returns the cursor at the beginning of another epoch."""
        # A seed that torch's default generator drew is valid for one epoch. The next one draws
        # again, as with DataLoader.
        return Cursor(epoch, 0, None if self.follows_torch else self.seed)

    def for_run(self) -> Cursor:
        """Returns the cursor for a run that begins here, with its own record of states."""
        return replace(self, states=States(None if self.states is None else self.states.saved))


def to_state(
    cursor: Cursor,
    *,
    fingerprint: str,
    order: OrderState,
    states: Mapping[str, Any],
    ended: bool = False,
) -> dict[str, Any]:
    """Returns the cursor as a dictionary of JSON values: about 200 bytes, 4 KB with a generator.

    Args:
        cursor: position of the loader.
        fingerprint: fingerprint of the dataset.
        order: the values on which the order of the positions depends.
        states: states of the user's dataset and sampler, which may be of any types and sizes.
        ended: whether no batch of the cursor's epoch follows.
    """
    return {
        "version": STATE_VERSION,
        "fingerprint": fingerprint,
        "order": dict(order),
        "epoch": cursor.epoch,
        "position": cursor.position,
        "ended": ended,
        "seed": cursor.seed,
        "order_seed": cursor.order_seed,
        "generator": cursor.generator,
        # torch.distributed.checkpoint would save each value of a dict under its own key, and load
        # only the keys that a new loader's state has. A tuple is one value.
        "stateful": (dict(states),) if states else None,
    }


def from_state(
    state: Mapping[str, Any],
    *,
    fingerprint: str,
    order: OrderState,
    earlier: Mapping[str, int] | None = None,
    rows: int = 0,
) -> Cursor:
    """Returns the cursor that `to_state` wrote, for a loader of the same dataset and kind of order.

    A state from between two epochs also fits a later version of its dataset, because none of the
    rows that follow are those of the older version. If no batch of its epoch followed, the position
    is the end of an epoch of the later version.

    Args:
        state: what `to_state` returned.
        fingerprint, order: those of the loader, as for `to_state`.
        earlier: the number of each earlier version of the dataset, by its fingerprint.
        rows: number of samples of an epoch of the loader's version.

    Raises:
        StateMismatch: the state has another version, dataset or kind of order, or is no state.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        raise StateMismatch(f"not the state of a fastio loader: {str(state)[:200]}")
    _same("version", state["version"], STATE_VERSION, "was saved by another version of fastio")
    try:
        version = (earlier or {}).get(state["fingerprint"])
        position = int(state["position"])
        # In the middle of an epoch, positions of the earlier version mean other rows in a dataset
        # with more of them. Before its first and after its last row they mean the same.
        if version is not None and state["ended"]:
            position = rows
        elif version is not None and position != 0:
            raise StateMismatch(
                f"the loader state was saved in an epoch of version {version} of this dataset, "
                "and the loader reads a newer version. To continue the epoch, create the loader "
                f"with fastio.open(path, version={version}); its state after the epoch can be "
                "loaded with the newer version. To read the new samples now, start an epoch "
                "without this state"
            )
        if version is None:
            _same("fingerprint", state["fingerprint"], fingerprint, "belongs to another dataset")
            _same("order", state["order"], dict(order), "counts positions in another order")
        seed, order_seed, generator = state["seed"], state["order_seed"], state["generator"]
        cursor = Cursor(
            int(state["epoch"]),
            position,
            None if seed is None else int(seed),
            None if order_seed is None else int(order_seed),
            None if generator is None else str(generator),
            States({} if state["stateful"] is None else dict(*state["stateful"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, StateMismatch):
            raise
        raise StateMismatch(f"the loader state is damaged: {error!r} in {dict(state)}") from error
    if cursor.epoch < 0 or cursor.position < 0:
        raise StateMismatch(f"the loader state is damaged: negative numbers in {dict(state)}")
    return cursor


def _same(key: str, saved: object, own: object, meaning: str) -> None:
    if saved != own:
        raise StateMismatch(
            f"the loader state {meaning}: its {key} is {saved!r}, this loader's is {own!r}"
        )
