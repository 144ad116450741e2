"""Recognises datasets and samplers that save and load a state of their own."""

from __future__ import annotations


def is_stateful(one: object) -> bool:
    """Returns whether an object has `state_dict` and `load_state_dict`, as torchdata's Stateful."""
    names = ("state_dict", "load_state_dict")
    return all(callable(getattr(one, name, None)) for name in names)
