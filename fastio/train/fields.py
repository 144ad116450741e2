"""The fields of a dataset that a task reads: classes to predict, and columns of numbers and ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any

import torch
from torch import Tensor

import fastio

Groups = Mapping[str, Sequence[str]]
Numbering = Callable[[Any], Tensor]

_LISTED = 10  # names that an error lists
_BATCH_ROWS = 1 << 16
_MOMENT_BATCHES = 16  # means and deviations are those of the first million rows
_WHOLE = {torch.bool, torch.uint8, torch.int8, torch.int16}
_IN_FLOAT32 = {torch.float32, torch.float16, torch.bfloat16} | _WHOLE  # held without rounding


def schema_of(data: str, groups: Groups | None = None) -> fastio.Schema:
    """Returns the schema of a dataset."""
    with fastio.open(data, groups=groups) as dataset:
        schema: fastio.Schema = dataset.schema
        return schema


def listed(names: Iterable[Any], wanted: Any = None) -> str:
    """Returns names for an error message: the first ones, or those similar to a wanted name."""
    words = [str(name) for name in names]
    if len(words) <= _LISTED:
        return ", ".join(words)
    near = get_close_matches(str(wanted), words, _LISTED)
    return f"{', '.join(near or words[:_LISTED])}, ... ({len(words):,} in all)"


# --- Classes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labels:
    """The classes of a dataset: the values of a field, in the order of the class numbers.

    Attributes:
        field: The field.
        words: The vocabulary of the field. For strings and integers without one: all values that
            occur, in ascending order.
        data: The dataset from which the words were taken.
        numbered: Whether this dataset stores class numbers instead of words or values.
    """

    field: str
    words: tuple[Any, ...]
    data: str
    numbered: bool

    @classmethod
    def of(cls, data: str, field: str) -> Labels:
        """Returns the classes of a training dataset, which is read if it has no vocabulary.

        Raises:
            TrainError: The field is neither words nor integers, or has fewer than two values.
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
            data: The dataset whose batches are converted: `self.data`, or another one, which may
                have other numbers for the same words.
            device: The device of the batches.

        Returns:
            A transform for `fastio.Loader`; None if batches have these class numbers already.

        Raises:
            TrainError: The dataset has a class that is not among these.
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
        if vocabulary is not None:
            if vocabulary == self.words:
                return None
            table = torch.tensor([number[word] for word in vocabulary], device=device)
            return lambda numbers: table[numbers.long()]
        if isinstance(given[0], str):
            return lambda words: torch.tensor([number[word] for word in words], device=device)
        if self.words == tuple(range(len(self.words))):
            return None
        # The words are sorted integers, so that the place of a value is its number.
        values = torch.tensor(self.words, device=device)
        return lambda given: torch.searchsorted(values, given.long())

    def transforms(self, data: str, device: torch.device) -> dict[str, Any]:
        """Returns the transforms of a loader that `numbering` needs, by field."""
        numbering = self.numbering(data, device)
        return {} if numbering is None else {self.field: fastio.OnBatch(numbering)}


def _vocabulary(data: str, field: str) -> tuple[str, ...] | None:
    """Returns the values that the field's numbers stand for; None if it has no vocabulary.

    Raises:
        TrainError: There is no such field.
    """
    schema = schema_of(data)
    if field not in schema.fields:
        raise fastio.TrainError(
            f"{data} has no field {field!r}; its fields are {listed(schema.fields, field)}. "
            "Choose the field to predict, or pack it with the others"
        )
    names: tuple[str, ...] | None = schema.vocabularies.get(field)
    return schema.classes if names is None and field == schema.class_field else names


def _values(data: str, field: str) -> tuple[Any, ...]:
    """Returns all values of a field of strings or integers, in ascending order.

    Raises:
        TrainError: It has other values, or none.
    """
    found: set[Any] = set()
    with fastio.Loader(data, _BATCH_ROWS, fields=[field], rank=0, world_size=1) as loader:
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


# --- Columns --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """The fields of a table that are learned from, single columns or groups of columns.

    Attributes:
        dense, sparse: The name of each field of numbers, or of ids, and how many columns it has.
    """

    dense: Mapping[str, int]
    sparse: Mapping[str, int]

    @classmethod
    def of(
        cls,
        fields: Mapping[str, Any],
        label: str,
        dense: Sequence[str] | None,
        sparse: Sequence[str] | None,
    ) -> Columns:
        """Returns the named fields of a schema.

        With neither `dense` nor `sparse`, all fields but the label: a field "dense" and floats are
        numbers, a field "sparse" and integers are ids.

        Raises:
            TrainError: There are none, or one does not exist or has no numbers.
        """
        if dense is None and sparse is None:
            left = [name for name in fields if name != label]
            dense = [name for name in left if name == "dense" or _is_float(name, fields[name])]
            sparse = [name for name in left if name not in dense]
        for name in (label, *(dense or ()), *(sparse or ())):
            if name not in fields:
                raise fastio.TrainError(
                    f"there is no field {name!r}; the fields are {listed(fields, name)}"
                )
        if not dense and not sparse:
            raise fastio.TrainError(f"there is no field other than {label!r} to learn from")
        return cls(
            {name: _width(name, fields[name]) for name in dense or ()},
            {name: _width(name, fields[name]) for name in sparse or ()},
        )

    def numbers(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the numbers of a batch, float32 (N, columns), or float64 if a field has wider
        numbers.
        """
        exact = all(batch[name].dtype in _IN_FLOAT32 for name in self.dense)
        return _side_by_side(batch, self.dense, torch.float32 if exact else torch.float64)

    def ids(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the ids of a batch, int64 (N, columns)."""
        return _side_by_side(batch, self.sparse, torch.int64)


def moments(
    data: Any, fields: Iterable[str], values: Callable[[Any], Tensor]
) -> tuple[Tensor, Tensor]:
    """Returns mean and standard deviation of columns, float64 (columns,), of the first million
    rows.

    NaN and infinity are left out; where all numbers are the same, the deviation is 1.

    Args:
        data: What `fastio.Loader` takes.
        fields: The fields that are read.
        values: A batch of them -> its numbers (N, columns).
    """
    count = mean = square = torch.zeros((), dtype=torch.float64)
    with fastio.Loader(data, _BATCH_ROWS, fields=list(fields), rank=0, world_size=1) as loader:
        for batch in islice(loader, _MOMENT_BATCHES):
            numbers = values(batch).double()
            finite = numbers.isfinite()
            added = finite.sum(0)
            own = numbers.where(finite, 0.0).sum(0) / added.clamp(min=1)
            # As Chan, Golub and LeVeque add up parts (1983): points in time have a mean that is
            # large beside their deviation, which a difference of squares would lose.
            shift, both = own - mean, (count + added).clamp(min=1)
            square = square + (numbers - own).where(finite, 0.0).square().sum(0)
            square = square + shift.square() * count * added / both
            mean = mean + shift * added / both
            count = count + added
    deviation = (square / count.clamp(min=1)).sqrt()
    differ = deviation > 1e-12 * mean.abs()  # and not by rounding alone
    return mean, deviation.where(differ, 1.0)


def _side_by_side(
    batch: Mapping[str, Tensor], fields: Mapping[str, int], dtype: torch.dtype
) -> Tensor:
    parts = [batch[name].to(dtype) for name in fields]
    parts = [part.unsqueeze(1) if part.ndim == 1 else part for part in parts]
    if len(parts) == 1:
        return parts[0]
    if not parts:
        some = next(iter(batch.values()))
        return torch.zeros((len(some), 0), dtype=dtype, device=some.device)
    return torch.cat(parts, dim=1)


def _width(name: str, kind: Any) -> int:
    """Returns the number of columns of a field.

    Raises:
        TrainError: It has no numbers, or not one row of them.
    """
    if isinstance(kind, fastio.Scalar):
        return 1
    if isinstance(kind, fastio.Array) and kind.shape is not None and len(kind.shape) == 1:
        width = kind.shape[0]
        if width is not None and not kind.dtype.startswith("complex"):
            return width
    raise fastio.TrainError(
        f"the field {name!r} is {kind!r}, which is neither a number nor a group of numbers: "
        "choose the input fields with dense and sparse, or pack only the columns that are "
        "needed (--columns)"
    )


def _is_float(name: str, kind: Any) -> bool:
    _width(name, kind)
    return name != "sparse" and str(kind.dtype).startswith("float")
