"""Converts labels of any kind to class numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

import fastio

_LISTED = 10  # names that an error lists

Numbering = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Labels:
    """The classes of a dataset: the values of a field, in the order of the class numbers.

    Attributes:
        field: the field.
        words: its vocabulary; of strings and integers without one, all values that there are, in
            ascending order.
        data: the dataset that they come from.
        numbered: whether that has their numbers rather than words or values.
    """

    field: str
    words: tuple[Any, ...]
    data: str
    numbered: bool

    @classmethod
    def of(cls, data: str, field: str) -> Labels:
        """Returns the classes of a training dataset, which is read if it has no vocabulary.

        Raises:
            TrainError: the field is neither words nor integers, says always the same, or nothing.
        """
        vocabulary = _vocabulary(data, field)
        words = vocabulary or _values(data, field)
        if len(words) < 2:
            raise fastio.TrainError(
                f"{data}: {field!r} has the value {words[0]!r} in every row: there is nothing "
                "to learn"
            )
        return cls(field, words, data, vocabulary is not None)

    def numbering(self, data: str, device: torch.device) -> Numbering | None:
        """Returns a function that converts the field's batches to class numbers, int64 (n,) on a
        device.

        Args:
            data: the dataset that the words come from, or another one, which may number the same
                words otherwise.
            device: where the batches are.

        Returns:
            A transform for `fastio.Loader`; None where batches have the numbers already.

        Raises:
            TrainError: the dataset has a class that is not among these.
        """
        if data == self.data:  # it is not read again
            vocabulary, given = self.words if self.numbered else None, self.words
        else:
            vocabulary = _vocabulary(data, self.field)
            given = vocabulary or _values(data, self.field)
        number = {word: n for n, word in enumerate(self.words)}
        unknown = [word for word in given if word not in number]
        if unknown:
            raise fastio.TrainError(
                f"{data}: {self.field!r} has the value {unknown[0]!r}, which is not a class of "
                f"the training data. Its classes are {listed(self.words, unknown[0])}"
            )
        if isinstance(given[0], str) and vocabulary is None:
            return lambda words: torch.tensor([number[word] for word in words], device=device)
        if vocabulary is None:
            if self.words == tuple(range(len(self.words))):
                return None
            values = torch.tensor(self.words, device=device)
            return lambda given: torch.searchsorted(values, given.long())
        if vocabulary == self.words:
            return None
        table = torch.tensor([number[word] for word in vocabulary], device=device)
        return lambda numbers: table[numbers.long()]


def _vocabulary(data: str, field: str) -> tuple[str, ...] | None:
    """Returns the values that the field's numbers stand for; None if it has no vocabulary.

    Raises:
        TrainError: there is no such field.
    """
    with fastio.Loader(data) as loader:
        schema = loader.dataset.schema
    if field not in schema.fields:
        raise fastio.TrainError(
            f"{data} has no field {field!r}; its fields are {listed(schema.fields, field)}. "
            "Choose the field to predict, or pack it with the others"
        )
    names: tuple[str, ...] | None = schema.vocabularies.get(field)
    return schema.classes if names is None and field in ("label", "class") else names


def _values(data: str, field: str) -> tuple[Any, ...]:
    """Returns all values of a field of strings or integers, in ascending order.

    Raises:
        TrainError: it has others, or none.
    """
    found: set[Any] = set()
    with fastio.Loader(data, 1 << 16, fields=[field], rank=0, world_size=1) as loader:
        for batch in loader:
            values = batch[field] if isinstance(batch, dict) else batch[0]
            if isinstance(values, Tensor):
                if values.ndim != 1 or values.is_floating_point():
                    raise fastio.TrainError(
                        f"{data}: {field!r} is {values.dtype} of shape (n, *{values.shape[1:]}); "
                        "classes are strings or integers"
                    )
                values = torch.unique(values).tolist()
            found.update(values)
    if not found:
        raise fastio.TrainError(f"{data} has no samples")
    return tuple(sorted(found))


def listed(names: Iterable[Any], wanted: Any = None) -> str:
    """Returns names for an error message: the first ones, or those similar to a wanted name."""
    words = [str(name) for name in names]
    if len(words) <= _LISTED:
        return ", ".join(words)
    near = get_close_matches(str(wanted), words, _LISTED)
    return f"{', '.join(near or words[:_LISTED])}, ... ({len(words):,} in all)"
