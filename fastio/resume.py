"""Where a loader stands, and the small dictionary that puts another loader there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fastio.errors import StateMismatch

STATE_VERSION = 1


@dataclass(frozen=True)
class Cursor:
    """A place in the run over a dataset.

    Attributes:
        epoch: from 0.
        position: samples of the epoch's global order that were handed out, over all ranks. For a
            dataset that iterates, whose samples cannot be counted: batches handed out.
        seed: of the augmentations and the order.
        order_seed: of this epoch's order instead, where a generator drew it.
    """

    epoch: int
    position: int
    seed: int
    order_seed: int | None = None


def to_state(cursor: Cursor, *, fingerprint: str, order: str) -> dict[str, Any]:
    """The cursor as a dictionary of JSON values, a few hundred bytes.

    Args:
        cursor: where the loader stands.
        fingerprint: of the dataset.
        order: the kind of order that the position counts in.
    """
    return {
        "version": STATE_VERSION,
        "fingerprint": fingerprint,
        "order": order,
        **asdict(cursor),
    }


def from_state(state: Mapping[str, Any], *, fingerprint: str, order: str) -> Cursor:
    """The cursor that `to_state` wrote, for a loader of the same dataset and kind of order.

    Raises:
        StateMismatch: the state has another version, dataset or kind of order, or is no state.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        raise StateMismatch(f"not the state of a fastio loader: {str(state)[:200]}")
    _same("version", state["version"], STATE_VERSION, "was saved by another version of fastio")
    try:
        _same("fingerprint", state["fingerprint"], fingerprint, "belongs to another dataset")
        _same("order", state["order"], order, "counts positions in another order")
        drawn = state["order_seed"]
        cursor = Cursor(
            int(state["epoch"]),
            int(state["position"]),
            int(state["seed"]),
            None if drawn is None else int(drawn),
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
